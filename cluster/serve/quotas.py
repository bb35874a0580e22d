"""Quotas: how much one payer may use up, and what it is told beyond that.

What lives here: the quotas' names, the rates of each payer, and the count of what was refused. What
must not: sockets, a clock of its own, and how much of the replicated state somebody has (broker.py
asks the store).

A payer is a principal; in a cluster without keys the address that a connection comes from, as all
else a stranger may choose as he likes. Rates and connections are counted by each node for its own
clients. The rest is the leader's to decide, before an entry is made: a quota is a node's setting,
so it must not decide what an entry does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from flotilla_client.error_table import ProtocolError

QUOTA: Final = "quota"  # the error's code
PAYERS_MAX: Final = 4_096  # whose rates are kept; as many have connections at most, by default
BURST_S: Final = 1.0  # a payer may spend so much of its rates at once
HOUR_MS: Final = 3_600_000
REPORT_S: Final = 10.0  # one line of the log about what was refused in this time
REPORTED_MAX: Final = 100  # payers and quotas that are counted by name; the rest together
OTHERS: Final = "others"


@dataclass(frozen=True)
class Quotas:
    """What one payer may have, on one node (rates, connections) or of the cluster; 0: no quota."""

    requests_per_s_max: int = 0
    bytes_per_s_max: int = 0
    connections_max: int = 0
    clients_max: int = 0
    topics_max: int = 0
    names_per_hour_max: int = 0
    subscriptions_max: int = 0
    patterns_max: int = 0
    groups_max: int = 0
    parked_gets_max: int = 0
    unread_bytes_max: int = 0


def exceeded(quota: str, limit: int, what: str, retry_after_ms: int | None = None) -> ProtocolError:
    """Return the refusal of what is over a quota.

    `retry_after_ms` None: asking again helps only when something was given up.
    """
    details = {} if retry_after_ms is None else {"retry_after_ms": retry_after_ms}
    message = f"{what}: quotas.{quota} is {limit}"
    return ProtocolError(QUOTA, message, quota=quota, limit=limit, **details)


@dataclass(slots=True)
class _Allowance:
    """What is left of a payer's rates, in requests and bytes; below 0: spent in advance."""

    requests: float
    bytes: float
    at_ms: float


class Rates:
    """The requests and bytes a second of each payer on this node. `quotas`: as they are set."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self._requests_per_s = quotas.requests_per_s_max
        self._bytes_per_s = quotas.bytes_per_s_max
        self._buckets: dict[str, _Allowance] = {}

    def take(self, payer: str, size_bytes: int, now_ms: float) -> ProtocolError | None:
        """Spend a request of that size; return the refusal if there is nothing to spend it from.

        A request that is larger than what is left passes, and is paid for afterwards: otherwise one
        that is larger than all of a second's could never pass.
        """
        if not (self._requests_per_s or self._bytes_per_s):
            return None
        bucket = self._filled(payer, now_ms)
        waits = []  # until there is a request to spend, and until the bytes are paid for
        if self._requests_per_s and bucket.requests < 1:
            wait_ms = (1 - bucket.requests) * 1000 / self._requests_per_s
            waits.append((wait_ms, "requests_per_s_max", self._requests_per_s))
        if self._bytes_per_s and bucket.bytes <= 0:
            wait_ms = -bucket.bytes * 1000 / self._bytes_per_s
            waits.append((wait_ms, "bytes_per_s_max", self._bytes_per_s))
        if waits:
            wait_ms, quota, limit = max(waits)
            return exceeded(quota, limit, f"{payer} has had its share", int(wait_ms) + 1)
        bucket.requests -= 1
        bucket.bytes -= size_bytes
        return None

    def spend(self, payer: str, size_bytes: int, now_ms: float) -> None:
        """Spend the bytes of a reply."""
        self._filled(payer, now_ms).bytes -= size_bytes

    def _filled(self, payer: str, now_ms: float) -> _Allowance:
        full = self._requests_per_s * BURST_S, self._bytes_per_s * BURST_S
        bucket = self._buckets.get(payer)
        if bucket is None:
            if len(self._buckets) >= PAYERS_MAX:
                self._forget_one(now_ms)
            bucket = self._buckets[payer] = _Allowance(max(full[0], 1.0), full[1], now_ms)
            return bucket
        passed_s = max(0.0, now_ms - bucket.at_ms) / 1000
        requests = bucket.requests + passed_s * self._requests_per_s
        bucket.requests = min(max(full[0], 1.0), requests)
        bucket.bytes = min(full[1], bucket.bytes + passed_s * self._bytes_per_s)
        bucket.at_ms = now_ms
        return bucket

    def _forget_one(self, now_ms: float) -> None:
        """Forget who has spent nothing for longest."""
        idlest = min(self._buckets, key=lambda payer: self._buckets[payer].at_ms)
        del self._buckets[idlest]


class NewNames:
    """How many topics of new names each principal may still make: an hour's worth at once."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}  # how many, and when that was

    def take(self, principal: str, per_hour: int, now_ms: float) -> int:
        """Count one; return 0, or in how many ms the principal may make one."""
        left, at_ms = self._left.get(principal, (float(per_hour), now_ms))
        left = min(per_hour, left + max(0.0, now_ms - at_ms) * per_hour / HOUR_MS)
        if left < 1:
            return int((1 - left) * HOUR_MS / per_hour) + 1
        if principal not in self._left and len(self._left) >= PAYERS_MAX:
            del self._left[min(self._left, key=lambda each: self._left[each][1])]
        self._left[principal] = left - 1, now_ms
        return 0


@dataclass
class Refusals:
    """How often each payer met each quota: all in all, and since the last report."""

    total: Counter[tuple[str, str]] = field(default_factory=Counter)
    _fresh: Counter[tuple[str, str]] = field(default_factory=Counter)
    _next_report_ms: float = 0.0

    def note(self, payer: str, quota: str) -> None:
        """Count one."""
        for counts in (self.total, self._fresh):
            known = (payer, quota) in counts or len(counts) < REPORTED_MAX
            counts[payer if known else OTHERS, quota] += 1

    def report(self, now_ms: float) -> dict[str, int]:
        """Return what is to be told now, once in `REPORT_S` at most: {"payer quota": how often}."""
        if not self._fresh or now_ms < self._next_report_ms:
            return {}
        self._next_report_ms = now_ms + REPORT_S * 1000
        told = {f"{payer} {quota}": count for (payer, quota), count in self._fresh.items()}
        self._fresh.clear()
        return told
