"""Plays scenarios of Raft: files of commands, what is expected of each, and prose between.

What lives here: the commands, a cluster of `Raft.step` on journals in memory, the trace. What must
not: any expectation, which stands in the files.

A file is read in blocks with an empty line between. A line with `#` is prose. In other blocks
everything above `----` is a command a line, everything below is what they have to print. The form
is that of etcd's raft (testdata/*.txt).
"""

from __future__ import annotations

import os
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from cluster.log import journal as journal_module
from cluster.log.entries import FIRST_INDEX, NO_OP, REGULAR, Entry, payload_of
from cluster.log.journal import Journal
from cluster.members.handshake import objection
from cluster.raft import transport
from cluster.raft.raft import Raft
from cluster.raft.ready import Ready, Timing
from cluster.wire import messages as wire
from cluster.wire.messages import AppendEntries, AppendEntriesResponse, Hello, Message
from tests.unit.memory_disk import (
    ROOT,
    MemoryDisk,
    ProcessStopped,
    lose_unsynced,
    stop,
    tear_in_half,
)

LINE: Final = "----"
START_S: Final = 100.0
TURNS_MAX: Final = 200  # until all is quiet: more is a loop
LIMITS: Final[dict[str, tuple[Any, str]]] = {
    "slice-entries": (journal_module, "SLICE_ENTRIES_MAX"),
    "slice-bytes": (journal_module, "SLICE_BYTES_MAX"),
    "window-bytes": (transport, "IN_FLIGHT_BYTES_MAX"),
}


class FixedRandom(random.Random):
    """Draws the same share of every range: who times out first is decided by its name."""

    def __init__(self, share: float) -> None:
        super().__init__(0)
        self._share = share

    def uniform(self, a: float, b: float) -> float:
        """Return the same place of each range."""
        return a + self._share * (b - a)


