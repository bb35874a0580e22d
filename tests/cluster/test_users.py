"""Users of a real cluster with keys: what may be done by whom, at each node, and from when on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import zmq

from cluster.keys.authority import Authority
from cluster.local.local import LocalCluster
from cluster.wire.levels import BUILD
from flotilla_client import Admin, BadRequest, Client, Unauthorized, Unsupported, cli
from flotilla_client.keys import read_key
from flotilla_client.protocol import GET, PUT, REQUEST_ID, SUB, TOPICS, UNSUB, UPGRADE
from tests.conftest import PATIENT, running

PATIENCE_S = 15.0
NAMES = ("shop", "board", "thief", "nobody")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes whose level is not raised yet."""
    with running(
        tmp_path_factory.mktemp("cluster") / "users", keys=True, settings=PATIENT, principals=NAMES
    ) as made:
        yield made


def key_of(cluster: LocalCluster, name: str) -> Path:
    return Authority(cluster.keys_dir).client_file(name)


def client(cluster: LocalCluster, name: str, **options: Any) -> Client:
    options = {"key": key_of(cluster, name), "timeout": PATIENCE_S, **options}
    return Client(list(cluster.endpoints().values()), **options)


def admin(cluster: LocalCluster, name: str = "admin") -> Admin:
    endpoints = list(cluster.endpoints().values())
    return Admin(endpoints, key=key_of(cluster, name), timeout=PATIENCE_S)


class KeyedSocket:
    """A ZeroMQ socket with a principal's key at one node, as in docs/protocol.md."""

    def __init__(self, cluster: LocalCluster, name: str, node: str) -> None:
        key = read_key(key_of(cluster, name))
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.curve_publickey, self.socket.curve_secretkey = (
            key.public.encode(),
            key.secret.encode(),
        )
        self.socket.curve_serverkey = key.server.encode()
        self.socket.connect(cluster.endpoints()[node])
        self.number = 0

    def __enter__(self) -> KeyedSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)

    def send(self, kind: str, topic: str = "", client_id: str = "", **body: Any) -> None:
        self.number += 1
        header = {
            "type": kind,
            "topic": topic,
            "client_id": client_id,
            "request_id": f"r{self.number}",
            "body": body,
        }
        self.socket.send_multipart([b"", orjson.dumps(header)])

    def answer(self) -> dict[str, Any]:
        assert self.socket.poll(1000 * PATIENCE_S), "no answer"
        reply: dict[str, Any] = orjson.loads(self.socket.recv_multipart()[1])
        assert reply["request_id"] == f"r{self.number}"
        body: dict[str, Any] = reply["body"]
        return body

    def ask(self, kind: str, topic: str = "", client_id: str = "", **body: Any) -> dict[str, Any]:
        """Ask until a leader answers."""
        while True:
            self.send(kind, topic, client_id, **body)
            answered = self.answer()
            if answered.get("error") not in ("electing", "not_leader"):
                return answered
            time.sleep(0.1)


def nodes(cluster: LocalCluster) -> list[str]:
    """Return the leader and a follower: what the one decides holds at the other."""
    leader = cluster.wait_for_leader()
    return [leader, next(name for name in cluster.endpoints() if name != leader)]


# The tests go on from one another: each leaves the cluster as its last line says.


