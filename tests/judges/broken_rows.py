"""Sabotage of what is there: rows of a legal history changed, doubled, moved or taken away.

What lives here: changes of answers that a judge must find, and rows that no recorder writes, with
which nothing can be proven any more. What must not: new operations (broken_scenes.py), damage of
files (broken_files.py).
"""

from __future__ import annotations

import itertools
import json
import random
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.judges.broker import runs_of
from tests.judges.history import RAW, MadeHistory, Row
from tests.judges.kinds import NoRoom, breaks, hides, need

Place = tuple[str, int]
DIGEST_DIGITS: Final = 16


@dataclass
class Op:
    """An operation: its rows."""

    invoke: Row
    end: Row | None = None

    @property
    def outcome(self) -> str:
        """ok, fail or info; info without an end."""
        return "info" if self.end is None else str(self.end["type"])


def operations(history: MadeHistory) -> list[Op]:
    """Return the operations, in the order of their invokes; not those of finished topics."""
    found: dict[tuple[str, int], Op] = {}
    for row in history.rows:
        if RAW in row or row["f"] not in ("put", "get", "sub", "unsub"):
            continue
        key = row["process"], row["op_id"]
        if row["type"] == "invoke":
            found[key] = Op(row)
        else:
            found[key].end = row
    return [op for op in found.values() if op.invoke["topic"] not in history.finished]


def answers(history: MadeHistory) -> list[Op]:
    """Return GETs that brought something, with names of who put it."""
    return [
        op
        for op in operations(history)
        if op.invoke["f"] == "get" and op.end is not None and op.end.get("items")
    ]


def singles(end: Row) -> list[tuple[int, Place]]:
    """Return what an answer brought, id by id."""
    return [
        (first_id + place, (producer, counter + place))
        for first_id, producer, counter, count in end["items"]
        for place in range(count)
    ]


def bring(end: Row, content: list[tuple[int, Place]]) -> None:
    """Let an answer bring something else, from its first id to its last one."""
    end["items"] = runs_of(dict(content))
    end["count"] = len(content)
    if content:
        end["first_id"], end["last_id"] = content[0][0], content[-1][0]
        _say_nothing_of_others(end)
        return
    for name in ("items", "first_id", "last_id"):
        del end[name]
    for name in ("times", "marked", "properties"):
        end.pop(name, None)


def _say_nothing_of_others(end: Row) -> None:
    """Let an answer say nothing of ids below its first one or above its last one."""
    first, last = end["first_id"], end["last_id"]
    if "times" in end:
        within = ((max(low, first), min(high, last), at_ms) for low, high, at_ms in end["times"])
        end["times"] = [[low, high, at_ms] for low, high, at_ms in within if low <= high]
    if "marked" in end:
        digests = textwrap.wrap(end["properties"], DIGEST_DIGITS)
        marked = zip(end["marked"], digests, strict=True)
        said = {id_: digest for id_, digest in marked if first <= id_ <= last}
        end |= {"marked": list(said), "properties": "".join(said.values())}


def acknowledged(history: MadeHistory) -> list[Op]:
    """Return PUTs that were acknowledged with ids."""
    return [
        op
        for op in operations(history)
        if op.invoke["f"] == "put" and op.outcome == "ok" and op.end and op.end["first_id"]
    ]


def one(rng: random.Random, among: list[Any]) -> Any:
    """Return one of them. Raises NoRoom if there is none."""
    need(among)
    return rng.choice(among)


def plain_subscribers(history: MadeHistory) -> Iterator[tuple[str, str, int]]:
    """Yield (client, topic, start) of who subscribed once, was answered, and never left."""
    controls = defaultdict(list)
    for op in operations(history):
        if op.invoke["f"] in ("sub", "unsub") and op.outcome != "fail":
            controls[op.invoke["client_id"], op.invoke["topic"]].append(op)
    for (client, topic), ops in controls.items():
        if all(op.invoke["f"] == "sub" for op in ops):
            starts = [op.end["last_id"] for op in ops if op.outcome == "ok" and op.end]
            if starts:
                yield client, topic, min(starts)


