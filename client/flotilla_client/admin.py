"""`Admin`: what an operator asks of a cluster, and no application needs.

What lives here: lists of what the cluster keeps, whole, however many answers they take. What must
not: how they are shown (admin_cli.py), anything that changes the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from flotilla_client import protocol
from flotilla_client.client import Client
from flotilla_client.operations import Ask, Steps, check_client_id
from flotilla_client.protocol import Request
from flotilla_client.retry import DEADLINE_MS

Row = dict[str, Any]
ROWS_MAX: Final = 1_000_000  # of one list: as many clients as there may be


class Admin:
    """A connection for an operator; as a context manager it is closed at the end.

    Every list is the leader's and linearizable page by page: who comes or goes while it is read may
    be in it or not. Raises BadRequest where the leader is of a version without INSPECT.
    """

    def __init__(
        self,
        endpoints: Sequence[str] | str,
        *,
        key: str | Path | None = None,
        deadline_ms: int = DEADLINE_MS,
    ) -> None:
        self._client = Client(endpoints, deadline_ms=deadline_ms, key=key)

    @classmethod
    def over(cls, client: Client) -> Self:
        """Return one that asks by a client's connections, which stay the caller's to close."""
        made = cls.__new__(cls)
        made._client = client
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
        return self._client.topics(everything=True)

    def topic(self, name: str) -> list[Row]:
        """Return a topic's subscribers: `client_id`, `cursor`, `backlog`."""
        return self._client.subscribers(name)

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

    def settings(self, endpoint: int) -> Iterator[Row]:
        """Yield the settings of the node at an endpoint: `node`, `setting`, `value`, `from`."""

        def asking() -> Steps[tuple[str, Row]]:
            done = yield Ask(_request(protocol.SETTINGS, ""), endpoint=endpoint)
            return done.reply.node, done.reply.body["settings"]

        node, found = self._client._run(asking())
        for key, setting in found.items():
            yield {"node": node, "setting": key, **setting}


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
