"""What became of publications: delivered, stored, ordered, whole. No clock is read here but by
`lost` (`unstored`) and to sort what one client did.
"""

from collections import defaultdict
from itertools import groupby, pairwise
from operator import itemgetter

from analytics.twins.run import Evidence, Get, Handling, Key, Put, Run, digests_of


def lost(run: Run) -> list[Evidence]:
    """Twin of `anomalies.lost`."""
    acked: dict[str, dict[int, tuple[Key, str, int]]] = defaultdict(dict)
    for put in run.puts:
        for id_, counter in put.ids():
            proof = (put.key, put.producer, counter)
            acked[put.topic][id_] = min(proof, acked[put.topic].get(id_, proof))
    found = [*_unstored(run), *_unhanded(run)]
    for one in run.standing():
        owner = (one.client_id, one.topic)
        got = {id_ for get in run.gets if _owner(get) == owner for id_ in get.ids()}
        last_got = max(got, default=0)  # ids begin at 1
        for id_, (key, producer, counter) in acked[one.topic].items():
            is_tail = id_ > last_got
            if id_ <= one.start_id or id_ in got or (is_tail and owner not in run.drains):
                continue
            place = "tail" if is_tail else "prefix" if id_ < min(got) else "middle"
            why = (producer, counter, place, (key, one.made_by))
            found.append(Evidence(run.run_id, one.topic, one.client_id, id_, None, *why))
    return found


def _unstored(run: Run) -> list[Evidence]:
    return [
        Evidence(
            run.run_id,
            put.topic,
            one.client_id,
            producer=put.producer,
            counter=counter,
            detail="unstored",
            operations=(put.key, one.made_by),
        )
        for put in run.puts
        if put.outcome == "ok" and put.first_id == 0 and not put.duplicate
        for one in run.standing()
        if (one.topic, one.host) == (put.topic, put.host) and put.invoke_ns > one.begun_ns
        for counter in put.counters
    ]


def _unhanded(run: Run) -> list[Evidence]:
    found = []
    for one in run.standing():
        owner = (one.client_id, one.topic)
        gets = [get for get in run.gets if _owner(get) == owner]
        steps = [step for step in run.handlings if (step.client_id, step.topic) == owner]
        handed = {id_ for step in steps if step.f in ("hand", "ack") for id_ in step.ids}
        handed |= {id_ for get in gets if not get.handed_apart for id_ in get.ids()}
        cursors = [get.asked for get in gets if get.outcome == "ok"]
        cursors += [step.cursor for step in steps if step.f == "hand"]
        passed = max((cursor for cursor in cursors if cursor is not None), default=0)
        brought: dict[int, Key] = {}
        for get in gets:
            for id_ in get.ids() if get.handed_apart else ():
                brought[id_] = min(get.key, brought.get(id_, get.key))
        found += [
            Evidence(run.run_id, one.topic, one.client_id, id_, passed, None, None, *proof)
            for id_, key in brought.items()
            if one.start_id < id_ <= passed and id_ not in handed
            for proof in [("unhanded", (key,))]
        ]
    return found


def duplicate_stored(run: Run) -> list[Evidence]:
    """Twin of `anomalies.duplicate_stored`."""
    found = []
    for (topic, producer, counter), ids in _ids_of_counters(run).items():
        if len(ids) > 1:
            low, high = min(ids), max(ids)
            seen = (ids[low], ids[high])
            content = (producer, counter)
            found.append(Evidence(run.run_id, topic, None, low, high, *content, None, seen))
    return found


def _ids_of_counters(run: Run) -> dict[tuple[str, str, int], dict[int, Key]]:
    ids: dict[tuple[str, str, int], dict[int, Key]] = defaultdict(dict)
    for (topic, id_), contents in run.seen.items():
        for (producer, counter), key in contents.items():
            ids[topic, producer, counter][id_] = key
    return ids


