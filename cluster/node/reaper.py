"""What a leader proposes as time passes, without a request.

Silent clients are heard of in the log, or forgotten. Publications expire, or become due that were
delayed, by the log's time: if nobody asks for anything, an entry of the leader's makes it go on.

What lives here: which operations it proposes for that, and when. What must not: the log's time, and
what the operations do (store/idle.py, store.py), clocks.

Reads leave nothing in the log, so who only reads is put there now and then. The leader proposes to
forget whom it finds silent; whether they still are is decided when the entry is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cluster.serve.leases import reckoned
from cluster.store.commands import Forget, Hear, Operation
from cluster.store.expiry import NEVER
from cluster.store.store import Store

PERIOD_S: Final = 1.0  # between two steps, each of them a page and some entries
TICK_S: Final = 300.0  # an entry at least so often, far below idle.STEP_MS_MAX
AGE_TICK_S: Final = 10.0  # as well, while a topic keeps something that will be too old
PAGE_CLIENTS: Final = 256  # about half a millisecond; a million clients take an hour
HEARD_PER_ENTRY_MAX: Final = 1_000
FORGOTTEN_PER_ENTRY_MAX: Final = 64
SUBSCRIPTIONS_PER_ENTRY_MAX: Final = 1_000  # of those forgotten, but for the last: some ms to apply
# Of the time until somebody is forgotten: from then on he is told of, and before that a reader is
# heard again, so that who reads is never told of.
WARNED_SHARE: Final = 0.9
WARNED_NAMED_MAX: Final = 10
WARNED_PERIOD_S: Final = 3_600.0  # one line about them in this time

Log = Callable[..., None]


class Reaper:
    """Looks for silent clients, a page at a time. `silent_ms` 0: nobody is ever forgotten.

    `warned`: how many clients will be forgotten soon, as of the last time that all were looked at.
    """

    def __init__(self, silent_ms: int, log: Log) -> None:
        self.warned = 0
        self._silent_ms, self._log = silent_ms, log
        self._due_s = self._tick_s = self._told_s = float("-inf")
        self._after = 0  # the number of the client that was looked at last
        self._silent: list[str] = []  # who will be forgotten soon, in this pass: some names
        self._silent_count = 0
        self._seen_index = -1  # what was applied when an entry was proposed for what is due

    def operations(
        self, store: Store, heard: Callable[[], list[str]], term: int, now: float
    ) -> list[Operation]:
        """Return what is to be proposed now, each in an entry of its own.

        `heard()` takes the clients that have only read since they were noted last.
        """
        if self._is_due(store, term, now):
            self._seen_index = store.applied_index
            return [Hear([])]
        has_ages = store.has_ages
        if not (self._silent_ms or has_ages) or not store.idle.is_on or now < self._due_s:
            return []
        self._due_s = now + PERIOD_S
        found: list[Operation] = []
        ids = heard() if self._silent_ms else []
        if ids or now >= self._tick_s + (AGE_TICK_S if has_ages else TICK_S):
            self._tick_s = now
            found.append(Hear(ids))
        if self._silent_ms:
            found += self._look(store, now)
        return found

    def _is_due(self, store: Store, term: int, now: float) -> bool:
        """Return whether an entry of now would let in what was delayed, and none is under way.

        Or compact, where more is to be done than the entries that come anyway do. Where the log's
        time stands, as nobody has led, it takes an entry to go on.
        """
        if store.applied_index == self._seen_index:
            return False
        if store.compaction.is_behind:
            return True
        delayed = store.delayed
        if delayed.due_ms == NEVER:
            return False
        return delayed.has_work or delayed.due_ms <= reckoned(store, term, now * 1000)

    def _look(self, store: Store, now: float) -> list[Operation]:
        """Look at one page of clients."""
        idle, subscriptions = store.idle, 0
        forgotten: list[str] = []
        rows = idle.page(self._after, PAGE_CLIENTS)
        for number, client_id, at, _ in rows:
            self._after = number
            silent_ms = idle.silent_ms(at)
            if silent_ms >= self._silent_ms:
                forgotten.append(client_id)
                subscriptions += len(store.subscriptions(client_id))
                if (
                    len(forgotten) >= FORGOTTEN_PER_ENTRY_MAX
                    or subscriptions >= SUBSCRIPTIONS_PER_ENTRY_MAX
                ):
                    break
            elif silent_ms >= WARNED_SHARE * self._silent_ms:
                self._silent_count += 1
                if len(self._silent) < WARNED_NAMED_MAX:
                    self._silent.append(client_id)
        else:
            if len(rows) < PAGE_CLIENTS:
                self._end_pass(now)
        return [Forget(forgotten, self._silent_ms)] if forgotten else []

    def _end_pass(self, now: float) -> None:
        self._after, self.warned = 0, self._silent_count
        if self.warned and now >= self._told_s + WARNED_PERIOD_S:
            self._told_s = now
            self._log(
                "clients_silent",
                level="warning",
                count=self.warned,
                some=self._silent,
                reason="they are forgotten soon, with their subscriptions: limits.client_idle_days",
            )
        self._silent, self._silent_count = [], 0
