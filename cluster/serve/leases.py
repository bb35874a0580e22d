"""TAKE at the leader: when one goes into the log, as what, and what it is answered.

What lives here: pure judgments on one TAKE and the state that the leader has applied. What must
not: who waits (broker.py), what a take does (store/groups.py), clocks.

A TAKE goes into the log when it settles something, when there is something to give, or when it was
given something before. Otherwise it waits, as a GET does. Time alone makes leases run out, and an
entry alone lets the log's time go on: the leader reckons with the time that its next entry will
have, and the take itself is that entry.
"""

from __future__ import annotations

from typing import Any, Final

from cluster.store.commands import Take
from cluster.store.groups import SharedGroup
from cluster.store.outcomes import Leased, Refused
from cluster.store.store import Store
from flotilla_client.protocol import INTEGER_MAX, LEASE_MS, Request

LOOK_MS: Final = 20.0  # between two looks at leases that may have run out: far below LEASE_MS_MIN
OFFERED_MAX: Final = 64  # parked takes of a group that are looked at for one that gets something
# Of these, of one client: who has as many leases as he may gets nothing, and stands before others.
# By the limits of groups (store/groups.py) that are five at a time.
TAKES_OF_ONE_MAX: Final = 8

SETTLING: Final = ("acks", "naks", "extends")  # what a TAKE has to settle, in its body

Key = tuple[str, str]  # topic and group


def key_of(request: Request) -> Key:
    """Return which group a TAKE is about."""
    return request.topic, request.body["group"]


def operation_of(request: Request, is_settled: bool) -> Take:
    """Return what a TAKE is in the log; `is_settled`: it was there, and gave nothing."""
    body = request.body
    settled = [[] if is_settled else body[name] for name in SETTLING]
    numbers = body["number"], body["max_count"], body["max_bytes"], body["lease_ms"]
    return Take(request.client_id, request.epoch, *key_of(request), *numbers, *settled)


def reckoned(store: Store, term: int, now_ms: float) -> int:
    """Return which time of the log an entry of this leadership would have that is made now.

    While the log's time stands it is later than any lease: with an entry it goes on.
    """
    idle = store.idle
    return idle.at(term, now_ms) if idle.is_running(term, now_ms) else INTEGER_MAX


def is_due(store: Store, request: Request, term: int, now_ms: float) -> bool:
    """Return whether a TAKE, whose settlements are done, is to go into the log now."""
    group = store.groups.get(*key_of(request))
    return group is not None and has_news(store, group, request, reckoned(store, term, now_ms))


def has_news(store: Store, group: SharedGroup, request: Request, log_ms: int) -> bool:
    """Return whether a TAKE is given something at that time of the log."""
    return _is_known(group, request) or store.groups.has_work(group, request.client_id, log_ms)


def _is_known(group: SharedGroup, request: Request) -> bool:
    """Return whether this request was given something before, or a later one of its client came."""
    worker, number = group.workers.get(request.client_id), request.body["number"]
    if worker is None or number is None or worker.epoch != (request.epoch or 0):
        return False
    return number < worker.number or (number == worker.number and worker.token > 0)


def settles(request: Request) -> bool:
    """Return whether a TAKE has something to say of what its client has."""
    body = request.body
    return any(body[name] for name in SETTLING) or body["max_count"] == 0


def read(store: Store, request: Request, taken: dict[str, Any]) -> Leased | Refused:
    """Return what a TAKE was given, as far as it is still its client's."""
    return store.read_leased(
        request.client_id, *key_of(request), taken.get("token", 0), taken.get("given", [])
    )


def answer_of(
    store: Store, request: Request, taken: dict[str, Any], leased: Leased
) -> dict[str, Any]:
    """Return the body of a TAKE's ACK.

    A lease is as long as it was when it was given, however the group was set since. Of one that is
    told again that is not kept, but it is no shorter than what is left of it.
    """
    group, lease_ms = store.groups.get(*key_of(request)), request.body["lease_ms"]
    if lease_ms is None:
        lease_ms = LEASE_MS if group is None else group.lease_ms
    return {
        "topic": request.topic,
        "group": request.body["group"],
        "count": len(leased.lengths) >> 2,
        "token": leased.token if leased.runs else 0,
        "leases": [[first, last + 1 - first, attempt] for first, last, attempt in leased.runs],
        "left_ms": leased.left_ms,
        "lease_ms": max(taken.get("lease_ms", lease_ms), leased.left_ms),
        "lost": [[first, last + 1 - first] for first, last in taken.get("lost", [])],
    }
