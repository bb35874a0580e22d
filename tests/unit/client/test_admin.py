"""`Admin` and `flotilla admin`: whole lists, however many pages, and what cannot be meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from cluster.serve import broker as broker_module
from cluster.store.commands import Put, Raise, Register, SetTopic, Subscribe
from cluster.store.store import Limits
from cluster.store.topics import Topic
from cluster.wire.levels import LEVEL_OF_TOPICS
from flotilla_client import Admin, TooLarge, admin, admin_cli, cli
from flotilla_client.operations import Ask
from flotilla_client.protocol import (
    ADD_USER,
    ADMIN,
    ALLOW_USER,
    CLIENT,
    CLIENTS,
    DENY_USER,
    INSPECT,
    SUBSCRIPTIONS,
    ProtocolError,
    Request,
    decode_request,
    encode_request,
    pack,
)
from flotilla_client.rows import GroupInfo, SubscriberInfo
from tests.conftest import ClusterFactory
from tests.unit import store_bench
from tests.unit.cluster.serve import test_broker

# --- the store's pages ---


@pytest.fixture
def store(tmp_path: Path) -> store_bench.Bench:
    """Return 7 clients of which each subscribes to some of 5 topics, and one who publishes."""
    bench = store_bench.Bench(tmp_path / "store.db", Limits())
    for number in range(7):
        bench.ok(Register(f"c{number}", True, None, ""))
        for topic in range(number % 5 + 1):
            bench.ok(Subscribe(f"c{number}", None, f"t{topic}", None))
    bench.ok(Put("c0", None, "t0", 0, *pack([b"x", b"y"])))
    return bench


def test_pages_of_clients_follow_one_another_without_a_hole(store: store_bench.Bench) -> None:
    rows: list[dict[str, Any]] = []
    while page := store.store.clients_page(rows[-1]["client_id"] if rows else "", 3):
        assert len(page) <= 3
        rows += page

    assert [row["client_id"] for row in rows] == [f"c{number}" for number in range(7)]
    assert [row["subscriptions"] for row in rows] == [1, 2, 3, 4, 5, 1, 2]
    assert [row["producers"] for row in rows] == [1, 0, 0, 0, 0, 0, 0]


def test_topics_without_subscribers_are_passed_over_many_at_a_time(
    store: store_bench.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand that have a policy made a turn of 55 ms, for each who asked."""
    store.ok(Raise(LEVEL_OF_TOPICS))
    for number in range(400):
        store.ok(SetTopic(f"kept{number:03}", {}, True, True, None, "", 0))
    looks = []
    page = store.store._topics.page

    def counted(after: str, count_max: int) -> list[Topic]:
        looks.append(after)
        return page(after, count_max)

    monkeypatch.setattr(store.store._topics, "page", counted)
    rows = store.store.subscriptions_page("", "", 1000)
    assert {row["topic"] for row in rows} == {f"t{number}" for number in range(5)}
    assert len(looks) < 10


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_pages_of_subscriptions_go_on_within_a_topic(store: store_bench.Bench, size: int) -> None:
    rows: list[dict[str, Any]] = []
    place = "", ""
    while page := store.store.subscriptions_page(*place, size):
        assert len(page) <= size
        rows += page
        place = page[-1]["topic"], page[-1]["client_id"]

    expected = [(f"t{t}", f"c{c}") for t in range(5) for c in range(7) if t <= c % 5]
    assert [(row["topic"], row["client_id"]) for row in rows] == expected
    assert {row["backlog"] for row in rows if row["topic"] == "t0"} == {2}


def test_a_client_that_was_not_committed_yet_is_in_the_list(store: store_bench.Bench) -> None:
    payload = store_bench.encode(1, [Register("new", True, None, "")])
    store.store.apply(store.store.applied_index + 1, 1, payload)

    assert store.store.clients_page("c6", 9)[0]["client_id"] == "new"


def test_a_list_ends_where_it_is_as_long_as_any_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "ROWS_MAX", 5)
    steps = admin._pages(CLIENTS, lambda row: (row["client_id"], ""))
    asked, rows = list[str](), iter(range(100))
    ask, found = next(steps), list[dict[str, Any]]()
    while not found:
        assert isinstance(ask, Ask)
        asked.append(ask.request.body["after"])
        page = [{"client_id": f"c{next(rows)}"} for _ in range(2)]
        answer = SimpleNamespace(reply=SimpleNamespace(body={"rows": page, "more": True}))
        try:
            ask = steps.send(answer)
        except StopIteration as ended:
            found, _ = ended.value
    assert asked == ["", "c1", "c3"]
    assert [row["client_id"] for row in found] == [f"c{number}" for number in range(6)]


