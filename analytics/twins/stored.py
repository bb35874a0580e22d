"""Checks of what stands where: one place a publication, one publication a place, whole batches.

What lives here: what follows from places and tries alone, and `torn_batch`. What must not: what a
subscriber is owed (owed.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from analytics.twins.record import Evidence, Letter, Publication, RecordedOperation
from analytics.twins.run import Run
from analytics.twins.standing import SubscribedSpan


def duplicate_stored(run: Run) -> Iterable[Evidence]:
    """Find publications that have two places, or none and were acknowledged once more."""
    at = run.knowledge.at
    found: set[Publication] = set()
    for publication, ids in run.knowledge.places.items():
        if len(ids) > 1:
            found.add(publication)
            producer, topic, counter = publication
            first, second = sorted(ids)[:2]
            witnesses = (at[topic, first][publication], at[topic, second][publication])
            fields = {"topic": topic, "producer": producer, "counter": counter}
            yield run.row(*witnesses, **fields, id=first, other_id=second)
    denied = {
        (put.client, put.topic, counter): None
        for put in run.of("put")
        if _is_said_to_be_nowhere(put) and put.client not in run.forgotten
        for counter in put.counters
    }
    for publication in denied:
        if publication not in found:
            yield from _acknowledged_once_more(run, publication)


def _acknowledged_once_more(run: Run, publication: Publication) -> Iterator[Evidence]:
    """Yield a row if an answer says that a publication is stored nowhere, and another one that it
    was taken then: with an id, or with none and not as a duplicate.
    """
    producer, topic, counter = publication
    tries = run.knowledge.tries[publication]
    pairs = [
        (own, other)
        for own in tries
        for other in tries
        if own is not other and _is_said_to_be_nowhere(own)
        if other.placed or _is_said_to_be_nowhere(other)
        if not run.is_application or (own.epoch is not None and own.epoch == other.epoch)
    ]
    places = [
        ((put.first_id or 0) + counter - put.counters[0], own, put)
        for own, put in pairs
        if put.placed
    ]
    fields = {"topic": topic, "producer": producer, "counter": counter}
    if places:
        id_, own, put = min(places, key=lambda one: one[0])
        yield run.row(own, put, **fields, id=id_, detail="nowhere")
    elif pairs:
        yield run.row(*pairs[0], **fields, detail="nowhere")


def inconsistent_id(run: Run) -> Iterable[Evidence]:
    """Find ids of two contents: by who put them, by dead letters, or by digests."""
    found: set[tuple[str, int]] = set()
    for (topic, id_), publications in run.knowledge.at.items():
        if len(publications) > 1:
            found.add((topic, id_))
            ((producer, _, counter), one), ((other, _, its), two), *_ = publications.items()
            fields = {"topic": topic, "id": id_, "producer": producer, "counter": counter}
            yield run.row(one, two, **fields, detail=f"{other} {its}")
    yield from _letters_apart(run, found)
    contents: dict[tuple[str, int], dict[str, RecordedOperation]] = defaultdict(dict)
    for operation in (*run.of("put"), *run.answers):
        if operation.is_ok:
            for id_, digest in operation.contents():
                topic = operation.named or operation.topic
                contents[topic, id_].setdefault(digest, operation)
    for (topic, id_), digests in contents.items():
        if len(digests) > 1 and (topic, id_) not in found:
            (digest, own), (another, its_own), *_ = digests.items()
            yield run.row(own, its_own, topic=topic, id=id_, detail=f"{digest} {another}")


def _letters_apart(run: Run, found: set[tuple[str, int]]) -> Iterator[Evidence]:
    """Yield the places of dead letters at which a publication stands, or another letter came, but
    for those in `found`; add them to it.
    """
    first: dict[tuple[str, int], tuple[Letter, RecordedOperation]] = {}
    for answer in (*run.answers, *run.of("take")):
        for letter in answer.letters:
            place = answer.named or answer.topic, letter.id
            earlier, its = first.setdefault(place, (letter, answer))
            standing = run.knowledge.at.get(place)
            if place in found or not (standing or earlier != letter):
                continue
            found.add(place)
            fields, detail = {"topic": place[0], "id": letter.id}, _words_of(letter)
            if standing:
                ((producer, _, counter), own), *_ = standing.items()
                whose = {"producer": producer, "counter": counter}
                yield run.row(own, answer, **fields, **whose, detail=detail)
            else:
                yield run.row(its, answer, **fields, detail=f"{_words_of(earlier)}, {detail}")


def _words_of(letter: Letter) -> str:
    return f"letter {letter.topic} {letter.group} {letter.from_id}"


def properties(run: Run) -> Iterable[Evidence]:
    """Find times that go back along ids, ids of two times or of two properties, and batches of
    two times.
    """
    ends: dict[str, dict[int, dict[int, RecordedOperation]]] = defaultdict(dict)
    said: dict[tuple[str, int], dict[str, RecordedOperation]] = defaultdict(dict)
    puts = (put for put in run.of("put") if put.is_ok)
    told = [*puts, *(answer for answer in run.answers if answer.brought)]
    for operation in told:
        topic = operation.named or operation.topic
        for first, last, at_ms in operation.times:
            for id_ in (first, last):
                ends[topic].setdefault(id_, {}).setdefault(at_ms, operation)
        for id_, digest in operation.properties.items():
            said[topic, id_].setdefault(digest, operation)
    for topic, by_id in ends.items():
        yield from _times(run, topic, by_id)
        yield from _of_batches(run, topic, by_id)
    _note_none(told, said)
    for (topic, id_), digests in said.items():
        if len(digests) > 1:
            (digest, one), (another, two), *_ = digests.items()
            detail = f"content {digest} {another}"
            yield run.row(one, two, topic=topic, id=id_, detail=detail)


def _of_batches(
    run: Run, topic: str, by_id: Mapping[int, Mapping[int, RecordedOperation]]
) -> Iterable[Evidence]:
    """Find batches of which two publications are said to have two times."""
    ids, found = sorted(by_id), set[int]()
    for put in run.stored_in.get(topic, ()):
        first = put.first_id or 0
        inside = ids[bisect_left(ids, first) : bisect_left(ids, first + put.count)]
        times = {at_ms: own for id_ in inside for at_ms, own in by_id[id_].items()}
        if put.count > 1 and len(times) > 1 and first not in found:
            found.add(first)
            least, most = min(times), max(times)
            detail = f"batch {least} {most}"
            yield run.row(times[least], times[most], put, topic=topic, id=first, detail=detail)


def _note_none(
    told: Iterable[RecordedOperation],
    said: Mapping[tuple[str, int], dict[str, RecordedOperation]],
) -> None:
    """Note who says the time of an id that has properties, and was given none."""
    marked: dict[str, list[int]] = defaultdict(list)
    for topic, id_ in sorted(said):
        marked[topic].append(id_)
    for operation in told:
        topic = operation.named or operation.topic
        ids = marked.get(topic, [])
        for first, last, _ in operation.times if ids else ():
            for id_ in ids[bisect_left(ids, first) : bisect_right(ids, last)]:
                if id_ not in operation.properties:
                    said[topic, id_].setdefault("", operation)


def _times(
    run: Run, topic: str, by_id: Mapping[int, Mapping[int, RecordedOperation]]
) -> Iterable[Evidence]:
    """Find what is wrong with the times at the ids at which runs begin or end."""
    latest_ms, latest_id = 0, 0
    for id_, times in sorted(by_id.items()):
        least_ms, most_ms = min(times), max(times)
        if least_ms != most_ms:
            detail = f"time {least_ms} {most_ms}"
            yield run.row(times[least_ms], times[most_ms], topic=topic, id=id_, detail=detail)
        if least_ms < latest_ms:
            fields = {"topic": topic, "id": id_, "other_id": latest_id}
            before = by_id[latest_id][latest_ms]
            detail = f"back {latest_ms} {least_ms}"
            yield run.row(before, times[least_ms], **fields, detail=detail)
        if most_ms > latest_ms:
            latest_ms, latest_id = most_ms, id_


def overtaken(run: Run) -> Iterable[Evidence]:
    """Find publications that stand above a later one of their producer (`reordered`).

    A second copy stands above many and is no violation of order: the first one counts.
    """
    by_producer: dict[tuple[str, str], list[int]] = defaultdict(list)
    for producer, topic, counter in run.knowledge.places:
        by_producer[producer, topic].append(counter)
    for (producer, topic), counters in by_producer.items():
        lowest: tuple[int, int] | None = None  # the lowest place of a later counter, and whose
        for counter in sorted(counters, reverse=True):
            publication = (producer, topic, counter)
            id_ = min(run.knowledge.places[publication])
            if lowest is not None and lowest[0] < id_:
                other_id, its = lowest
                one = run.knowledge.at[topic, id_][publication]
                two = run.knowledge.at[topic, other_id][producer, topic, its]
                fields = {"topic": topic, "producer": producer, "counter": counter}
                ids = {"id": id_, "other_id": other_id}
                yield run.row(one, two, **fields, **ids, detail="producer")
            if lowest is None or id_ < lowest[0]:
                lowest = (id_, counter)


# --- what nobody put ------------------------------------------------------------------------------


def _seen(run: Run) -> Iterator[tuple[Publication, int | None, RecordedOperation | None]]:
    """Yield what was given to somebody or is held by a node: (publication, id, GET), each once."""
    found: set[tuple[Publication, int | None]] = set()
    for get in run.answers:
        for id_, producer, counter in get.given:
            if producer is not None and counter is not None:
                sight = ((producer, get.named, counter), id_)
                if sight not in found:
                    found.add(sight)
                    yield *sight, get
    for row in run.truth:
        if row.get("kind") == "held":
            for place in range(row.get("count") or 1):
                publication = (row["producer"], row["topic"], row["first_counter"] + place)
                first_id = row.get("first_id")
                held = (publication, first_id + place if first_id else None)
                if held not in found:
                    found.add(held)
                    yield *held, None


def phantom(run: Run) -> Iterable[Evidence]:
    """Find publications that nobody ever tried to put: seen, or between two that were taken."""
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for publication, id_, get in _seen(run):
        if publication not in run.knowledge.tries:
            yield _sight(run, publication, id_, get)
            seen[publication[:2]].add(publication[2])
    for whose, (least, most) in _taken(run).items():
        before = least
        for counter in _counters(run)[whose]:
            hole = range(before + 1, counter)
            if least < hole.start and hole.stop <= most and hole and not seen[whose] & set(hole):
                yield _sight(run, (*whose, hole.start), None, *_taken_by(run, whose, hole))
            before = max(before, counter)
    for whose, taken in _taken_by_nodes(run).items():
        highest = max(_counters(run).get(whose, ()), default=None)
        if highest is None and not seen[whose]:
            yield _sight(run, (*whose, taken), None)
        elif highest is not None and highest < taken and max(seen[whose], default=0) <= highest:
            yield _sight(run, (*whose, highest + 1), None)


def _taken_by_nodes(run: Run) -> dict[tuple[str, str], int]:
    """Return up to which counter a node has taken each producer's, by producer and topic."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for row in run.truth:
        if row.get("kind") == "counter":
            whose = row["producer"], row["topic"]
            found[whose] = max(found[whose], row["counter"])
    return found


