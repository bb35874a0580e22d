"""`FlotillaBroker`: Flotilla under FastStream.

What lives here: a subscriber that works in a group, a publisher, and the broker that both go by.
What must not: an application (confirm.py).

A handler is given a publication under a lease. When it returns, its result is published first and
the publication acknowledged then; when it raises, the publication is given back, and somebody is
given it again. So what a handler does, and what it publishes, is done at least once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from faststream._internal.broker import BrokerUsecase
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.logger import make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.logger.params_storage import DefaultLoggerStorage
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException, IncorrectState
from faststream.message import StreamMessage, decode_message, gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response import PublishCommand
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import (
    BrokerSpec,
    Message,
    Operation,
    PublisherSpec,
    SubscriberSpec,
)

from flotilla_client import AsyncClient, FlotillaError, PutResult, Unavailable, WorkItem

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation-id"
RETRY_S: Final = 1.0  # between attempts of a subscriber while no majority of the nodes answers
NO_REPLIES: Final = "Flotilla has no replies: publish the answer to a topic of its own"
NO_HANDLER: Final = "give the subscriber a handler, or read by `broker.connect()`, an AsyncClient"
ID_LENGTH: Final = 20  # of a publication's topic and id in a line of the log
LOG_FORMAT: Final = "%(asctime)s %(levelname)-8s - %(topic)s | %(message_id)-20s - %(message)s"


class FlotillaMessage(StreamMessage[WorkItem]):
    """A publication under its lease: `raw_message` is the `WorkItem`, with its key and attempt."""

    async def ack(self) -> None:
        """Say that it is done: nobody is given it again."""
        if self.committed is None:
            self.raw_message.ack()
        await super().ack()

    async def nack(self, delay: float = 0.0) -> None:
        """Give it back: somebody is given it again, after `delay` seconds."""
        if self.committed is None:
            self.raw_message.nak(delay)
        await super().nack()

    async def reject(self) -> None:
        """Be done with it, as nobody will ever make use of it. Nobody is given it again."""
        if self.committed is None:
            self.raw_message.ack()
        await super().reject()


async def parse(item: WorkItem) -> FlotillaMessage:
    """Return a publication as FastStream has it."""
    headers = {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value
        for name, value in item.headers.items()
    }
    return FlotillaMessage(
        item,
        item.publication,
        headers=headers,
        content_type=headers.get(CONTENT_TYPE),
        correlation_id=headers.get(CORRELATION_ID),
        message_id=f"{item.topic}-{item.id}",
    )


async def decode(message: StreamMessage[Any]) -> Any:
    """Return what a publication says, by its content type."""
    return decode_message(message)


class FlotillaCommand(PublishCommand):
    """What is published. `key`: as in `Client.publish`."""

    def __init__(
        self,
        message: Any,
        *,
        topic: str,
        publish_type: PublishType = PublishType.PUBLISH,
        key: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> None:
        super().__init__(
            body=message,
            destination=topic,
            correlation_id=correlation_id,
            headers=dict(headers or {}),
            _publish_type=publish_type,
        )
        self.key = key

    @classmethod
    def of(cls, command: PublishCommand) -> FlotillaCommand:
        """Return a handler's result, to be published."""
        if isinstance(command, cls):
            return command
        return cls(
            command.body,
            topic=command.destination,
            publish_type=command.publish_type,
            headers=command.headers,
            correlation_id=command.correlation_id,
        )


class FlotillaProducer(ProducerProto[FlotillaCommand]):
    """Publishes by the broker's client; `publish` returns when it is on a majority's disks."""

    def __init__(self, config: FlotillaConfig) -> None:
        self._config = config
        self._parser, self._decoder = parse, decode
        self.codec = DefaultCodec()

    async def publish(self, cmd: FlotillaCommand) -> PutResult:
        """Publish. Raises FlotillaError; NoSubscribers where nobody reads the topic."""
        config = self._config
        codec = config.broker_codec or self.codec
        body, content_type = await codec.encode(cmd.body, config.fd_config._serializer)
        headers = {name: str(value) for name, value in (cmd.headers or {}).items()}
        if content_type:
            headers[CONTENT_TYPE] = content_type
        if cmd.correlation_id:
            headers[CORRELATION_ID] = cmd.correlation_id
        return await config.client.publish(cmd.destination, body, key=cmd.key, headers=headers)

    async def request(self, cmd: FlotillaCommand) -> Any:
        """Refuse."""
        raise FeatureNotSupportedException(NO_REPLIES)

    async def publish_batch(self, cmd: FlotillaCommand) -> Any:
        """Refuse."""
        raise FeatureNotSupportedException("publish each: the client joins them")


@dataclass(kw_only=True)
class FlotillaConfig(BrokerConfig):
    """What a broker's endpoints share. `connected`: the client, while the broker runs."""

    connected: AsyncClient | None = None

    @property
    def client(self) -> AsyncClient:
        """The client. Raises IncorrectState before `connect`."""
        if self.connected is None:
            raise IncorrectState("the broker is not connected: call `connect`, or `start`")
        return self.connected


