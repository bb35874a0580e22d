"""Whether a leader may answer a read: a majority has said, since it came, that it still leads.

What lives here: rule 28 of docs/raft.md. What must not: the reads themselves (serve/broker.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.wire.messages import Barrier, BarrierAck, Message


class Reads:
    """The barriers of one node: numbered questions to all, and who has answered which.

    One question serves all reads that came before it was sent.
    """

    def __init__(self, others: Sequence[str], majority: int) -> None:
        self._others, self._majority = others, majority
        self._newest = self._sent = 0
        self._is_to_be_repeated = False
        self._answered: dict[str, int] = {}
        self._term = 0

    def ask(self, term: int) -> int:
        """Return the number of a barrier whose answers will have been given after this call."""
        if self._term != term:
            self._answered.clear()
            self._term = term
        if self._sent == self._newest:
            self._newest += 1
        return self._newest

    def repeat(self) -> None:
        """Send the newest question again: its messages may have been lost."""
        self._is_to_be_repeated = True

    def questions(self, term: int) -> list[tuple[str, Message]]:
        """Return the question of all barriers that were asked for since the last one, if any."""
        if self._sent == self._newest and not self._is_to_be_repeated:
            return []
        self._sent, self._is_to_be_repeated = self._newest, False
        return [(name, Barrier(term, self._newest)) for name in self._others]

    def take_answer(self, name: str, message: BarrierAck, term: int) -> None:
        """Take an answer to a leader of `term`."""
        if message.term == term == self._term:
            self._answered[name] = max(self._answered.get(name, 0), message.sequence)

    def passed(self, term: int) -> int:
        """Return the newest barrier that a majority has answered in this term, 0 without one."""
        if self._term != term:
            return 0
        answered = sorted((*self._answered.values(), self._newest), reverse=True)
        return answered[self._majority - 1] if len(answered) >= self._majority else 0