# --- the request ---


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "bad_request"),
        ({"what": "secrets"}, "bad_request"),
        ({"what": ["clients"]}, "bad_request"),
        ({"what": CLIENT}, "bad_request"),  # of which client?
        ({"what": CLIENTS, "after": 7}, "bad_request"),
        ({"what": CLIENTS, "after": "x" * 256}, "too_large"),
    ],
)
def test_what_is_no_inspection_is_refused(body: dict[str, Any], code: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_request(encode_request(Request(INSPECT, "r", body=body)))
    assert caught.value.code == code


def test_an_answer_has_a_page_and_says_if_there_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "TOPICS_COUNT_MAX", 2)
    bench = test_broker.BrokerBench(tmp_path)
    for topic in ("u", "v"):
        bench.ask("SUB", topic)
    bench.turn()

    bench.ask(INSPECT, what=SUBSCRIPTIONS)
    [answer] = bench.turn()
    assert [row["topic"] for row in answer.body["rows"]] == ["t", "u"]
    assert answer.body["more"] is True
    bench.ask(INSPECT, what=CLIENT, after="u")
    [answer] = bench.turn()
    assert [row["topic"] for row in answer.body["rows"]] == ["v"]
    assert answer.body["more"] is False
    assert answer.body["client"]["subscriptions"] == 3


def test_a_client_that_there_is_not_is_unknown(tmp_path: Path) -> None:
    bench = test_broker.BrokerBench(tmp_path)
    bench.ask(INSPECT, client_id="nobody", what=CLIENT)
    [answer] = bench.turn()
    assert answer.body["error"] == "unknown_client"


# --- the command ---


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("purge", "--yes", "t"), ["t"]),
        (("purge", "--yes", "--", "-t"), ["-t"]),
        (("user", "--publish", "a", "add", "--observe", "shop"), ["add", "shop"]),
        (("--json", "topics"), []),
    ],
)
def test_names_may_stand_behind_options(argv: tuple[str, ...], words: list[str]) -> None:
    assert cli.build_parser().parse_args(["admin", *argv]).words == words


def test_the_command_shows_what_a_cluster_keeps(
    local_cluster: ClusterFactory, tmp_path: Path, capsysbinary: Any, monkeypatch: Any
) -> None:
    cluster = local_cluster(3)
    endpoints = ",".join(each.removeprefix("tcp://") for each in cluster.endpoints().values())

    def run(*argv: str) -> tuple[int, bytes, bytes]:
        capsysbinary.readouterr()
        state = str(tmp_path / "state")
        code = cli.main(["-e", endpoints, "--state", state, *argv])
        return code, *capsysbinary.readouterr()

    def rows(*argv: str) -> list[dict[str, Any]]:
        code, out, _ = run("admin", *argv, "--json")
        assert code == 0
        return [orjson.loads(line) for line in out.splitlines()]

    assert run("sub", "orders")[0] == 0
    assert run("put", "orders", "hello")[0] == 0

    [topic] = rows("topics")
    assert (topic["topic"], topic["last_id"], topic["subscribers"]) == ("orders", 1, 1)
    [subscriber] = rows("topic", "orders")
    mine = subscriber["client_id"]
    assert rows("clients") == [
        {
            "client_id": mine,
            "epoch": rows("clients")[0]["epoch"],
            "subscriptions": 1,
            "producers": 1,
            "principal": None,
        }
    ]
    assert rows("client", mine) == [{"topic": "orders", "last_id": 1, "cursor": 0, "backlog": 1}]
    assert rows("subscriptions") == [
        {"topic": "orders", "client_id": mine, "cursor": 0, "backlog": 1}
    ]
    settings = {(row["node"], row["setting"]): row for row in rows("config")}
    assert settings["n2", "raft.heartbeat_ms"]["from"] == "default"
    assert settings["n2", "node"]["value"] == "n2"
    assert settings["n2", "node"]["from"].endswith("n2/node.toml")
    assert b"client_id" in run("admin", "clients")[1], "a table has a head"

    assert run("admin", "client", "nobody")[0] == cli.REFUSED
    assert run("admin", "topic")[0] == cli.USAGE
    assert run("admin", "topics", "orders")[0] == cli.USAGE
    looks = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("flotilla_client.admin_cli.time.sleep", look)
        code, out, _ = run("admin", "topics", "--watch", "0.5")
    assert (code, out.count(b"orders"), looks) == (cli.INTERRUPTED, 3, [0.5] * 3)

    cluster.kill("n3")
    gone = [row for row in rows("config", "--deadline", "2") if row["setting"] == "-"]
    assert [row["value"] for row in gone] == ["unavailable"]


