"""Bugs in who may what: principals, the owners of client ids, and permissions that are taken away.

What must not live here: what finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.serve.broker import Broker
from cluster.serve.frontend import Frontend
from cluster.store.clients import Clients
from cluster.store.commands import Put
from cluster.store.outcomes import Outcome, Refused
from cluster.store.store import Store
from cluster.store.users import Rights, Users
from cluster.wire.messages import Relay
from flotilla_client.protocol import Request

_take_relay: Final = Frontend.take_relay
_take_request: Final = Frontend.take_request
_put: Final = Store._put
_request: Final = Broker.request
_flush: Final = Clients.flush
_forbidden: Final = Broker.forbidden
_set: Final = Users._set

UNSAID: Final = "operator"  # whom a relay without its principal is taken for


@bug("a permission is looked up where the request is carried out", {"barrier"})
def a_follower_decides_by_its_own_state(patches: Patches) -> None:
    """Have any node refuse what its own state does not allow."""

    def take_request(front: Frontend, route: bytes, frames: Sequence[bytes]) -> None:
        request = front._decode(route, frames)
        lead = front.lead
        if request is not None and lead is not None and front.principal_of is not None:
            refused = lead.broker.forbidden(front.principal_of(route), request)
            if refused is not None:
                front._refuse(
                    route, request.request_id, refused.code, refused.message, **refused.details
                )
                return
        _take_request(front, route, frames)

    patches.attribute(Frontend, "take_request", take_request)


@bug("a relay says who asks", {"permission"})
def a_relay_loses_its_principal(patches: Patches) -> None:
    """Take what another node passes on for the operator's."""

    def take_relay(front: Frontend, name: str, message: Relay) -> None:
        if message.principal is not None:
            message = replace(message, principal=UNSAID)
        _take_relay(front, name, message)

    patches.attribute(Frontend, "take_relay", take_relay)


@bug("an entry says who asked", {"permission"})
def entries_do_not_say_who_asked(patches: Patches) -> None:
    """Carry out what is passed on in nobody's name."""

    def take_relay(front: Frontend, name: str, message: Relay) -> None:
        _take_relay(front, name, replace(message, principal=None))

    patches.attribute(Frontend, "take_relay", take_relay)
    patches.attribute(Frontend, "_needs_principal", False)


@bug("a client id is its principal's alone", {"answered", "permission"})
def owners_are_not_checked(patches: Patches) -> None:
    """Let everybody use every client id that he knows."""
    patches.attribute(Store, "not_owned", lambda store, client_id, principal: None)


@bug("a client id is its principal's alone", {"answered", "permission", "rebuilt"})
def owners_are_forgotten_by_a_restart(patches: Patches) -> None:
    """Keep in memory alone whose a client is."""

    def forgetting(clients: Clients) -> None:
        clients._dirty_owners.clear()
        _flush(clients)

    patches.attribute(Clients, "flush", forgetting)


@bug("a revocation takes effect at its index", {"answered", "permission"})
def what_was_admitted_is_carried_out(patches: Patches) -> None:
    """Judge a PUT when it comes to the leader, and not again at its entry."""

    def put(store: Store, operation: Put) -> Outcome:
        return _put(store, replace(operation, principal=None))

    patches.attribute(Store, "_put", put)


@bug("a revocation takes effect at its index", {"permission"})
def waiting_reads_are_not_looked_at_again(patches: Patches) -> None:
    """Leave parked GETs alone when permissions change."""
    patches.attribute(Broker, "users_changed", lambda broker: None)


@bug("a refusal is a read", {"barrier"})
def refusals_do_not_wait_for_a_barrier(patches: Patches) -> None:
    """Refuse at once by what is applied here, whoever leads by now."""

    def request(broker: Broker, route: Any, asked: Request, now_ms: float, *who: Any) -> Any:
        waiting = _request(broker, route, asked, now_ms, *who)
        if waiting is not None and waiting.was_forbidden:
            refused = _forbidden(broker, waiting.principal, asked)
            assert refused is not None, asked
            broker.refuse(waiting, refused.code, refused.message, **refused.details)
            return None
        return waiting

    patches.attribute(Broker, "request", request)


@bug("what is stored is not refused", {"answered"})
def a_retry_of_what_is_stored_is_unauthorized(patches: Patches) -> None:
    """Refuse a PUT that its publisher may not make, also one that is stored."""

    def forbidden(broker: Broker, principal: str | None, request: Request) -> Refused | None:
        refused = _forbidden(broker, principal, request)
        if refused is None and request.type == "PUT":
            return broker.store.lacks(principal, "publish", request.topic)
        return refused

    patches.attribute(Broker, "forbidden", forbidden)


@bug("a list has the topics that one may see", {"answered"})
def lists_show_every_topic(patches: Patches) -> None:
    """List all topics for everybody."""
    patches.attribute(Users, "may_see", lambda users, principal, topic: True)


@bug("what was found of a principal's rights counts until they change", {"answered", "permission"})
def answers_outlive_a_change_of_rights(patches: Patches) -> None:
    """Believe what was found for a topic before its principal was given or denied something."""

    def change(users: Users, name: str, rights: Rights | None) -> None:
        known = dict(users._answers)
        _set(users, name, rights)
        users._answers.update(known)

    patches.attribute(Users, "_set", change)
