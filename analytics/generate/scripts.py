"""Violations that are planted by a script each: a few operations in a topic of their own.

The scripts stand in scripts.txt. A step is who does something, what, and of what: `s get 0 p1`. `p`
publishes; `-` is nobody. `p1` is the first publication of `p`, under id 1, `5:q1` the first one of
`q` under id 5. `name=value` is a field of the operation, its value JSON or a word: `$t` is the
topic, `$f` the pattern, `$g` the group, `$a` a time and `$b` a later one. At the end everybody
leaves, and groups are settled. Works on plain dictionaries; Spark and a history's files are not
here.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from analytics.common.schema import LANE
from analytics.generate.operations import node_names
from analytics.generate.plants import (
    EXPIRED_NS,
    LAST_ID,
    MOMENT_NS,
    PLANTS,
    Operation,
    Plant,
    PlantedRow,
    Scene,
    TopicOwner,
    Victim,
)

SCRIPTS: Final = Path(__file__).with_name("scripts.txt")
PLACE: Final = re.compile(r"(?:(\d+):)?([a-z])(\d+)")  # of a publication
TEXTS: Final = frozenset({"start", "key"})  # fields that are text whatever they look like
KEY_DIGITS: Final = 16
MOST: Final = 9  # that a GET asks for
LATER_MS: Final = 5
ANY_OF_IT: Final = 2**53 - 1  # of a purge: what a policy that drops its oldest may have dropped


@dataclass(frozen=True, slots=True)
class PlantScript:
    """A plant in words. `rows`: its own, and those beside it, without their topic."""

    name: str
    options: Mapping[str, int]
    steps: tuple[str, ...]
    rows: tuple[PlantedRow, ...]

    def act(self, scene: Scene, victim: Victim) -> int | None:
        """Change the scene; return the id of its own row."""
        stage = ScriptStage(scene, victim, self.options)
        for step in self.steps:
            stage.step(step.split())
        stage.ends()
        own, *others = self.rows
        scene.besides += [one._replace(topic=stage.topic) for one in others]
        if self.options.get("elsewhere"):
            scene.topics[victim.place] = ""
        return own.id


def scripts(path: Path) -> Iterator[PlantScript]:
    """Yield the scripts of a file."""
    names: list[str] = []
    steps: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not line.startswith(" "):
            names, steps = text.split(), []
        elif text.startswith("-> "):
            name, *options = names
            rows = tuple(_row(row.split()) for row in text.removeprefix("-> ").split(", "))
            assert name.startswith(rows[0].check), name
            numbers = {key: int(number) for key, number in (one.split("=") for one in options)}
            yield PlantScript(name, numbers, tuple(steps), rows)
        else:
            steps += text.split("; ")


def _row(words: list[str]) -> PlantedRow:
    check, *rest = words
    id_ = int(rest.pop()) if rest and rest[-1].isdecimal() else None
    return PlantedRow(check, None, id_, rest[0] if rest else "")


class ScriptStage(TopicOwner):
    """Where a script is acted out: each step is a method of the name of what is done."""

    def __init__(self, scene: Scene, victim: Victim, options: Mapping[str, int]) -> None:
        ends = {name: options.get(name, LAST_ID) for name in ("floor_id", "last_id")}
        super().__init__(scene, victim, **ends)
        self._pattern = f"{self.topic}.*"
        if options.get("of_pattern"):
            self.moves_to(f"{self.topic}.a", **ends)
        self._standing: dict[tuple[str, str], dict[str, Any]] = {}  # of (who, topic): how it came
        self._group, self._workers = f"group-{self._place}", dict[str, None]()
        self._marks = {"$t": self.topic, "$f": self._pattern, "$g": self._group}
        self._marks |= {"$a": str(self.at_ms), "$b": str(self.at_ms + LATER_MS)}

    def step(self, words: list[str]) -> None:
        """Do one step of the script."""
        who, what, *of = words
        given = [one for one in of if "=" not in one]
        fields = dict(one.split("=", 1) for one in of if "=" in one)
        act: Callable[..., None] = getattr(self, f"on_{what}")
        act(who, *given, **{name: self._value(name, value) for name, value in fields.items()})

    def _value(self, name: str, text: str) -> Any:
        for mark, value in self._marks.items():
            text = text.replace(mark, value)
        if name in TEXTS:
            return text
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text

    def act(self, who: str, f: str, **fields: Any) -> Operation:
        """Add an operation of somebody. `at`: runs of times, in ms from the plant's own on;
        `since`: so many steps ago it began.
        """
        since = fields.pop("since", 0) * 2 * MOMENT_NS
        if "at" in fields:
            runs = fields.pop("at")
            fields["times"] = [[first, last, self.at_ms + ms] for first, last, ms in runs]
        if fields.get("outcome", "ok") != "ok":
            fields = {"node": None, "term": None} | fields
        process = fields.pop("process", "")
        process = f"{self._name(who)}{process}"
        done = self.does(f, process=process, client_id=self._name(who), **fields)
        done["invoke_ns"] -= since
        return done

    def _name(self, who: str) -> str:
        return self.client_id if who == "p" else f"{self.process}-{who}"

    def ends(self) -> None:
        """Let everybody leave, and say of each group that it is settled."""
        for who in self._workers:
            own = {"phase": "settled", "group": self._group, "outcome": "info"}
            self.act(who, "phase", **own)
        for (who, topic), session in self._standing.items():
            self.act(who, "unsub", topic=topic, **session)

    # --- subscribers ----------------------------------------------------------------------------

    def on_sub(self, who: str, last_id: str, **fields: Any) -> None:
        """Subscribe, anew and behind an id."""
        said = {"first_id": int(last_id), "resumed": False, **fields}
        if said.get("outcome", "ok") != "ok":
            said |= {"first_id": None, "resumed": None, "error": "timeout"}
        self.act(who, "sub", **said)
        stays = {name: fields[name] for name in ("session",) if name in fields}
        self._standing[who, fields.get("topic", self.topic)] = stays

    def on_again(self, who: str, cursor: str, **fields: Any) -> None:
        """Subscribe to what stands, and be told a cursor."""
        self.on_sub(who, cursor, resumed=True, cursor=int(cursor), **fields)

    def on_follow(self, who: str, **fields: Any) -> None:
        """Subscribe to the pattern."""
        self.on_sub(who, "0", topic=self._pattern, **fields)

    def on_unsub(self, who: str, **fields: Any) -> None:
        """Unsubscribe; whoever is not told whether that was done does it again at the end."""
        self.act(who, "unsub", **fields)
        if "outcome" not in fields:
            self._standing.pop((who, fields.get("topic", self.topic)), None)

    def on_stays(self, who: str) -> None:
        """Stay subscribed to the end of the history."""
        del self._standing[who, self.topic]

    def on_get(self, who: str, asked: str, *places: str, **fields: Any) -> None:
        """Be given publications, or nothing."""
        items = [self._place_of(place) for place in places]
        said: dict[str, Any] = {"asked": int(asked), "items": items, "most": MOST}
        if items:
            ids = [id_ for id_, *_ in items]
            said |= {"first_id": min(ids), "last_id": max(ids)}
        if "session" in fields and (who, self.topic) in self._standing:
            self._standing[who, self.topic] = {"session": fields["session"]}
        self.act(who, "get", **said, **fields)

    def on_any(self, who: str, **fields: Any) -> None:
        """Ask for any topic, and be told nothing."""
        self.act(who, "get", topic="", items=[], **fields)

    def on_came(self, who: str, asked: str, *places: str) -> None:
        """Be given what was put with a delay."""
        delayed = [self._place_of(place) for place in places]
        ids = {"first_id": delayed[0][0], "most": MOST}
        self.act(who, "get", asked=int(asked), delayed=delayed, items=[], **ids)

    def on_letter(self, who: str, asked: str, id_: str, *of: str, **fields: Any) -> None:
        """Be given a dead letter: of a topic, a group and an id there."""
        topic, group, from_id = of
        letter = (int(id_), self._value("", topic), self._value("", group), int(from_id))
        self.act(
            who, "get", asked=int(asked), first_id=int(id_), items=[], letters=[letter], **fields
        )

    def on_gone(self, who: str, asked: str, first: str, last: str, error: str) -> None:
        """Be told that ids are gone."""
        own = {"asked": int(asked), "first_id": int(first), "last_id": int(last)}
        self.act(who, "get", outcome="fail", error=error, **own)

    def on_refused(self, who: str, error: str, **fields: Any) -> None:
        """Be refused."""
        self.act(who, "get", outcome="fail", error=error, **fields)

    def on_hand(self, who: str, id_: str, cursor: str) -> None:
        """Be handed one, with that cursor stored."""
        own = {"outcome": "info", "phase": "steady", "first_id": int(id_), "last_id": int(id_)}
        self.act(who, "hand", cursor=int(cursor), **own)

    def on_drained(self, who: str, last_id: str) -> None:
        """Have drained the topic up to an id."""
        self.act(who, "phase", outcome="info", phase="drained", last_id=int(last_id))

    def _place_of(self, text: str) -> tuple[int, str, int, int]:
        matched = PLACE.fullmatch(text)
        assert matched is not None, text
        id_, who, counter = matched.groups()
        return int(id_ or counter), self._name(who), int(counter), 1

    # --- publishers, operators, disks -----------------------------------------------------------

    def on_put(self, who: str, counter: str, id_: str = "", **fields: Any) -> None:
        """Put one, or a batch; 0: nobody subscribes."""
        first_id = int(id_ or counter)
        said: dict[str, Any] = {"counter": int(counter), "first_id": first_id}
        if "count" in fields:
            said["last_id"] = first_id + fields["count"] - 1
        if key := fields.pop("key", ""):
            digest = KEY_DIGITS * key
            said |= {"marked": [first_id], "properties": digest}
            said |= {"keyed": [first_id], "keys": digest}
        self.act(who, "put", **said, **fields)

    def on_unclear(self, who: str, counter: str, **fields: Any) -> None:
        """Put, and never hear of it."""
        self.act(who, "put", counter=int(counter), outcome="info", error="timeout", **fields)

    def on_stands(self, who: str, counter: str, **fields: Any) -> None:
        """Put, and never hear of it; all disks have taken it."""
        self.on_unclear(who, counter, **fields)
        self.on_taken(who, str(int(counter) + fields.get("count", 1) - 1))

    def on_fails(self, who: str, counter: str, error: str = "electing", **fields: Any) -> None:
        """Put, and be refused."""
        self.act(who, "put", counter=int(counter), outcome="fail", error=error, **fields)

    def on_lane(self, who: str, counter: str, place: str, **fields: Any) -> None:
        """Put one with a delay."""
        own = {"counter": int(counter), "first_id": int(place), "delay_ms": self.DELAY_MS}
        self.act(who, "put", topic=f"{self.topic}{LANE}", **own | fields)

    def on_purge(self, _: str, last_id: str) -> None:
        """Ask for a purge; `any`: by a policy, which may take what it likes."""
        number = ANY_OF_IT if last_id == "any" else int(last_id)
        self.act("operator", "purge", outcome="info", phase="steady", first_id=number)

    def on_purged(self, _: str, last_id: str) -> None:
        """Have purged."""
        self.act("operator", "purged", outcome="info", phase="steady", first_id=int(last_id))

    def on_wait(self, _: str) -> None:
        """Let so much time pass that what expires after 1 ms has expired."""
        self.now_ns += EXPIRED_NS

    def on_long_ago(self, _: str) -> None:
        """Begin so early that there is time to wait."""
        self.begins_early()

    def on_taken(self, who: str, counter: str) -> None:
        """Let all disks have taken a counter."""
        self.on_disks("-", "counter", producer=self._name(who), counter=int(counter))

    def on_holds(self, node: str, id_: str, who: str, counter: str) -> None:
        """Let a disk, or all of them, hold a publication under an id."""
        nodes = node_names() if node == "-" else [node]
        what = {"producer": self._name(who), "first_counter": int(counter), "count": 1}
        held = {"kind": "held", "topic": self.topic, "first_id": int(id_), **what}
        self._scene.truth += [(one, held) for one in nodes]

    def on_reaches(self, node: str, last_id: str) -> None:
        """Let a disk know of more ids than the others do."""
        row = {"kind": "topic", "topic": self.topic, "last_id": int(last_id), "floor_id": 0}
        self._scene.truth.append((node, row))

    def on_disks(self, _: str, kind: str, **fields: Any) -> None:
        """Let all disks have a row."""
        row = {"kind": kind, "topic": self.topic, **fields}
        self._scene.truth += [(node, row) for node in node_names()]

    # --- groups ---------------------------------------------------------------------------------

    def on_made(self, who: str, last_id: str, **fields: Any) -> None:
        """Make the group anew, behind an id."""
        self._works(who, "group", first_id=int(last_id), **{"resumed": False, **fields})
        self._workers.setdefault(who)

    def on_settled(self, who: str, last_id: str, **fields: Any) -> None:
        """Be told up to where the group, which stands, is settled."""
        self._works(who, "group", first_id=int(last_id), resumed=True, **fields)

    def on_ungroup(self, who: str, **fields: Any) -> None:
        """End the group."""
        self._works(who, "ungroup", **fields)

    def on_take(self, who: str, number: str, *lease: str, **fields: Any) -> None:
        """Take: under a token, from an id to an id, for which time."""
        said: dict[str, Any] = {"number": int(number)}
        if lease:
            token, first, last, attempt = map(int, lease)
            said |= {"token": token, "leases": [[first, last, attempt]], "left_ms": 0}
            if key := fields.pop("key", ""):
                said |= {"keyed": [first], "keys": KEY_DIGITS * key}
            if "brings" in fields:
                places = fields.pop("brings").split(",")
                said["items"] = [self._place_of(place) for place in places]
        self._works(who, "take", **said | fields)

    def _works(self, who: str, f: str, **fields: Any) -> None:
        self.act(who, f, group=self._group, **{"epoch": 1, **fields})


_PLANTS = PLANTS | {
    script.name: Plant(script.rows[0].check, script.rows[0].word, script.act)
    for script in scripts(SCRIPTS)
}
# In the order in which they come. While a lease is open, whoever is told nothing may have no room.
EVERY_PLANT: Final[Mapping[str, Plant]] = dict(
    sorted(_PLANTS.items(), key=lambda one: one[1].word != "idle")
)
