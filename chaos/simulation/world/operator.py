"""Who breaks disks and mends machines: never more at once than the promises allow.

What lives here: the actions that need to know the state of the cluster: emptied and damaged disks
(a minority, each readmitted before the next), restarts that rebuild what refuses to start, and the
end of all faults. What must not: faults that may come at any time (world.py).

It is also who installs programs: a node whose program is too old for its cluster gets the newest.

Named for the person whom docs/deploy.md tells what to do with a broken node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.simulation.disks import rows
from chaos.simulation.disks.disk import Inode
from chaos.simulation.disks.durable import journal_files, proved_bytes, record_edges
from chaos.simulation.world.builds import BUILDS, NEXT
from chaos.simulation.world.network import double_of, member_of
from chaos.simulation.world.node import OPERATOR, SimNode
from chaos.simulation.world.world import World
from cluster.store.users import OPEN
from cluster.wire.levels import BUILD, LEVEL_OF_USERS
from flotilla_client.protocol import (
    ADD_USER,
    ADMIN,
    EVERYBODY_ELSE,
    INSPECT,
    REMOVE_USER,
    STATUS,
    UPGRADE,
    Request,
    encode_request,
)

DAMAGES: Final = frozenset(
    {"flip", "flip_cached", "cut", "cut_edge", "unreadable", "flip_store", "flip_row"}
)
FALSIFIED: Final = "falsified"  # a state that is not what the log makes of it
SPOILED: Final = DAMAGES | {FALSIFIED}
OPEN_S: Final = 0.5  # between two looks whether everybody may do everything again
INSTALL_S: Final = 1.0  # until somebody has installed what a node said that it takes
EVICTED_S_MAX: Final = 10.0  # to apply the entry, to be refused, and to learn of it
FLAP_S: Final = 3.0  # a node that flaps runs and is down for so long
EMPTIED_S: Final = 1.0  # behind its end somebody who was condemned begins anew
BROKEN_HOWS: Final = ("down", "paused", "cut", "mute", "deaf", "flaps")


class Operator:
    """Adds its actions to the world's. `broken`: the nodes that stay broken behind `recover`."""

    def __init__(self, world: World) -> None:
        self.broken: dict[str, str] = {}
        self._world = world
        self._members: set[str] = set()  # nodes that ever were
        self._false_from: dict[str, int] = {}  # node -> its applied index as it was falsified
        self._fetched: dict[str, tuple[str, int]] = {}  # who has a copy -> of whom, its index
        self._faults_are_over = False
        self._unsound: set[str] = set()  # nodes that lost what they had, or may when they restart
        self._faulty_max = (world.plan.nodes - 1) // 2
        self._asked = 0
        self._upgrades = False  # somebody has touched the programs, or the level
        self._doubled: set[str] = set()  # members that an empty double may be admitted for
        self._copies: set[str] = set()  # members whose double has a copy of their directory
        self._proposed: set[str] = set()  # members whose double a leader has proposed to admit
        self._wipes_again: tuple[float, float] | None = None  # until when; how long after
        world.actions |= {
            "install": self.install,
            "raise_level": self.raise_level,
            "let_users": self.let_users,
            "change_user": self.change_user,
            "double": self.double,
            "wipe": self.wipe,
            "damage": self.damage,
            "falsify": self.falsify,
            "wipe_at_admission": self.wipe_at_admission,
            "restart": self.restart,
            "restart_all": self.restart_all,
        }
        world.observers.append(self._observe)

    # --- disks ------------------------------------------------------------------------------------

    def wipe(self, node: str) -> None:
        """Empty a node's disk, its process ended first, if so many may be without theirs."""
        if self._may_lose(node):
            self._empty(node)

    def wipe_at_admission(self, within_s: float, later_s: float) -> None:
        """Empty the next member's disk again that a leader admits, if it does in time."""
        self._wipes_again = self._world.now + within_s, later_s

    def damage(self, node: str, how: str) -> None:
        """Flip a bit, or cut a file's end, in what the journal has proved to be durable there.

        `cut_edge`: behind a record, so that what is left is whole by itself. `flip_cached`: where
        the kernel's cache still has what was written.
        `unreadable`: reads of the file report EIO from now on. `flip_store`: anywhere in the
        database; `flip_row`: in a row of it, whose place is known.

        Whoever reads it again has to notice. (Damage to the end of the last file looks as if it
        had never been written; against that only the other nodes' disks help.)
        """
        assert how in DAMAGES, how
        found = self._world.nodes[node]
        files = _proved(found)
        if not files or not self._may_lose(node):
            return
        rng = self._world.stream(f"damage {node}")
        if how == "flip_store":
            self._note_damage(found, how)
            what = found.image.damage("store.db", rng)
            self._world.emit("damaged", node=node, what=what)
            return
        if how == "flip_row":
            found.during(found.life, lambda: self._flip_row(found, rng))
            return
        path, inode, high, is_last = rng.choice(files)
        at = rng.randrange(high)
        if how == "cut_edge":
            at = rng.choice(record_edges(path, bytes(inode.data[:high])))
        inode.spare()
        if how == "unreadable":
            inode.is_readable = False
        elif how in ("flip", "flip_cached") or is_last:
            if how == "flip_cached" and not is_last:
                inode.cached = bytes(inode.data)
            inode.data[at] ^= 1 << rng.randrange(8)
        else:
            del inode.data[at:]
            inode.durable_bytes = at
        self._note_damage(found, how)
        self._world.emit("damaged", node=node, file=path.name, at=at)

    def falsify(self, node: str) -> None:
        """Let a member's state be another than its log makes of it, as a defect might.

        It differs in the digest alone, from the next entry on. The others' digests tell, and it is
        not to be one of them any more. Until they do it may give a copy to another one: then most
        are wrong alike, and who is right has to stop.
        """
        found = self._world.nodes[node]
        member = found.as_member
        if member is None or not member.store.audit.is_on or not self._may_lose(node):
            return
        self._note_damage(found, FALSIFIED)
        member.store.audit._digest = FALSIFIED
        self._false_from.setdefault(node, member.store.applied_index)
        self._world.emit("falsifying", node=node, index=member.store.applied_index)

    def _note_copy(self, node: str) -> None:
        name, index = self._fetched[node]
        source, false_from = self._world.machine(name), self._false_from.get(name, index)
        if FALSIFIED in source.disk_faults and index > false_from:
            self._world.machine(node).disk_faults.append(FALSIFIED)
            self._false_from[node] = false_from

    def _flip_row(self, node: SimNode, rng: Random) -> None:
        """Flip a bit of a row; its process has to run, as it is done by SQLite."""
        member = node.as_member
        place = None if member is None else rows.flip(member.store._database, rng)
        if place is not None:
            self._note_damage(node, "flip_row")
            table, row = place
            self._world.emit("damaged", node=node.name, table=table, row=row)

    def _note_damage(self, node: SimNode, how: str) -> None:
        node.disk_faults.append(how)
        self._unsound.add(node.name)

    def _empty(self, node: str) -> None:
        self._world.emit("emptied", node=node)
        self._unsound.add(node)
        self._world.disk_free(node)
        self._world.wipe(node)

    def _may_lose(self, node: str) -> bool:
        """Return whether the cluster stands the loss of this disk too."""
        everyone = self._members.issuperset(self._world.nodes)
        return everyone and len(self._unsound | self._doubled | {node}) <= self._faulty_max

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "founded":
            self._members.add(fields["node"])
        elif kind == "copy_fetched":
            self._fetched[fields["node"]] = fields["about"], fields["index"]
        elif kind == "snapshot_installed":
            self._note_copy(fields["node"])
        elif kind == "readmitted":
            self._unsound.discard(member_of(fields["node"]))
            self._note_copy(fields["node"])
        elif kind == "emptied":
            self._false_from.pop(fields["node"], None)
        elif kind == "node_failed" and fields["error"] == "CondemnedState":
            self._note_condemned(member_of(fields["node"]))
        elif kind == "admitting":
            self._note_proposal(fields["about"], fields["incarnation"])
        elif kind in ("fault", "ended") and self._copies:
            self._end_copies()
        elif kind == "node_failed" and fields["error"] == "UnsupportedLevel":
            self._world.after(INSTALL_S, lambda: self._install_next(fields["node"]))

    def _note_condemned(self, member: str) -> None:
        self._unsound.add(member)
        if self._faults_are_over:
            self._world.after(EMPTIED_S, lambda: self.restart(member))

    # --- programs ---------------------------------------------------------------------------------

    def install(self, node: str, build: str) -> None:
        """Let a node run another program (builds.BUILDS) from now on, its process killed first."""
        self._upgrades = True
        found = self._world.nodes[node]
        found.build = BUILDS[build]
        self._world.emit("installed", node=node, build=build)
        if found.up:
            self._world.kill(node)
            self.restart(node)

    def _install_next(self, node: str) -> None:
        if node in self._world.nodes:  # a double has its time, with the program that it was given
            self.install(node, "next")

    def raise_level(self, node: str, build: str) -> None:
        """Ask a node for the highest level of a build, as a client; nobody waits for the answer."""
        self._upgrades = True
        found = self._world.leader() if node == "leader" else node
        if found:
            self._ask(found, UPGRADE, {"level": BUILDS[build].level_max})

    def let_users(self, level: int = BUILD.level_max) -> None:
        """Ask for a level at which there are users, if all programs understand it."""
        found = self._world.leader()
        if found:
            self._ask(found, UPGRADE, {"level": level})

    def change_user(self, node: str, act: str, user: str, **rights: Any) -> None:
        """Ask a node to change what a principal may; nobody waits for the answer."""
        found = self._world.leader() if node == "leader" else node
        if found:
            self._ask(found, ADMIN, {"act": f"user-{act}", "user": user, **rights})

    def inspect(self, node: str, what: str, client_id: str = "", topic: str = "") -> None:
        """Ask a node what there is, as far as INSPECT tells it in one answer, or for its STATUS."""
        found = self._world.leader() if node == "leader" else node
        if found and what == STATUS:
            self._ask(found, STATUS, {})
        elif found:
            self._ask(found, INSPECT, {"what": what, "after": ""}, client_id, topic)

    def _ask(
        self, node: str, kind: str, body: dict[str, Any], client_id: str = "", topic: str = ""
    ) -> None:
        self._asked += 1
        request = Request(kind, f"{OPERATOR} {self._asked}", topic, client_id, body=body)
        self._world.request(OPERATOR, node, encode_request(request))

    def _open(self) -> None:
        """Let everybody do everything again, whatever gets lost on the way: so the run can end."""
        leader = self._world.leader()
        part = self._world.nodes[leader].as_member if leader else None
        if part is not None and part.store.level >= LEVEL_OF_USERS:
            users = part.store.users
            for row in users.page("", len(self._world.plan.members) + 100):
                if row["user"] != EVERYBODY_ELSE:
                    self._ask(leader, ADMIN, {"act": REMOVE_USER, "user": row["user"]})
            if users.rights(EVERYBODY_ELSE) != OPEN:
                everything = {"publish": [">"], "subscribe": [">"], "observe": True}
                for act in (REMOVE_USER, ADD_USER):
                    self._ask(leader, ADMIN, {"act": act, "user": EVERYBODY_ELSE, **everything})
        self._world.after(OPEN_S, self._open)

    # --- second processes of a name ---------------------------------------------------------------

    def double(self, node: str, how: str = "empty", seconds: float = 5.0) -> None:
        """Start a second process of a member on another machine, for so long.

        `empty`: with an empty disk, whatever becomes of the first. If it was admitted it stays, and
        in the end the member goes on with its disk, as a wiped one.

        `copy`: with a copy of the first one's directory. That is forbidden, and what is promised is
        that it is refused while the first is heard: so it is started in a calm moment, and ended
        before the next fault.
        """
        assert how in ("empty", "copy"), how
        if double_of(node) in self._world.doubles:
            return
        if how == "copy":
            if not self._is_calm(node):
                return
            machine = self._world.make_double(node)
            machine.copy_disk_of(self._world.nodes[node])
            self._copies.add(node)
        elif self._may_lose(node):
            machine = self._world.make_double(node)
            self._doubled.add(node)
        else:
            return
        machine.build = self._world.nodes[node].build
        self._world.after(seconds, lambda: self._end_outsider(node, machine))
        machine.start()

    def _is_calm(self, node: str) -> bool:
        """Return whether a member runs and is heard by all who run, and nothing is broken."""
        world, net = self._world, self._world.net
        others = [each for name, each in world.nodes.items() if name != node and each.up]
        disturbed = net.cut or any(until > world.now for until in net.clogged.values())
        paused = any(each.paused for each in world.nodes.values())
        found = world.nodes[node]
        if disturbed or paused or not found.up or not others:
            return False
        sound = not found.disk_faults  # a damaged directory is refused whoever starts it
        connected = all(net.connected(node, each.name) for each in others)
        return found.as_member is not None and sound and connected

    def _wipe_again(self, member: str) -> None:
        self.wipe(member)
        self.restart(member)

    def _note_proposal(self, member: str, incarnation: str) -> None:
        if self._wipes_again is not None:
            (until_s, later_s), self._wipes_again = self._wipes_again, None
            if self._world.now < until_s and double_of(member) not in self._world.doubles:
                self._world.after(later_s, lambda: self._wipe_again(member))
        double = self._world.doubles.get(double_of(member))
        replica = None if double is None else double.replica
        if replica is not None and replica.identity.incarnation == incarnation:
            self._proposed.add(member)
            self._unsound.add(member)  # until its double says that it is readmitted

    def _end_copies(self) -> None:
        copies, self._copies = self._copies, set()
        for member in sorted(copies):
            self._drop_double(member)

    def _drop_double(self, member: str) -> None:
        machine = self._world.remove_double(member)
        self._world.emit("double_gone", node=machine.name)

    def _end_outsider(self, member: str, machine: SimNode) -> None:
        if member not in self._proposed:
            self._end_double(member, machine)

    def _end_double(self, member: str, machine: SimNode) -> None:
        """End a double; if it was admitted, or may be, its disk becomes the member's."""
        world = self._world
        if world.doubles.get(machine.name) is not machine:
            return
        was_proposed = member in self._proposed
        self._copies.discard(member)
        self._doubled.discard(member)
        self._proposed.discard(member)
        if not was_proposed:
            self._drop_double(member)
            return
        world.remove_double(member)
        node = world.nodes[member]
        if node.up:
            node.end("kill")
        world.emit("emptied", node=member)
        node.take_disk_of(machine)
        world.emit("moved_in", node=member, double=machine.name)
        self.restart(member)

    def _end_last_double(self, machine: SimNode, is_broken: bool) -> None:
        """End a double at the end of the faults; whom it has replaced has to have learned it."""
        member, world = machine.member, self._world
        is_member = member in self._proposed and member not in self._unsound
        # Who has not joined yet has no place to lose: it is refused as a double, and waits.
        if not is_member or is_broken or world.nodes[member].as_member is None:
            self._end_double(member, machine)
            return

        def end() -> None:
            if machine.name in world.doubles and world.nodes[member].up:
                world.emit("not_evicted", node=member)
            self._end_double(member, machine)

        world.after(EVICTED_S_MAX, end)

    # --- processes --------------------------------------------------------------------------------

    def restart(self, node: str) -> None:
        """Start a process where none runs; a node that refuses its damaged disk is rebuilt."""
        found = self._world.nodes[node]
        if found.up or self.broken.get(node) == "down" or node in self._proposed:
            return  # of a member that may be replaced the new process goes on
        self._world.restart(node)
        if node in self._unsound and not self._world.nodes[node].up:
            self._empty(node)
            self._world.restart(node)

    def restart_all(self) -> None:
        """Start every process that does not run."""
        for name in self._world.nodes:
            self.restart(name)

    # --- the end of the faults --------------------------------------------------------------------

    def recover(self, broken: Mapping[str, str]) -> None:
        """End all faults for good, but for a minority `broken` ({node: one of BROKEN_HOWS})."""
        world = self._world
        world.heal()
        world.weather()
        world.resume("all")
        if self._upgrades:  # who asked for a level has installed what understands it
            for name in world.nodes:
                if world.nodes[name].build != NEXT:
                    self.install(name, "next")
        for machine in list(world.doubles.values()):
            self._end_last_double(machine, machine.member in broken)
        self._faults_are_over = True
        spoiled = DAMAGES if most_are_falsified(world) else SPOILED
        for name, node in world.nodes.items():
            node.disk.calm()
            world.disk_free(name)
            world.clock_rate(name, 1.0)
            world.slow_fsync(name, 0.0)
            if name in self._unsound and not spoiled.isdisjoint(node.disk_faults):
                self._empty(name)
        for name, how in sorted(broken.items()):
            if len(self._unsound | {name, *self.broken}) <= self._faulty_max:
                self.broken[name] = how  # who lost its disk needs a majority to be readmitted
        world.emit("recover", broken=dict(self.broken))
        self.restart_all()
        if world.knob("keys"):
            self._open()
        for name, how in self.broken.items():
            _BREAKS[how](self, name)

    @property
    def healthy(self) -> Sequence[SimNode]:
        """The nodes that nothing is done to any more."""
        return [node for name, node in self._world.nodes.items() if name not in self.broken]

    def _mute(self, name: str) -> None:
        for other in self._world.nodes:
            self._world.cut_one_way(name, other)

    def _deafen(self, name: str) -> None:
        for other in self._world.nodes:
            self._world.cut_one_way(other, name)

    def _flap(self, name: str) -> None:
        """End and start a process for ever."""
        if self._world.nodes[name].up:
            self._world.kill(name)
        else:
            self.restart(name)
        self._world.after(FLAP_S, lambda: self._flap(name))


def most_are_falsified(world: World) -> bool:
    """Return whether a majority has the state that was falsified: the others have to stop."""
    falsified = [node for node in world.nodes.values() if FALSIFIED in node.disk_faults]
    return len(falsified) > len(world.nodes) / 2


def _proved(node: SimNode) -> list[tuple[Path, Inode, int, bool]]:
    """Return (path, file, how many bytes, whether it is the last) that are proved durable."""
    files = journal_files(node.disk)
    found = []
    for path, inode in files:
        is_last = path == files[-1][0]
        data = bytes(inode.data[: inode.durable_bytes])
        high = proved_bytes(path, data) if is_last else len(data)
        if high:
            found.append((path, inode, high, is_last))
    return found


_BREAKS: Final[Mapping[str, Any]] = {
    "down": lambda operator, name: operator._world.kill(name),
    "paused": lambda operator, name: operator._world.pause(name),
    "cut": lambda operator, name: operator._world.cut(name),
    "mute": Operator._mute,
    "deaf": Operator._deafen,
    "flaps": Operator._flap,
}