@dataclass(kw_only=True)
class _SubscriberConfig(SubscriberUsecaseConfig):
    topic: str
    group: str
    options: dict[str, Any]

    @property
    def ack_policy(self) -> AckPolicy:
        """What becomes of a publication whose handler raises: it is given back, unless said."""
        chosen = self._outer_config.ack_policy if self._ack_policy is EMPTY else self._ack_policy
        return AckPolicy.NACK_ON_ERROR if chosen is EMPTY else chosen


@dataclass(kw_only=True)
class _SubscriberSpecificationConfig(SubscriberSpecificationConfig):
    topic: str


class _SubscriberSpecification(
    SubscriberSpecification[BrokerConfig, _SubscriberSpecificationConfig]
):
    @property
    def channel_labels(self) -> list[str]:
        return [self._outer_config.prefix + self.config.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return what AsyncAPI says of it."""
        payload = resolve_payloads(self.get_payloads())
        message = Message(title=f"{self.name}:Message", payload=payload)
        operation = Operation(message=message, bindings=None)
        [topic] = self.channel_labels
        return {
            self.name: SubscriberSpec(
                address=topic, description=self.description, operation=operation, bindings=None
            )
        }


class FlotillaSubscriber(TasksMixin, SubscriberUsecase[WorkItem]):
    """A worker of a group: one publication after the other; run more processes for more."""

    def __init__(
        self,
        config: _SubscriberConfig,
        specification: _SubscriberSpecification,
        calls: CallsCollection[WorkItem],
    ) -> None:
        config.parser, config.decoder = parse, decode
        super().__init__(config, specification, calls)
        self._topic, self._group, self._options = config.topic, config.group, config.options
        self._shared: Any = config._outer_config  # a FlotillaConfig, composed

    @property
    def topic(self) -> str:
        """The topic, with the prefix of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def start(self) -> None:
        """Make the group if need be, and begin to work in it."""
        await super().start()
        self._post_start()
        if self.calls:
            made = {name: value for name, value in self._options.items() if name != "prefetch"}
            await self._shared.client.make_group(self.topic, self._group, **made)
            self.add_task(self._work, restart_on_failure=False)

    async def _work(self) -> None:
        while self.running:
            try:
                await self._work_while_answered()
            except Unavailable as error:  # what was taken runs out, and is given again
                self._log(logging.WARNING, f"no answer: {error}", self.get_log_context(None))
                await asyncio.sleep(RETRY_S)
            except FlotillaError as error:
                self._log(logging.CRITICAL, f"the work ends: {error}", self.get_log_context(None))
                if application := self._outer_config.context.get("app"):
                    application.exit()
                raise

    async def _work_while_answered(self) -> None:
        work = self._shared.client.work(self.topic, self._group, ack="manual", **self._options)
        async with work as items:
            async for item in items:
                if not self.running:
                    return
                await self.consume(item)

    async def get_one(self, *, timeout: float = 5.0) -> FlotillaMessage | None:
        """Refuse."""
        raise FeatureNotSupportedException(NO_HANDLER)

    def __aiter__(self) -> AsyncIterator[FlotillaMessage]:
        """Refuse."""
        raise FeatureNotSupportedException(NO_HANDLER)

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[Any]:
        return ()  # there are no replies: NO_REPLIES

    def get_log_context(self, message: StreamMessage[WorkItem] | None) -> dict[str, str]:
        """Return what stands in each line of the log."""
        return {"topic": self.topic, "message_id": getattr(message, "message_id", "")}


@dataclass(kw_only=True)
class _PublisherConfig(PublisherUsecaseConfig):
    topic: str


@dataclass(kw_only=True)
class _PublisherSpecificationConfig(PublisherSpecificationConfig):
    topic: str


class _PublisherSpecification(PublisherSpecification[Any, Any]):
    @property
    def name(self) -> str:
        return self.config.title_ or f"{self._outer_config.prefix}{self.config.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return what AsyncAPI says of it."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = Message(title=f"{self.name}:Message", payload=payload)
        topic = f"{self._outer_config.prefix}{self.config.topic}"
        return {
            self.name: PublisherSpec(
                address=topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class FlotillaPublisher(PublisherUsecase):
    """Publishes to one topic, also what a handler under it returns."""

    def __init__(self, config: _PublisherConfig, specification: _PublisherSpecification) -> None:
        super().__init__(config, specification)
        self._topic = config.topic

    @property
    def topic(self) -> str:
        """The topic, with the prefix of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: Any,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> PutResult:
        """Publish. Raises FlotillaError."""
        command = FlotillaCommand(
            message,
            topic=self.topic,
            key=key,
            headers=headers,
            correlation_id=correlation_id or gen_cor_id(),
        )
        return await self._published(command, ())

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        command = FlotillaCommand.of(cmd)
        command.destination = command.destination or self.topic
        await self._published(command, _extra_middlewares)

    async def _published(self, command: FlotillaCommand, middlewares: Iterable[Any]) -> PutResult:
        producer = self._outer_config.producer
        result: PutResult = await self._basic_publish(
            command, producer=producer, _extra_middlewares=middlewares
        )
        return result

    async def request(self, *_: Any, **__: Any) -> Any:
        """Refuse."""
        raise FeatureNotSupportedException(NO_REPLIES)


class _LoggerStorage(DefaultLoggerStorage):
    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Take note of a subscriber: its lines need nothing."""

    def get_logger(self, *, context: ContextRepo) -> logging.Logger:
        empty = {"topic": "", "message_id": ""}
        return get_broker_logger(
            "flotilla", empty, ID_LENGTH, LOG_FORMAT, context, self.logger_log_level
        )


class FlotillaBroker(BrokerUsecase[WorkItem, AsyncClient, FlotillaConfig]):
    """A FastStream broker over a Flotilla cluster of feature level 4 or newer.

    `endpoints` and `options` are those of `AsyncClient`: `name`, `key`, `state_dir`, `timeout`, ….
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        middlewares: Sequence[Any] = (),
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        logger: Any = EMPTY,
        **options: Any,
    ) -> None:
        log = make_logger_state(logger, logging.INFO, _LoggerStorage)
        config = FlotillaConfig(
            broker_middlewares=middlewares,
            logger=log,
            fd_config=FastDependsConfig(use_fastdepends=True, context=ContextRepo()),
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            extra_context={"broker": self},
        )
        config.producer = FlotillaProducer(config)
        urls = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
        specification = BrokerSpec(urls, "flotilla", None, None, (), None)
        super().__init__(config=config, specification=specification, routers=())
        self._endpoints, self._options = endpoints, options

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str,
        ack_policy: AckPolicy = EMPTY,
        title: str | None = None,
        description: str | None = None,
        **options: Any,
    ) -> FlotillaSubscriber:
        """Have a handler work in a group of a topic.

        `options` are those of `AsyncClient.work`: `lease`, `max_attempts`, `dead_letter`,
        `ordered_by_key`, `start`, `prefetch`. `ack_policy`: NACK_ON_ERROR if not said.
        """
        outer: Any = self.config
        own: dict[str, Any] = {"topic": topic, "group": group, "options": options}
        config = _SubscriberConfig(**own, _outer_config=outer, _ack_policy=ack_policy)
        calls = CallsCollection[WorkItem]()
        shown = _SubscriberSpecificationConfig(topic=topic, title_=title, description_=description)
        specification = _SubscriberSpecification(outer, shown, calls)
        subscriber = FlotillaSubscriber(config, specification, calls)
        super().subscriber(subscriber)
        return subscriber.add_call(parser_=None, decoder_=None, dependencies_=())

    def publisher(  # type: ignore[override]
        self, topic: str, *, title: str | None = None, description: str | None = None
    ) -> FlotillaPublisher:
        """Publish to a topic what a handler returns, or by `publish`."""
        outer: Any = self.config
        shown = _PublisherSpecificationConfig(
            topic=topic, title_=title, description_=description, schema_=None
        )
        config = _PublisherConfig(topic=topic, _outer_config=outer)
        publisher = FlotillaPublisher(config, _PublisherSpecification(outer, shown))
        super().publisher(publisher)
        return publisher

    async def publish(
        self,
        message: Any,
        topic: str,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> PutResult:
        """Publish; returns when it is on disk on a majority of the nodes. Raises FlotillaError."""
        command = FlotillaCommand(
            message,
            topic=topic,
            key=key,
            headers=headers,
            correlation_id=correlation_id or gen_cor_id(),
        )
        result: PutResult = await self._basic_publish(command, producer=self.config.producer)
        return result

    async def request(self, *_: Any, **__: Any) -> Any:
        """Refuse."""
        raise FeatureNotSupportedException(NO_REPLIES)

    async def _connect(self) -> AsyncClient:
        client = AsyncClient(self._endpoints, **self._options)
        try:
            await client.open()
        except BaseException:  # who connects again makes another one, of the same directory
            await client.close()
            raise
        self.config.broker_config.connected = client
        return client

    async def start(self) -> None:
        """Connect, and have the subscribers work."""
        await self.connect()
        await super().start()

    async def stop(self, *error: Any) -> None:
        """Let handlers end, give back what they have not begun, close the client."""
        await super().stop(*error)
        client, self._connection = self._connection, None
        self.config.broker_config.connected = None
        if client is not None:
            await client.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether a node answers."""
        if self._connection is None:
            return False
        try:
            await asyncio.wait_for(self._connection.status(), timeout)
        except (FlotillaError, TimeoutError):
            return False
        return True
