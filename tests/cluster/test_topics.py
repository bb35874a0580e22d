"""Topics with policies in a real cluster: what is kept, dropped, read again, and who is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from analytics.twins.judging import judge
from cluster.local.local import LocalCluster
from flotilla_client import (
    Admin,
    AsyncClient,
    BacklogFull,
    BadRequest,
    Client,
    Gap,
    UnknownTopic,
    Unsupported,
    cli,
)
from tests.conftest import running

PATIENCE_S = 15.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes; the first test raises their level."""
    with running(
        tmp_path_factory.mktemp("cluster") / "topics",
        settings={"raft.election_min_ms": 600, "raft.election_max_ms": 1200},
    ) as made:
        yield made


def options_of(cluster: LocalCluster) -> dict[str, Any]:
    return {"endpoints": [*cluster.endpoints().values()], "timeout": PATIENCE_S}


@pytest.fixture
def boss(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(**options_of(cluster)) as admin:
        yield admin


@pytest.fixture
def shop(cluster: LocalCluster, tmp_path: Path) -> Iterator[Client]:
    with Client(**options_of(cluster), state_dir=tmp_path / "shop") as client:
        yield client


def flotilla(
    cluster: LocalCluster, state: Path, capfdbinary: pytest.CaptureFixture[bytes], *argv: str
) -> tuple[int, str, str]:
    """Run the command line in this process; return its code and what it wrote."""
    endpoints = ",".join(cluster.endpoints().values())
    code = cli.main(["-e", endpoints, "--state", str(state), "--deadline", "15", *argv])
    out, err = capfdbinary.readouterr()
    return code, out.decode(), err.decode()


def texts_of(client: Client, topic: str) -> list[bytes]:
    found: list[bytes] = []
    while (delivery := client.get(topic, max_count=100)) is not None:
        found += delivery.publications
    return found


# The tests go on from one another where they say so: the first leaves the cluster at its level.


def test_policies_take_a_level_and_say_so(cluster: LocalCluster, boss: Admin, shop: Client) -> None:
    with pytest.raises(Unsupported, match="take feature level"):
        boss.create_topic("early", keep="forever")
    with pytest.raises(Unsupported, match="that start elsewhere take feature level 4"):
        shop.subscribe("early", start="earliest")
    cluster.begin_at_newest_level()
    assert boss.create_topic("early", keep="forever").created


def test_topic_outlives_the_leader_that_made_it_and_keeps_what_is_put_behind(
    cluster: LocalCluster, boss: Admin, shop: Client
) -> None:
    """The leader is killed (-9) between the creation and the PUT, and nobody subscribes."""
    boss.create_topic("kept", keep="forever")
    leader = cluster.wait_for_leader()
    cluster.kill(leader)
    first = shop.publish("kept", "after the leader's death")
    assert (first.id, first.stored) == (1, True)
    cluster.start(leader)
    cluster.wait_for_leader()
    delivery = shop.read("kept", 1, 10)
    assert delivery is not None
    assert delivery.publications == (b"after the leader's death",)


def test_new_service_reads_a_kept_topic_from_the_start_after_everybody_has_read_it(
    cluster: LocalCluster,
    boss: Admin,
    shop: Client,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    boss.create_topic("orders", keep="1000")
    shop.subscribe("orders")
    shop.publish_many("orders", [f"order {number}" for number in range(1, 31)])
    assert len(texts_of(shop, "orders")) == 30
    with Client(**options_of(cluster), state_dir=tmp_path / "new") as new:
        assert new.subscribe("orders", start="earliest").last_id == 0
        assert texts_of(new, "orders") == [b"order %d" % number for number in range(1, 31)]
        assert new.seek("orders", 29) == 28
        delivery = new.get("orders")
        assert delivery is not None
        assert (delivery.first_id, delivery.redelivered_count) == (29, 0)
        assert new.seek("orders", "earliest") == 0
        assert len(texts_of(new, "orders")) == 30, "what it had acknowledged"
        # By time: the timestamp of the tenth, which the others of its entry share.
        at_ms = new.read("orders", 10, 1).timestamps[0][1]  # type: ignore[union-attr]
        assert at_ms is not None
        assert new.seek("orders", datetime.fromtimestamp(at_ms / 1000, UTC)) < 10
        assert new.seek("orders", datetime.fromtimestamp(at_ms / 1000 + 3600, UTC)) == 30
    # As well by hand.
    state = tmp_path / "by hand"
    run = lambda *argv: flotilla(cluster, state, capfdbinary, *argv)  # noqa: E731
    assert run("sub", "orders", "--from", "28")[1] == (
        "subscribed: publications after id 27 will come\n"
    )
    code, out, _ = run("get", "orders", "--all", "--json")
    assert code == 0
    assert [orjson.loads(line)["id"] for line in out.splitlines()] == [28, 29, 30]
    assert run("seek", "orders", "30")[1] == "moved: publications after id 29 will come\n"
    assert run("get", "orders")[1] == "order 30\n"
    code, out, _ = run("read", "orders", "--from", "29")
    assert (code, out) == (0, "order 29\norder 30\n")


def test_sleeping_reader_is_told_its_gap_once_and_goes_on(
    cluster: LocalCluster,
    boss: Admin,
    shop: Client,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    boss.create_topic("news", keep="unread", max_bytes=3_200, when_full="drop-oldest")
    shop.subscribe("news")
    shop.publish("news", "read before")
    assert texts_of(shop, "news") == [b"read before"]
    state = tmp_path / "by hand"
    run = lambda *argv: flotilla(cluster, state, capfdbinary, *argv)  # noqa: E731
    assert run("sub", "news")[0] == 0
    for number in range(100):
        assert shop.publish("news", f"{number:096}").stored
    with pytest.raises(Gap) as e:
        shop.get("news")
    gap = e.value.details
    assert (gap["topic"], gap["first_id"]) == ("news", 2)
    assert gap["missed"] == gap["last_id"] - 1
    rest = texts_of(shop, "news")
    assert rest == [b"%096d" % number for number in range(gap["missed"], 100)]
    assert 24 <= len(rest) <= 32
    code, _, err = run("get", "news", "--all")
    assert code == 3
    assert f"gap: publications 2 to {gap['last_id']} of 'news'" in err
    code, out, _ = run("get", "news", "--all")
    assert (code, out.encode()) == (0, b"".join(line + b"\n" for line in rest))


def test_full_topic_refuses_until_it_is_read(
    boss: Admin, cluster: LocalCluster, shop: Client
) -> None:
    boss.create_topic("full", max_bytes=1_000)
    shop.subscribe("full")
    shop.publish("full", b"x" * 900)
    hasty = {**options_of(cluster), "timeout": 0.5}
    with Client(**hasty) as other, pytest.raises(BacklogFull) as e:
        other.publish("full", b"x" * 900)
    assert e.value.details["limit"] == 1_000
    assert len(texts_of(shop, "full")) == 1
    shop.get("full")
    assert shop.publish("full", b"x" * 900).stored


def test_topic_is_altered_shown_and_deleted_by_hand(
    cluster: LocalCluster,
    shop: Client,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    run = lambda *argv: flotilla(cluster, tmp_path / "none", capfdbinary, *argv)  # noqa: E731
    made = run("topic", "create", "jobs", "--keep", "7d", "--max-bytes", "10GB")
    assert made[0] == 0, made
    assert run("topic", "create", "jobs", "--keep", "8d")[0] == 3
    assert run("topic", "alter", "jobs", "--dead-letter", "jobs")[0] == 3
    code, out, _ = run("topic", "alter", "jobs", "--dead-letter", "jobs.dead")
    assert (code, "jobs.dead" in out) == (0, True)
    assert run("topic", "alter", "jobs", "--dead-letter", "none")[0] == 0
    code, out, _ = run("topic", "alter", "jobs", "--when-full", "drop-oldest", "--json")
    assert code == 0
    assert orjson.loads(out)["policy"] == {
        "keep": "ms",
        "amount": 604_800_000,
        "max_bytes": 10**10,
        "when_full": "drop-oldest",
    }
    shop.subscribe("jobs")
    shop.publish("jobs", "one")
    code, out, _ = run("topic", "show", "jobs", "--json")
    row = orjson.loads(out)
    assert (row["first_id"], row["last_id"], row["subscribers"], row["held_bytes"]) == (1, 1, 1, 7)
    code, _, err = run("topic", "delete", "jobs")
    assert code == 2
    assert "delete 'jobs', 1 publications, 1 subscriptions? Say --yes" in err
    assert run("topic", "delete", "jobs", "--yes")[0] == 0
    with pytest.raises(UnknownTopic):
        shop.get("jobs")
    assert run("topic", "show", "jobs")[0] == 3
    assert not (tmp_path / "none").exists(), "whoever administrates is no client"


def test_deleted_topic_goes_on_with_its_ids(boss: Admin, shop: Client) -> None:
    boss.create_topic("again", keep="forever")
    shop.publish_many("again", ["1", "2"])
    shop.subscribe("again")
    with pytest.raises(BadRequest, match="subscribe"):
        boss.delete_topic("again")
    assert boss.delete_topic("again", ends_subscriptions=True).deleted == 2
    boss.create_topic("again", keep="forever")
    assert shop.publish("again", "3").id == 3


def test_seek_of_one_thread_reaches_the_loop_of_another(
    cluster: LocalCluster, boss: Admin, shop: Client, tmp_path: Path
) -> None:
    """The loop waits in a GET of the place before; what comes next is what was sought."""
    boss.create_topic("looped", keep="forever")
    shop.publish_many("looped", ["1", "2", "3"])
    with Client(**options_of(cluster), state_dir=tmp_path / "loop") as reader:
        reader.subscribe("looped", start="earliest")
        seen: list[int] = []
        is_through = threading.Event()

        def loop() -> None:
            for message in reader.messages("looped"):
                seen.append(message.id)
                if len(seen) == 3:
                    is_through.set()
                if len(seen) == 6:
                    return

        thread = threading.Thread(target=loop)
        thread.start()
        assert is_through.wait(30)
        reader.seek("looped", "earliest")
        thread.join(30)
        assert seen == [1, 2, 3, 1, 2, 3]


def test_replay_that_is_recorded_is_judged_valid_and_what_was_dropped_is_believed(
    cluster: LocalCluster, boss: Admin, shop: Client, tmp_path: Path
) -> None:
    """What is read again was asked for; that a topic drops stands in no record of applications."""
    record = tmp_path / "record"
    boss.create_topic("seen", keep="forever", max_bytes=1_000, when_full="drop-oldest")
    options = {**options_of(cluster), "record": record}
    with Client(**options, state_dir=tmp_path / "reader") as reader:
        shop.publish_many("seen", ["1", "2", "3"])
        reader.subscribe("seen", start=2)
        assert texts_of(reader, "seen") == [b"2", b"3"]
        reader.seek("seen", "earliest")
        assert texts_of(reader, "seen") == [b"1", b"2", b"3"]
        for _ in range(20):
            shop.publish("seen", b"x" * 90)
        with pytest.raises(Gap):
            reader.get("seen")
        assert len(texts_of(reader, "seen")) < 20
        assert reader.unsubscribe("seen")
    judgement = judge(record)
    found = {name: rows for name, rows in judgement.evidence.items() if rows}
    assert not found, found


def test_publications_get_too_old_though_nothing_else_happens(boss: Admin, shop: Client) -> None:
    boss.create_topic("aging", keep="2s")
    shop.publish_many("aging", ["1", "2"])
    assert boss.show_topic("aging").held_bytes == 10
    until_s = time.monotonic() + 60
    while boss.show_topic("aging").first_id != 3:
        assert time.monotonic() < until_s, "they are kept"
        time.sleep(0.5)
    with pytest.raises(Gap):
        shop.read("aging", 1)


async def _both(cluster: LocalCluster, state: Path) -> tuple[int, int, tuple[bytes, ...]]:
    async with AsyncClient(**options_of(cluster), state_dir=state) as client:
        begun = await client.subscribe("early", start="earliest")
        await client.publish("early", "one")
        read = await client.read("early", 1, 5)
        assert read is not None
        return begun.last_id, await client.seek("early", "new"), read.publications


def test_asyncio_has_the_same(cluster: LocalCluster, tmp_path: Path) -> None:
    assert asyncio.run(_both(cluster, tmp_path / "aio")) == (0, 1, (b"one",))