def duplicate_delivered(run: Run) -> list[Evidence]:
    """Twin of `anomalies.duplicate_delivered`."""
    again: dict[tuple[str, str, int], list[tuple[Key, Key]]] = defaultdict(list)
    handed: dict[tuple[str, str, int], list[Get]] = defaultdict(list)
    for later in sorted(run.gets, key=lambda get: (get.invoke_ns, get.key)):
        owner, ids = _owner(later), later.ids()
        for id_, next_id in pairwise(ids):
            if id_ == next_id:
                again[*owner, id_].append((later.key, later.key))
        for id_ in set(ids):
            for earlier in handed[*owner, id_]:
                if _unasked(run, earlier, later, id_):
                    again[*owner, id_].append((earlier.key, later.key))
            handed[*owner, id_].append(later)
    for owner_and_id, pairs in _handed_again(run).items():
        again[owner_and_id] += pairs
    return [
        Evidence(run.run_id, topic, client_id, id_, operations=min(pairs))
        for (client_id, topic, id_), pairs in again.items()
        if pairs
    ]


def _handed_again(run: Run) -> dict[tuple[str, str, int], list[tuple[Key, Key]]]:
    hands: dict[tuple[str, str, int], list[Handling]] = defaultdict(list)
    for step in run.handlings:
        for id_ in step.ids if step.f == "hand" else ():
            hands[step.client_id, step.topic, id_].append(step)
    named = {get.client_id for get in run.gets if get.digests is not None}
    return {
        (client_id, topic, id_): [
            (earlier.key, later.key)
            for earlier in steps
            for later in steps
            if _is_before(earlier, later, client_id in named)
            and (
                _is_second(run, earlier, later, id_)
                or _is_acknowledged(run, later, id_, client_id in named)
            )
        ]
        for (client_id, topic, id_), steps in hands.items()
    }


def _is_before(earlier: Handling, later: Handling, is_application: bool) -> bool:
    if earlier.key[0] == later.key[0]:
        return earlier.key[1] < later.key[1]
    return is_application and earlier.host == later.host and earlier.t_ns < later.t_ns


def _is_second(run: Run, earlier: Handling, later: Handling, id_: int) -> bool:
    """Return whether nobody gave the id back in between, within one session."""
    if (earlier.key[0], earlier.session) != (later.key[0], later.session):
        return False
    return not any(
        step.f == "release"
        and id_ in step.ids
        and (step.client_id, step.topic) == (later.client_id, later.topic)
        and (step.key[0], step.session) == (later.key[0], later.session)
        and earlier.key[1] < step.key[1] < later.key[1]
        for step in run.handlings
    )


def _is_acknowledged(run: Run, later: Handling, id_: int, is_application: bool) -> bool:
    return any(
        step.f == "hand"
        and (step.client_id, step.topic) == (later.client_id, later.topic)
        and step.cursor is not None
        and step.cursor >= id_
        and _is_before(step, later, is_application)
        for step in run.handlings
    )


def _unasked(run: Run, earlier: Get, later: Get, id_: int) -> bool:
    if later.asked is None:
        return False
    if id_ <= later.asked or later.digests is not None:
        return id_ <= later.asked
    if earlier.session != later.session or earlier.asked is None or earlier.asked >= later.asked:
        return False
    return not any(
        _owner(get) == _owner(later)
        and get.outcome == "info"
        and get.key[0] == later.key[0]
        and earlier.key[1] <= get.key[1] <= later.key[1]
        for get in run.gets
    )


def inconsistent_id(run: Run) -> list[Evidence]:
    """Twin of `anomalies.inconsistent_id`."""
    found = []
    for (topic, id_), contents in run.seen.items():
        least, most = min(contents), max(contents)
        if least != most:
            seen = (contents[least], contents[most])
            other = f"{most[0]} {most[1]}"
            found.append(Evidence(run.run_id, topic, None, id_, None, *least, other, seen))
    return found + _differing(run)


def _differing(run: Run) -> list[Evidence]:
    seen: dict[tuple[str, int], set[tuple[str, Key]]] = defaultdict(set)
    for put in run.puts:
        first_id = put.first_id if put.ids() else None
        for id_, digest in digests_of(first_id, put.digests):
            seen[put.topic, id_].add((digest, put.key))
    for get in run.gets:
        for id_, digest in digests_of(get.sent_id, get.digests):
            seen[get.topic, id_].add((digest, get.key))
    found = []
    for (topic, id_), contents in seen.items():
        (least, by), (most, other_by) = min(contents), max(contents)
        if least != most:
            detail = f"contents {least[:8]} {most[:8]}"
            operations = (by, other_by)
            found.append(Evidence(run.run_id, topic, id=id_, detail=detail, operations=operations))
    return found