def deliveries(history: MadeHistory, client: str, topic: str) -> list[Op]:
    """Return the answers that brought a client something of a topic."""
    return [
        op
        for op in answers(history)
        if op.end and (op.invoke["client_id"], op.end["topic"]) == (client, topic)
    ]


# --- answers -------------------------------------------------------------------------------------


@breaks("id-never-brought", "lost", "what is owed is given: any id, anywhere in a run")
def id_never_brought(history: MadeHistory, rng: random.Random) -> None:
    """Take an acknowledged id out of all answers to a subscriber who went past it."""
    candidates = []
    placed = {id_ for op in acknowledged(history) for id_ in ids_of(op)}
    for client, topic, start in plain_subscribers(history):
        given = {id_ for op in deliveries(history, client, topic) for id_, _ in singles(op.end)}
        last_id = max(given, default=0)
        fit = [id_ for id_ in given if start < id_ < last_id and (topic, id_) in placed]
        candidates += [(client, topic, id_) for id_ in fit]
    chosen = one(rng, sorted(candidates))
    client, topic, id_ = chosen
    for op in deliveries(history, client, topic):
        bring(op.end, [item for item in singles(op.end) if item[0] != id_])


def ids_of(op: Op) -> list[tuple[str, int]]:
    """Return the places that an acknowledgment gives."""
    assert op.end is not None
    return [(op.invoke["topic"], id_) for id_ in range(op.end["first_id"], op.end["last_id"] + 1)]


@breaks("other-content", "inconsistent_id", "all answers agree on what stands under an id")
def other_content(history: MadeHistory, rng: random.Random) -> None:
    """Give one subscriber another publication under an id that is known."""
    placed = {id_ for op in acknowledged(history) for id_ in ids_of(op)}
    tried = {
        (op.invoke["topic"], op.invoke["client_id"], op.invoke["counter"])
        for op in operations(history)
        if op.invoke["f"] == "put"
    }
    candidates = []
    for op in answers(history):
        for number, (id_, place) in enumerate(singles(op.end)):
            others = [
                (who, counter)
                for topic, who, counter in sorted(tried)
                if topic == op.end["topic"] and (who, counter) != place
            ]
            if (op.end["topic"], id_) in placed and others:
                candidates.append((op, number, others))
    chosen = one(rng, candidates)
    op, number, others = chosen
    content = singles(op.end)
    content[number] = (content[number][0], rng.choice(others))
    bring(op.end, content)


@breaks("hole-in-an-answer", "gap", "ids of an answer follow one another: anywhere in a run")
def hole_in_an_answer(history: MadeHistory, rng: random.Random) -> None:
    long = [op for op in answers(history) if op.end["count"] >= 3]
    op = one(rng, long)
    content = singles(op.end)
    del content[rng.randint(1, len(content) - 2)]
    bring(op.end, content)


@breaks("answer-without-its-first", "gap", "an answer begins with what follows its cursor")
def answer_without_its_first(history: MadeHistory, rng: random.Random) -> None:
    """The first id goes from an answer whose subscriber had nothing of it before.

    With a SUB under way this is no gap, for that may have begun anew (docs/checks.md, "Where an
    answer is due to begin"); what is missing is `lost` then.
    """
    fit = []
    for op in answers(history):
        content = singles(op.end)
        is_next = op.invoke.get("last_id") == content[0][0] - 1
        is_fit = is_next and len(content) >= 2 and not known_to(history, op, content[0][0])
        if is_fit and not may_begin_anew(history, op):
            fit.append(op)
    op = one(rng, fit)
    bring(op.end, singles(op.end)[1:])


def known_to(history: MadeHistory, op: Op, id_: int) -> bool:
    """Return whether another answer brought the same client that id."""
    own = deliveries(history, op.invoke["client_id"], op.end["topic"] if op.end else "")
    others = [one for one in own if one.end is not op.end]
    return any(id_ == other for one in others for other, _ in singles(one.end))


