"""The one table of errors: every code that a NAK can carry, and what it means for the operation.

What lives here: the rows, and the exception that becomes a NAK. What must not: the exceptions that
applications see (errors.py), or when an error is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class ErrorRow:
    """One row of the error table.

    `definite`: True when the operation did not and will not happen. `retry`: what a client does
    about it: "same" (send the same again, elsewhere or later), "leader" (go to the leader) or
    "never" (the request or the client has to change first).
    """

    code: str
    definite: bool
    retry: str
    meaning: str


ERRORS: Final[Mapping[str, ErrorRow]] = {
    row.code: row
    for row in (
        ErrorRow(
            "not_leader",
            True,
            "leader",
            "This node cannot reach the leader for you; `leader` names it if known.",
        ),
        ErrorRow(
            "electing", True, "same", "No leader is known now; ask again after `retry_after_ms`."
        ),
        ErrorRow(
            "uncertain",
            False,
            "same",
            "Leadership changed while the operation was under way; repeat it to learn its outcome.",
        ),
        ErrorRow(
            "unknown_client",
            True,
            "never",
            "`client_id` was not issued by this cluster; ask for one with REQUEST_ID.",
        ),
        ErrorRow(
            "forgotten",
            True,
            "never",
            "As `unknown_client`, of a cluster that has forgotten clients: silent or dropped ones.",
        ),
        ErrorRow(
            "unknown_topic", True, "never", "Nobody subscribes to the topic, so it does not exist."
        ),
        ErrorRow(
            "not_subscribed",
            True,
            "never",
            "The client has no subscription to the topic; SUB first.",
        ),
        ErrorRow(
            "another_choice",
            True,
            "never",
            "The group stands, made otherwise (`ordered_by_key`): join it as it is, or end it.",
        ),
        ErrorRow(
            "already_acknowledged",
            True,
            "never",
            "What follows `last_id` was acknowledged and is gone; the subscription is at `cursor`.",
        ),
        ErrorRow(
            "purged",
            True,
            "never",
            "`first_id` to `last_id` of `topic` were purged; who asks behind `last_id` goes on.",
        ),
        ErrorRow(
            "expired",
            True,
            "never",
            "`first_id` to `last_id` of `topic` have expired; who asks behind `last_id` goes on.",
        ),
        ErrorRow(
            "compacted",
            True,
            "never",
            "`first_id` to `last_id` of `topic` were replaced by later publications of their keys;"
            " who asks behind `last_id` goes on.",
        ),
        ErrorRow(
            "gap",
            True,
            "never",
            "`first_id` to `last_id` of `topic` are not kept any more (`missed` of them); who asks"
            " behind `last_id` goes on.",
        ),
        ErrorRow(
            "moved",
            True,
            "never",
            "The subscription was moved: it stands at `cursor`, `placed` by the entry of that"
            " number.",
        ),
        ErrorRow(
            "counter_gap",
            True,
            "never",
            "`counter` leaves a hole behind the last one; `expected` is the next.",
        ),
        ErrorRow(
            "fenced",
            True,
            "never",
            "A newer process took up this client_id (`epoch` is the newest).",
        ),
        ErrorRow(
            "recovered",
            True,
            "never",
            "The cluster was recovered since this process took up its client_id; take it up anew.",
        ),
        ErrorRow(
            "stale_request",
            True,
            "never",
            "A later request of this client was carried out; its next `sequence` is `expected`.",
        ),
        ErrorRow("too_large", True, "never", "The request is over `limit` bytes or publications."),
        ErrorRow(
            "too_many",
            True,
            "never",
            "The cluster or the client has as many of these as `limit` allows.",
        ),
        ErrorRow(
            "backlog_full",
            True,
            "same",
            "The topic holds `limit` unread bytes; a subscriber has to catch up or leave.",
        ),
        ErrorRow(
            "disk_full",
            True,
            "same",
            "The leader or a majority of the nodes is short of disk space; PUT waits for room.",
        ),
        ErrorRow(
            "overloaded",
            True,
            "same",
            "A queue of the node is full (`limit`); ask again after `retry_after_ms`.",
        ),
        ErrorRow(
            "quota",
            True,
            "same",
            "The principal has used up its `quota` (`limit`): ask again after `retry_after_ms`; "
            "without that something has to be given up first.",
        ),
        ErrorRow(
            "bad_request",
            True,
            "never",
            "The request is not what the protocol asks for; `message` says where.",
        ),
        ErrorRow(
            "not_upgraded",
            True,
            "never",
            "A member is away or of a build without that level (`message`); it stays at `level`.",
        ),
        ErrorRow(
            "not_ready",
            True,
            "never",
            "The node that is to lead is away or behind (`message`); the leader stays.",
        ),
        ErrorRow(
            "unauthorized",
            True,
            "never",
            "The key's principal may not do this; `message` says what it lacks, so does `needs`.",
        ),
        ErrorRow(
            "unsupported",
            True,
            "never",
            "It needs the feature level `needs`, the cluster is at `level`: `flotilla upgrade`.",
        ),
        ErrorRow("shutting_down", True, "same", "The node is stopping; ask another one."),
        ErrorRow("internal", False, "never", "A defect of the broker; its log has the details."),
    )
}


class ProtocolError(Exception):
    """A request that cannot be carried out: becomes a NAK with this code.

    `code` is a key of `ERRORS`; `details` join the NAK's body (`expected`, `limit`, ...).
    """

    def __init__(self, code: str, message: str, **details: Any) -> None:
        assert code in ERRORS, code
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


def nak_body(code: str, message: str, **details: Any) -> dict[str, Any]:
    """Return the body of a NAK: `error`, `message`, `definite` and the details."""
    return {"error": code, "message": message, "definite": ERRORS[code].definite, **details}
