"""What has gone bad on a disk is told within one pass over it, and nothing else is.

What lives here: what was damaged where, from the faults' own words, and what each node says of it.
What must not: causing damage (operator.py), the reading (cluster/node/scrub.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.disks import rows
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.world import World
from cluster.node import scrub
from cluster.node.member import Member

# A node that runs and is not disturbed has read all that it has within so long, behind its period,
# and besides what its steps take: with short steps and long jobs a large store takes longer.
PASS_S_MAX: Final = 30.0
# Of these nobody knows where they have hit.
ANYWHERE: Final = frozenset({"flip_store", "bit_flip", "truncate"})

MISSING: Final = "the file is missing"  # of a segment: nothing is left to be dropped

Place = tuple[str, str]  # (JOURNAL, the file's name), or (the table, the row's key)
JOURNAL: Final = "journal"
UNREADABLE: Final = ("", "")  # of the database: nothing behind this can be read, so no row is told


@dataclass(slots=True)
class _Under:
    """A pass that is under way: `scrubbed`, the product's own; the damage that was there before.

    `reached`, `size_bytes`: how far it was when it was last looked at.
    """

    scrubbed: object = None
    began_s: float = 0.0
    reached: tuple[Any, ...] = ()
    size_bytes: int = 0
    before: set[Place] = field(default_factory=set)


class Scrubbing:
    """Watches what nodes say of damage, and what they don't."""

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world, self._invariants = world, invariants
        self._damaged: dict[str, set[Place]] = {}  # by machine: since its disk was last emptied
        self._passes: dict[str, _Under] = {}
        self._rested_s: dict[str, float] = {}  # when a pass ended last, or something disturbed
        self._told: dict[str, set[tuple[Place, str]]] = {}  # by machine: what the last pass found
        world.observers.append(self._observe)
        if world.knob("scrub_bytes_per_s"):
            world.watchers.append(self._turned)

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "damaged":
            self._note_damage(fields)
        elif kind == "damage_found":
            self._heard(fields)
        elif kind == "scrubbed":
            self._ended(fields["node"])
        elif kind in ("started", "ended"):
            self._passes.pop(fields["node"], None)
            self._told.pop(fields["node"], None)
            self._rested_s[fields["node"]] = self._world.now
        elif kind in ("emptied", "moved_in", "double_gone"):
            self._damaged.pop(fields["node"], None)

    def _note_damage(self, fields: Mapping[str, Any]) -> None:
        node = fields["node"]
        if "what" in fields:
            return  # anywhere
        place = _place(fields)
        self._damaged.setdefault(node, set()).add(place)
        if node in self._passes:  # it may have been mended meanwhile, and now be read already
            self._passes[node].before.discard(place)

    def _heard(self, fields: Mapping[str, Any]) -> None:
        node, place = fields["node"], _place(fields)
        faults = set(self._world.machine(node).disk_faults)
        if place not in self._damaged.get(node, ()) and ANYWHERE.isdisjoint(faults):
            said = {name: value for name, value in fields.items() if name != "advice"}
            self._invariants.fail("scrub", f"a false alarm: {said}")
        if place[0] == JOURNAL and fields["reason"] != MISSING:
            member = self._world.machine(node).as_member
            if member is not None and member.journal._damaged_sequence < int(Path(place[1]).stem):
                self._invariants.fail("scrub", f"{node} tells of {place}, and is to keep it")
        if (place, fields["reason"]) in self._told.get(node, ()):
            self._invariants.fail("scrub", f"{node} tells of {place} again")

    # --- passes ---------------------------------------------------------------------------------

    def _turned(self, node: SimNode) -> None:
        member = node.as_member
        if member is None:
            return
        under = self._passes.setdefault(node.name, _Under())
        scrubbed = member.scrub._pass
        if scrubbed is not None and scrubbed is not under.scrubbed:
            there = {each for each in self._damaged.get(node.name, ()) if _is_there(node, each)}
            under = _Under(scrubbed, self._world.now, before=there)
            self._passes[node.name] = under
        if scrubbed is not None:
            reached, size_bytes = _reached(scrubbed), scrubbed.size_bytes
            if size_bytes > under.size_bytes and reached == under.reached:
                self._invariants.fail("scrub", f"{node.name} reads again what it has read")
            under.reached, under.size_bytes = reached, size_bytes
        if node.paused or node.slow_sync_ms or node.clock_rate != 1.0 or member.awaits_worker:
            self._rested_s[node.name] = self._world.now
        late_s = self._world.now - self._rested_s.get(node.name, 0.0)
        late_s -= PASS_S_MAX + self._world.knob("scrub_period_s")
        if late_s > 0 and late_s > self._steps_s(member, under):
            self._invariants.fail("scrub", f"{node.name} has read nothing to its end")

    def _steps_s(self, member: Member, under: _Under) -> float:
        """Return how long all steps of a pass over what `member` has may take: each is a job.

        What was read already counts as well: it may have gone since.
        """
        segments = member.journal.sealed()
        size_bytes = under.size_bytes + member.scrub._database.stat().st_size
        size_bytes += sum(sealed.size_bytes for sealed in segments)
        steps = len(segments) + size_bytes / scrub.STEP_BYTES
        return steps * self._world.knob("job_ms") / 1000

    def _ended(self, name: str) -> None:
        node, under = self._world.machine(name), self._passes.get(name)
        self._rested_s[name] = self._world.now
        if under is None or node.as_member is None:
            return
        findings = node.as_member.scrub.findings()
        self._told[name] = {(_place(each), each["reason"]) for each in findings}
        told = {_place(each) for each in findings}
        missed = under.before - told
        if UNREADABLE in told:
            missed = {place for place in missed if place[0] == JOURNAL}
        for place in sorted(missed):
            if _is_there(node, place):
                self._invariants.fail("scrub", f"{name} has read {place}, and does not tell")


def _reached(scrubbed: Any) -> tuple[Any, ...]:
    """Return how far a pass is: no two steps of one begin there."""
    place = scrubbed.place
    return len(scrubbed.segments), scrubbed.offset, place and (place.table, place.key)


def _place(fields: Mapping[str, Any]) -> Place:
    if "table" in fields:
        return fields["table"], fields["row"]
    return JOURNAL, Path(fields["file"]).name


def _is_there(node: SimNode, place: Place) -> bool:
    """Return whether that is damaged still, and among what is to be read."""
    member = node.as_member
    assert member is not None, node.name
    if place[0] != JOURNAL:
        return rows.is_damaged(member.store._database, place)
    for sealed in member.journal.sealed():
        inode = node.disk._names.get(sealed.path)
        if sealed.path.name == place[1] and inode is not None:
            return not inode.is_readable or (
                inode.intact is not None and inode.intact != inode.data
            )
    return False
