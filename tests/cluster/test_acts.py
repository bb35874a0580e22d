"""Acts of administrators in a real cluster with keys: who may, what follows, what is remembered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from cluster.keys.authority import Authority
from cluster.local.local import LocalCluster
from flotilla_client import (
    Admin,
    BadRequest,
    Client,
    Forgotten,
    NotReady,
    Purged,
    Unauthorized,
    UnknownTopic,
    cli,
)
from tests.conftest import PATIENT, running

PATIENCE_S = 15.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes at the level of users; everybody may publish and read."""
    with running(
        tmp_path_factory.mktemp("cluster") / "acts",
        keys=True,
        settings=PATIENT,
        principals=("shop",),
    ) as made:
        made.begin_at_newest_level()
        yield made


def options_of(cluster: LocalCluster, name: str) -> dict[str, Any]:
    key = Authority(cluster.keys_dir).client_file(name)
    return {"endpoints": [*cluster.endpoints().values()], "key": key, "timeout": PATIENCE_S}


@pytest.fixture
def shop(cluster: LocalCluster, tmp_path: Path) -> Iterator[Client]:
    """Return a client that subscribes to a topic of the test's own, and has put three there."""
    with Client(**options_of(cluster, "shop"), state_dir=tmp_path / "shop") as client:
        client.subscribe(tmp_path.name)
        client.publish_many(tmp_path.name, ["1", "2", "3"])
        yield client


