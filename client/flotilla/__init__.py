"""Flotilla's client library: `from flotilla import Client`.

What lives here: the public names. What must not: code.
"""

from flotilla.aio import AsyncClient, AsyncProducer
from flotilla.client import Client
from flotilla.errors import (
    AlreadyAcknowledged,
    BacklogFull,
    BadRequest,
    Closed,
    CounterGap,
    DiskFull,
    Fenced,
    FlotillaError,
    InternalError,
    NotSubscribed,
    OutboxFull,
    Overloaded,
    RecordError,
    Refused,
    StaleRequest,
    StateDamaged,
    StateError,
    StateInUse,
    StateUnusable,
    TooLarge,
    TooMany,
    TopicInUse,
    Unauthorized,
    Unavailable,
    UnknownClient,
    UnknownTopic,
)
from flotilla.observer import Observer, Operation, Outcome
from flotilla.operations import Delivery, Message, PutResult, SubscribeResult
from flotilla.producer import Producer

__all__ = [
    "AlreadyAcknowledged",
    "AsyncClient",
    "AsyncProducer",
    "BacklogFull",
    "BadRequest",
    "Client",
    "Closed",
    "CounterGap",
    "Delivery",
    "DiskFull",
    "Fenced",
    "FlotillaError",
    "InternalError",
    "Message",
    "NotSubscribed",
    "Observer",
    "Operation",
    "OutboxFull",
    "Outcome",
    "Overloaded",
    "Producer",
    "PutResult",
    "RecordError",
    "Refused",
    "StaleRequest",
    "StateDamaged",
    "StateError",
    "StateInUse",
    "StateUnusable",
    "SubscribeResult",
    "TooLarge",
    "TooMany",
    "TopicInUse",
    "Unauthorized",
    "Unavailable",
    "UnknownClient",
    "UnknownTopic",
]
