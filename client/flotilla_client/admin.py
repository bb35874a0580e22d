"""`Admin`: what an operator asks of a cluster, and no application needs.

What lives here: lists of what the cluster keeps, whole, however many answers they take, who may
what, and acts: what ends something, or steers the nodes. What must not: how they are shown
(admin_cli.py).

Each act has a name of its own, the same in every attempt: however often its request comes, it is
carried out once, and every answer says what it came to.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from flotilla_client import checks, protocol
from flotilla_client.checks import Duration
from flotilla_client.client import Client
from flotilla_client.errors import BY_CODE, FlotillaError, Unavailable, UnknownTopic
from flotilla_client.old_names import deadline_of
from flotilla_client.operations import Ask, Steps, check_client_id, check_topic
from flotilla_client.policies import AMOUNT_MAX, FOREVER, parse_keep
from flotilla_client.protocol import ProtocolError, Request
from flotilla_client.retry import Done
from flotilla_client.rows import (
    ActDone,
    Checkpointed,
    ClientInfo,
    GroupInfo,
    Info,
    PatternInfo,
    SettingInfo,
    SubscriberInfo,
    SubscriptionInfo,
    TopicDeleted,
    TopicDetails,
    TopicInfo,
    TopicPolicySet,
    TopicPurged,
    UserInfo,
)
from flotilla_client.work import check_group

Body = dict[str, Any]  # of a request or a reply, as docs/protocol.md has it
_Place = tuple[str, str]
_Row = TypeVar("_Row", bound=Info)
ROWS_MAX: Final = 1_000_000  # of one list: as many clients as there may be
LOOK_S: Final = 0.1  # between two looks whether the nodes have done what an act asks of them


class Admin:
    """A connection for an operator; as a context manager it is closed at the end.

    Every list is the leader's and linearizable page by page: who comes or goes while it is read may
    be in it or not. Raises BadRequest where the leader is of a version without INSPECT, and
    Unauthorized where the key's principal lacks `observe`, or `admin` for what changes anything.
    """

    def __init__(
        self,
        endpoints: Sequence[str] | str,
        *,
        key: str | Path | None = None,
        deadline_ms: int | None = None,
        timeout: Duration | None = None,
    ) -> None:
        self._deadline_ms = deadline_of(timeout, deadline_ms)
        self._client = Client(endpoints, timeout=self._deadline_ms / 1000, key=key)

    @classmethod
    def over(cls, client: Client) -> Self:
        """Return one that asks by a client's connections, which stay the caller's to close."""
        if not isinstance(client, Client):
            raise TypeError(f"client is a Client, not {type(client).__name__}")
        made = cls.__new__(cls)
        made._client, made._deadline_ms = client, client._session.deadline_ms
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def topics(self) -> list[TopicInfo]:
        """Return every topic, with `subscribers` and `backlog_bytes`."""
        return self._client.topics(everything=True)

    def topic(self, name: str) -> list[SubscriberInfo]:
        """Return a topic's subscribers."""
        return self._client.subscribers(name)

    def clients(self) -> list[ClientInfo]:
        """Return every client."""
        return self._all(protocol.CLIENTS, ClientInfo, lambda row: (row.client_id, ""))

    def client(self, client_id: str) -> ClientInfo:
        """Return a client, with its `topics`. Raises UnknownClient."""
        check_client_id(client_id)
        pages = _pages(protocol.CLIENT, lambda row: (row["topic"], ""), client_id)
        rows, body = self._client._run(pages)
        return ClientInfo.of(body["client"] | {"topics": rows})

    def subscriptions(self) -> list[SubscriptionInfo]:
        """Return every client's own subscriptions."""
        return self._all(
            protocol.SUBSCRIPTIONS, SubscriptionInfo, lambda row: (row.client_id, row.topic)
        )

    def groups(self) -> list[GroupInfo]:
        """Return every group. Raises Unsupported below feature level 4."""
        return self._all(protocol.GROUPS, GroupInfo, lambda row: (row.group, row.topic))

    def patterns(self) -> list[PatternInfo]:
        """Return every subscription to a pattern. Raises Unsupported below feature level 4."""
        return self._all(protocol.PATTERNS, PatternInfo, lambda row: (row.client_id, row.pattern))

    def _all(self, what: str, kind: type[_Row], place: Callable[[_Row], _Place]) -> list[_Row]:
        pages = _pages(what, lambda row: place(kind.of(row)))
        return [kind.of(row) for row in self._client._run(pages)[0]]

    # --- who may what ---

    def users(self) -> list[UserInfo]:
        """Return every user. Raises Unsupported below feature level 3, as all that follows."""
        return self._all(protocol.USERS, UserInfo, lambda row: (row.user, ""))

    def add_user(
        self,
        name: str,
        *,
        publish: Sequence[str] = (),
        subscribe: Sequence[str] = (),
        observe: bool = False,
        admin: bool = False,
    ) -> UserInfo:
        """Let a principal, named as its key, do this and nothing else; return its row.

        Raises BadRequest if there is a user of that name who may something else.
        """
        rights = _rights(publish, subscribe, observe, admin)
        return self._change(protocol.ADD_USER, name, rights)

    def allow_user(
        self,
        name: str,
        *,
        publish: Sequence[str] = (),
        subscribe: Sequence[str] = (),
        observe: bool = False,
        admin: bool = False,
    ) -> UserInfo:
        """Let a user do this besides, also where the same was denied; return its row."""
        rights = _rights(publish, subscribe, observe, admin)
        return self._change(protocol.ALLOW_USER, name, rights)

    def deny_user(
        self,
        name: str,
        *,
        publish: Sequence[str] = (),
        subscribe: Sequence[str] = (),
        observe: bool = False,
        admin: bool = False,
    ) -> UserInfo:
        """Let a user not do this, whatever else it is allowed; return its row."""
        rights = _rights(publish, subscribe, observe, admin)
        return self._change(protocol.DENY_USER, name, rights)

    def remove_user(self, name: str) -> bool:
        """Forget a user; its principal may what `*` may. Returns whether there was one."""
        return bool(self._act(protocol.REMOVE_USER, user=checks.text("name", name))["removed"])

    def _change(self, act: str, name: str, rights: Body) -> UserInfo:
        return UserInfo.of(self._act(act, user=checks.text("name", name), **rights)["user"])

    def _act(self, act: str, topic: str = "", client_id: str = "", **about: Any) -> Body:
        """Have an act carried out once; return what it came to."""
        body = {"act": act, "act_id": uuid.uuid4().hex, **about}
        request = Request(protocol.ADMIN, "", topic, client_id, body=body)
        try:  # what every node refuses is refused before anybody is asked
            protocol.decode_request(protocol.encode_request(request))
        except ProtocolError as error:
            raise BY_CODE[error.code](error.message, details=error.details) from error
        return self._ask(request)

    def _ask(self, request: Request) -> Body:
        def asking() -> Steps[Body]:
            done: Done = yield Ask(request)
            return done.reply.body

        return self._client._run(asking())

    # --- what ends something ---

    def drop_subscription(self, topic: str, client_id: str) -> bool:
        """End a client's subscription in its place: what it has not read is gone for it.

        Returns whether there was one. Raises UnknownClient.
        """
        check_topic(topic)
        check_client_id(client_id)
        return bool(self._act(protocol.DROP_SUBSCRIPTION, topic, client_id)["was_subscribed"])

    def drop_group(self, topic: str, group: str) -> bool:
        """End a group, whoever works in it: what it has not settled is gone for it.

        Returns whether there was one. Raises Unsupported below feature level 4.
        """
        check_group(topic, group)
        return bool(self._act(protocol.DROP_GROUP, topic, group=group)["was_subscribed"])

    def seek_group(self, topic: str, group: str, start: str | int | datetime) -> int:
        """Have a group begin anew at `start`, as `Client.seek`; return the id behind which it is.

        What its workers have in hand is nobody's any more, so their leases are lost; what was done
        may so be given again. Raises NotSubscribed, Gap, and Unsupported below feature level 5.
        """
        check_group(topic, group)
        begin = checks.start(start)
        return int(self._act(protocol.SEEK_GROUP, topic, group=group, start=begin)["last_id"])

    def drop_client(self, client_id: str) -> list[str]:
        """Forget a client, with its subscriptions and counters; return the topics it has left.

        It gets `Forgotten` when it comes back. Raises UnknownClient, also where it is dropped.
        """
        check_client_id(client_id)
        left: list[str] = self._act(protocol.DROP_CLIENT, client_id=client_id)["left"]
        return left

    def purge(self, topic: str, last_id: int | None = None) -> TopicPurged:
        """Remove what a topic holds up to `last_id` (None: up to its end as it is now).

        What is published meanwhile stays, and ids go on. Whoever has not read what is removed gets
        `Purged`. Raises UnknownTopic, BadRequest beyond the topic's end.
        """
        check_topic(topic)
        if last_id is None:
            last_id = self.end_of(topic)
        checks.integer("last_id", last_id, 0, protocol.INTEGER_MAX)
        return TopicPurged.of(self._act(protocol.PURGE, topic, last_id=last_id))

    def end_of(self, topic: str) -> int:
        """Return the id of a topic's last publication. Raises UnknownTopic."""
        check_topic(topic)
        before = topic[:-1]  # the names behind it begin with this topic or one before it
        body = {"all": True, "after": before}
        while rows := self._ask(Request(protocol.TOPICS, "", body=body))["topics"]:
            for row in rows:
                if row["topic"] == topic:
                    return int(row["last_id"])
            if rows[-1]["topic"] > topic:
                break
            body = {"all": True, "after": rows[-1]["topic"]}
        raise UnknownTopic(f"nobody subscribes to {topic!r}")

    # --- topics that have a policy ---

    def create_topic(
        self,
        name: str,
        *,
        keep: str | None = None,
        max_bytes: int | None = None,
        when_full: str | None = None,
        dead_letter: str | None = None,
        compact: bool = False,
    ) -> TopicPolicySet:
        """Give a topic a policy, and make it if there is none; return what it has now.

        `keep`: what stays although everybody has read it: "unread" (nothing, by default),
        "forever", a size ("10GB"), an age ("7d") or a count ("1000"). `max_bytes`: how much the
        topic may hold, read or not; `when_full`: "refuse" (by default) or "drop-oldest".
        `dead_letter`: to which topic its groups put what they give up, if they have named none
        (feature level 5). `compact`: of what all who stand in it have read, of each key the last
        publication stays (feature level 5); of the rest what `keep` says ("forever" by default, an
        age or a count). That never changes. The same again changes nothing. Raises BadRequest where
        it has another policy, and Unsupported below feature level 4, as all that follows.
        """
        parts = max_bytes, when_full, dead_letter
        if checks.flag("compact", compact) and keep is None:
            keep = FOREVER
        return self._set_topic(protocol.CREATE_TOPIC, name, keep, *parts, compact=compact)

    def alter_topic(
        self,
        name: str,
        *,
        keep: str | None = None,
        max_bytes: int | None = None,
        when_full: str | None = None,
        dead_letter: str | None = None,
    ) -> TopicPolicySet:
        """Change what is said of a topic's policy; see `create_topic`.

        `max_bytes` 0: no bound; `dead_letter` "": no topic. What is over the new policy is gone at
        once. Raises UnknownTopic where it has none.
        """
        parts = max_bytes, when_full, dead_letter
        return self._set_topic(protocol.ALTER_TOPIC, name, keep, *parts)

    def _set_topic(
        self,
        act: str,
        name: str,
        keep: str | None,
        max_bytes: int | None,
        when_full: str | None,
        dead_letter: str | None,
        compact: bool = False,
    ) -> TopicPolicySet:
        check_topic(name)
        if keep is not None and not isinstance(keep, str):
            raise TypeError(f"keep is a text, such as '7d', not {type(keep).__name__}")
        parts: Body = {} if keep is None else parse_keep(keep)
        if max_bytes is not None:
            parts["max_bytes"] = checks.integer("max_bytes", max_bytes, 0, AMOUNT_MAX)
        if when_full is not None:
            parts["when_full"] = checks.text("when_full", when_full)
        if dead_letter is not None:
            parts["dead_letter"] = checks.text("dead_letter", dead_letter)
        if compact:
            parts["compact"] = True
        return TopicPolicySet.of(self._act(act, name, policy=parts))

    def show_topic(self, name: str) -> TopicDetails:
        """Return a topic: its policy, and what it holds. Raises UnknownTopic."""
        check_topic(name)
        return TopicDetails.of(self._ask(_request(protocol.TOPIC, topic=name))["rows"][0])

    def delete_topic(self, name: str, *, ends_subscriptions: bool = False) -> TopicDeleted:
        """Let a topic be gone, with its policy and all that it holds. Its ids never restart.

        `ends_subscriptions`: though somebody subscribes to it; else that is a BadRequest. Raises
        UnknownTopic.
        """
        check_topic(name)
        ends = checks.flag("ends_subscriptions", ends_subscriptions)
        return TopicDeleted.of(self._act(protocol.DELETE_TOPIC, name, ends=ends))

    # --- what was done ---

    def audit(self) -> list[ActDone]:
        """Return the acts that the cluster remembers, the oldest first."""
        return self._all(protocol.AUDIT, ActDone, lambda row: (str(row.number), ""))

    # --- nodes ---

    def transfer_leader(self, node: str | None = None) -> str:
        """Have the leader hand over to a node (None: who has most of the log); return who leads.

        Raises NotReady if that node is away or behind, and Unavailable if it does not lead within
        the deadline: then the old leader goes on, or an election is under way.
        """
        asked = "" if node is None else checks.text("node", node)
        chosen = self._act(protocol.TRANSFER_LEADER, node=asked)["node"]

        def leads() -> bool:
            try:
                return bool(self._client.status().leader == chosen)
            except Unavailable:  # an election is under way
                return False

        if not self._waited(leads):
            raise Unavailable(f"{chosen} does not lead yet: see `flotilla status`", definite=False)
        return str(chosen)

    def checkpoint(self) -> list[Checkpointed]:
        """Have every node make a checkpoint of its store, and cut its log where it may.

        Returns a row of each node, once all have done it, or at the deadline.
        """
        index = self._act(protocol.CHECKPOINT)["index"]
        rows: list[Checkpointed] = []

        def is_done() -> bool:
            rows[:] = [self._checkpointed(number, index) for number in range(len(endpoints))]
            return all(row.is_done for row in rows)

        endpoints = self._client.endpoints
        self._waited(is_done)
        return rows

    def _checkpointed(self, endpoint: int, index: int) -> Checkpointed:
        try:
            status = self._client.status(endpoint)
        except FlotillaError as error:
            name = self._client.endpoints[endpoint]
            return Checkpointed.of({"node": name, "is_done": False, "error": error.code})
        reached = status.get("checkpointed_index", 0)
        return Checkpointed.of(
            {"node": status.node, "checkpointed_index": reached, "is_done": reached >= index}
        )

    def _waited(self, is_done: Callable[[], bool]) -> bool:
        """Look until it is done, or the deadline has come; return which."""
        until_s = time.monotonic() + self._deadline_ms / 1000
        while not is_done():
            if time.monotonic() >= until_s:
                return False
            time.sleep(LOOK_S)
        return True

    def settings(self, endpoint: int) -> list[SettingInfo]:
        """Return the settings in force on the node at an endpoint, an index into `endpoints`."""
        checks.integer("endpoint", endpoint, 0, len(self._client.endpoints) - 1)

        def asking() -> Steps[tuple[str, Body]]:
            done = yield Ask(_request(protocol.SETTINGS), endpoint=endpoint)
            return done.reply.node, done.reply.body["settings"]

        node, found = self._client._run(asking())
        rows = ({"node": node, "setting": key, **setting} for key, setting in found.items())
        return [SettingInfo.of(row) for row in rows]


def _rights(publish: Sequence[str], subscribe: Sequence[str], observe: bool, admin: bool) -> Body:
    return {
        "publish": checks.texts("publish", publish),
        "subscribe": checks.texts("subscribe", subscribe),
        "observe": checks.flag("observe", observe),
        "admin": checks.flag("admin", admin),
    }


def _request(what: str, after: str = "", topic: str = "", client_id: str = "") -> Request:
    body = {"what": what, "after": after}
    return Request(protocol.INSPECT, "", topic, client_id, body=body)


def _pages(
    what: str, place: Callable[[Body], _Place], client_id: str = ""
) -> Steps[tuple[list[Body], Body]]:
    """Return all rows, and the first answer's body.

    `place(row)`: what a row comes behind, as a request says it: its `after`, and its topic.
    """
    done = yield Ask(_request(what, client_id=client_id))
    first = done.reply.body
    rows: list[Body] = [*first["rows"]]
    while done.reply.body["more"] and len(rows) < ROWS_MAX:
        done = yield Ask(_request(what, *place(rows[-1]), client_id=client_id))
        rows += done.reply.body["rows"]
    return rows, first
