"""Whom a member's Raft hears: those who are connected, admitted, and can read its log.

What lives here: from which connection on a peer counts, until when, and what was last seen of it
(rules 14, 26 and 30). What must not: sockets, clocks (`now` comes in), who is admitted (member.py
knows the log).
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.members.handshake import can_read
from cluster.members.membership import is_linked
from cluster.node.context import NodeContext
from cluster.raft.raft import Raft
from cluster.wire.levels import Build, Sighting
from cluster.wire.messages import Hello


class Linked:
    """The peers that count. `names`: a live view of them.

    `admission(name)`: a member's incarnation by this node's log, and up to where that is known.
    `log_level()`: the lowest level whose builds can read that log. `now`: from when on it looks:
    nobody has been silent for longer, as far as it knows.
    """

    def __init__(
        self,
        context: NodeContext,
        raft: Raft,
        admission: Callable[[str], tuple[str | None, int]],
        log_level: Callable[[], int],
        now: float,
    ) -> None:
        self.names: set[str] = set()
        self._context, self._raft = context, raft
        self._admission, self._log_level, self._began_s = admission, log_level, now
        self._seen: dict[str, tuple[float, Build]] = {}  # when each member was last connected
        others = context.settings.others
        self._greeted: dict[str, Hello | None] = dict.fromkeys(others)  # at the last look
        self._stands, self._took_part = False, False

    @property
    def has_majority(self) -> bool:
        """True if this node hears a majority, itself included."""
        return len(self.names) + 1 >= self._context.settings.majority

    def look_again(self) -> None:
        """Let the next `refresh` look at everybody."""
        self._stands = False

    def refresh(self, now: float, is_pending: bool) -> None:
        """Let Raft have exactly the connections of admitted members.

        They stand as they are while everybody connected is who the log says, nothing of that waits
        to be applied (`is_pending`), and everybody says what was said before: so it is in nearly
        every turn.
        """
        context, raft = self._context, self._raft
        hellos, takes_part = context.hellos(), context.seniority.takes_part(now)
        if self._stands and takes_part == self._took_part and hellos == self._greeted:
            return
        self._took_part, self._stands = takes_part, not is_pending
        for name, hello in hellos.items():
            before = hello or self._greeted[name]
            if before is not None:
                self._seen[name] = (now, before.extension.build)
            self._greeted[name] = hello
            admitted, known_index = self._admission(name)
            # Any other's membership depends on how far the log is known, which each entry changes.
            self._stands &= hello is None or hello.incarnation == admitted
            linked = takes_part and is_linked(hello, admitted, known_index)
            linked = linked and can_read(hello, self._log_level())
            if linked and name not in self.names:
                assert hello is not None, name
                self.names.add(name)
                context.neighbours.hear(name, hello.incarnation, now)
                raft.connected(name)
            elif not linked:
                self.unlink(name, now)
                if hello is not None and hello.incarnation != admitted:
                    raft.forget(name)

    def unlink(self, name: str, now: float) -> None:
        """Let Raft hear a peer no more, if it did."""
        if name in self.names:
            self.names.discard(name)
            self._raft.disconnected(name, now)

    def hear(self, name: str, now: float) -> None:
        """Note that a member lives, also one that was admitted and still copies the store."""
        hello = self._context.peers.hello_of(name)
        if hello is None:
            return
        if name in self.names or hello.incarnation == self._admission(name)[0]:
            self._context.neighbours.hear(name, hello.incarnation, now)

    def sightings(self, now: float) -> dict[str, Sighting]:
        """Return what is known of each other member's program."""
        sightings = {}
        for name in self._context.settings.others:
            seen_s, build = self._seen.get(name, (self._began_s, None))
            connected = self._context.peers.hello_of(name) is not None
            silent_s = 0.0 if connected else now - seen_s
            sightings[name] = Sighting(build, name in self.names, silent_s)
        return sightings