def _taken(run: Run) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the lowest and the highest counter that PUTs `ok` of each producer and topic hold."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for put in run.of("put"):
        if put.is_ok and put.counters:
            least, most = found.get((put.client, put.topic), (put.counters[0], put.counters[-1]))
            own = min(least, put.counters[0]), max(most, put.counters[-1])
            found[put.client, put.topic] = own
    return found


def _counters(run: Run) -> dict[tuple[str, str], list[int]]:
    """Return the counters that were tried, in order."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for producer, topic, counter in run.knowledge.tries:
        found[producer, topic].append(counter)
    return {whose: sorted(counters) for whose, counters in found.items()}


def _taken_by(run: Run, whose: tuple[str, str], hole: range) -> list[RecordedOperation]:
    """Return the first answered PUT behind counters of which nothing is known."""
    own = (
        put
        for put in run.of("put")
        if put.is_ok and (put.client, put.topic) == whose and put.counters[-1] >= hole.stop
    )
    return [min(own, key=lambda put: (put.counters[0], put.key))]


def aborted_read(run: Run) -> Iterable[Evidence]:
    """Find publications all of whose tries failed, or one of whose tries was answered that it is
    stored nowhere.
    """
    acknowledged = {
        ((put.client, put.topic, counter), (put.first_id or 0) + place)
        for put in run.of("put")
        if put.placed
        for place, counter in enumerate(put.counters)
    }
    seen: set[Publication] = set()
    for publication, id_, get in _seen(run):
        seen.add(publication)
        tries = run.knowledge.tries.get(publication, ())
        nowhere = next((put for put in tries if _is_said_to_be_nowhere(put)), None)
        if tries and not any(put.may_have_happened for put in tries):
            yield _sight(run, publication, id_, tries[0], get)
        elif nowhere and id_ is not None and (publication, id_) not in acknowledged:
            yield _sight(run, publication, id_, nowhere, get)
    taken, by_nodes = _taken(run), _taken_by_nodes(run)
    for publication, tries in run.knowledge.tries.items():
        producer, topic, counter = publication
        least, most = taken.get((producer, topic), (counter, 0))
        is_last = counter > most and by_nodes.get((producer, topic)) == counter
        is_taken = least < counter < most or is_last
        is_unseen = publication not in seen
        if is_taken and is_unseen and not any(put.may_have_happened for put in tries):
            yield _sight(run, publication, None, tries[0])


def _is_said_to_be_nowhere(put: RecordedOperation) -> bool:
    return put.is_ok and put.first_id == 0 and not put.is_duplicate


def future_read(run: Run) -> Iterable[Evidence]:
    """Find publications that were given before their first try."""
    found: set[tuple[Publication, int]] = set()
    for get in run.answers:
        for id_, producer, counter in get.given:
            if producer is None or counter is None:
                continue
            publication = (producer, get.named, counter)
            first = run.knowledge.first_try(publication)
            is_later = first is not None and first.host == get.host and first.time > get.end
            if is_later and (publication, id_) not in found:
                found.add((publication, id_))
                tries = run.knowledge.may_have_stored(publication)
                yield _sight(run, publication, id_, get, min(tries, key=lambda put: put.invoke))


def _sight(
    run: Run, publication: Publication, id_: int | None, *operations: RecordedOperation | None
) -> Evidence:
    producer, topic, counter = publication
    fields = {"topic": topic, "id": id_, "producer": producer, "counter": counter}
    return run.row(*operations, **fields)


# --- batches --------------------------------------------------------------------------------------


def torn_batch(run: Run) -> Iterable[Evidence]:
    """Find batches that were not stored as one."""
    batches = Batches(run)
    if not batches.are_any:
        return
    found = [*_split(run, batches), *_halves(run, batches)]
    yield from found
    yield from _half_taken(run, batches)
    pairs = {(row.topic, row.producer, row.counter) for row in found}
    for publication, ids in run.knowledge.places.items():
        for row in _beside_another(run, batches, publication, ids):
            if (row.topic, row.producer, row.counter) not in pairs:
                yield row


class Batches:
    """Which neighbouring counters every try held together."""

    def __init__(self, run: Run) -> None:
        self._firsts: set[Publication] = set()
        self._lasts: set[Publication] = set()
        self._inside: set[Publication] = set()  # not the last one of some try
        for put in run.of("put"):
            if put.may_have_happened and put.counters:
                counters, whose = put.counters, (put.client, put.topic)
                self._firsts.add((*whose, counters[0]))
                self._lasts.add((*whose, counters[-1]))
                self._inside.update((*whose, counter) for counter in counters[:-1])
        self.are_any = bool(self._inside)

    def are_bound(self, one: Publication, other: Publication) -> bool:
        """Whether `other` follows `one`, and every try of either held both."""
        assert other[2] == one[2] + 1, (one, other)
        is_together = one in self._inside
        return is_together and one not in self._lasts and other not in self._firsts


def _split(run: Run, batches: Batches) -> Iterator[Evidence]:
    places, at = run.knowledge.places, run.knowledge.at
    for publication, ids in places.items():
        producer, topic, counter = publication
        after = (producer, topic, counter + 1)
        its = places.get(after)
        if not its or not batches.are_bound(publication, after):
            continue
        if not any(id_ + 1 in its for id_ in ids):
            id_, other_id = min(ids), min(its)
            operations = (at[topic, id_][publication], at[topic, other_id][after])
            fields = {"topic": topic, "producer": producer, "counter": counter}
            yield run.row(*operations, **fields, id=id_, other_id=other_id, detail="split")


def _half_taken(run: Run, batches: Batches) -> Iterator[Evidence]:
    """Yield the counters at which a node has stopped, and that are bound to the next ones."""
    taken: dict[tuple[str, str, str], int] = {}
    for row in run.truth:
        if row.get("kind") == "counter":
            whose = (row["node"], row["producer"], row["topic"])
            taken[whose] = max(row["counter"], taken.get(whose, 0))
    torn: dict[Publication, str] = {}
    for (node, producer, topic), counter in sorted(taken.items()):
        lower = (producer, topic, counter)
        if batches.are_bound(lower, (producer, topic, counter + 1)):
            torn.setdefault(lower, node)
    for (producer, topic, counter), node in torn.items():
        fields = {"topic": topic, "producer": producer, "counter": counter}
        yield run.row(**fields, detail=f"taken {node}")


def _beside_another(
    run: Run, batches: Batches, publication: Publication, ids: set[int]
) -> Iterator[Evidence]:
    """Yield a bound pair of which one has a place, and something else stands where the other one
    belongs, which has none.
    """
    producer, topic, counter = publication
    for step in (1, -1):
        other = (producer, topic, counter + step)
        lower, upper = sorted((publication, other), key=lambda one: one[2])
        if other in run.knowledge.places or not batches.are_bound(lower, upper):
            continue
        at = {id_ + step: run.knowledge.at.get((topic, id_ + step)) for id_ in ids}
        for place, standing in sorted(at.items()):
            if standing and all(at.values()):
                seen = run.knowledge.at[topic, place - step][publication]
                fields = {"topic": topic, "producer": producer, "counter": other[2]}
                its = next(iter(standing.values()))
                yield run.row(seen, its, **fields, id=place, other_id=place - step, detail="split")


def _halves(run: Run, batches: Batches) -> Iterator[Evidence]:
    for life in run.standing.lives:
        for id_, producer, counter in sorted(_named_in(life)):
            topic = life.topic
            publication = (producer, topic, counter)
            before, after = (producer, topic, counter - 1), (producer, topic, counter + 1)
            if batches.are_bound(publication, after):
                yield from _half(run, life, publication, id_, after, id_ + 1)
            if batches.are_bound(before, publication):
                yield from _half(run, life, publication, id_, before, id_ - 1)


def _named_in(life: SubscribedSpan) -> set[tuple[int, str, int]]:
    """Return (id, producer, counter) of what GETs in a life's span gave by name."""
    return {
        (each.id, each.producer, each.counter)
        for get in life.gets
        for each in get.given
        if each.producer is not None and each.counter is not None
    }


def _half(
    run: Run, life: SubscribedSpan, given: Publication, id_: int, missing: Publication, place: int
) -> Iterator[Evidence]:
    """Yield a row if `missing`, due at `place` beside what stands at `id_`, was never given."""
    if life.start is None or place <= life.start:
        return
    producer, topic, counter = missing
    if (producer, counter) in life.named or place in life.nameless:
        return
    since = run.knowledge.known_since(topic, id_, life.host)
    has_drained = life.cut is not None and since < life.cut
    if life.passed >= place or has_drained:
        fields = {"topic": topic, "producer": producer, "counter": counter, "id": place}
        witness = run.knowledge.at[topic, id_][given]
        detail = f"half {life.client}"
        yield run.row(witness, life.proof, **fields, other_id=id_, detail=detail)
