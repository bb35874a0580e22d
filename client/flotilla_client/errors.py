"""The exceptions that an application sees.

    FlotillaError                     every one of them; has code, definite, details
    ├── Unavailable                   no final answer before the deadline
    │   └── Busy                      its turn never came: other operations of this client ran
    ├── Refused                       a node answered NAK
    │   ├── NotSubscribed             SUB first
    │   ├── UnknownTopic              nobody subscribes to it
    │   ├── AnotherChoice             the group was made otherwise
    │   ├── UnknownClient             the client_id is not this cluster's
    │   │   └── Forgotten             …or was silent for long, or dropped, and is forgotten
    │   ├── AlreadyAcknowledged       asked for publications that are gone
    │   ├── Purged                    an administrator removed what was not read yet
    │   ├── Gap                       the topic's policy does not keep it any more
    │   ├── Compacted                 later ones of their keys stay; the library goes on behind it
    │   ├── Expired                   its publisher asked for that; the library goes on behind it
    │   ├── Moved                     the subscription was moved by another process
    │   ├── CounterGap                the state directory and the broker disagree
    │   ├── Fenced                    a newer process took up this client_id
    │   ├── Recovered                 the cluster was recovered while this process ran
    │   ├── StaleRequest              a later control request was already carried out
    │   ├── TooLarge                  over a limit of bytes or publications
    │   ├── TooMany                   over a limit of topics, clients, subscriptions
    │   ├── BacklogFull               the topic's readers have to catch up (until the deadline)
    │   ├── DiskFull                  the nodes are short of disk space (until the deadline)
    │   ├── Overloaded                a queue is full (until the deadline)
    │   ├── QuotaExceeded             the principal has used up a quota (a rate: until the deadline)
    │   ├── BadRequest                not what the protocol asks for
    │   ├── NotUpgraded               a member keeps the cluster's level from being raised
    │   ├── NotReady                  the node that is to lead is away or behind
    │   ├── Unauthorized              the key's principal may not do this
    │   ├── Unsupported               the cluster's feature level is too low for it
    │   └── InternalError             a defect of the broker
    ├── NoSubscribers                 nobody subscribes, so it was not stored
    ├── Closed                        the client or the producer has been closed
    ├── ClusterRecovered              the cluster has lost what it told this client
    ├── KeyUnusable                   the key file can't be read, or is none
    ├── Forked                        made in another process, with a state directory
    ├── TopicInUse                    an open producer alone publishes to the topic
    ├── AlreadyReading                another thread, task or loop reads the subscription
    ├── NotDelivered                  acknowledged beyond what was handed over
    ├── LeaseLost                     work that was given to somebody else by then
    ├── RecordError                   the record of what this client does cannot be written
    └── StateError                    the client's own state directory
        ├── StateRequired             a subscription needs one
        ├── StateInUse                another process has it open
        ├── StateUnusable             cannot be made or written: rights, space, a file in its place
        ├── StateDamaged              unreadable, or of another version
        └── OutboxFull                unsent publications have reached their limit
UnheardWarning (a UserWarning) says that what was published is not stored, as nobody subscribes.
A wrong argument is Python's own TypeError or ValueError, before anything is stored or sent.

What lives here: the classes and the one way from a NAK to an exception. What must not: any
decision about retrying (retry.py).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from flotilla_client.protocol import ERRORS, Reply


class FlotillaError(Exception):
    """An operation did not succeed.

    `code`: the error's name, one of the broker's table or the client's own. `definite`: True when
    the operation did not and will not happen, False when that is unknown. `details`: what came
    along (`limit`, `expected`, `attempts`, `node`, ...).
    """

    CODE: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        code: str = "",
        definite: bool = True,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.CODE
        self.definite = definite
        self.details = details or {}

    def before_start(self) -> Self:
        """Return the same error for an operation that it kept from being started: definite."""
        return type(self)(self.message, self.code, True, self.details)


class Unavailable(FlotillaError):
    """The deadline passed without a final answer; `definite`: nothing was carried out.

    Never definite for a publication: it stays in the outbox and is sent before the next one. (Its
    turn never came: `Busy`, which is definite.)
    """

    CODE = "unavailable"


class Busy(Unavailable):
    """Other operations of this client took all of the deadline: this one was never begun.

    Always definite: nothing was sent, and nothing stands in the outbox.
    """

    CODE = "busy"


class Refused(FlotillaError):
    """A node answered NAK, and repeating the request would not change that in time."""


class NotSubscribed(Refused):
    """The client has no subscription to the topic; who reads has it in `details["topic"]`."""

    CODE = "not_subscribed"


class UnknownTopic(Refused):
    """Nobody subscribes to the topic, so it does not exist; `details` as of NotSubscribed."""

    CODE = "unknown_topic"


class AnotherChoice(Refused):
    """The group stands, and was made otherwise: `details["ordered_by_key"]` says how."""

    CODE = "another_choice"


class UnknownClient(Refused):
    """The client_id was not issued by this cluster; a new state directory gets a new one."""

    CODE = "unknown_client"


class Forgotten(UnknownClient):
    """The cluster does not know the client_id, and has forgotten clients: silent, or dropped.

    What waits in the outbox may be stored already, and the cluster has forgotten that, too: it is
    not sent again by itself. `Client.adopt()` says what that is, and begins as a new client.
    """

    CODE = "forgotten"


class AlreadyAcknowledged(Refused):
    """The cluster has the subscription further than this client, and what is between is gone.

    `details`: `topic`, `cursor`, where it stands. The topic was deleted and made again, for a
    pattern of this client's, or somebody has acknowledged under its id. Raised once each; the next
    call goes on behind that.
    """

    CODE = "already_acknowledged"


class Purged(Refused):
    """An administrator has purged publications that this subscriber had not read.

    `details`: `topic`, `first_id`, `last_id`: what is gone for it. Raised once each; the next call
    goes on behind it.
    """

    CODE = "purged"


class Expired(Refused):
    """Publications have expired that this subscriber had not read: `first_id` to `last_id`.

    Their publisher asked for it. The library goes on behind them by itself; `read` alone raises it,
    behind a thousand such runs.
    """

    CODE = "expired"


class Compacted(Refused):
    """Publications were replaced by later ones of their keys: `first_id` to `last_id`.

    Their topic is compacted, and all who stood in it had read them. The library goes on behind them
    by itself; `read` alone raises it, behind a thousand such runs.
    """

    CODE = "compacted"


class Gap(Refused):
    """Publications that were to be read are not kept any more: the topic's policy let them go.

    `details`: `topic`, `first_id`, `last_id`: what is gone; `missed`: how many. A subscriber that
    had not read them, as its topic was full and drops the oldest, gets it once; its next call goes
    on behind them.
    """

    CODE = "gap"


class Moved(Refused):
    """The subscription stands elsewhere than this process knows: another one has moved it.

    `details`: `topic`, `cursor`, `placed`. A client takes that in and goes on by itself.
    """

    CODE = "moved"


class CounterGap(Refused):
    """The broker misses publications before this one; `details["expected"]` is its next counter."""

    CODE = "counter_gap"


class Fenced(Refused):
    """A newer process took up this client_id: this one has to stop."""

    CODE = "fenced"


class Recovered(Refused):
    """The cluster was recovered since this process took up its client_id.

    A client takes it up anew by itself and goes on, or raises ClusterRecovered; a producer stops.
    """

    CODE = "recovered"


class StaleRequest(Refused):
    """A later control request of this client was already carried out."""

    CODE = "stale_request"


class TooLarge(Refused):
    """The request is over `details["limit"]` bytes or publications."""

    CODE = "too_large"


class TooMany(Refused):
    """The cluster or the client has as many of these as `details["limit"]` allows."""

    CODE = "too_many"


class BacklogFull(Refused):
    """The topic's unread publications were at their limit until the deadline."""

    CODE = "backlog_full"


