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


def time_of(topic: str, id_: int) -> int:
    """Return when a publication was stored: several at once, and never back."""
    return BEGIN_MS + 7 * ((id_ + crc32(topic.encode()) % 3) // 3)


def digest_of(topic: str, producer: str, counter: int) -> str:
    """Return the digest of a publication's properties, "" if it has none."""
    name = f"{producer} {topic} {counter}".encode()
    return blake2b(name, digest_size=8).hexdigest() if crc32(name) % MARKED_SHARE == 0 else ""


def dress(history: MadeHistory, rng: random.Random) -> None:
    """Let answers say times and properties, as if all of it were of level 4; some clients do not.

    What stands there is as it would be: whoever breaks ids or runs later breaks it, too.
    """
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
            end["times"] = _runs({id_: time_of(topic, id_) for id_, _ in brought})
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
def _(history: MadeHistory, rng: random.Random) -> bool:
    ends = [end for end in _timed(history, rng) if len(end["times"]) > 1]
    end = one(rng, ends)
    if end is None:
        return False
    end["times"][-1][2] = end["times"][0][2] - rng.randint(1, 9)
    return True


@breaks("two-times", "properties", "an id has one time", "time")
def _(history: MadeHistory, rng: random.Random) -> bool:
    ends = _timed(history, rng)
    said = {(end["topic"], run[0]): end for end in ends for run in end["times"]}
    again = [
        (end, run) for end in ends for run in end["times"] if said[end["topic"], run[0]] is not end
    ]
    found = one(rng, again)
    if found is None:
        return False
    found[1][2] += rng.randint(1, 9)
    return True


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
    chosen: tuple[Row, int] | None = one(rng, found)
    return chosen


@breaks("other-properties", "properties", "an id has one key and one set of headers", "content")
def _(history: MadeHistory, rng: random.Random) -> bool:
    found = _seen_again(history, rng)
    if found is None:
        return False
    end, place = found
    digests = end["properties"]
    end["properties"] = digests[: 16 * place] + "0123456789abcdef" + digests[16 * (place + 1) :]
    return True


@breaks(
    "properties-are-gone", "properties", "who is told an id's time is told what it has", "content"
)
def _(history: MadeHistory, rng: random.Random) -> bool:
    found = _seen_again(history, rng)
    if found is None:
        return False
    end, place = found
    del end["marked"][place]
    end["properties"] = end["properties"][: 16 * place] + end["properties"][16 * (place + 1) :]
    return True


@hides("properties-of-nobody", "there is a digest for each id that is marked")
def _(history: MadeHistory, rng: random.Random) -> bool:
    end = one(rng, [op.end for op in answers(history)])
    if end is None:
        return False
    end["marked"] = [*(end.get("marked") or ()), end["last_id"] + 1]
    return True


@hides("time-of-no-run", "a run of ids has a first one, a last one and their time")
def _(history: MadeHistory, rng: random.Random) -> bool:
    end = one(rng, [op.end for op in answers(history)])
    if end is None:
        return False
    first = end["first_id"]
    wrong = [first, first], [first, first - 1, 5], [0, first, 5], [first, first, 0]
    end["times"] = [rng.choice(wrong)]
    return True
