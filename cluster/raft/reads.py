"""Whether a leader may answer a read: a majority has said, since it came, that it still leads.

What lives here: rule 28 of docs/raft.md. What must not: the reads themselves (serve/broker.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.raft.ready import NEVER_S
from cluster.wire.messages import Message, ReadIndex, ReadIndexResponse


class Reads:
    """The barriers of one node: numbered questions to all, and who has answered which.

    One question serves all reads that came before it was sent. It is asked again once a period
    until a majority has answered: its messages may be lost.
    """

    def __init__(self, others: Sequence[str], majority: int, period_s: float) -> None:
        self._others, self._majority, self._period_s = others, majority, period_s
        self._newest = self._sent = self._passed = 0
        self._sent_s = -NEVER_S
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

    def questions(self, term: int, now: float) -> list[tuple[str, Message]]:
        """Return the question that a leader of `term` sends now, if one is due."""
        if self._passed == self._newest or self._term != term:
            return []
        if self._sent == self._newest:
            self._passed = self.passed(term)
            if self._passed == self._newest or now - self._sent_s < self._period_s:
                return []
        self._sent, self._sent_s = self._newest, now
        return [(name, ReadIndex(term, self._newest)) for name in self._others]

    def take_answer(self, name: str, message: ReadIndexResponse, term: int) -> None:
        """Take an answer to a leader of `term`."""
        if message.term == term == self._term:
            self._answered[name] = max(self._answered.get(name, 0), message.sequence)

    def passed(self, term: int) -> int:
        """Return the newest barrier that a majority has answered in this term, 0 without one."""
        if self._term != term:
            return 0
        answered = sorted((*self._answered.values(), self._newest), reverse=True)
        return answered[self._majority - 1] if len(answered) >= self._majority else 0