def gap(run: Run) -> list[Evidence]:
    """Twin of `anomalies.gap`."""
    found = []
    for get in run.gets:
        ids = get.ids()
        jumps = [(low, high) for low, high in pairwise(ids) if high > low + 1]
        bases = [base for base in (get.asked, get.had_id) if base is not None]
        if ids and bases:
            base = min(bases) if get.digests is None else max(bases)
            after = max([base, *_starts(run, get)])
            if ids[0] > after + 1:
                jumps.append((after, ids[0]))
        found += [
            Evidence(run.run_id, get.topic, get.client_id, high, low, operations=(get.key,))
            for low, high in jumps
        ]
    return found


def _starts(run: Run, get: Get) -> list[int]:
    return [
        one.start_id
        for one in run.subscriptions
        if (one.client_id, one.topic) == _owner(get) and one.begun_ns <= get.invoke_ns
    ]


def reordered(run: Run) -> list[Evidence]:
    """Twin of `anomalies.reordered`."""
    found = []
    for get in run.gets:
        ids = get.ids()
        back = [(ids[0], get.asked)] if ids and get.asked and ids[0] < get.asked else []
        ends = [(item[0], item[0] + item[3] - 1) for item in get.items]
        back += [(right[0], left[1]) for left, right in pairwise(ends) if right[0] < left[1]]
        seen = (get.key,)
        found += [
            Evidence(run.run_id, get.topic, get.client_id, *pair, None, None, "subscriber", seen)
            for pair in back
        ]
    return found + _along_counters(run)


def _along_counters(run: Run) -> list[Evidence]:
    stands: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for (topic, id_), contents in run.seen.items():
        for producer, counter in contents:
            stands[topic, producer].append((id_, counter))
    found = []
    for (topic, producer), places in stands.items():
        ahead, below = (-1, -1), set[int]()  # the highest counter so far, and all of them
        for id_, same in groupby(sorted(places), key=itemgetter(0)):
            counters = [counter for _, counter in same]
            late = [one for one in counters if one < ahead[0] and one not in below]
            found += [_overtaken(run, (topic, producer), (id_, one), ahead) for one in late]
            below.update(counters)
            ahead = max(ahead, (max(counters), id_))
    return found


def _overtaken(
    run: Run, producer: tuple[str, str], place: tuple[int, int], ahead: tuple[int, int]
) -> Evidence:
    (topic, name), (id_, counter), (high, low_id) = producer, place, ahead
    seen = (run.seen[topic, id_][name, counter], run.seen[topic, low_id][name, high])
    content = (name, counter, "producer", seen)
    return Evidence(run.run_id, topic, None, id_, low_id, *content)


def phantom(run: Run) -> list[Evidence]:
    """Twin of `anomalies.phantom`."""
    tried = {(put.topic, put.producer, counter) for put in run.puts for counter in put.counters}
    return [
        Evidence(run.run_id, topic, None, id_, None, *content, None, (key,))
        for (topic, id_), contents in run.seen.items()
        for content, key in contents.items()
        if (topic, *content) not in tried
    ]


def aborted_read(run: Run) -> list[Evidence]:
    """Twin of `anomalies.aborted_read`."""
    tries: dict[tuple[str, str, int], list[Put]] = defaultdict(list)
    for put in run.puts:
        for counter in put.counters:
            tries[put.topic, put.producer, counter].append(put)
    found = []
    for (topic, id_), contents in run.seen.items():
        for content, key in contents.items():
            puts = tries[topic, *content]
            if puts and all(put.outcome == "fail" for put in puts):
                proof = (min(put.key for put in puts), key)
                found.append(Evidence(run.run_id, topic, None, id_, None, *content, None, proof))
    return found


def corrupt(run: Run) -> list[Evidence]:
    """Twin of `anomalies.corrupt`."""
    return [
        Evidence(run.run_id, get.topic, get.client_id, id_, detail=reason, operations=(get.key,))
        for get in run.gets
        for id_, reason in get.corrupt
    ]


def _owner(get: Get) -> tuple[str, str]:
    return get.client_id, get.topic
