"""A cluster with keys, of real processes: nobody else gets in, and keys change under load."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from cluster.keys.authority import Authority
from cluster.local.local import LocalCluster
from cluster.wire.frames import framed
from cluster.wire.messages import PROTOCOL_VERSION, Hello
from flotilla_client import AsyncClient, Client, Unavailable
from flotilla_client.keys import Key, from_z85, read_key, z85
from tests.cluster.raw_client import Raw, address_of, request
from tests.conftest import ANSWER_MS, PATIENT, running
from tests.unit.curve_client import GREETING, CurveClient, command, pair
from tests.waiting import until

WAIT_S = 30.0  # only a failing test waits as long
PATIENCE_S = 15.0
LOST_S = 1.5  # long enough to be told why


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("cluster") / "keys", keys=True, settings=PATIENT) as made:
        yield made


@pytest.fixture
def keys(cluster: LocalCluster) -> Authority:
    return Authority(cluster.keys_dir)


def client(cluster: LocalCluster, **options: object) -> Client:
    options = {"key": cluster.key, "timeout": PATIENCE_S, **options}
    return Client(list(cluster.endpoints().values()), **options)  # type: ignore[arg-type]


def causes(cluster: LocalCluster, **options: object) -> str:
    """Return what a client is told that is not let in."""
    with client(cluster, timeout=LOST_S, **options) as lost, pytest.raises(Unavailable) as e:
        lost.topics()
    return str(e.value)


def state_of(cluster: LocalCluster) -> dict[str, object]:
    """Return what an attack must not have changed."""
    bodies = cluster.statuses(ANSWER_MS)
    assert set(bodies) == {"n1", "n2", "n3"}, bodies
    # The leader's: what was acknowledged before the attack has been applied there.
    [store] = [body["store"] for body in bodies.values() if body["role"] == "leader"]
    sizes = {name: store[name] for name in ("topics", "clients", "subscriptions")}
    terms = {body["term"] for body in bodies.values()}
    return {"terms": terms, "pids": cluster.pids(), "sizes": sizes}


class KeyLoad:
    """A producer and a subscriber that go on while keys change; `check` sees that all went well."""

    def __init__(self, cluster: LocalCluster, directory: Path, key: Path, topic: str) -> None:
        self._topic, self._over = topic, threading.Event()
        self.sent, self.slowest_s = 0, 0.0
        self._error: list[BaseException] = []
        self._client = client(cluster, state_dir=directory, key=key)
        self._client.subscribe(topic)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                began = time.monotonic()
                self._client.publish(self._topic, f"{self.sent + 1}")
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self.sent += 1
        except BaseException as error:  # noqa: BLE001  (told by `check`)
            self._error.append(error)

    def goes_on(self) -> None:
        """Wait for some more publications."""
        goal = self.sent + 20
        until(lambda: self.sent >= goal or self._error)
        assert not self._error, self._error

    def check(self) -> float:
        """Stop; see that all was stored once, in order. Return how long the slowest took."""
        self._over.set()
        self._thread.join(WAIT_S)
        assert not self._error, self._error
        got: list[bytes] = []
        while (delivery := self._client.get(self._topic, max_count=1000)) is not None:
            got += delivery.publications
        assert got == [str(number + 1).encode() for number in range(self.sent)]
        self._client.close()
        return self.slowest_s


def read_by_all(cluster: LocalCluster, change: Callable[[], object]) -> None:
    """Change keys, and wait until each node has read them, asked to or by itself."""
    before = {name: _times_read(cluster, name) for name in cluster.pids()}
    change()
    for name in before:
        cluster.kill(name, "HUP")
    until(lambda: all(_times_read(cluster, name) > before[name] for name in before))


def _is_connected(cluster: LocalCluster, name: str, times: int) -> bool:
    return log_of(cluster, name).count("peer_connected") >= times


def _times_read(cluster: LocalCluster, name: str) -> int:
    return log_of(cluster, name).count('"event":"keys_read"')


def log_of(cluster: LocalCluster, name: str) -> str:
    return cluster.log_file(name).read_text()


# --- who is let in ----------------------------------------------------------------------------


def test_clients_with_a_key_do_what_clients_do(cluster: LocalCluster, tmp_path: Path) -> None:
    with client(cluster, state_dir=tmp_path / "state") as one:
        one.subscribe("fish")
        with one.producer("fish") as producer:
            futures = [producer.send(f"{number}") for number in range(2000)]
        assert [future.result(WAIT_S).id for future in futures] == list(range(1, 2001))
        assert len(one.get("fish", max_count=5000).publications) > 0  # type: ignore[union-attr]
    assert cluster.leader() is not None


def test_an_async_client_has_its_key_from_the_environment(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def topics() -> object:
        async with AsyncClient(list(cluster.endpoints().values())) as one:
            return await one.topics()

    monkeypatch.setenv("FLOTILLA_KEY", str(cluster.key))
    asyncio.run(topics())


def test_a_client_without_a_key_gets_nothing_but_a_reason_of_its_own(cluster: LocalCluster) -> None:
    before = state_of(cluster)
    assert "by their keys alone, and this one has none" in causes(cluster, key=None)
    assert state_of(cluster)["pids"] == before["pids"]


def test_unknown_keys_get_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    assert cluster.key is not None
    known, stranger = read_key(cluster.key), pair()
    cases = {
        "unknown": Key("app", z85(stranger.public), z85(stranger.secret), known.server),
        "stolen-public": Key("app", known.public, z85(stranger.secret), known.server),
        "other-server": Key("app", known.public, known.secret, z85(stranger.public)),
    }
    for name, key in cases.items():
        file = tmp_path / f"{name}.key"
        file.write_text(key.text())
        assert "by their keys alone, and has not let this one in" in causes(cluster, key=file), name


def test_a_client_with_a_key_does_not_speak_to_a_node_without(
    tmp_path: Path, cluster: LocalCluster
) -> None:
    """No downgrade: not even its greeting's mechanism changes."""
    assert cluster.key is not None
    with LocalCluster(tmp_path / "insecure") as insecure:
        insecure.create(1)
        insecure.start_all()
        insecure.wait_for_leader()
        log = insecure.log_file("n1")
        assert '"event":"insecure"' in log.read_text()
        until(lambda: insecure.leader())
        endpoints = list(insecure.endpoints().values())
        refused = pytest.raises(Unavailable, match="has no keys, and this client has one")
        with refused, Client(endpoints, key=cluster.key, timeout=LOST_S) as secure:
            secure.topics()
        with Client(endpoints) as plain:
            assert plain.topics() == []