@pytest.fixture
def boss(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(**options_of(cluster, "admin")) as admin:
        yield admin


def handed_over(boss: Admin, node: str | None) -> str:
    """Have a node lead as soon as it has caught up with who leads; return who does."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return boss.transfer_leader(node)
        except NotReady:
            assert time.monotonic() < until_s, f"{node} does not catch up"
            time.sleep(0.1)


def test_who_may_not_administrate_does_no_act(cluster: LocalCluster, shop: Client) -> None:
    with Admin(**options_of(cluster, "shop")) as asking:
        for act in (
            lambda: asking.purge("orders", 1),
            lambda: asking.drop_client("somebody"),
            lambda: asking.transfer_leader(),
            lambda: asking.checkpoint(),
            lambda: asking.audit(),
        ):
            with pytest.raises(Unauthorized, match="lacks `admin`"):
                act()


def test_a_purge_is_told_to_who_has_not_read_it_and_leaves_what_comes_after(
    boss: Admin, shop: Client, tmp_path: Path
) -> None:
    topic = tmp_path.name
    with pytest.raises(UnknownTopic):
        boss.purge("nothing")
    with pytest.raises(BadRequest):
        boss.purge(topic, 4)
    assert boss.purge(topic) == {"purged": 3, "last_id": 3}
    shop.publish(topic, "4")
    with pytest.raises(Purged) as e:
        shop.get(topic)
    assert (e.value.details["first_id"], e.value.details["last_id"]) == (1, 3)
    delivery = shop.get(topic, max_count=9)
    assert delivery is not None
    assert (delivery.first_id, delivery.publications) == (4, (b"4",))


def test_two_administrators_purge_under_load_and_nothing_but_that_is_missing(
    cluster: LocalCluster, shop: Client, tmp_path: Path
) -> None:
    topic, last_id = tmp_path.name, 103

    def publish() -> None:
        with Client(**options_of(cluster, "shop"), state_dir=tmp_path / "publisher") as client:
            for number in range(4, last_id + 1):
                client.publish(topic, str(number))

    def purge() -> None:
        with Admin(**options_of(cluster, "admin")) as admin:
            while admin.purge(topic).last_id < last_id:
                pass

    seen: list[int] = []
    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(purge), pool.submit(purge), pool.submit(publish)]
        while not seen or seen[-1] < last_id:
            try:
                delivery = shop.get(topic, idle=1, max_count=7)
            except Purged as error:
                seen += range(error.details["first_id"], error.details["last_id"] + 1)
            else:
                given = () if delivery is None else delivery.publications
                assert given == tuple(str(len(seen) + n).encode() for n in range(1, len(given) + 1))
                seen += range(len(seen) + 1, len(seen) + len(given) + 1)
        for each in working:
            each.result()
    assert seen == [*range(1, last_id + 1)], "each is given or told to be gone, once, in order"


def test_a_dropped_client_is_forgotten(boss: Admin, shop: Client, tmp_path: Path) -> None:
    client_id = shop.client_id
    assert boss.drop_client(client_id) == [tmp_path.name]
    with pytest.raises(Forgotten):
        shop.get(tmp_path.name)
    with pytest.raises(Forgotten):
        boss.drop_client(client_id)
    with pytest.raises(UnknownTopic):
        boss.end_of(tmp_path.name)


def test_the_lead_goes_to_who_is_named_and_every_node_makes_a_checkpoint(
    cluster: LocalCluster, boss: Admin
) -> None:
    leader = cluster.wait_for_leader()
    other = next(name for name in cluster.endpoints() if name != leader)
    assert handed_over(boss, other) == other == cluster.wait_for_leader()
    assert handed_over(boss, None) != other
    with pytest.raises(BadRequest, match="no member"):
        boss.transfer_leader("nobody")
    rows = boss.checkpoint()
    assert {row.node for row in rows if row.is_done} == set(cluster.endpoints())


def test_the_command_asks_before_what_destroys_and_lists_what_was_done(
    cluster: LocalCluster, shop: Client, tmp_path: Path, capsysbinary: Any
) -> None:
    topic, given = tmp_path.name, options_of(cluster, "admin")
    endpoints = ",".join(each.removeprefix("tcp://") for each in given["endpoints"])

    def run(*argv: str) -> tuple[int, str, str]:
        capsysbinary.readouterr()
        common = ["-e", endpoints, "--state", str(tmp_path / "cli"), "--key", str(given["key"])]
        code = cli.main([*common, "admin", *argv])
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    code, _, err = run("purge", topic)
    assert (code, f"remove all of {topic!r} up to id 3" in err) == (cli.USAGE, True)
    code, out, _ = run("purge", topic, "--yes", "--json")
    assert orjson.loads(out) == {"topic": topic, "last_id": 3, "purged": 3}
    assert run("drop-client", shop.client_id)[0] == cli.USAGE, "nobody to be asked"
    code, out, _ = run("drop-client", shop.client_id, "--yes")
    assert (code, out.splitlines()[1].split()) == (0, [shop.client_id, topic])
    leader = cluster.wait_for_leader()
    assert run("transfer-leader", leader, "--json")[1] == f'{{"leader":"{leader}"}}\n'
    for wrong in (
        ("purge",),
        ("purge", topic, "1"),
        ("drop-client",),
        ("transfer-leader", "a", "b"),
        ("checkpoint", "a"),
        ("audit", "a"),
        ("audit", "--yes"),
    ):
        assert run(*wrong)[0] == cli.USAGE, wrong
    rows = [orjson.loads(line) for line in run("audit", "--json")[1].splitlines()]
    assert [(row["act"], row["principal"]) for row in rows[-3:]] == [
        ("purge", "admin"),
        ("drop-client", "admin"),
        ("transfer-leader", "admin"),
    ]
    assert rows[-3]["at_ms"] > 0
    table = run("audit")[1].splitlines()
    assert table[0].split() == ["number", "at", "index", "principal", "act", "about", "result"]
    assert f"topic={topic} last_id=3" in table[-3]


def test_the_history_outlives_a_killed_leader(cluster: LocalCluster, boss: Admin) -> None:
    rows = boss.audit()
    assert rows
    leader = cluster.wait_for_leader()
    cluster.kill(leader)
    assert boss.audit() == rows
    cluster.start(leader)
    cluster.wait_for_leader()