class DiskFull(Refused):
    """The leader or a majority of the nodes was short of disk space until the deadline."""

    CODE = "disk_full"


class Overloaded(Refused):
    """A queue, of the node or of the producer, was full until the deadline."""

    CODE = "overloaded"


class QuotaExceeded(Refused):
    """The principal has used up `details["quota"]`, of which it has `details["limit"]`.

    A rate, or what frees itself, was so until the deadline. Otherwise something has to be given up.
    """

    CODE = "quota"


class BadRequest(Refused):
    """The request is not what the protocol asks for; the message says where."""

    CODE = "bad_request"


class NotUpgraded(Refused):
    """A member is away, or of a build without that level; the message says which ones.

    `details["level"]` is the cluster's level, which stays as it is.
    """

    CODE = "not_upgraded"


class NotReady(Refused):
    """The node that was to lead is not connected, or has not all of the log: the leader stays."""

    CODE = "not_ready"


class Unauthorized(Refused):
    """The key's principal may not do this; the message says what it lacks.

    `details["needs"]`: the permission, `publish`, `subscribe`, `observe`, `admin`, or `client_id`:
    that belongs to another principal.
    """

    CODE = "unauthorized"


class Unsupported(Refused):
    """It needs the feature level `details["needs"]`; the cluster is at `details["level"]`.

    An operator raises the level (`flotilla upgrade`) once every node understands it.
    """

    CODE = "unsupported"


