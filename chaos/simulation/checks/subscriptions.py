"""Whether each client is subscribed, as far as what it was told decides that.

What lives here: a model of one subscription (it stands, or not, or nobody can tell) and the claims
that follow: a definite error has changed nothing, a request that came late is not carried out, a
subscription ends only by an UNSUB. What must not: cursors and publications (promises.py).

After Jepsen's registers with indeterminate writes: until a later request of the same client was
answered, an operation without an outcome may or may not have happened, or may happen yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flotilla_client import Operation, Outcome

WISHES: Final = {"sub": True, "unsub": False}  # what stands when the operation has happened
MISSING: Final = frozenset({"not_subscribed", "unknown_topic"})  # errors that say: no subscription

Owner = tuple[str, str]  # (client_id, topic)


class Subscriptions:
    """Follows the subscriptions of all clients. `fail(text)` is called with what can't be true.

    `is_doubling`: whether the network may have made two requests of one.
    """

    def __init__(self, fail: Callable[[str], None], is_doubling: Callable[[], bool]) -> None:
        self._fail = fail
        self._is_doubling = is_doubling
        self._possible: dict[Owner, frozenset[bool]] = {}
        self._before: dict[tuple[str, int], frozenset[bool]] = {}  # (process, operation)

    def invoked(self, process: str, operation: Operation) -> None:
        """Take into account that the operation may happen from now on."""
        if operation.f in WISHES:
            before = self._of(operation)
            self._before[process, operation.number] = before
            self._possible[_owner(operation)] = before | {WISHES[operation.f]}

    def completed(self, process: str, operation: Operation, outcome: Outcome) -> None:
        """Hold an outcome against what is possible, and take it into account."""
        if operation.f == "get":
            if outcome.error in MISSING and self._of(operation) == {True}:
                self._fail(f"{_what(operation)}: {outcome.error}, it has never unsubscribed since")
            return
        if operation.f not in WISHES:
            return
        before = self._before.pop((process, operation.number))
        if not outcome.error:
            self._judge(operation, outcome, before)
            self._possible[_owner(operation)] = frozenset({WISHES[operation.f]})
        elif outcome.definite:
            self._possible[_owner(operation)] = before

    def _judge(self, operation: Operation, outcome: Outcome, before: frozenset[bool]) -> None:
        """Check what a SUB found; a second attempt may have found the first one's subscription.

        So may a copy that the network made on the way from a follower to the leader (seed 102).
        """
        is_single = outcome.attempts == 1 and not self._is_doubling()
        if outcome.resumed and is_single and before == {False}:
            self._fail(f"{_what(operation)} resumes what every earlier answer says is not there")
        if outcome.resumed is False and before == {True}:
            self._fail(f"{_what(operation)} begins anew, it has never unsubscribed since")

    def _of(self, operation: Operation) -> frozenset[bool]:
        return self._possible.get(_owner(operation), frozenset({False}))


def _owner(operation: Operation) -> Owner:
    return operation.client_id, operation.topic


def _what(operation: Operation) -> str:
    return f"{operation.f} of {operation.client_id} for {operation.topic}"
