"""Who may be a peer: what two nodes' Hellos have to agree on, and how often trouble is reported.

What lives here: pure judgments on Hellos, and who may have a peer's place if two claim it. What
must not: sockets, clocks, what a wiped or fresh member may do (that is for those who know the log).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cluster.wire.messages import Extension, Hello, Message

REPORT_MS: Final = 10_000  # the same trouble with the same address is reported once in this time
REPORTS_MAX: Final = 16  # of strangers, whatever their addresses, in that time
REPORTS_REMEMBERED_MAX: Final = 64  # addresses; the oldest is forgotten first


def objection(mine: Hello, message: Message, dialed: str | None, proved: str | None = None) -> str:
    """Return why a first message is no Hello for us, "" if it is.

    `proved`: the name in the sender's certificate, None where nobody has to prove anything.
    `dialed` is the peer that we dialed, None if the other side did. The version was checked by
    decoding.
    """
    if not isinstance(message, Hello):
        return f"said {type(message).__name__} before Hello"
    if proved is not None and message.node != proved:
        return f"says that it is {message.node!r}, and has the certificate of {proved!r}"
    if message.cluster_id != mine.cluster_id:
        return f"belongs to cluster {message.cluster_id!r}, this node to {mine.cluster_id!r}"
    if message.members != mine.members:
        return f"knows the members {message.members}, this node {mine.members}"
    if message.node not in mine.members or message.node == mine.node:
        return f"is {message.node!r}, which is no other member than {mine.node!r}"
    if dialed is not None and dialed != message.node:
        return f"is {message.node!r}, but {dialed!r} was dialed"
    return ""


def unfit(mine: Hello, theirs: Hello) -> str:
    """Return why the peer's build and ours can't be in one cluster now, "" if they can.

    A node that has not applied everything says a lower level than the cluster's: that is no fault.
    """
    if mine.extension.level > theirs.extension.build.level_max:
        level, build = mine.extension.level, theirs.extension.build
        return f"{theirs.node} runs {build}; the cluster's level is {level}: install a newer one"
    if theirs.extension.level > mine.extension.build.level_max:
        level, build = theirs.extension.level, mine.extension.build
        return f"{mine.node} runs {build}; the cluster's level is {level}: install a newer one"
    return ""


def can_read(hello: Hello | None, log_level: int) -> bool:
    """Return whether the peer's build can read a log of that level; who can't must get none of it.

    The log's level is above the cluster's while the entry that raises it is not applied.
    """
    return hello is not None and hello.extension.build.level_max >= log_level


def follows(known: Hello, message: Hello | Extension) -> Hello | None:
    """Return what a connected peer has said in all, None if it became somebody else by `message`.

    A Hello said again comes in two parts as well: its extension stands until the new one comes.
    """
    if isinstance(message, Extension):
        return replace(known, extension=message)
    if identity(message) != identity(known):
        return None
    return replace(message, extension=known.extension)


def identity(hello: Hello) -> tuple[object, ...]:
    """Return what may not change while a connection lives."""
    return hello.version, hello.cluster_id, hello.node, hello.incarnation, hello.members


def contest(
    newcomer: Hello,
    holder: Hello,
    silent_s: float,
    takeover_s: float,
    admitted: str | None,
    address: str,
) -> str:
    """Return why a second connection in a peer's name must not have its place, "" if it may.

    `holder`: what the peer with the place says, which was heard `silent_s` ago, at `address`. Who
    is heard keeps its place: what a process claims counts less than that another one lives. But an
    incarnation that is not `admitted` gives way to the one that is.
    """
    if silent_s >= takeover_s:
        return ""
    if newcomer.incarnation == admitted != holder.incarnation:
        return ""
    same = newcomer.incarnation == holder.incarnation
    return (
        f"{holder.node} is connected from {address} (incarnation {holder.incarnation}, heard "
        f"{silent_s:.1f} s ago); it has to be silent for {takeover_s:.1f} s before another "
        f"process takes its place"
        + ("; both use one data directory, or a copy of it, which is forbidden" if same else "")
    )


class Reports:
    """Tells whether a trouble is to be reported again, so that the log is not flooded."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._window_s = float("-inf")
        self._strangers = 0
        self.withheld = 0  # reports of strangers since the last one that was due

    def due(self, key: str, now: float) -> bool:
        """Return True at most once a key in `REPORT_MS`; `now` in seconds."""
        if now < self._at.get(key, float("-inf")) + REPORT_MS / 1000:
            return False
        self._at.pop(key, None)  # the newest stands last
        self._at[key] = now
        if len(self._at) > REPORTS_REMEMBERED_MAX:
            del self._at[next(iter(self._at))]
        return True

    def due_of_stranger(self, key: str, now: float) -> bool:
        """Return as `due` does, and True for at most `REPORTS_MAX` keys in `REPORT_MS`.

        Anybody can come from many addresses. `withheld` counts those that were not told.
        """
        if now >= self._window_s + REPORT_MS / 1000:
            self._window_s, self._strangers = now, 0
        if self._strangers >= REPORTS_MAX or not self.due(key, now):
            self.withheld += 1
            return False
        self._strangers += 1
        return True
