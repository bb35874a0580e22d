"""Times, keys and headers in made histories, and sabotage of them.

What lives here: what a cluster of feature level 4 has its clients record beside ids: by the id, and
by the publication, so that it is the same for all; and the changes that break that. What must not:
who reads what.
"""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import Final
from zlib import crc32

from tests.judges.broken_rows import answers, ends_of, one, operations, singles
from tests.judges.history import RAW, MadeHistory, Row
from tests.judges.kinds import breaks, hides

BEGIN_MS: Final = 1_700_000_000_000
MARKED_SHARE: Final = 3  # one in so many has properties


Stamps = dict[tuple[str, int], int]  # (topic, id) -> ms


def stamps_of(history: MadeHistory) -> Stamps:
    """Return when each publication may have been stored: a batch at once, and never back.

    That is when somebody first heard of it, or of one above it: by then it stood. Several moments
    are one.
    """
    known: dict[str, dict[int, int]] = {}  # topic -> id -> the first line that tells of it
    places: dict[tuple[str, str, int], int] = {}
    batches: list[tuple[str, str, range]] = []
    begun: dict[tuple[str, int], int] = {}  # (process, op_id) -> the first counter
    failed = {
        (row["process"], row["op_id"])
        for row in history.rows
        if RAW not in row and row["f"] == "put" and row["type"] == "fail"
    }
    for line, row in enumerate(history.rows):
        if RAW in row or row["f"] not in ("put", "get"):
            continue
        if row["f"] == "put" and row["type"] == "invoke":
            begun[row["process"], row["op_id"]] = row["counter"]
            counters = range(row["counter"], row["counter"] + row["count"])
            if (row["process"], row["op_id"]) not in failed:
                batches.append((row["client_id"], row["topic"], counters))
        elif row["f"] == "put" and row["type"] == "ok" and row.get("first_id"):
            for place in range(row["last_id"] + 1 - row["first_id"]):
                known.setdefault(row["topic"], {}).setdefault(row["first_id"] + place, line)
                counter = begun[row["process"], row["op_id"]] + place
                key = (row["client_id"], row["topic"], counter)
                places.setdefault(key, row["first_id"] + place)
        elif row["type"] == "ok" and row.get("items"):
            for id_, (producer, counter) in singles(row):
                known.setdefault(row["topic"], {}).setdefault(id_, line)
                places.setdefault((producer, row["topic"], counter), id_)
    stamps: Stamps = {}
    for topic, lines in known.items():
        latest = len(history.rows)
        for id_ in sorted(lines, reverse=True):
            latest = min(latest, lines[id_])
            stamps[topic, id_] = BEGIN_MS + 7 * (latest // 5)
    for client, topic, counters in batches:
        own = [places[key] for n in counters if (key := (client, topic, n)) in places]
        first = min((stamps[topic, id_] for id_ in own), default=0)
        stamps |= {(topic, id_): first for id_ in own}
    return stamps


def digest_of(topic: str, producer: str, counter: int) -> str:
    """Return the digest of a publication's properties, "" if it has none."""
    name = f"{producer} {topic} {counter}".encode()
    return blake2b(name, digest_size=8).hexdigest() if crc32(name) % MARKED_SHARE == 0 else ""


def dress(history: MadeHistory, rng: random.Random) -> None:
    """Let answers say times and properties, as if all of it were of level 4; some clients do not.

    What stands there is as it would be: whoever breaks ids or runs later breaks it, too.
    """
    stamps = stamps_of(history)
    old = {name for name in history.processes() if rng.random() < 0.2}
    for op in operations(history):
        end = op.end
        if end is None or RAW in end or op.outcome != "ok" or end["process"] in old:
            continue
        f, topic = op.invoke["f"], end.get("topic") or op.invoke["topic"]
        if f == "put" and end.get("first_id"):
            counters = range(op.invoke["count"])
            first, counter, own = end["first_id"], op.invoke["counter"], op.invoke["client_id"]
            _mark(end, {first + n: digest_of(topic, own, counter + n) for n in counters})
        elif f == "get" and end.get("items"):
            brought = singles(end)
            end["times"] = _runs({id_: stamps[topic, id_] for id_, _ in brought})
            _mark(end, {id_: digest_of(topic, *place) for id_, place in brought})


def _mark(end: Row, digests: dict[int, str]) -> None:
    marked = {id_: digest for id_, digest in digests.items() if digest}
    if marked:
        end |= {"marked": list(marked), "properties": "".join(marked.values())}


def _runs(times: dict[int, int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for id_, at_ms in sorted(times.items()):
        if runs and runs[-1][1:] == [id_ - 1, at_ms]:
            runs[-1][1] = id_
        else:
            runs.append([id_, id_, at_ms])
    return runs


def _timed(history: MadeHistory, rng: random.Random) -> list[Row]:
    """Return answers that say times; the history is dressed for it if none does."""
    if not ends_of(history, "get", "times"):
        dress(history, rng)
    return ends_of(history, "get", "times")


@breaks("time-goes-back", "properties", "a time is never smaller than one before it", "back")
def _(history: MadeHistory, rng: random.Random) -> None:
    ends = [end for end in _timed(history, rng) if len(end["times"]) > 1]
    end = one(rng, ends)
    end["times"][-1][2] = end["times"][0][2] - rng.randint(1, 9)


@breaks("batch-of-two-times", "properties", "a batch is stored at once", "batch")
def _(history: MadeHistory, rng: random.Random) -> None:
    firsts = {
        (op.invoke["topic"], op.end["first_id"]): op.invoke["count"]
        for op in operations(history)
        if op.invoke["f"] == "put" and op.end is not None and op.end.get("first_id")
    }
    inside = [
        (end, place)
        for end in _timed(history, rng)
        for place, (first, last, _) in enumerate(end["times"])
        if last > first and last < first + firsts.get((end["topic"], first), 1)
    ]
    found = one(rng, inside)
    end, place = found
    first, last, at_ms = end["times"][place]
    end["times"][place : place + 1] = [[first, last - 1, at_ms], [last, last, at_ms + 1]]


@breaks("behind-the-clock", "realtime_order", "no time is smaller than one that was known", "clock")
def _(history: MadeHistory, rng: random.Random) -> None:
    ends = _timed(history, rng)
    known: dict[str, int] = {}  # by host
    sent: dict[tuple[str, int], tuple[str, int]] = {}  # what is put first, and what was known then
    begun: dict[tuple[str, str, int], tuple[str, int]] = {}
    for row in history.rows:
        if RAW in row:
            continue
        host = row.get("host") or ""
        if row["f"] == "put":
            key = (row["client_id"], row["topic"], row.get("counter") or 0)
            if row["type"] == "invoke":
                begun[key] = "" if key in begun else host, known.get(host, 0)
            elif row["type"] == "ok" and row.get("first_id") and not row["duplicate"]:
                sent[row["topic"], row["first_id"]] = begun.get(key, ("", 0))
        elif any(row is end for end in ends):
            known[host] = max(known.get(host, 0), *(at_ms for *_, at_ms in row["times"]))
    found = one(
        rng,
        [
            (run, least)
            for end in ends
            for run in end["times"]
            for whose, least in [sent.get((end["topic"], run[0]), ("", 0))]
            if whose and least
        ],
    )
    found[0][2] = found[1] - rng.randint(1, 5)


@breaks("two-times", "properties", "an id has one time", "time")
def _(history: MadeHistory, rng: random.Random) -> None:
    ends = _timed(history, rng)
    said = {(end["topic"], run[0]): end for end in ends for run in end["times"]}
    again = [
        (end, run) for end in ends for run in end["times"] if said[end["topic"], run[0]] is not end
    ]
    found = one(rng, again)
    found[1][2] += rng.randint(1, 9)


def _seen_again(history: MadeHistory, rng: random.Random) -> tuple[Row, int] | None:
    """Return an answer that says properties of an id whose time another one says as well."""
    ends = _timed(history, rng)
    timed = [
        (end["topic"], id_, id(end))
        for end in ends
        for first, last, _ in end["times"]
        for id_ in range(first, last + 1)
    ]
    found = [
        (end, place)
        for end in ends
        for place, id_ in enumerate(end.get("marked") or ())
        if any(one[:2] == (end["topic"], id_) and one[2] != id(end) for one in timed)
    ]
    chosen: tuple[Row, int] = one(rng, found)
    return chosen


@breaks("other-properties", "properties", "an id has one key and one set of headers", "content")
def _(history: MadeHistory, rng: random.Random) -> None:
    end, place = _seen_again(history, rng)
    digests = end["properties"]
    end["properties"] = digests[: 16 * place] + "0123456789abcdef" + digests[16 * (place + 1) :]


@breaks(
    "properties-are-gone", "properties", "who is told an id's time is told what it has", "content"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    end, place = _seen_again(history, rng)
    del end["marked"][place]
    end["properties"] = end["properties"][: 16 * place] + end["properties"][16 * (place + 1) :]


@hides("properties-of-nobody", "there is a digest for each id that is marked")
def _(history: MadeHistory, rng: random.Random) -> None:
    end = one(rng, [op.end for op in answers(history)])
    end["marked"] = [*(end.get("marked") or ()), end["last_id"] + 1]


@hides("time-of-no-run", "a run of ids has a first one, a last one and their time")
def _(history: MadeHistory, rng: random.Random) -> None:
    end = one(rng, [op.end for op in answers(history)])
    first = end["first_id"]
    wrong = [first, first], [first, first - 1, 5], [0, first, 5], [first, first, 0]
    end["times"] = [rng.choice(wrong)]