class Bomb:
    """Ends the process where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.abort, ()


class DrivenMember:
    """One member's disk, and the process on it, if one runs.

    `store`: the payloads that it has applied; `position`: index and term of the last one.
    """

    def __init__(self, name: str, others: Sequence[str], share: float, options: dict[str, int]):
        self.name, self.others, self.options = name, others, options
        self.random = FixedRandom(share)
        self.disk = MemoryDisk()
        self.done: list[str] = []
        self.is_new = True  # the identity says whether there has to be a journal
        self.store: list[bytes] = []
        self.position = (FIRST_INDEX, 0)
        self.copy: tuple[int, int, list[bytes]] | None = None
        self.raft: Raft | None = None
        self.journal: Journal
        self.proposals: list[bytes] = []

    def open(self, now: float) -> None:
        """Start the process from what is on the disk."""
        if self.is_new and not self.disk.names:
            Journal.create(ROOT, self.disk)
        self.journal = Journal.open(
            ROOT,
            self.options.get("segment", 1 << 20),
            self.options.get("keep", 0),
            files=self.disk,
            on_failure=stop,
        )
        self.journal.advance(self.position[0])
        level = self.options.get("level", 1)
        self.raft = Raft(
            self.name, self.others, self.journal, self.position, Timing(), level, self.random, now
        )


class Scenario:
    """A cluster and the links between its members, driven by commands.

    Messages stay on a link until their receiver takes them in a turn.
    """

    def __init__(self) -> None:
        self.now = START_S
        self.members: dict[str, DrivenMember] = {}
        self.links: dict[tuple[str, str], deque[Message]] = {}
        self.cut: set[frozenset[str]] = set()
        self.kept: dict[str, list[Message]] = {}
        self.limits = ExitStack()
        self._said: list[str] = []

    def run(self, line: str) -> list[str]:
        """Carry out a command; return what it prints."""
        self._said = []
        name, *words = line.split()
        command: Callable[..., None] = getattr(self, f"do_{name.replace('-', '_')}")
        options = dict(word.split("=", 1) for word in words if "=" in word)
        command(*(word for word in words if "=" not in word), **options)
        return self._said

    def _say(self, text: str) -> None:
        self._said.append(text)

    # --- the cluster --------------------------------------------------------------------------

    def do_cluster(self, *names: str, **options: str) -> None:
        """Make members and start them; each hears all others. Options: segment, keep, level."""
        numbers = {name: int(value) for name, value in options.items()}
        for place, name in enumerate(names):
            others = [other for other in names if other != name]
            share = place / max(1, len(names) - 1)
            self.members[name] = DrivenMember(name, others, share, dict(numbers))
        for name in names:
            self.do_start(name)
        self._said = []

    def do_limit(self, **limits: str) -> None:
        """Lower limits of the product, so that few entries meet them."""
        for name, value in limits.items():
            self.limits.enter_context(patch.object(*LIMITS[name], int(value)))

    def do_start(self, name: str, **options: str) -> None:
        """Start a process from what its disk has."""
        member = self.members[name]
        member.options |= {key: int(value) for key, value in options.items()}

        def start() -> None:
            member.open(self.now)
            self._do(member, self._raft(name).step(self.now))
            for other in member.others:
                if self.members[other].raft is not None and not self._is_cut(name, other):
                    self._connect(name, other)

        self._ends_by_itself(member, start)

    def do_kill(self, name: str) -> None:
        """End a process; what it has written stays, synced or not."""
        member = self.members[name]
        member.raft = None
        member.done = member.disk.operations
        member.disk = member.disk.after_power_loss(lambda durable, written: written, "latest")
        for other in member.others:
            self._disconnect(name, other)

    def do_power_loss(self, name: str, *how: str) -> None:
        """End the machine: what was not synced is gone, or with `torn` the end of it."""
        member = self.members[name]
        disk = member.disk
        self.do_kill(name)
        keep = tear_in_half if "torn" in how else lose_unsynced
        member.disk = disk.after_power_loss(keep, "latest")

    def do_damage(self, name: str, text: str) -> None:
        """Flip a bit of an entry on a disk."""
        for inode in self.members[name].disk.names.values():
            at = inode.data.find(text.encode())
            if at >= 0:
                inode.data[at] ^= 1

    def do_wipe_log(self, name: str) -> None:
        """Empty a journal's directory; the store stays."""
        self.members[name].disk = MemoryDisk()

    def do_lose_log(self, name: str) -> None:
        """Remove the journal's files where a process was before: nothing makes them anew."""
        self.members[name].disk = MemoryDisk()
        self.members[name].is_new = False

    def do_disk_error(self, name: str, operation: str) -> None:
        """Let an operation of a disk fail from now on."""
        self.members[name].disk.error_in = operation

    def do_store_back(self, name: str, index: str) -> None:
        """Put a store back to an earlier entry, as a power loss may do: it is not synced."""
        member = self.members[name]
        at = int(index)
        term = member.journal.term_at(at) or 0
        member.store, member.position = member.store[: at - FIRST_INDEX], (at, term)

    def do_store_of_another(self, name: str, index: str, term: str) -> None:
        """Put a store in a member's place that stands at (index, term)."""
        self.members[name].position = int(index), int(term)

    def do_compact(self, name: str, index: str) -> None:
        """Drop what the log need not keep, with a store that is durable up to an entry."""
        journal = self.members[name].journal
        journal.compact(int(index))
        self._say(f"{name}: the log begins at {journal.first_index}")

    # --- links --------------------------------------------------------------------------------

    def _is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cut

    def _connect(self, one: str, other: str) -> None:
        for source, target in ((one, other), (other, one)):
            self.links[source, target] = deque()
            self._raft(source).connected(target)

    def _disconnect(self, one: str, other: str) -> None:
        for source, target in ((one, other), (other, one)):
            if self.links.pop((source, target), None) is not None:
                member = self.members[source]
                if member.raft is not None:
                    member.raft.disconnected(target, self.now)

    def do_cut(self, *names: str) -> None:
        """End the connections between the first member and the others that are named."""
        first, *others = names
        for other in others:
            self.cut.add(frozenset((first, other)))
            self._disconnect(first, other)

    def do_heal(self, *names: str) -> None:
        """Connect the first member with the others that are named."""
        first, *others = names
        for other in others:
            self.cut.discard(frozenset((first, other)))
            self._connect(first, other)

    def do_lose(self, *links: str) -> None:
        """Lose what is on links, which stand: `lose a->b`."""
        for link in links:
            self.links[self._link(link)].clear()

    def do_keep(self, link: str, name: str) -> None:
        """Take what is on a link off it, to let it come later."""
        queue = self.links[self._link(link)]
        self.kept[name] = list(queue)
        queue.clear()

    def do_late(self, link: str, name: str) -> None:
        """Put on a link what was kept of it."""
        self.links[self._link(link)] += self.kept[name]

    def do_twice(self, link: str) -> None:
        """Double what is on a link."""
        queue = self.links[self._link(link)]
        queue.extend(list(queue))

    def do_send(self, link: str, kind: str, *values: str) -> None:
        """Put a message of our own making on a link."""
        fields = [{"yes": True, "no": False}.get(value) for value in values]
        made = [int(v) if f is None else f for v, f in zip(values, fields, strict=True)]
        if kind == "AppendEntries":
            made.append([])  # type: ignore[arg-type]
        self.links[self._link(link)].append(getattr(wire, kind)(*made))

    def do_append(self, link: str, *words: str) -> None:
        """Put an append of our own making on a link: `append a->b 2 3 3 1 4/2:text`."""
        entries = []
        term, commit, index, behind, *made = words
        for each in made:
            place, _, text = each.partition(":")
            at, _, of = place.partition("/")
            entries.append((REGULAR + b"\1" + text.encode(), int(at), int(of)))
        append = AppendEntries(int(term), int(commit), int(index), int(behind), entries)
        self.links[self._link(link)].append(append)

    def _link(self, link: str) -> tuple[str, str]:
        source, _, target = link.partition("->")
        return source, target

    # --- turns --------------------------------------------------------------------------------

    def do_wait(self, milliseconds: str) -> None:
        """Let time pass; nobody has a turn."""
        self.now += int(milliseconds) / 1000

    def do_propose(self, name: str, *texts: str, level: str = "1") -> None:
        """Let the next turn of a leader append entries."""
        self.members[name].proposals += [bytes((int(level),)) + text.encode() for text in texts]

    def do_pickle(self, name: str) -> None:
        """Let the next turn of a leader append what would be executed if it were unpickled."""
        self.members[name].proposals.append(pickle.dumps(Bomb()))

    def do_store_bytes(self, *names: str) -> None:
        """Print how many bytes the last entry has brought."""
        for name in names:
            self._say(f"{name}: {len(self.members[name].store[-1])} bytes")

    def do_operations(self, name: str) -> None:
        """Print the last operations on the disk of a process that has ended."""
        self._say(f"{name}: {' '.join(self.members[name].done[-3:])}")

    def do_turn(self, *names: str, **options: str) -> None:
        """Have turns; options: source (take only its messages), count (so many), budget,
        end (in the sync the `power` goes, or it goes and leaves a `torn` tail).
        """
        for name in names:
            self._turn(self.members[name], **options)

    def do_settle(self, *names: str) -> None:
        """Have turns of all, or of those named, until nothing comes; print only where they stand.

        A turn takes a millisecond: who campaigns does so in a turn after it was promised votes.
        """
        members = [self.members[name] for name in names or self.members]
        for _ in range(TURNS_MAX):
            running = [member for member in members if member.raft is not None]
            self.now += 0.001
            for member in running:
                self._turn(member)
            inbound = [self.links.get((other, m.name)) for m in running for other in m.others]
            if not any(inbound) and all(
                m.raft is None or m.raft.applied_index == m.raft.commit_index for m in running
            ):
                break
        else:
            raise AssertionError("they never come to rest")
        self._said = []
        self.do_status(*names)

    def do_heartbeat(self, *names: str) -> None:
        """Let a heartbeat's time pass, and all have turns; print only where they stand."""
        self.now += 0.09
        self.do_settle(*names)

    def do_pass(self, milliseconds: str, *names: str) -> None:
        """Let time pass in heartbeats, all having turns; print only where they stand."""
        for _ in range(int(milliseconds) // 100):
            self.now += 0.1
            self.do_settle(*names)

    def do_elect(self, name: str, *voters: str) -> None:
        """Let a member's time for an election come, and all have turns, or it and some voters."""
        names = (name, *voters) if voters else ()
        self.now = max(self.now, self._raft(name).deadline_s) + 0.01
        self._turn(self.members[name])
        self.do_settle(*names)
        self.do_heartbeat(*names)

    def _turn(
        self,
        member: DrivenMember,
        source: str = "",
        count: str = "999",
        budget: str = "999",
        end: str = "",
    ) -> None:
        if member.raft is None:
            self._say(f"{member.name} is down")
            return
        raft = member.raft
        committed = list(member.store), member.position  # the store's transaction follows the sync

        def turn() -> None:
            before: list[tuple[str, Message]] = []
            after: list[tuple[str, Message]] = []
            for other in [source] if source else member.others:
                queue = self.links.get((other, member.name), deque())
                for _ in range(min(int(count), len(queue))):
                    message = queue.popleft()
                    self._say(f"{member.name} takes {other}->{member.name} {_text(message)}")
                    ready = raft.step(self.now, ((other, message),))
                    self._collect(member, ready, before, after)
            proposals, member.proposals = member.proposals, []
            ready = raft.step(self.now, (), proposals, tick=True)
            self._collect(member, ready, before, after, int(budget))
            self._release(member, "", before)
            if end:
                member.store, member.position = committed
                if end == "torn":
                    member.journal._write()  # on its way to the disk when the power goes
                self.do_power_loss(member.name, end)
                self._say(f"{member.name} loses its power in the sync")
                return
            if member.journal.dirty:
                member.journal.sync()
                self._say(f"{member.name} syncs")
            self._release(member, "", after)

        self._ends_by_itself(member, turn)

    def _ends_by_itself(self, member: DrivenMember, action: Callable[[], None]) -> None:
        try:
            action()
        except (AssertionError, ProcessStopped, ValueError, OSError) as error:
            self._say(f"{member.name} ends: {str(error).splitlines()[0]}")
            if member.raft is not None:
                self.do_kill(member.name)
        except Exception as error:  # noqa: BLE001  (a start may end in any refusal of the journal)
            self._say(f"{member.name} ends: {type(error).__name__}")
            member.raft = None

    def _do(self, member: DrivenMember, ready: Ready) -> None:
        """Do all of a Ready at a start: nothing of it is to be sent."""
        self._collect(member, ready, [], [])
        member.journal.sync()

    def _collect(
        self,
        member: DrivenMember,
        ready: Ready,
        before: list[tuple[str, Message]],
        after: list[tuple[str, Message]],
        budget: int = 999,
    ) -> None:
        """Do what a Ready says, in the order that is the contract; messages are collected."""
        name, journal, raft = member.name, member.journal, self._raft(member.name)
        if ready.reset is not None:
            self._say(f"{name} begins its log anew at {_place(*ready.reset)}")
            journal.reset(*ready.reset)
        if ready.hard_state is not None:
            term, vote = ready.hard_state
            self._say(f"{name} writes term {term}, vote {vote or 'none'}")
            journal.set_term(*ready.hard_state)
        if ready.entries:
            self._say(f"{name} writes {_entries(ready.entries)}")
            for entry in ready.entries:
                journal.add(*entry)
        journal.note_commit(raft.commit_index)
        if ready.refused is not None:
            self._say(f"{name} refuses {_entries([ready.refused])}: it can't apply that")
        before += ready.before_sync
        after += ready.after_sync
        if ready.committed:
            self._apply(member, ready.committed[:budget])
        if ready.soft_state is not None:
            role, term, leader = ready.soft_state
            self._say(f"{name} is {role} in term {term}, led by {leader or 'nobody'}")
        if ready.offer:
            self._take_offer(member, ready.offer, before, after)

    def _apply(self, member: DrivenMember, entries: Sequence[Entry]) -> None:
        self._say(f"{member.name} applies {_entries(entries)}")
        for entry in entries:
            _, index, term = entry
            member.store.append(payload_of(entry))
            member.position = index, term
            member.journal.advance(index)
            self._raft(member.name).advance(index)

    def _take_offer(
        self, member: DrivenMember, leader: str, *queues: list[tuple[str, Message]]
    ) -> None:
        if member.copy is None or member.copy[0] <= member.position[0]:
            self._say(f"{member.name} is offered a copy by {leader}, and has none at hand")
            return
        index, term, store = member.copy
        member.store, member.position, member.copy = list(store), (index, term), None
        member.journal.advance(index)
        self._say(f"{member.name} installs a copy up to {_place(index, term)}")
        raft = self._raft(member.name)
        raft.restore(leader, index, term)
        self._collect(member, raft.step(self.now), *queues)

    def _release(self, member: DrivenMember, when: str, queue: list[tuple[str, Message]]) -> None:
        for other, message in queue:
            self._say(f"{member.name} sends {member.name}->{other} {_text(message)}")
            if (member.name, other) in self.links:
                self.links[member.name, other].append(message)
        queue.clear()

    # --- what a caller asks and tells ----------------------------------------------------------

    def _raft(self, name: str) -> Raft:
        raft = self.members[name].raft
        assert raft is not None, f"{name} is down"
        return raft

    def do_copy(self, source: str, target: str) -> None:
        """Give a member a verified copy of another one's store."""
        member = self.members[source]
        self.members[target].copy = (*member.position, list(member.store))
        self._say(f"{target} has a copy of {source} up to {_place(*member.position)}")

    def do_read(self, name: str) -> None:
        """Ask for a barrier."""
        self._say(f"{name} waits for barrier {self._raft(name).ask_barrier()}")

    def do_barrier(self, name: str) -> None:
        """Print which barrier is passed."""
        self._say(f"{name} has passed barrier {self._raft(name).barrier_passed()}")

    def do_transfer(self, name: str) -> None:
        """Let a leader hand over."""
        asked = self._raft(name).transfer_leadership()
        self._say(f"{name} {'asks another one to lead' if asked else 'finds nobody to lead'}")

    def do_forget(self, name: str, other: str) -> None:
        """Tell a leader that another incarnation of a member was admitted."""
        self._raft(name).forget(other)

    def do_replaced(self, name: str) -> None:
        """Tell a member that it is replaced by another incarnation."""
        self._raft(name).may_campaign = False

    def do_admitted(self, name: str) -> None:
        """Tell a member that it is none that is replaced: the entry that said so is undone."""
        self._raft(name).may_campaign = True

    def do_hello(self, *members: str, of: str = "b", to: str = "a") -> None:
        """Print what a node says to another one whose configuration names these members."""
        own = tuple(self.members)
        version = wire.PROTOCOL_VERSION
        mine = Hello(version, "scenario", to, f"{to}-1", own, False, {})
        theirs = Hello(version, "scenario", of, f"{of}-1", members, False, {})
        self._say(f"{to} says to {of}: {objection(mine, theirs, None) or 'welcome'}")

    def do_status(self, *names: str) -> None:
        """Print where members stand."""
        for name in names or self.members:
            member = self.members[name]
            if (raft := member.raft) is None:
                self._say(f"{name}: down")
                continue
            serving = ", serving" if raft.serving else ""
            self._say(
                f"{name}: {raft.role} in term {raft.term}, led by {raft.leader or 'nobody'}"
                f"{serving}; log {member.journal.first_index} to {member.journal.last_index},"
                f" committed {raft.commit_index}, applied {raft.applied_index}"
            )

    def do_log(self, *names: str) -> None:
        """Print what journals hold."""
        for name in names:
            journal = self.members[name].journal
            held = [journal.entry(at) for at in range(journal.first_index, journal.last_index + 1)]
            self._say(f"{name}: {_entries(held)}")

    def do_types(self, name: str) -> None:
        """Print of what an entry is made."""
        journal = self.members[name].journal
        held = journal.entry(journal.last_index)
        parts = ", ".join(type(part).__name__ for part in held)
        self._say(f"{name}: {type(held).__name__} of {parts}")

    def do_hint(self, name: str) -> None:
        """Print the commit index that a journal knows."""
        journal = self.members[name].journal
        self._say(f"{name}: committed up to {journal.commit_index} of {journal.last_index}")

    def do_close(self, name: str) -> None:
        """End a process in order: its journal is closed, with its hint."""
        self.members[name].journal.close()
        self.do_kill(name)

    def do_store(self, *names: str) -> None:
        """Print what was applied."""
        for name in names:
            member = self.members[name]
            held = " ".join(payload[1:].decode() for payload in member.store if payload)
            self._say(f"{name}: {held or 'nothing'}, up to {_place(*member.position)}")

    def do_known(self, name: str) -> None:
        """Print what a leader knows of the others."""
        raft = self._raft(name)
        in_flight = raft.in_flight()
        for other in self.members[name].others:
            self._say(
                f"{name}: {other} has {raft.match_index(other)}, {in_flight[other]} bytes in flight"
            )


def _place(index: int, term: int) -> str:
    return f"{index}/{term}"


def _entries(entries: Sequence[Entry]) -> str:
    return " ".join(
        f"{_place(index, term)}:{_command(command)}" for command, index, term in entries
    )


def _command(command: bytes) -> str:
    if command == NO_OP:
        return "no-op"
    level, text = command[1], command[2:]
    if level == pickle.PROTO[0]:
        return "pickle"
    shown = text.decode() if text.isascii() and text.decode().isprintable() else repr(text)
    return shown if level == 1 else f"{shown}(level {level})"


def _text(message: Message) -> str:
    if isinstance(message, AppendEntries):
        end = f" {_entries(message.entries)}" if message.entries else ""
        behind = _place(message.previous_index, message.previous_term)
        return (
            f"AppendEntries term={message.term} commit={message.commit_index} behind={behind}{end}"
        )
    if isinstance(message, AppendEntriesResponse):
        what = "has" if message.success else "wants" if message.reset else "refuses"
        index = message.next_index - message.success
        return f"AppendEntriesResponse term={message.term} {what} {index}"
    fields = " ".join(f"{name}={getattr(message, name)}" for name in message.__slots__)
    return f"{type(message).__name__} {fields}"


def played(text: str) -> Iterator[str]:
    """Yield the lines of a scenario as they have to be, by what its commands print now."""
    scenario = Scenario()
    with scenario.limits:
        for block in text.strip("\n").split("\n\n"):
            lines = block.splitlines()
            commands = lines[: lines.index(LINE)] if LINE in lines else lines
            yield from commands
            said = [
                each
                for line in commands
                if line and not line.startswith("#")
                for each in scenario.run(line)
            ]
            if any(not line.startswith("#") for line in commands):
                yield LINE
                yield from said or ["ok"]
            yield ""


def files() -> list[Path]:
    """Return all scenarios."""
    return sorted(Path(__file__).parent.glob("*.txt"))