def may_begin_anew(history: MadeHistory, get: Op) -> bool:
    """Return whether a SUB of the GET's client and topic was not answered when the GET was sent, or
    began above what came: who sought back may have begun there.
    """
    assert get.end is not None, get
    return any(
        op.outcome == "info"
        or op.end["t_ns"] >= get.invoke["t_ns"]
        or (op.end.get("last_id") or 0) >= get.end["first_id"]
        for op in operations(history)
        if op.invoke["f"] == "sub" and op.invoke["t_ns"] <= get.end["t_ns"]
        if op.invoke["client_id"] == get.invoke["client_id"]
        if op.invoke["topic"] == get.end["topic"]
    )


@breaks("invented", "phantom", "what is given was put by somebody: anywhere in a run")
def invented(history: MadeHistory, rng: random.Random) -> None:
    op = one(rng, answers(history))
    content = singles(op.end)
    place = rng.randrange(len(content))
    id_, (producer, counter) = content[place]
    other = rng.choice(((producer, counter + 100_000), ("nobody", counter)))
    content[place] = (id_, other)
    bring(op.end, content)


@breaks("put-said-to-have-failed", "aborted_read", "what definitely failed is given to nobody")
def put_said_to_have_failed(history: MadeHistory, rng: random.Random) -> None:
    """Say of all tries of a publication that they failed, though it was given."""
    given = {(op.end["topic"], *place) for op in answers(history) for _, place in singles(op.end)}
    puts = [op for op in operations(history) if op.invoke["f"] == "put"]
    tries = defaultdict(list)
    for op in puts:
        for counter in range(op.invoke["counter"], op.invoke["counter"] + op.invoke["count"]):
            tries[op.invoke["topic"], op.invoke["client_id"], counter].append(op)
    chosen = one(rng, sorted(key for key in given if all(op.end for op in tries[key])))
    for op in tries[chosen]:
        for name in ("first_id", "last_id", "duplicate"):
            op.end.pop(name, None)
        op.end |= {"type": "fail", "error": "backlog_full"}


@breaks("acknowledged-elsewhere", "inconsistent_id", "acknowledgments and answers agree on an id")
def acknowledged_elsewhere(history: MadeHistory, rng: random.Random) -> None:
    """Acknowledge a publication under an id that another one has."""
    places = {}
    for op in answers(history):
        places.update({(op.end["topic"], id_): place for id_, place in singles(op.end)})
    candidates = []
    for op in acknowledged(history):
        own = (op.invoke["client_id"], op.invoke["counter"])
        others = [id_ for (topic, id_), place in places.items() if topic == op.invoke["topic"]]
        fit = [id_ for id_ in others if places[op.invoke["topic"], id_] != own]
        if op.invoke["count"] == 1 and fit:
            candidates.append((op, fit))
    chosen = one(rng, candidates)
    op, fit = chosen
    op.end["first_id"] = op.end["last_id"] = id_ = rng.choice(fit)
    for name in {"marked", "keyed"} & op.end.keys():
        op.end[name] = [id_]
    if "expires" in op.end:
        op.end["expires"] = [[id_, id_, op.end["expires"][0][2]]]


@breaks("broken-on-the-way", "corrupt", "a payload is what was put: anywhere in a run")
def broken_on_the_way(history: MadeHistory, rng: random.Random) -> None:
    op = one(rng, answers(history))
    content = singles(op.end)
    place = rng.randrange(len(content))
    first_id, last_id, count = (op.end[name] for name in ("first_id", "last_id", "count"))
    bad_id, _ = content.pop(place)
    op.end["items"] = runs_of(dict(content))
    op.end["corrupt"] = [[bad_id, "checksum"]]
    op.end |= {"first_id": first_id, "last_id": last_id, "count": count}