def test_what_strangers_say_by_hand_gets_no_answer(cluster: LocalCluster) -> None:
    before = state_of(cluster)
    endpoint = cluster.endpoints()["n1"]
    with Raw(endpoint) as plain:  # by NULL
        plain.socket.sendall(request("REQUEST_ID"))
        assert said_by_node(plain.socket) == GREETING_OF_NODE
    for said in (GREETING + request("REQUEST_ID"), GREETING + command(b"\x05READY"), b"GET / HTTP"):
        with Raw(endpoint, handshake=False) as raw:
            raw.socket.sendall(said)
            assert said_by_node(raw.socket) == GREETING_OF_NODE
    assert state_of(cluster) == before


GREETING_OF_NODE = GREETING[:32] + b"\1" + bytes(31)


def said_by_node(raw: socket.socket) -> bytes:
    """Return all that a node says until it closes."""
    raw.settimeout(WAIT_S)
    said = b""
    with suppress(ConnectionError):
        while piece := raw.recv(4096):
            said += piece
    return said


def test_a_recorded_handshake_is_worth_nothing(cluster: LocalCluster) -> None:
    """Sent again, to the same node and to another one, message and all."""
    recorded, heard = recorded_session(cluster)
    assert b"ACK" not in heard  # in boxes
    before = state_of(cluster)
    for name in ("n1", "n2"):
        with Raw(cluster.endpoints()[name], handshake=False) as raw:
            for piece in recorded:
                with suppress(ConnectionError):
                    raw.socket.sendall(piece)
            said = said_by_node(raw.socket)
        assert said.startswith(GREETING_OF_NODE)
        assert len(said) == 64 + 2 + 168  # the WELCOME that whoever knows our key may have
    assert state_of(cluster) == before