def test_before_the_level_is_raised_every_key_may_do_everything(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with client(cluster, "shop", state_dir=tmp_path / "shop") as shop:
        shop.subscribe("stock.eu")
        assert shop.publish("stock.eu", "1").stored
        with admin(cluster) as boss, pytest.raises(Unsupported) as e:
            boss.add_user("shop", publish=["orders.*"])
        assert (e.value.details["level"], e.value.details["needs"]) == (1, 3)
        assert "flotilla upgrade" in str(e.value)
        assert cluster.begin_at_newest_level()["level"] == BUILD.level_max
        with admin(cluster) as boss:
            assert [row.user for row in boss.users()] == ["*"]
        # Nobody was shut out, not even who had connected before.
        assert shop.publish("stock.eu", "2").stored
        delivery = shop.get("stock.eu", max_count=9)
        assert delivery is not None
        assert delivery.publications == (b"1", b"2")
    with admin(cluster, "shop") as no_boss, pytest.raises(Unauthorized, match="lacks `admin`"):
        no_boss.add_user("shop", admin=True)


def test_the_command_says_who_may_what(
    cluster: LocalCluster, tmp_path: Path, capsysbinary: Any
) -> None:
    endpoints = ",".join(each.removeprefix("tcp://") for each in cluster.endpoints().values())

    def run(*argv: str, name: str = "admin", verb: str = "admin") -> tuple[int, str, str]:
        capsysbinary.readouterr()
        common = ["-e", endpoints, "--state", str(tmp_path), "--key", str(key_of(cluster, name))]
        code = cli.main([*common, *filter(None, [verb]), *argv])
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    code, out, _ = run("user", "add", "shop", "--publish", "orders.*", "--subscribe", "stock.>")
    assert code == 0
    assert out.splitlines()[1].split() == ["shop", "orders.*", "-", "stock.>", "-", "-", "-"]
    assert run("user", "add", "board", "--subscribe", ">", "--observe")[0] == 0
    code, out, _ = run("user", "list", "--json")
    assert [orjson.loads(line)["user"] for line in out.splitlines()] == ["*", "board", "shop"]
    code, out, err = run("user", "remove", "*")
    assert (code, err) == (0, "*: removed; it may nothing\n")
    code, out, _ = run("user", "deny", "shop", "--publish", "orders.test")
    assert "orders.test" in out
    code, _, err = run("user", "list", name="board")
    assert code == cli.REFUSED
    assert "board lacks `admin`" in err
    assert run("sub", "left", name="board", verb="")[0] == 0
    left = orjson.loads(run("topic", "left", "--json")[1])["client_id"]
    assert run("drop-subscription", "left", left)[0] == cli.USAGE, "nobody to be asked"
    code, out, _ = run("drop-subscription", "left", left, "--yes", "--json")
    assert orjson.loads(out) == {"topic": "left", "client_id": left, "was_subscribed": True}
    for wrong in (
        ("drop-subscription", "left"),
        ("topics", "--yes"),
        ("user",),
        ("user", "add"),
        ("user", "allow", "shop"),
        ("user", "remove", "shop", "--admin"),
        ("user", "list", "--admin"),
        ("user", "rename", "shop"),
        ("topics", "--publish", "x"),
    ):
        assert run(*wrong)[0] == cli.USAGE, wrong
    code, _, err = run("user", "allow", "shop", "--publish", "ord*")
    assert code == cli.REFUSED
    assert "whole words" in err


def test_each_may_what_it_may_through_any_node(cluster: LocalCluster, tmp_path: Path) -> None:
    with (
        client(cluster, "board", state_dir=tmp_path / "board") as board,
        client(cluster, "shop", state_dir=tmp_path / "shop") as shop,
    ):
        board.subscribe("orders.new")
        assert shop.publish("orders.new", "1").stored
        for topic in ("orders.test", "stock.eu", "orders", "orders.a.b"):
            with pytest.raises(Unauthorized, match="lacks `publish`") as e:
                shop.publish(topic, "x")
            assert e.value.definite
            assert e.value.details["needs"] == "publish"
        assert shop.publish("orders.new", "2").id == 2, "a refusal takes no counter and no place"
        with pytest.raises(Unauthorized, match=r"shop lacks `subscribe` on 'orders\.new'"):
            shop.subscribe("orders.new")
        with pytest.raises(Unauthorized, match="board lacks `publish`"):
            board.publish("orders.new", "x")
        assert {row.topic for row in board.topics(everything=True)} >= {"orders.new", "stock.eu"}
        assert {row.topic for row in shop.topics(everything=True)} == {"orders.new", "stock.eu"}
        shop_topics = [row.topic for row in shop.topics(everything=True)]
        assert "orders.test" not in shop_topics
        with pytest.raises(Unauthorized, match="lacks `observe`"):
            shop.subscribers("orders.new")
        assert board.subscribers("orders.new")[0]["backlog"] == 2
        with admin(cluster, "shop") as asking, pytest.raises(Unauthorized, match="observe"):
            asking.clients()
        with client(cluster, "nobody", state_dir=tmp_path / "nobody") as nobody:
            with pytest.raises(Unauthorized, match="may neither"):
                nobody.subscribe("orders.new")
            assert nobody.topics(everything=True) == []
            assert nobody.status()["node"], "a node's view of itself has no names but nodes'"
        with admin(cluster, "shop") as asking:
            for number in range(3):
                with pytest.raises(Unauthorized, match="lacks `observe`"):
                    list(asking.settings(number))
        with admin(cluster, "board") as asking:
            assert {row.node for n in range(3) for row in asking.settings(n)} == {
                "n1",
                "n2",
                "n3",
            }


def test_another_s_client_is_refused_by_hand_at_every_node(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with admin(cluster) as boss:
        boss.add_user("thief", publish=[">"], subscribe=[">"])
    with client(cluster, "board", state_dir=tmp_path / "board") as board:
        board.subscribe("orders.new")
        victim = board._session.state.client_id
        with admin(cluster, "board") as asking:
            before = asking.client(victim)
        for node in nodes(cluster):
            with KeyedSocket(cluster, "thief", node) as thief:
                for kind, topic, body in (
                    (REQUEST_ID, "", {"sequence": 2**50, "nonce": "x"}),
                    (REQUEST_ID, "", {}),
                    (SUB, "stock.eu", {}),
                    (UNSUB, "orders.new", {"sequence": 2**50}),
                    (PUT, "orders.new", {"counter": 1, "publication": "forged"}),
                    (GET, "orders.new", {"last_id": 2, "text": True}),
                    (GET, "", {}),
                    (TOPICS, "", {}),
                ):
                    answer = thief.ask(kind, topic, victim, **body)
                    assert answer.get("error") == "unauthorized", (node, kind, answer)
                    assert (answer["needs"], answer["definite"]) == ("client_id", True)
                    assert "board" not in answer["message"]
                assert thief.ask(UPGRADE, level=3)["error"] == "unauthorized"
        with admin(cluster, "board") as asking:
            assert asking.client(victim) == before
            with pytest.raises(Unauthorized, match="lacks `admin`"):
                asking.drop_subscription("orders.new", victim)
        with admin(cluster) as boss:
            assert boss.remove_user("thief")


def test_a_revocation_reaches_connections_and_waiting_reads_at_once(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with admin(cluster) as boss:
        boss.add_user("thief", publish=["gossip"], subscribe=["gossip"])
        for node in nodes(cluster):
            with KeyedSocket(cluster, "thief", node) as thief:
                me = thief.ask(REQUEST_ID)["client_id"]
                thief.ask(SUB, "gossip", me)
                assert thief.ask(PUT, "gossip", me, counter=1, publication="1")["stored"]
                thief.ask(GET, "gossip", me, last_id=thief.ask(GET, "gossip", me)["id"])
                thief.send(GET, "gossip", me, wait_ms=60_000)  # nothing is there: it waits
                time.sleep(0.3)
                began = time.monotonic()
                boss.deny_user("thief", subscribe=["gossip"])
                answer = thief.answer()
                assert time.monotonic() - began < 5, "it does not wait to its end"
                assert (answer["error"], answer["needs"]) == ("unauthorized", "subscribe")
                boss.deny_user("thief", publish=[">"])
                again = thief.ask(PUT, "gossip", me, counter=1, publication="1")
                assert again["duplicate"], "what is stored is stored"
                answer = thief.ask(PUT, "gossip", me, counter=2, publication="2")
                assert (answer["error"], answer["needs"]) == ("unauthorized", "publish")
                assert thief.ask(UNSUB, "gossip", me)["was_subscribed"]
                boss.allow_user("thief", publish=[">"], subscribe=["gossip"])
                boss.allow_user("thief", publish=["gossip"])
                assert thief.ask(PUT, "gossip", me, counter=2, publication="2")["count"] == 1
        boss.remove_user("thief")


def test_a_program_that_may_no_more_publish_keeps_what_may_be_stored_and_reads_on(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with admin(cluster) as boss:
        boss.add_user("thief", publish=["a", "b"], subscribe=[">"])
        with client(cluster, "thief", state_dir=tmp_path / "t") as program:
            program.subscribe("a")
            program.subscribe("b")
            program.publish("b", "1")
            program.enqueue("a", ["kept"])
            boss.deny_user("thief", publish=["a"])
        with client(cluster, "thief", state_dir=tmp_path / "t") as program:
            assert program.publish("b", "2").id == 2
            assert program.get("b", max_count=9) is not None
            with pytest.raises(Unauthorized):
                program.flush()
            boss.allow_user("thief", publish=["a"])
            program.flush()
            kept = program.get("a")
            assert kept is not None
            assert kept.publications == (b"kept",)
        boss.remove_user("thief")


def test_users_are_the_same_on_all_nodes_and_outlive_their_restart(cluster: LocalCluster) -> None:
    with admin(cluster) as boss:
        rows = boss.users()
    leader = cluster.wait_for_leader()
    cluster.kill(leader)
    with admin(cluster) as boss:
        assert boss.users() == rows
        with pytest.raises(BadRequest):
            boss.add_user("shop", publish=["x"])
    with client(cluster, "shop") as shop, pytest.raises(Unauthorized):
        shop.publish("stock.eu", "x")
    cluster.start(leader)
    cluster.wait_for_leader()