@breaks("over-the-limit", "subscription", "an answer brings no more than was asked for", "limit")
def over_the_limit(history: MadeHistory, rng: random.Random) -> None:
    fit = [op for op in answers(history) if "max_count" in op.invoke and op.end["count"] > 1]
    op = one(rng, fit)
    op.invoke["max_count"] = rng.randint(1, op.end["count"] - 1)
    if "max_count" in op.end:
        op.end["max_count"] = op.invoke["max_count"]


@breaks("another-node-led", "leaders_per_term", "a term has one leader: anywhere in a run")
def another_node_led(history: MadeHistory, rng: random.Random) -> None:
    ends = [op.end for op in operations(history) if op.outcome == "ok" and op.end]
    terms = defaultdict(list)
    for end in ends:
        if "term" in end:
            terms[end["term"]].append(end)
    fit = [ends for ends in terms.values() if len(ends) > 1]
    ends = one(rng, fit)
    ends[rng.randrange(len(ends))]["node"] = f"{ends[0]['node']}-2"


# --- lines that no recorder writes ----------------------------------------------------------------


def ends_of(history: MadeHistory, f: str, *named: str) -> list[Row]:
    """Return successful ends of a function that have all these fields."""
    ends = [op.end for op in operations(history) if op.invoke["f"] == f and op.outcome == "ok"]
    return [end for end in ends if end and all(end.get(name) for name in named)]


def of_answer(name: str, sentence: str) -> Callable[[Callable[[Row, random.Random], None]], None]:
    """Register a change of one answer that brought something, which makes its line malformed."""

    def register(change: Callable[[Row, random.Random], None]) -> None:
        def changed(history: MadeHistory, rng: random.Random) -> None:
            change(one(rng, ends_of(history, "get", "items")), rng)

        hides(name, sentence)(changed)

    return register


@of_answer("item-without-producer", "an item names its producer")
def _(end: Row, rng: random.Random) -> None:
    end["items"][rng.randrange(len(end["items"]))][1] = None


@of_answer("item-of-none", "an item has a count of 1 or more")
def _(end: Row, rng: random.Random) -> None:
    end["items"].append([end["last_id"] + 1, end["items"][0][1], 1, rng.choice((0, -1))])


@of_answer("item-at-id-0", "an item's id is 1 or more")
def _(end: Row, rng: random.Random) -> None:
    end["items"][0][0] = 0


@of_answer("item-of-counter-0", "an item's counter is 1 or more")
def _(end: Row, rng: random.Random) -> None:
    end["items"][0][2] = 0


@of_answer("item-of-three", "an item has four fields")
def _(end: Row, rng: random.Random) -> None:
    end["items"][0] = end["items"][0][:3]


@of_answer("count-unlike-items", "a GET's count is what its items bring")
def _(end: Row, rng: random.Random) -> None:
    end["count"] += rng.choice((1, 5))


@of_answer("null-in-an-item", "no field of an item is null")
def _(end: Row, rng: random.Random) -> None:
    end["items"][0][rng.choice((0, 2, 3))] = None


@hides("null-where-it-is-due", "what the checks rely on is not null")
def null_where_it_is_due(history: MadeHistory, rng: random.Random) -> None:
    """A null anywhere else is a field that was left out, as older recorders did: that is legal."""
    op = one(rng, operations(history))
    due = ("op_id", "t_ns", "type", "f", "client_id", "session", "topic", "run_id", "process")
    row = rng.choice([row for row in (op.invoke, op.end) if row is not None])
    place = next(n for n, other in enumerate(history.rows) if other is row)
    line = json.dumps({**row, rng.choice(due): None}).encode() + b"\n"
    history.rows[place] = {"process": row["process"], RAW: line}


@hides("ids-unlike-count", "a PUT's ids are as many as its count")
def ids_unlike_count(history: MadeHistory, rng: random.Random) -> None:
    end = one(rng, [op.end for op in acknowledged(history)])
    end["last_id"] += rng.choice((1, 2))


