"""A node whose directory is empty: it asks, and waits, until it may be a member.

What lives here: the three ways to become one (rule 26; docs/decisions/0003-wiped-nodes.md), and
how a member's directory is opened. What must not: what a member does (member.py), who may be one
(membership.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from cluster.log.journal import Journal
from cluster.members.identity import Identity, check_not_condemned
from cluster.members.membership import founding_set, hello_of
from cluster.members.peers import Event
from cluster.node.context import NodeContext
from cluster.node.member import Member, check_level
from cluster.store import snapshots
from cluster.store.store import Store
from cluster.wire.levels import LEVEL_FIRST
from cluster.wire.messages import Hello, Message, Refusal, SnapshotRefused, SnapshotRequest

MakeMember = Callable[[NodeContext, Identity, float, Mapping[str, str]], Member]
"""Makes a member of the files in its directory; as `Member` does."""
NO_FOUNDERS: Final[Mapping[str, str]] = {}


def open_member(
    context: NodeContext, identity: Identity, now: float, make_member: MakeMember
) -> Member:
    """Return the member whose directory this is.

    Raises CondemnedState, WrongMembers, UnsupportedLevel, CorruptStore, JournalError, OSError.
    """
    check_not_condemned(context.settings.data_dir, context.settings.files)
    database = context.settings.database
    snapshots.remove_leftovers(database)
    if not snapshots.make_shrinkable(database):
        context.log("store_cannot_shrink", reason="made by version 0.1; too large to be remade")
    return make_member(context, identity, now, NO_FOUNDERS)


class Joining:
    """A node that is no member yet: `begin_turn` returns the member that it has become.

    `identity` is the data directory's.
    """

    def __init__(self, context: NodeContext, identity: Identity, make_member: MakeMember) -> None:
        assert not identity.started, identity
        self.identity = identity
        self._context, self._make_member = context, make_member
        context.log(
            "joining", reason="the data directory is empty", members=context.settings.members
        )

    def hello(self) -> Hello:
        """Return what this node says of itself to its peers."""
        settings = self._context.settings
        return hello_of(self.identity, settings.members, settings.build, LEVEL_FIRST)

    def describe(self) -> dict[str, Any]:
        """Return what the status says beside Raft's part."""
        context = self._context
        waiting_for = context.neighbours.waiting_for(context.fetch.source)
        return {"incarnation": self.identity.incarnation, "waiting_for": waiting_for}

    # --- a turn -------------------------------------------------------------------------------

    def begin_turn(self, now: float, events: Collection[Event]) -> Joining | Member:
        """Return the member if the peers' hellos or a copy of the store make this node one."""
        context = self._context
        is_alone = context.settings.majority == 1
        is_refused = bool(context.neighbours.refused_as(Refusal.DOUBLED, now))
        context.seniority.yields(is_refused, is_alone, now)
        return self.join(now) or self

    def take_message(self, name: str, message: Message) -> None:
        """Refuse to give a copy of the store; hear nothing of Raft."""
        if isinstance(message, SnapshotRequest):
            self._context.peers.send(name, SnapshotRefused("not a member myself"))

    # --- becoming a member --------------------------------------------------------------------

    def join(self, now: float) -> Member | None:
        """Return this node as a member, None while nothing makes it one.

        Until its identity is on the disk, which comes last, it is fresh and would begin again.
        """
        context = self._context
        hellos = context.hellos()
        founding = founding_set(context.settings.name, self.identity.incarnation, hellos)
        if founding is not None:
            return self._found(founding, now)
        copy = context.fetch.ready
        if copy is not None:
            return self._rejoin(copy, now)
        members = [name for name, hello in hellos.items() if hello and not hello.fresh]
        if members:
            context.fetch.start(context.rng.choice(members), now)
        return None

    def _found(self, founding: dict[str, str], now: float) -> Member:
        self._make_room()
        identity = replace(self.identity, founding=founding, started=True)
        member = self._begin(identity, now, founding)
        self._context.log("founded", founding=founding)
        return member

    def _rejoin(self, copy: snapshots.Verified, now: float) -> Member | None:
        """Take over a copy of the store, if this incarnation is admitted in it (rule 26)."""
        settings, log = self._context.settings, self._context.log
        if copy.members.get(settings.name) != self.identity.incarnation:
            log("copy_too_old", index=copy.index, reason="not admitted in it yet")
            self._context.fetch.discard_ready()
            return None
        check_level(copy, settings.build)
        self._make_room()
        self._context.fetch.forget_ready()
        snapshots.install(copy.path, settings.database)
        # Without a founding set: only the founders' may make others members.
        identity = replace(self.identity, started=True, admitted_index=copy.index)
        member = self._begin(identity, now, NO_FOUNDERS)
        log("readmitted", index=copy.index, term=copy.term)
        return member

    def _make_room(self) -> None:
        """Remove what an earlier attempt to become a member left behind."""
        settings = self._context.settings
        Store.remove(settings.database)
        files, directory = settings.files, settings.journal_dir
        for name in files.list(directory):
            files.unlink(directory / name)

    def _begin(self, identity: Identity, now: float, founding: Mapping[str, str]) -> Member:
        settings = self._context.settings
        Journal.create(settings.journal_dir, settings.files)
        member = self._make_member(self._context, identity, now, founding)
        member.journal.sync()
        # Last: until this is on disk the node is fresh and would begin again.
        identity.save(settings.data_dir, settings.files)
        self._context.peers.update_hello(member.hello())
        return member
