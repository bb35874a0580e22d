"""What a node answers over HTTP: health, metrics, status, and what its page shows.

What lives here: addresses, who may ask, the JSON of each. What must not: connections (http.py), the
loop's state, which comes in as samples and surveys.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from cluster.observe import http, metrics
from cluster.observe.http import HttpRequest, Response, text
from cluster.observe.observer import Happened, NodeObserver, Sample
from cluster.observe.past import Past, Point, between
from cluster.observe.reading import ASKED_MAX, COUNT_MAX, PageRead, rows
from cluster.observe.survey import SubscriptionRow, TopicRow
from cluster.store.outcomes import Refused
from flotilla_client.protocol import INTEGER_MAX, TOPIC_BYTES_MAX

LIVE_S: Final = 30.0  # a loop that did not turn for so long is not busy any more
FRESH_S: Final = 5.0  # a node that takes longer for a turn is no use to a client now
EVENT_S: Final = 1.0  # between two server-sent events, as samples come
ROWS_MAX: Final = 500  # of topics or subscriptions in one answer: what a page can show
ROWS: Final = 50
READ_S_MAX: Final = 2.0  # for the loop to read publications; it looks once a turn
READ_LOOK_S: Final = 0.02  # between two looks whether it has: as long as an idle turn
REFUSED_BY_MAX: Final = 20  # principals, and what each lacked; the metrics have more
REFUSED_STATUS: Final = {"unauthorized": 403, "unknown_topic": 404}  # else 503: ask again
SEARCH_CHARACTERS_MAX: Final = 255  # as a topic's name
PUBLICATIONS: Final = "/publications.json"
OPEN: Final = frozenset({"/", "/page.css", "/page.js", "/healthz", "/readyz"})  # no data in them
FOLDER: Final = Path(__file__).parent
_PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src http: https:; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ASSETS: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_TOPIC_ORDERS: Final[Mapping[str, int]] = {
    "topic": 0, "publications": 1, "subscribers": 3, "backlog": 4, "bytes": 5
}  # fmt: skip


Headers = tuple[tuple[str, str], ...]


class Pages:
    """The answers of one node.

    `token`: what has to be shown, "" for nothing. `clock`: monotonic seconds, as samples have.
    """

    def __init__(
        self, observer: NodeObserver, past: Past, token: str, clock: Callable[[], float]
    ) -> None:
        self._observer, self._past, self._token, self._clock = observer, past, token, clock
        self._second: Sample | None = None  # the sample before the newest
        self._newest: Sample = observer.sample
        self._registry = metrics.registry(self._look)
        self._answers: dict[str, Callable[[HttpRequest], Response]] = {
            "/metrics": self._metrics,
            "/healthz": lambda _: self._health(self.ill()),
            "/readyz": lambda _: self._health(self.unready()),
            "/status.json": lambda _: _json(self.status()),
            "/topics.json": self._topics,
            "/subscriptions.json": self._subscriptions,
            "/history.json": lambda _: _json(self.history()),
            "/events": lambda _: Response(200, "text/event-stream", b"", (), self.events()),
        }

    def refresh(self) -> None:
        """Take what the loop has handed over since the last call."""
        observer, past = self._observer, self._past
        sample = observer.sample
        new = []
        while observer.happened:
            new.append(observer.happened.popleft())
        if sample is not self._newest:
            self._second, self._newest = self._newest, sample
            past.note(each for each in new if each.at <= sample.wall_s)
            past.take(sample)
            new = [each for each in new if each.at > sample.wall_s]
        past.note(new)
        past.survey(observer.survey, self._clock())

    def _look(self) -> metrics.View:
        self.refresh()
        return metrics.View(self._newest, self._observer.survey, self._past)

    # --- who may ask --------------------------------------------------------------------------

    def answer(self, request: HttpRequest) -> Response | Awaitable[Response]:
        """Answer a request; what the loop has to read is awaited."""
        shared = self._sharing(request)
        if not self._token and not _is_ours(request.headers.get("host", "")):
            # A name that a stranger's DNS points here would let his page read this one's data.
            return text(421, "without http_token_file this answers to IP addresses and localhost")
        if request.method == "OPTIONS":
            return Response(200, "text/plain", b"", shared)
        page = _ASSETS.get(request.path)
        if page is not None:
            body = (FOLDER / page[0]).read_bytes()
            return Response(200, page[1], body, (("content-security-policy", _PAGE_POLICY),))
        answer = self._answers.get(request.path)
        if answer is None and request.path != PUBLICATIONS:
            known = sorted({*self._answers, *_ASSETS, PUBLICATIONS})
            return text(404, f"there are {', '.join(known)}", *shared)
        if request.path not in OPEN and not self._is_allowed(request):
            challenge = ("www-authenticate", 'Bearer realm="flotilla"')
            return text(401, "the token of http_token_file is needed", challenge, *shared)
        if answer is None:
            return self._publications(request, shared)
        return _with(answer(request), shared)

    def _is_allowed(self, request: HttpRequest) -> bool:
        if not self._token:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self._token.encode())
        return scheme.lower() == "bearer" and same

    def _sharing(self, request: HttpRequest) -> Headers:
        """Return the headers that let the pages of this cluster's other nodes read this one's."""
        origin = request.headers.get("origin", "")
        status = self._observer.sample.status
        pages = {*status.get("pages", {}).values(), status.get("http", "")}
        if not origin or origin not in pages:
            return ()
        return (
            ("access-control-allow-origin", origin),
            ("access-control-allow-headers", "authorization"),
            ("vary", "origin"),
        )

    # --- health -------------------------------------------------------------------------------

    def ill(self) -> str:
        """Return why the process should be started again, "" if it should not."""
        silent_s = self._clock() - self._observer.sample.at
        return f"the loop has not turned for {silent_s:.0f} s" if silent_s > LIVE_S else ""

    def unready(self) -> str:
        """Return why clients should go to another node now, "" if they need not."""
        sample = self._observer.sample
        silent_s = self._clock() - sample.at
        if silent_s > FRESH_S:
            return f"the loop has not turned for {silent_s:.0f} s"
        if sample.stopping:
            return "the node is stopping"
        if sample.status["role"] == "joining":
            return "the node is no member yet"
        return "" if sample.leader else "no leader is known"

    @staticmethod
    def _health(reason: str) -> Response:
        return text(503, reason) if reason else text(200, "ok")

    # --- numbers ------------------------------------------------------------------------------

    def _metrics(self, request: HttpRequest) -> Response:
        content_type, body = metrics.exposition(self._registry, request.headers.get("accept", ""))
        return Response(200, content_type, body)

    def status(self) -> dict[str, Any]:
        """Return STATUS with the second's rates and what else the page shows of the node."""
        self.refresh()
        sample = self._newest
        now = None if self._second is None else _point(between(self._second, sample))
        return {
            "cluster": self._past.cluster_id,
            "wall_s": sample.wall_s,
            "age_s": round(self._clock() - sample.at, 3),
            "ready": not self.unready(),
            "reads": self._observer.reader is not None,
            "unready": self.unready(),
            "status": sample.status,
            "now": now,
            "waiting": {**sample.waiting, "leader": sample.relays},
            "connections": sample.connections,
            "unread_bytes": sample.unread_bytes,
            "refused": {code: count for code, count in sample.refused.items() if count},
            "refused_by": _refused_by(sample),
            "disk": {"free_bytes": sample.disk_free_bytes, "size_bytes": sample.disk_size_bytes},
            "elections": self._past.elections,
            "leader_changes": self._past.leader_changes,
            "leaderless_s": round(self._past.leaderless_s, 1),
        }

    def history(self) -> dict[str, Any]:
        """Return the last hour and what happened in it."""
        self.refresh()
        return {
            "points": [_point(point) for point in self._past.points],
            "events": [_happened(each) for each in self._past.events],
        }

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the status each second, and what has happened since, as server-sent events."""
        seen: Happened | None = next(reversed(self._past.events), None)
        while True:
            status = self.status()
            new = []
            for each in reversed(self._past.events):
                if each is seen:
                    break
                new.append(_happened(each))
            seen = next(reversed(self._past.events), None)
            status["events"] = new[::-1]
            yield b"data: " + orjson.dumps(status) + b"\n\n"
            await asyncio.sleep(EVENT_S)

    # --- publications -------------------------------------------------------------------------

    async def _publications(self, request: HttpRequest, shared: Headers) -> Response:
        """Return some publications of a topic, once the loop has read them."""
        reader, asked = self._observer.reader, _asked_to_read(request)
        if reader is None:
            return text(403, "http_reads_as is not set: publications are not shown", *shared)
        if isinstance(asked, Response):
            return _with(asked, shared)
        if len(reader.asked) >= ASKED_MAX:
            return text(503, "others read already", ("retry-after", "1"), *shared)
        reader.asked.append(asked)
        until_s = self._clock() + READ_S_MAX
        while (found := asked.found) is None:
            if self._clock() >= until_s:
                return text(503, "the loop has not turned", ("retry-after", "1"), *shared)
            await asyncio.sleep(READ_LOOK_S)
        if isinstance(found, Refused):
            return text(REFUSED_STATUS.get(found.code, 503), found.message, *shared)
        bounds = {"topic": asked.topic, "first_id": found.first_id, "last_id": found.last_id}
        return _with(_json({**bounds, "rows": rows(found.delivery)}), shared)

    # --- tables -------------------------------------------------------------------------------

    def _topics(self, request: HttpRequest) -> Response:
        self.refresh()
        rates = self._past.topic_rates
        order = request.query.get("sort", "backlog")
        asked = _asked(request, {*_TOPIC_ORDERS, "rate"}, order)
        if isinstance(asked, Response):
            return asked
        search, first, count = asked
        rows = [row for row in self._observer.survey.topics if search in row.name]

        def key(row: TopicRow) -> Any:
            value = rates.get(row.name, 0.0) if order == "rate" else row[_TOPIC_ORDERS[order]]
            return value, row.name

        down = request.query.get("down", "1") != "0"
        rows.sort(key=key, reverse=down)
        shown = [
            {
                "topic": row.name,
                "publications": row.last_id,
                "subscribers": row.subscribers,
                "backlog": row.backlog_count,
                "bytes": row.backlog_bytes,
                "rate": round(rates.get(row.name, 0.0), 2),
            }
            for row in rows[first : first + count]
        ]
        return _json({"rows": shown, "found": len(rows), "all": len(self._observer.survey.topics)})

    def _subscriptions(self, request: HttpRequest) -> Response:
        self.refresh()
        survey, order = self._observer.survey, request.query.get("sort", "lag")
        asked = _asked(request, SubscriptionRow._fields, order)
        if isinstance(asked, Response):
            return asked
        search, first, count = asked
        topic = request.query.get("topic")
        rows = [
            row
            for row in survey.subscriptions
            if (topic is None or row.topic == topic)
            and (search in row.topic or search in row.client_id or search in row.group)
        ]
        place = SubscriptionRow._fields.index(order)
        down = request.query.get("down", "1") != "0"
        rows.sort(key=lambda row: (row[place], row), reverse=down)
        shown = [row._asdict() for row in rows[first : first + count]]
        known = len(survey.subscriptions)
        return _json(
            {"rows": shown, "found": len(rows), "known": known, "all": survey.subscriptions_count}
        )


def _asked(request: HttpRequest, orders: Any, order: str) -> tuple[str, int, int] | Response:
    """Return (search, first row, count) of a request for rows, or why it is none."""
    if order not in orders:
        return text(400, f"sort: one of {', '.join(sorted(orders))}")
    numbers = request.query.get("first", "0"), request.query.get("count", str(ROWS))
    if not all(each.isascii() and each.isdigit() and len(each) < 10 for each in numbers):
        return text(400, "first, count: whole numbers")
    search = request.query.get("search", "")
    if len(search) > SEARCH_CHARACTERS_MAX:
        return text(400, f"search: at most {SEARCH_CHARACTERS_MAX} characters")
    return search, int(numbers[0]), min(int(numbers[1]), ROWS_MAX)


def _refused_by(sample: Sample) -> list[tuple[str, str, int]]:
    """Return who was refused most often, for want of which quota or permission, and how often."""
    counts = [*sample.quota_refused.items(), *sample.unauthorized.items()]
    rows = sorted(((count, *what) for what, count in counts), reverse=True)
    return [(who, why, count) for count, who, why in rows[:REFUSED_BY_MAX]]


def _asked_to_read(request: HttpRequest) -> PageRead | Response:
    """Return which publications a request is for, or why it is none."""
    topic, from_id = request.query.get("topic", ""), request.query.get("from", "")
    if not topic.isprintable() or not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX:
        return text(400, "topic: its name")  # what may be read is remembered by name
    if from_id and not (from_id.isascii() and from_id.isdigit() and len(from_id) < 17):
        return text(400, "from: an id, a whole number")
    count = request.query.get("count", str(COUNT_MAX))
    is_number = count.isascii() and count.isdigit() and len(count) < 10
    if not (is_number and 1 <= int(count) <= COUNT_MAX):
        return text(400, f"count: 1 to {COUNT_MAX}")
    return PageRead(topic, min(int(from_id), INTEGER_MAX) if from_id else None, int(count))


def _with(response: Response, headers: Headers) -> Response:
    return replace(response, headers=(*response.headers, *headers))


def _point(point: Point) -> dict[str, Any]:
    return asdict(point)


def _happened(each: Happened) -> dict[str, Any]:
    return {"at": each.at, "event": each.event, "level": each.level, **each.fields}


def _is_ours(host: str) -> bool:
    """Return whether a Host header names an address, and not a name that anybody could give it."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost":
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _json(document: Any) -> Response:
    body = orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS)
    return Response(200, "application/json", body)


async def _serve(
    pages: Pages,
    failed: Callable[[Exception], None],
    listener: socket.socket,
    tls: ssl.SSLContext | None,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(http.Http(pages.answer, failed).accept(listener, tls))
        while True:  # whether or not anybody asks: an hour is remembered
            pages.refresh()
            await asyncio.sleep(EVENT_S)


def run(
    observer: NodeObserver,
    cluster_id: str,
    token: str,
    failed: Callable[[Exception], None],
    listener: socket.socket,
    tls: ssl.SSLContext | None,
) -> None:
    """Serve a node's pages on a listening socket, for ever; see server.HttpThread."""
    pages = Pages(observer, Past(cluster_id), token, time.monotonic)
    asyncio.run(_serve(pages, failed, listener, tls))