@hides("number-below-0", "no recorder writes a number below 0, or an id above 2^53")
def number_below_0(history: MadeHistory, rng: random.Random) -> None:
    """A time above 2^53 is none: that of a machine which is up for 105 days."""
    end = one(rng, ends_of(history, "put", "t_ns"))
    field = rng.choice(("first_id", "t_ns", "term"))
    end[field] = -1 if field == "t_ns" else rng.choice((-1, 2**53 + 1))


def ended(history: MadeHistory) -> list[Op]:
    """Return operations with both lines."""
    return [op for op in operations(history) if op.end is not None]


def behind(history: MadeHistory, row: Row, other: Row) -> None:
    """Write a row behind another one of the same process."""
    place = next(n for n, one in enumerate(history.rows) if one is row)
    history.rows.insert(place + 1, other)


def without(history: MadeHistory, *gone: Row) -> None:
    """Take rows away."""
    history.rows = [row for row in history.rows if not any(row is one for one in gone)]


@hides("second-end", "an operation has at most one end")
def second_end(history: MadeHistory, rng: random.Random) -> None:
    op = one(rng, ended(history))
    behind(history, op.end, dict(op.end))


@hides("contradicting-end", "two ends of an operation prove nothing")
def contradicting_end(history: MadeHistory, rng: random.Random) -> None:
    op = one(rng, [op for op in ended(history) if op.invoke["f"] == "put"])
    other = {**op.end, "type": rng.choice([one for one in ("fail", "info") if one != op.outcome])}
    for name in ("first_id", "last_id", "duplicate"):
        other.pop(name, None)
    behind(history, op.end, {**other, "error": "timeout"})


@hides("second-invoke", "an operation has one invoke")
def second_invoke(history: MadeHistory, rng: random.Random) -> None:
    op = one(rng, ended(history))
    behind(history, op.invoke, dict(op.invoke))


@hides("op-id-twice", "op_ids of a process go on without repeat")
def op_id_twice(history: MadeHistory, rng: random.Random) -> None:
    """Two operations of one process have one op_id."""
    ops = ended(history)
    rng.shuffle(ops)
    for op in ops:
        others = [o for o in ops if o is not op and o.invoke["process"] == op.invoke["process"]]
        if others:
            for row in (op.invoke, op.end):
                assert row is not None
                row["op_id"] = others[0].invoke["op_id"]
            return
    raise NoRoom


@hides("end-before-invoke", "an end stands behind its invoke")
def end_before_invoke(history: MadeHistory, rng: random.Random) -> None:
    op = one(rng, ended(history))
    end = op.end
    without(history, end)
    place = next(n for n, row in enumerate(history.rows) if row is op.invoke)
    history.rows.insert(place, end)


@hides("end-without-invoke", "no end is without its invoke")
def end_without_invoke(history: MadeHistory, rng: random.Random) -> None:
    op = one(rng, ended(history))
    without(history, op.invoke)


@hides("both-lines-gone", "op_ids of a process go on without a hole")
def both_lines_gone(history: MadeHistory, rng: random.Random) -> None:
    """Both lines of an operation are gone, not those of the last one of its file: see below.

    Truly unobservable: the last operations of a file, cut with both lines, in a history that
    nothing vouches for. Such a record is also that of a process that ended a moment sooner. It is
    why run.json has the number of lines and a digest (broken_files.py: cut-at-a-line).
    """
    last = {}
    for op in operations(history):
        last[op.invoke["process"]] = op.invoke["op_id"]
    singles_ = [row for row in history.rows if RAW not in row and row["type"] != "invoke"]
    for row in singles_:
        last[row["process"]] = max(last.get(row["process"], 0), row["op_id"])
    fit = [op for op in ended(history) if op.invoke["op_id"] < last[op.invoke["process"]]]
    op = one(rng, fit)
    without(history, op.invoke, op.end)


