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
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from flotilla_client import checks, protocol
from flotilla_client.client import Client
from flotilla_client.errors import BY_CODE, FlotillaError, Unavailable, UnknownTopic
from flotilla_client.operations import Ask, Steps, check_client_id, check_topic
from flotilla_client.policies import parse_keep
from flotilla_client.protocol import ProtocolError, Request
from flotilla_client.retry import DEADLINE_MS, Done

Row = dict[str, Any]
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
        deadline_ms: int = DEADLINE_MS,
    ) -> None:
        self._client = Client(endpoints, deadline_ms=deadline_ms, key=key)
        self._deadline_ms: float = deadline_ms

    @classmethod
    def over(cls, client: Client) -> Self:
        """Return one that asks by a client's connections, which stay the caller's to close."""
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

    def topics(self) -> list[Row]:
        """Return every topic: `topic`, `last_id`, `subscribers`, `backlog_bytes`."""
        return [dict(row) for row in self._client.topics(everything=True)]

    def topic(self, name: str) -> list[Row]:
        """Return a topic's subscribers: `client_id`, `cursor`, `backlog`."""
        return [dict(row) for row in self._client.subscribers(name)]

    def clients(self) -> list[Row]:
        """Return every client: `client_id`, `epoch`, `subscriptions`, `producers`."""

        def behind(row: Row | None) -> Request:
            after = "" if row is None else row["client_id"]
            return _request(protocol.CLIENTS, after)

        return self._client._run(_pages(behind))[0]

    def client(self, client_id: str) -> Row:
        """Return a client, with its `topics`: `topic`, `last_id`, `cursor`, `backlog` of each.

        Raises UnknownClient.
        """
        check_client_id(client_id)

        def behind(row: Row | None) -> Request:
            after = "" if row is None else row["topic"]
            return _request(protocol.CLIENT, after, client_id=client_id)

        rows, body = self._client._run(_pages(behind))
        client: Row = body["client"]
        return client | {"topics": rows}

    def subscriptions(self) -> list[Row]:
        """Return every subscription: `topic`, `client_id`, `cursor`, `backlog`."""

        def behind(row: Row | None) -> Request:
            place = ("", "") if row is None else (row["topic"], row["client_id"])
            return _request(protocol.SUBSCRIPTIONS, place[1], topic=place[0])

        return self._client._run(_pages(behind))[0]

    def groups(self) -> list[Row]:
        """Return every group: `topic`, `group`, `cursor` (up to it everything is settled),
        `backlog`, `leased` (in a client's hands), `waiting` (given back, or passed over),
        `attempts` (how often the publication behind the cursor was given), `lease_ms`,
        `max_attempts`, `dead_letter`, `ordered_by_key`, `behind` (of `waiting`: for another one of
        the same key).

        Raises Unsupported below feature level 4.
        """

        def behind(row: Row | None) -> Request:
            place = ("", "") if row is None else (row["topic"], row["group"])
            return _request(protocol.GROUPS, place[1], topic=place[0])

        return self._client._run(_pages(behind))[0]

    def patterns(self) -> list[Row]:
        """Return every subscription to a pattern: `pattern`, `client_id`, `topics_max` (so many
        topics may it bring its principal to; 0: any number), `missed` (a topic for which there was
        no room; "": none).

        Raises Unsupported below feature level 4.
        """

        def behind(row: Row | None) -> Request:
            place = ("", "") if row is None else (row["client_id"], row["pattern"])
            return _request(protocol.PATTERNS, place[0], topic=place[1])

        return self._client._run(_pages(behind))[0]

    # --- who may what ---

    def users(self) -> list[Row]:
        """Return every user: `user`, `publish`, `subscribe`, `deny_publish`, `deny_subscribe`
        (patterns of topics), `observe`, `admin`.

        The user `*` is every principal that has no row of its own. Raises Unsupported below feature
        level 3, as all that follows.
        """

        def behind(row: Row | None) -> Request:
            return _request(protocol.USERS, "" if row is None else row["user"])

        return self._client._run(_pages(behind))[0]

    def add_user(
        self,
        name: str,
        *,
        publish: Sequence[str] = (),
        subscribe: Sequence[str] = (),
        observe: bool = False,
        admin: bool = False,
    ) -> Row:
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
    ) -> Row:
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
    ) -> Row:
        """Let a user not do this, whatever else it is allowed; return its row."""
        rights = _rights(publish, subscribe, observe, admin)
        return self._change(protocol.DENY_USER, name, rights)

    def remove_user(self, name: str) -> bool:
        """Forget a user; its principal may what `*` may. Returns whether there was one."""
        answer = self._ask_change(protocol.REMOVE_USER, name, {})
        return bool(answer["removed"])

    def _change(self, act: str, name: str, rights: Row) -> Row:
        row: Row = self._ask_change(act, name, rights)["user"]
        return row

    def _ask_change(self, act: str, name: str, rights: Row) -> Row:
        return self._act(act, user=name, **rights)

    def _act(self, act: str, topic: str = "", client_id: str = "", **about: Any) -> Row:
        """Have an act carried out once; return what it came to."""
        body = {"act": act, "act_id": uuid.uuid4().hex, **about}
        request = Request(protocol.ADMIN, "", topic, client_id, body=body)
        try:  # what every node refuses is refused before anybody is asked
            protocol.decode_request(protocol.encode_request(request))
        except ProtocolError as error:
            raise BY_CODE[error.code](error.message, details=error.details) from error
        return self._ask(request)

    def _ask(self, request: Request) -> Row:
        def asking() -> Steps[Row]:
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
        check_topic(topic)
        return bool(self._act(protocol.DROP_GROUP, topic, group=group)["was_subscribed"])

    def seek_group(self, topic: str, group: str, start: str | int | datetime) -> int:
        """Have a group begin anew at `start`, as `Client.seek`; return the id behind which it is.

        What its workers have in hand is nobody's any more, so their leases are lost; what was done
        may so be given again. Raises NotSubscribed, Gap, and Unsupported below feature level 5.
        """
        check_topic(topic)
        begin = checks.start(start)
        return int(self._act(protocol.SEEK_GROUP, topic, group=group, start=begin)["last_id"])

    def drop_client(self, client_id: str) -> list[str]:
        """Forget a client, with its subscriptions and counters; return the topics it has left.

        It gets `Forgotten` when it comes back. Raises UnknownClient, also where it is dropped.
        """
        check_client_id(client_id)
        left: list[str] = self._act(protocol.DROP_CLIENT, client_id=client_id)["left"]
        return left

    def purge(self, topic: str, last_id: int | None = None) -> Row:
        """Remove what a topic holds up to `last_id` (None: up to its end as it is now).

        What is published meanwhile stays, and ids go on. Whoever has not read what is removed gets
        `Purged`. Returns `purged`, how many publications somebody had not read, and `last_id`.
        Raises UnknownTopic, BadRequest beyond the topic's end.
        """
        check_topic(topic)
        if last_id is None:
            last_id = self.end_of(topic)
        return self._act(protocol.PURGE, topic, last_id=last_id)

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
    ) -> Row:
        """Give a topic a policy, and make it if there is none; return what it has now.

        `keep`: what stays although everybody has read it: "unread" (nothing, by default),
        "forever", a size ("10GB"), an age ("7d") or a count ("1000"). `max_bytes`: how much the
        topic may hold, read or not; `when_full`: "refuse" (by default) or "drop-oldest". Returns
        `policy`, `created`, `last_id`. The same again changes nothing. Raises BadRequest where it
        has another policy, and Unsupported below feature level 4, as all that follows.
        """
        return self._set_topic(protocol.CREATE_TOPIC, name, keep, max_bytes, when_full)

    def alter_topic(
        self,
        name: str,
        *,
        keep: str | None = None,
        max_bytes: int | None = None,
        when_full: str | None = None,
    ) -> Row:
        """Change what is said of a topic's policy (`max_bytes` 0: no bound); see `create_topic`.

        What is over the new policy is gone at once. Raises UnknownTopic where it has none.
        """
        return self._set_topic(protocol.ALTER_TOPIC, name, keep, max_bytes, when_full)

    def _set_topic(
        self, act: str, name: str, keep: str | None, max_bytes: int | None, when_full: str | None
    ) -> Row:
        check_topic(name)
        parts: Row = {} if keep is None else parse_keep(keep)
        if max_bytes is not None:
            parts["max_bytes"] = max_bytes
        if when_full is not None:
            parts["when_full"] = when_full
        return self._act(act, name, policy=parts)

    def show_topic(self, name: str) -> Row:
        """Return a topic: `topic`, `first_id` (the first that is kept), `last_id`, `subscribers`,
        `policy` (None: it has none), `held_bytes`, `purged_id`, `dropped_id` (up to where
        publications were purged, or dropped as it was full). Raises UnknownTopic.
        """
        check_topic(name)
        row: Row = self._ask(_request(protocol.TOPIC, "", topic=name))["rows"][0]
        return row

    def delete_topic(self, name: str, *, ends_subscriptions: bool = False) -> Row:
        """Let a topic be gone, with its policy and all that it holds. Its ids never restart.

        `ends_subscriptions`: though somebody subscribes to it; else that is a BadRequest. Returns
        `last_id`, `deleted` (how many publications it held), `ended` (subscriptions). Raises
        UnknownTopic.
        """
        check_topic(name)
        return self._act(protocol.DELETE_TOPIC, name, ends=ends_subscriptions)

    # --- what was done ---

    def audit(self) -> list[Row]:
        """Return the acts that the cluster remembers, the oldest first.

        Of each: `number`, `index` of its entry, `principal` (None: of a cluster without keys, or
        the cluster's own), `act`, `about`, `result`, `at_ms`: the leader's time of day in ms since
        1970, and `log_ms`: the log's own time, which counts while a leader takes entries.
        """

        def behind(row: Row | None) -> Request:
            return _request(protocol.AUDIT, "" if row is None else str(row["number"]))

        return self._client._run(_pages(behind))[0]

    # --- nodes ---

    def transfer_leader(self, node: str | None = None) -> str:
        """Have the leader hand over to a node (None: who has most of the log); return who leads.

        Raises NotReady if that node is away or behind, and Unavailable if it does not lead within
        the deadline: then the old leader goes on, or an election is under way.
        """
        chosen = self._act(protocol.TRANSFER_LEADER, node=node or "")["node"]

        def leads() -> bool:
            try:
                return bool(self._client.status()["leader"] == chosen)
            except Unavailable:  # an election is under way
                return False

        if not self._waited(leads):
            raise Unavailable(f"{chosen} does not lead yet: see `flotilla status`", definite=False)
        return str(chosen)

    def checkpoint(self) -> list[Row]:
        """Have every node make a checkpoint of its store, and cut its log where it may.

        Returns of each node `node`, `checkpointed_index` and `is_done`, once all have done it, or
        at the deadline; of one that does not answer, its endpoint and the error's code.
        """
        index = self._act(protocol.CHECKPOINT)["index"]
        rows: list[Row] = []

        def is_done() -> bool:
            rows[:] = [self._checkpointed(number, index) for number in range(len(endpoints))]
            return all(row["is_done"] for row in rows)

        endpoints = self._client.endpoints
        self._waited(is_done)
        return rows

    def _checkpointed(self, endpoint: int, index: int) -> Row:
        try:
            status = self._client.status(endpoint)
        except FlotillaError as error:
            name = self._client.endpoints[endpoint]
            return {"node": name, "checkpointed_index": error.code, "is_done": False}
        reached = status.get("checkpointed_index", 0)
        return {
            "node": status["node"],
            "checkpointed_index": reached,
            "is_done": reached >= index,
        }

    def _waited(self, is_done: Callable[[], bool]) -> bool:
        """Look until it is done, or the deadline has come; return which."""
        until_s = time.monotonic() + self._deadline_ms / 1000
        while not is_done():
            if time.monotonic() >= until_s:
                return False
            time.sleep(LOOK_S)
        return True

    def settings(self, endpoint: int) -> Iterator[Row]:
        """Yield the settings of the node at an endpoint: `node`, `setting`, `value`, `from`."""

        def asking() -> Steps[tuple[str, Row]]:
            done = yield Ask(_request(protocol.SETTINGS, ""), endpoint=endpoint)
            return done.reply.node, done.reply.body["settings"]

        node, found = self._client._run(asking())
        for key, setting in found.items():
            yield {"node": node, "setting": key, **setting}


def _rights(publish: Sequence[str], subscribe: Sequence[str], observe: bool, admin: bool) -> Row:
    lists = {"publish": publish, "subscribe": subscribe}
    for name, patterns in lists.items():
        if isinstance(patterns, str) or not all(isinstance(each, str) for each in patterns):
            raise TypeError(f"{name} is a sequence of patterns, such as ['orders.*']")
    return {name: list(patterns) for name, patterns in lists.items()} | {
        "observe": observe,
        "admin": admin,
    }


def _request(what: str, after: str, topic: str = "", client_id: str = "") -> Request:
    body = {"what": what, "after": after}
    return Request(protocol.INSPECT, "", topic, client_id, body=body)


def _pages(behind: Any) -> Steps[tuple[list[Row], Row]]:
    """Return all rows, and the first answer's body; `behind(row)` asks for those behind a row."""
    rows: list[Row] = []
    done = yield Ask(behind(None))
    first = done.reply.body
    rows += first["rows"]
    while done.reply.body["more"] and len(rows) < ROWS_MAX:
        done = yield Ask(behind(rows[-1]))
        rows += done.reply.body["rows"]
    return rows, first