class InternalError(Refused):
    """A defect of the broker; its log has the details."""

    CODE = "internal"


class Closed(FlotillaError):
    """The client or the producer has been closed: it does nothing any more."""

    CODE = "closed"


class KeyUnusable(FlotillaError):
    """The key file can't be read, or is none (`details`: `file`). No text tells what is in it."""

    CODE = "key_unusable"


class Forked(FlotillaError):
    """The client, or the producer, was made in another process, of which this one was forked.

    `details`: `made_in`, `used_in`.
    """

    CODE = "forked"


class NoSubscribers(FlotillaError):
    """Nobody subscribes to `details["topic"]`, and no policy keeps it: it was not stored.

    The cluster has acknowledged it: it will not be stored later. Of several batches in one call
    `details["stored"]` publications were stored all the same, as somebody came or went meanwhile.
    """

    CODE = "no_subscribers"


class UnheardWarning(UserWarning):
    """Nobody subscribes to a topic: what is published there is acknowledged and not stored.

    Issued once for each client and topic; `PutResult.stored` says it of each publication.
    """


class ClusterRecovered(FlotillaError):
    """The cluster was recovered, or its data put back, and has lost what it told this client.

    The message says what; so do `details`: `publications`, `deliveries`, `subscriptions`,
    `returned` (`Losses`). `Client.adopt()` (`flotilla adopt`) takes it as it is, and only then the
    client goes on: what was lost is given the same counters and ids again.
    """

    CODE = "cluster_recovered"


class TopicInUse(FlotillaError):
    """The topic has an open producer, which alone publishes to it until it is closed."""

    CODE = "topic_in_use"


class AlreadyReading(FlotillaError):
    """A subscription has one reader at a time; `details["reader"]`: the thread or task that is it.

    It reads, or has not acknowledged what it was handed.
    """

    CODE = "already_reading"


class NotDelivered(FlotillaError):
    """Nothing beyond `details["last_id"]` was handed over, so it can't be acknowledged."""

    CODE = "not_delivered"


class LeaseLost(FlotillaError):
    """A lease has ended, of the publication `details["id"]`: it was settled, or is another's."""

    CODE = "lease_lost"


class RecordError(FlotillaError):
    """An operation could not be recorded: see `record` of `Client`; `details`: `file`.

    Definite: it was not sent. Not definite: it may have happened; a publication is in the outbox.
    """

    CODE = "record_failed"


class StateError(FlotillaError):
    """The client's state directory cannot be used."""

    CODE = "state"


class StateRequired(StateError):
    """A subscription outlives its process: without a state directory nobody could go on with it."""

    CODE = "state_required"


class StateInUse(StateError):
    """Another process has the directory open; `details`: `directory`, `pid`."""

    CODE = "state_in_use"


class StateUnusable(StateError):
    """The directory cannot be made or written; `details`: `directory`. The message says why."""

    CODE = "state_unusable"


class StateDamaged(StateError):
    """What stands in the directory is no state of this program; `details`: `directory`."""

    CODE = "state_damaged"


class OutboxFull(StateError):
    """The publications that wait for an answer have reached `details["limit"]` bytes."""

    CODE = "outbox_full"


def _leaves(root: type[Refused]) -> dict[str, type[Refused]]:
    of_leaves = {leaf.CODE: leaf for leaf in root.__subclasses__()}
    for leaf in root.__subclasses__():
        of_leaves |= _leaves(leaf)
    return of_leaves


BY_CODE = _leaves(Refused)


def from_reply(reply: Reply, definite: bool, attempts: int) -> Refused:
    """Return the exception for a NAK, of the class of its code (Refused for an unknown code).

    `definite` comes from the caller, who alone knows about the operation's other attempts.
    """
    assert not reply.ok, reply
    code = str(reply.body.get("error", "internal"))
    known = ERRORS.get(code)
    message = str(reply.body.get("message") or (known.meaning if known else code))
    details = {k: v for k, v in reply.body.items() if k not in ("error", "message", "definite")}
    details |= {
        "attempts": attempts,
        "node": reply.node,
        "leader": reply.leader,
        "term": reply.term,
    }
    return BY_CODE.get(code, Refused)(message, code, definite, details)