def disagreeing(name: str, field: str, other: object) -> None:
    """Register: an end that says something else than its invoke."""

    def change(history: MadeHistory, rng: random.Random) -> None:
        ops = [op for op in ended(history) if op.end and op.end.get(field) is not None]
        if field == "topic":  # a GET's answer names the topic that the reply named
            ops = [op for op in ops if op.invoke["f"] != "get"]
        op = one(rng, [op for op in ops if op.invoke.get(source(field)) is not None])
        value = op.end[field]
        op.end[field] = value + 1 if isinstance(value, int) else other

    hides(name, f"an end repeats its invoke's {field}")(change)


def source(field: str) -> str:
    """Return the field of an invoke that an end repeats under this name."""
    return {"invoke_ns": "t_ns", "asked": "last_id"}.get(field, field)


disagreeing("end-of-another-client", "client_id", "somebody-else")
disagreeing("end-of-another-session", "session", None)
disagreeing("end-of-another-topic", "topic", "elsewhere")
disagreeing("end-of-another-function", "f", "unsub2")
disagreeing("end-of-another-epoch", "epoch", None)
disagreeing("end-of-another-time", "invoke_ns", None)
disagreeing("end-of-another-cursor", "asked", None)


@hides("end-of-another-counter", "an end repeats its invoke's counter")
def end_of_another_counter(history: MadeHistory, rng: random.Random) -> None:
    ops = [op for op in ended(history) if op.end and op.end.get("counter") is not None]
    op = one(rng, ops)
    op.end["counter"] += rng.choice((1, 3))


@hides("line-of-another-run", "every line is of this run")
def line_of_another_run(history: MadeHistory, rng: random.Random) -> None:
    op = one(rng, operations(history))
    rng.choice([row for row in (op.invoke, op.end) if row])["run_id"] = "another"


@hides("torn-in-a-session", "a line is torn only at the end of a session")
def torn_in_a_session(history: MadeHistory, rng: random.Random) -> None:
    """A torn line, or its mark, between two lines of one session."""
    own = defaultdict(list)
    for row in history.rows:
        own[row["process"]].append(row)
    fit = [
        first
        for rows in own.values()
        for first, second in itertools.pairwise(rows)
        if RAW not in first and RAW not in second and first["session"] == second["session"]
    ]
    row = one(rng, fit)
    end = rng.choice((b"\x18\n", b"\n"))
    behind(history, row, {"process": row["process"], RAW: b'{"run_id":"run-' + end})


def broken_line(name: str, sentence: str, spoil: Callable[[bytes, random.Random], bytes]) -> None:
    """Register: one line is written in another way."""

    def change(history: MadeHistory, rng: random.Random) -> None:
        rows = [row for row in history.rows if RAW not in row]
        row = one(rng, [row for row in rows if row["f"] in ("put", "get")])
        place = next(n for n, other in enumerate(history.rows) if other is row)
        single = MadeHistory(history.run_id, rows=[row]).lines(row["process"])[0]
        raw = spoil(single, rng)
        history.rows[place] = {"process": row["process"], RAW: raw}

    hides(name, sentence)(change)


broken_line(
    "other-quotes",
    "a line is JSON, not what a lenient parser takes",
    lambda line, rng: line.replace(b'"', b"'"),
)
broken_line(
    "names-without-quotes",
    "names of a JSON object stand in quotes",
    lambda line, rng: line.replace(b'"run_id"', b"run_id").replace(b'"f"', b"f"),
)
broken_line(
    "not-a-number",
    "NaN is no JSON",
    lambda line, rng: line.rstrip(b"}\n") + b',"attempt":NaN}\n',
)
broken_line(
    "name-twice",
    "an object names a field once",
    lambda line, rng: line.rstrip(b"}\n") + b',"topic":"elsewhere"}\n',
)
broken_line(
    "words-behind",
    "nothing stands behind a line's object",
    lambda line, rng: line.rstrip(b"\n") + rng.choice((b" x\n", b"{}\n", b",\n")),
)
broken_line(
    "no-utf-8",
    "a line is UTF-8",
    lambda line, rng: line.replace(b'"f":', b'"error":"\xff\xfe","f":'),
)
broken_line("an-empty-line", "a line is an object", lambda line, rng: rng.choice((b"\n", b"[]\n")))
