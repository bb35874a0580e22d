"""Nodes compare digests of their state: one that differs from the majority stops.

What lives here: which digests a node tells the others, and what it makes of theirs. What must not:
how a digest is made (store/audit.py), messages, files.

A node's copy of the state may differ though its log does not: a defect of a program or of a
machine. Nobody would notice before a client does, and the next copy of the store would spread it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from cluster.store import audit

# Of the newest digests that a node tells: those of indexes that are divided by more and more. Two
# nodes tell theirs at different moments; of the rare ones both have the same in hand.
STRIDES: Final = tuple(4**power for power in range(6))  # of agreed indexes
TOLD_OF_EACH: Final = 2
TOLD_MAX: Final = len(STRIDES) * TOLD_OF_EACH
KEPT_MAX: Final = 64  # of what one other has told: those of the highest indexes


class Differs(Exception):
    """This node's state differs from the majority's: it must stop, and its files be kept.

    `index`: where it was seen; `agreed`: the last index at which it was known to be the same, 0 if
    there is none.
    """

    def __init__(self, index: int, agreed: int) -> None:
        since = f"between entries {agreed} and {index}" if agreed else f"at or before entry {index}"
        super().__init__(
            f"this node's state differs from that of a majority: it went wrong {since}. It takes no"
            " part any more; its files are kept as they are"
        )
        self.index, self.agreed = index, agreed


def to_tell(marks: Mapping[int, str]) -> dict[int, str]:
    """Return the digests that a node tells the others."""
    told: dict[int, str] = {}
    for stride in STRIDES:
        found = [index for index in marks if index % (stride * audit.EVERY) == 0]
        told |= {index: marks[index] for index in found[-TOLD_OF_EACH:]}
    return told


class StateComparison:
    """What the others have told of their digests.

    `agreed`: the last index at which a majority had this node's own. `in_dispute`: who differs from
    this node where no majority is known to have its digest, there or behind.
    """

    def __init__(self) -> None:
        self.agreed = 0
        self.in_dispute: list[str] = []
        self._told: dict[str, tuple[str, dict[int, str]]] = {}  # name -> incarnation, digests
        self._split = 0  # the last index at which somebody differed, and no majority was known

    def take(self, name: str, incarnation: str, digests: Mapping[int, str]) -> None:
        """Take what another member tells. What an earlier incarnation told is forgotten."""
        told_by, told = self._told.get(name, ("", {}))
        known = {**told, **digests} if told_by == incarnation else digests
        kept = {index: known[index] for index in sorted(known)[-KEPT_MAX:]}
        self._told[name] = incarnation, kept

    def judge(
        self, mine: Mapping[int, str], members: Mapping[str, str], majority: int
    ) -> tuple[int, list[str]]:
        """Compare; return where others differ, and who, if that is new; else 0, [].

        `members`: name -> incarnation of those whose word counts. Raises Differs if a majority has
        another digest in common.
        """
        told = {
            name: digests
            for name, (incarnation, digests) in self._told.items()
            if members.get(name) == incarnation
        }
        self.in_dispute = []
        indexes = sorted({index for each in told.values() for index in each} & mine.keys())
        split: tuple[int, list[str]] = 0, []
        for index in indexes:
            said = [each[index] for each in told.values() if index in each]
            if said.count(mine[index]) == len(said):  # as nearly always: nobody differs
                if len(said) + 1 >= majority:
                    self._agree(index)
                continue
            votes = Counter([mine[index], *said])
            digest, count = votes.most_common(1)[0]
            if count >= majority and digest != mine[index]:
                raise Differs(index, self.agreed)
            own = mine[index]
            who = sorted(name for name, each in told.items() if each.get(index, own) != own)
            if votes[own] >= majority:
                self._agree(index)
            else:
                self.in_dispute = who
            if index > self._split:
                self._split, split = index, (index, who)
        return split

    def _agree(self, index: int) -> None:
        self.agreed = max(self.agreed, index)
        self.in_dispute = []
