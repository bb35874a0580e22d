"""The registry of planted bugs: every one says what it is, and leaves no trace behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

import chaos.simulation.disks.disk
import chaos.simulation.disks.stored
import cluster.log.files
import cluster.log.journal
import cluster.log.segments
import cluster.members.catchup
import cluster.members.handshake
import cluster.members.links
import cluster.members.membership
import cluster.members.neighbours
import cluster.members.peers
import cluster.node.joining
import cluster.node.linked
import cluster.node.maintenance
import cluster.node.member
import cluster.raft.log
import cluster.raft.raft
import cluster.raft.transport
import cluster.serve.broker
import cluster.serve.client_port
import cluster.serve.frontend
import cluster.serve.relays
import cluster.serve.zmtp
import cluster.store.compaction
import cluster.store.groups
import cluster.store.key_order
import cluster.store.latest
import cluster.store.publications
import cluster.store.rows
import cluster.store.snapshots
import cluster.store.store
import cluster.store.tables
import cluster.store.topics
import cluster.wire.frames
import flotilla_client.aio
import flotilla_client.joining
import flotilla_client.operations
import flotilla_client.protocol
import flotilla_client.reading
import flotilla_client.retry
import flotilla_client.state
from analytics import twins
from chaos.simulation.bugs import BUGS, SEEDS_MAX, Bug
from chaos.simulation.bugs.registry import SEEDS_RARE_MAX, Patches, bug
from chaos.simulation.checks.invariants import CHECKS
from chaos.simulation.search.run import PLANTABLE

Place = tuple[str, ...]
BUGS_MIN = 28
SEEN_MIN = 25
HUNT = Path(__file__).parents[3] / "simulation/planted.jsonl"
MODULES: tuple[ModuleType, ...] = (
    chaos.simulation.disks.disk,  # where the kernel's cache is what a bug is about
    chaos.simulation.disks.stored,
    cluster.serve.broker,
    cluster.serve.client_port,
    cluster.log.files,
    cluster.wire.frames,
    cluster.serve.frontend,
    cluster.members.catchup,
    cluster.members.handshake,
    cluster.log.journal,
    cluster.members.links,
    cluster.members.membership,
    cluster.members.neighbours,
    cluster.members.peers,
    cluster.store.compaction,
    cluster.store.groups,
    cluster.store.key_order,
    cluster.store.latest,
    cluster.store.publications,
    cluster.store.rows,
    cluster.raft.log,
    cluster.raft.raft,
    cluster.serve.relays,
    cluster.node.joining,
    cluster.node.linked,
    cluster.node.member,
    cluster.log.segments,
    cluster.store.snapshots,
    cluster.store.store,
    cluster.store.tables,
    cluster.store.topics,
    cluster.raft.transport,
    cluster.node.maintenance,
    cluster.serve.zmtp,
    flotilla_client.aio,
    flotilla_client.operations,
    flotilla_client.protocol,
    flotilla_client.joining,
    flotilla_client.reading,
    flotilla_client.retry,
    flotilla_client.state,
)

every_bug = pytest.mark.parametrize("planted", BUGS.values(), ids=lambda planted: planted.name)


def everything() -> Iterator[tuple[Place, object]]:
    """Yield all that a bug may replace: names of modules, of their classes, of their tables."""
    for module in MODULES:
        for name, value in vars(module).items():
            yield (module.__name__, name), value
            if isinstance(value, type):
                for inner, member in vars(value).items():
                    yield (module.__name__, name, inner), member
            elif isinstance(value, dict):
                for key, member in value.items():
                    yield (module.__name__, name, str(key)), member


def changed(before: Sequence[tuple[Place, object]]) -> list[Place]:
    """Return what is not as it was. Each bug asks three times: no dictionary is made of it all."""
    found = []
    for (place, value), (same, now) in zip(before, everything(), strict=True):
        assert place == same
        if now is not value:
            found.append(place)
    return found


def test_there_are_enough_bugs() -> None:
    assert len(BUGS) >= BUGS_MIN


@every_bug
def test_a_bug_says_what_it_breaks_and_what_catches_it(planted: Bug) -> None:
    assert planted.rule
    assert planted.what.endswith(".")
    assert planted.caught_by
    assert planted.seeds_max in {*range(1, SEEDS_MAX + 1), SEEDS_RARE_MAX}


@every_bug
def test_a_bug_changes_the_code_while_it_is_planted_and_not_after(planted: Bug) -> None:
    before = tuple(everything())
    with planted.planted():
        assert changed(before)
    assert not changed(before)


def test_enough_bugs_were_seen_within_their_bound_by_a_check_that_is_meant_to() -> None:
    hunts = [json.loads(line) for line in HUNT.read_text(encoding="utf-8").splitlines()]
    assert len({hunt["bug"] for hunt in hunts}) == len(hunts)
    found = [hunt for hunt in hunts if hunt["checks"]]
    assert len(found) >= SEEN_MIN
    for hunt in found:
        planted = PLANTABLE[hunt["bug"]]
        assert 0 < hunt["seed"] <= planted.seeds_max, hunt
        assert planted.caught_by.issuperset(hunt["checks"]), hunt


def test_the_checks_that_are_meant_to_see_a_bug_exist() -> None:
    known = CHECKS.keys() | twins.TWINS.keys()
    for planted in PLANTABLE.values():
        assert planted.caught_by <= known, planted.name


def test_all_bugs_can_be_planted_at_once_and_taken_out_again() -> None:
    before = tuple(everything())
    with ExitStack() as stack:
        for planted in BUGS.values():
            stack.enter_context(planted.planted())
        assert changed(before)
    assert not changed(before)


def test_what_replaces_a_function_takes_what_that_takes() -> None:
    with Patches() as patches:
        for wrong in (lambda a: a, lambda a, b: a, lambda a, *, b, c: a, lambda: None):
            with pytest.raises(AssertionError, match="is not"):
                patches.attribute(_Patched, "call", wrong)
        patches.attribute(_Patched, "call", lambda a, b=1, *, c=2: (a, b, c))
        patches.attribute(_Patched, "call", lambda *both, **named: (both, named))


class _Patched:
    def call(self, b: int = 1, *, c: int = 2) -> int:
        return b + c


def test_a_bug_is_taken_out_after_an_error() -> None:
    before = tuple(everything())
    planted = next(iter(BUGS.values()))
    with pytest.raises(RuntimeError, match="in the middle"), planted.planted():
        raise RuntimeError("in the middle")
    assert not changed(before)


def test_a_patch_of_what_is_not_there_is_refused() -> None:
    with Patches() as patches:
        with pytest.raises(AttributeError):
            patches.attribute(cluster.journal.Journal, "no_such_method", None)
        with pytest.raises(AssertionError, match="no such"):
            patches.entry({"a": 1}, "no such", 2)


def test_two_bugs_of_one_name_are_refused() -> None:
    name = next(iter(BUGS)).replace("-", "_")

    def plant(patches: Patches) -> None:
        """Do nothing."""

    plant.__name__ = name
    with pytest.raises(AssertionError, match="two bugs"):
        bug("a rule", {"lost"})(plant)