def test_a_topic_s_groups_are_shown_with_its_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    rest: dict[str, Any] = {"leased": 1, "waiting": 0, "attempts": 1, "lease_ms": 100}
    rest |= {"max_attempts": 0, "dead_letter": ""}
    groups = [
        GroupInfo.of({"topic": topic, "group": "workers", "cursor": 3, "backlog": 4} | rest)
        for topic in ("orders", "others")
    ]
    reader = SubscriberInfo.of({"client_id": "c", "cursor": 5, "backlog": 2})
    monkeypatch.setattr(Admin, "topic", lambda self, name: [reader])
    monkeypatch.setattr(Admin, "groups", lambda self: groups)
    nobody: Any = None
    with Admin("127.0.0.1:1") as admin:
        rows = admin_cli._rows(admin, nobody, "topic", "orders")
    assert [(row.get("client_id"), row.get("group"), row["cursor"]) for row in rows] == [
        ("c", None, 5),
        (None, "workers", 3),
    ]


@pytest.mark.parametrize(
    "argv",
    [("checkpoint",), ("purge", "t", "--yes"), ("user", "add", "shop"), ("drop-client", "c")],
)
def test_what_is_done_once_is_not_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    options = ["-e", "127.0.0.1:1", "--state", str(tmp_path / "state"), "--deadline", "0.2"]
    code = cli.main([*options, "admin", *argv, "--watch", "1"])
    said = capsys.readouterr().err
    assert (code, "--watch has no meaning there" in said) == (cli.USAGE, True), said


# --- arguments ---


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (TypeError, "admin is True or False, not 1", lambda it: it.deny_user("eve", admin=1)),
        (TypeError, "observe is True or False", lambda it: it.add_user("eve", observe="yes")),
        (TypeError, "keep is a text, such as '7d'", lambda it: it.create_topic("t", keep=5)),
        (TypeError, "max_bytes", lambda it: it.create_topic("t", max_bytes="1GB")),
        (TypeError, "compact is True", lambda it: it.create_topic("t", compact="no")),
        (ValueError, "max_bytes", lambda it: it.alter_topic("t", max_bytes=-1)),
        (TypeError, "when_full", lambda it: it.alter_topic("t", when_full=b"refuse")),
        (TypeError, "dead_letter", lambda it: it.alter_topic("t", dead_letter=["t"])),
        (TypeError, "ends_subscriptions", lambda it: it.delete_topic("t", ends_subscriptions="no")),
        (TypeError, "publish", lambda it: it.add_user("eve", publish=5)),
        (TypeError, "publish", lambda it: it.add_user("eve", publish=[b"orders"])),
        (TypeError, "subscribe", lambda it: it.allow_user("eve", subscribe="orders")),
        (TypeError, "subscribe", lambda it: it.deny_user("eve", subscribe={"orders"})),
        (ValueError, "surrogates", lambda it: it.deny_user("eve", subscribe=["\ud800"])),
        *[
            (kind, "name", lambda it, call=call, name=name: getattr(it, call)(name))
            for call in ("add_user", "allow_user", "deny_user", "remove_user")
            for kind, name in ((TypeError, None), (TypeError, b"eve"), (ValueError, "\ud800"))
        ],
        (TypeError, "group", lambda it: it.drop_group("t", None)),
        (TooLarge, "group", lambda it: it.seek_group("t", "g" * 129, "new")),
        (TypeError, "last_id", lambda it: it.purge("t", "5")),
        (ValueError, "last_id", lambda it: it.purge("t", -1)),
        (TypeError, "node", lambda it: it.transfer_leader(1)),
        (TypeError, "node", lambda it: it.transfer_leader(False)),
        (TypeError, "endpoint", lambda it: it.settings("n1")),
        (ValueError, "endpoint", lambda it: it.settings(1)),
        (ValueError, "endpoint", lambda it: it.settings(-1)),
        (TooLarge, "client", lambda it: it.client("c" * 5_000_000)),
        (TypeError, "client", lambda it: it.over(it)),
    ],
)
def test_what_is_meant_otherwise_is_refused_before_anybody_is_asked(
    kind: type[Exception], message: str, call: Callable[[Admin], object]
) -> None:
    with Admin("127.0.0.1:1") as admin, pytest.raises(kind, match=message):
        call(admin)


@pytest.mark.parametrize("act", [ADD_USER, ALLOW_USER, DENY_USER])
def test_a_right_that_is_neither_true_nor_false_is_no_request(act: str) -> None:
    body = {"act": act, "act_id": "a", "user": "eve", "publish": ["a"], "admin": 1}
    with pytest.raises(ProtocolError, match="`admin` is true or false"):
        decode_request(encode_request(Request(ADMIN, "r", body=body)))