def recorded_session(cluster: LocalCluster) -> tuple[list[bytes], bytes]:
    """Return what a client with a key has sent, piece by piece, and what came in answer."""
    assert cluster.key is not None
    key = read_key(cluster.key)
    pieces: list[bytes] = []
    heard = b""
    node = socket.create_connection(address_of(cluster.endpoints()["n1"]))
    with socket.create_server(("127.0.0.1", 0)) as tap, node:
        port = tap.getsockname()[1]
        with Client([f"127.0.0.1:{port}"], key=cluster.key) as one:
            asking = threading.Thread(target=one.topics)
            asking.start()
            raw, _ = tap.accept()
            with raw:
                for each in (raw, node):
                    each.setblocking(False)
                while asking.is_alive():
                    with suppress(BlockingIOError):
                        pieces.append(raw.recv(65536))
                        node.sendall(pieces[-1])
                    with suppress(BlockingIOError):
                        answer = node.recv(65536)
                        heard += answer
                        raw.sendall(answer)
            asking.join()
    assert key.public.encode() not in b"".join(pieces)
    return pieces, heard


def test_a_fake_n1_with_keys_of_its_own_making_gets_nowhere(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A CA of the same name, a certificate for the same cluster and node; and one that is ours."""
    before = state_of(cluster)
    fake = Authority.create(tmp_path / "fake", "local").node("n1")
    hello = framed(Hello(PROTOCOL_VERSION, "local", "n1", "fake", ("n1", "n2", "n3"), False, None))
    known = cluster.keys_dir / "nodes" / "n2" / "ca.pem"
    reason = "says that it is 'n1', and has the certificate of 'n3'"
    for directory in (fake, cluster.keys_dir / "nodes" / "n3"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(known)
        context.load_cert_chain(directory / "node.pem")
        raw = socket.create_connection(peer_address(cluster, "n2"), timeout=WAIT_S)
        with context.wrap_socket(raw) as wire:
            wire.sendall(hello)
            heard = b""
            with suppress(OSError):
                while piece := wire.recv(4096):
                    heard += piece
        assert (b"local" in heard) == (directory != fake), "a Hello is for members alone"
        assert directory == fake or reason in heard.decode(errors="replace")
    until(partial(_is_logged, cluster, "n2", "no TLS of this cluster"))
    assert state_of(cluster) == before


def _is_logged(cluster: LocalCluster, name: str, text: str) -> bool:
    return text in log_of(cluster, name)


@pytest.mark.slow
def test_a_recovered_cluster_has_certificates_for_its_new_id(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster") as cluster:
        cluster.create(3, keys=True)
        cluster.start_all()
        cluster.wait_for_leader()
        with client(cluster, state_dir=tmp_path / "state") as one:
            one.subscribe("kept")
            one.publish("kept", "before")
        cluster.down()
        for name in ("n2", "n3"):
            cluster.wipe(name)
        cluster_id = cluster.recover("n1")
        assert Authority(cluster.keys_dir).cluster_id == cluster_id
        cluster.start_all()
        cluster.wait_for_leader()
        with client(cluster) as another:
            assert [row["topic"] for row in another.topics(everything=True)] == ["kept"]


def test_many_half_open_connections_keep_nobody_out(cluster: LocalCluster) -> None:
    flood(cluster, 400)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_5000_half_open_connections_keep_nobody_out(cluster: LocalCluster) -> None:
    flood(cluster, 5000)


def flood(cluster: LocalCluster, count: int) -> None:
    """Open connections that stop at different places of the handshake, on every port."""
    assert cluster.key is not None
    server = read_key(cluster.key).server
    before = state_of(cluster)
    stranger = CurveClient(pair(), from_z85(server))
    stops = (b"", GREETING[:11], GREETING, GREETING + command(stranger.hello())[:100])
    stops += (GREETING + command(stranger.hello()), b"\x16\x03\x01\x02\x00\x01")
    addresses = [address_of(each) for each in cluster.endpoints().values()]
    addresses += [peer_address(cluster, name) for name in cluster.pids()]
    raws = []
    with client(cluster) as one:
        one.topics()
        for number in range(count):
            raw = socket.create_connection(addresses[number % len(addresses)], timeout=WAIT_S)
            raw.setblocking(False)
            with suppress(OSError):
                raw.send(stops[number // len(addresses) % len(stops)])
            raws.append(raw)
            if number % 50 == 0:
                one.topics()
        with client(cluster) as newcomer:
            newcomer.topics()
        one.topics()
    for raw in raws:
        raw.close()
    after = state_of(cluster)
    assert (after["pids"], after["terms"]) == (before["pids"], before["terms"])


def peer_address(cluster: LocalCluster, name: str) -> tuple[str, int]:
    text = (cluster.directory / name / "node.toml").read_text()
    found = re.search('^peer_listen = "(.*)"$', text, re.MULTILINE)
    assert found is not None, text
    return address_of(found[1])


def test_the_hand_made_client_of_the_protocols_page_has_15_lines_and_works(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    code = page.split("## By hand, with a key")[1].split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    script = tmp_path / "by_hand.py"
    script.write_text(code)
    assert cluster.key is not None
    endpoint = cluster.endpoints()["n2"].removeprefix("tcp://")
    said = subprocess.run(
        [sys.executable, str(script), str(cluster.key), endpoint],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    ).stdout
    assert "'stored': True" in said
    assert "'id': 1" in said


# --- changing keys under load ---------------------------------------------------------------------


def test_every_kind_of_key_is_changed_under_load_without_an_error(
    cluster: LocalCluster, keys: Authority, tmp_path: Path
) -> None:
    read_by_all(cluster, lambda: keys.client("load"))
    file = keys.client_file("load")
    terms = state_of(cluster)["terms"]
    load = KeyLoad(cluster, tmp_path / "state", file, "load")
    three = ("n1", "n2", "n3")
    steps: list[tuple[Callable[[], object], tuple[str, ...]]] = [
        (lambda: keys.rotate_client("load"), ()),
        (lambda: keys.finish_client("load"), ()),
        (keys.rotate_server, ()),
        (keys.finish_server, ()),
        *((lambda name=name: keys.rotate_node(name), (name,)) for name in three),
        (lambda: keys.finish_node("n1"), ()),
        (keys.rotate_ca, ()),
        *((lambda name=name: keys.rotate_node(name), (name,)) for name in three),
        (keys.finish_ca, ()),
    ]
    try:
        for change, renewed in steps:
            connected = {name: log_of(cluster, name).count("peer_connected") for name in renewed}
            read_by_all(cluster, change)
            for name, before in connected.items():
                goal = before + 2  # it renews its connections to both others
                until(partial(_is_connected, cluster, name, goal))
            load.goes_on()
    finally:
        slowest_s = load.check()
    print(f"slowest PUT {slowest_s:.3f} s")
    assert slowest_s < 5.0
    assert state_of(cluster)["terms"] == terms, "a change of keys deposed a leader"
    assert not any("keys_unusable" in log_of(cluster, name) for name in cluster.pids())


def test_a_revoked_client_is_put_out_and_stays_out(cluster: LocalCluster, keys: Authority) -> None:
    read_by_all(cluster, lambda: keys.client("thief"))
    file = keys.client_file("thief")
    copy = file.with_suffix(".copy")
    copy.write_bytes(file.read_bytes())
    with client(cluster, key=copy) as thief:
        thief.topics()
        read_by_all(cluster, lambda: keys.revoke_client("thief"))
        assert "lets clients in by their keys alone" in causes(cluster, key=copy)
        until(
            lambda: (
                "the key of thief is not accepted any more"
                in "".join(log_of(cluster, name) for name in cluster.pids())
            )
        )


@pytest.mark.slow
def test_sighup_reads_keys_and_half_a_copy_changes_nothing(
    cluster: LocalCluster, keys: Authority
) -> None:
    file = keys.directory / "nodes" / "n1" / "authorized_clients"
    whole = file.read_text()
    log = cluster.log_file("n1")
    file.write_text(whole[:-3])
    until(lambda: "keys_unusable" in log.read_text())
    with Client([cluster.endpoints()["n1"]], key=cluster.key) as one:
        one.topics()
    file.write_text(whole)
    times = _times_read(cluster, "n1")
    cluster.kill("n1", "HUP")
    until(lambda: _times_read(cluster, "n1") > times)
    assert "n1" in cluster.pids()
    secrets = [
        line.split()[2]
        for line in (keys.directory / "server.key").read_text().splitlines()
        if line.startswith("curve")
    ]
    for name in cluster.pids():
        text = cluster.log_file(name).read_text()
        assert not [secret for secret in secrets if secret in text]
        assert "PRIVATE KEY" not in text


@pytest.mark.slow
def test_a_wrong_directory_of_keys_is_a_wrong_setting(
    cluster: LocalCluster, keys: Authority, tmp_path: Path
) -> None:
    with LocalCluster(tmp_path / "other") as other:
        other.create(1, settings={"keys_dir": str(keys.directory / "nodes" / "n2")})
        other.start("n1")
        until(lambda: not other.pids())
        assert other.exit_codes["n1"] == 78
        assert "keys_dir: " in other.tails()
        assert "is of node 'n2' of cluster 'local', not of 'n1' of 'local'" in other.tails()
