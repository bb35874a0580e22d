"""The examples, run as their READMEs say, against one real cluster; killed where they may be."""

from __future__ import annotations

import gzip
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, Queue

import httpx
import orjson
import pytest

from cluster.local.local import LocalCluster
from flotilla_client import Admin, Client
from tests.conftest import PATIENT, running
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PATIENCE_S = 40.0
SPARK_PATIENCE_S = 300.0  # of a JVM that begins, and Pythons of its own
FLOTILLA = [sys.executable, "-m", "flotilla_client.cli"]


class Program:
    """A process of an example; its lines come as it writes them."""

    def __init__(self, *arguments: str | Path) -> None:
        command = [str(each) for each in arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self._news: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._news.put(line.rstrip("\n"))
        self._news.put(None)

    def await_line(self, wanted: Callable[[str], bool]) -> str:
        """Wait for a line."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                line = self._news.get(timeout=max(0.0, end_s - time.monotonic()))
            except Empty:
                line = None
            assert line is not None, self.lines
            self.lines.append(line)
            if wanted(line):
                return line

    def end(self, code: int = 0) -> list[str]:
        """Wait for its end; return all its lines."""
        while (line := self._news.get(timeout=PATIENCE_S)) is not None:
            self.lines.append(line)
        assert self.process.wait(PATIENCE_S) == code, self.lines
        return self.lines

    def kill(self) -> None:
        """Kill it, as a machine would that loses its power."""
        self.process.kill()
        self.end(-signal.SIGKILL)

    def clear(self) -> None:
        """End it, however it is, and its reader."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes for all examples."""
    with running(tmp_path_factory.mktemp("cluster") / "examples", settings=PATIENT) as made:
        made.begin_at_newest_level()
        yield made


@pytest.fixture
def nodes(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the cluster's endpoints; the examples find them in the environment."""
    endpoints = ",".join(cluster.endpoints().values())
    monkeypatch.setenv("FLOTILLA_ENDPOINTS", endpoints)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    return endpoints


@pytest.fixture
def run() -> Iterator[Callable[..., Program]]:
    """Return what starts programs; those that still run are killed behind the test."""
    started: list[Program] = []

    def start(name: str, *arguments: str | Path) -> Program:
        started.append(Program(sys.executable, ROOT / "examples" / name, *arguments))
        return started[-1]

    yield start
    for program in started:
        program.clear()


def test_four_workers_share_jobs_and_one_is_killed(
    nodes: str, run: Callable[..., Program], tmp_path: Path
) -> None:
    texts = {f"{number}.txt": f"text {number}\n" * 50_000 for number in range(60)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    out = tmp_path / "out"
    assert run("jobs/submit.py", *(tmp_path / name for name in texts)).end() == ["60 jobs"]

    killed = run("jobs/compress.py", out, "3")
    killed.await_line(lambda line: line.startswith("job"))  # or others might leave it nothing
    workers = [run("jobs/compress.py", out, "3") for _ in range(3)]
    killed.kill()
    done = [line for worker in workers for line in worker.end()] + killed.lines

    for name, text in texts.items():
        assert gzip.decompress((out / f"{name}.gz").read_bytes()).decode() == text
    jobs = [int(line.split(",")[0].removeprefix("job ")) for line in done]
    # What the killed one had done and not got across was done again; nothing else.
    assert set(jobs) | {0} == set(range(61))
    with Admin(nodes) as admin:
        [row] = [row for row in admin.groups() if row.topic == "files"]
    assert row.cursor == 60


def totals(path: Path) -> tuple[int, int, int]:
    with sqlite3.connect(path) as database:
        [(last_id,)] = database.execute("SELECT last_id FROM cursor")
        [sums] = database.execute("SELECT total(orders), total(cents) FROM totals")
    database.close()
    return last_id, int(sums[0]), int(sums[1])


def test_three_services_have_each_order_s_effect_once_though_one_is_killed_twice(
    nodes: str, run: Callable[..., Program], tmp_path: Path
) -> None:
    names = ("billing", "stock", "mail")
    services = {name: run("orders/service.py", name, tmp_path / f"{name}.db") for name in names}
    for service in services.values():
        service.await_line(lambda line: line == "subscribed")

    def kill_billing() -> None:
        services["billing"].kill()
        services["billing"] = run("orders/service.py", "billing", tmp_path / "billing.db")
        services["billing"].await_line(lambda line: line == "subscribed")

    for _ in range(2):
        shop = run("orders/shop.py", "60")
        kill_billing()
        shop.end()
    cents = 2 * sum(100 + number for number in range(1, 61))
    end_s = time.monotonic() + PATIENCE_S
    while any(totals(tmp_path / f"{name}.db")[0] < 120 for name in names):
        assert time.monotonic() < end_s, [totals(tmp_path / f"{name}.db") for name in names]
        time.sleep(0.05)
    for name in names:
        assert totals(tmp_path / f"{name}.db") == (120, 120, cents), name


def test_a_web_service_publishes_100_requests_at_once(
    nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISITS_STATE", str(tmp_path / "state"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ("--app-dir", ROOT / "examples/web", "visits:app", "--port", str(port))
    server = Program(sys.executable, "-m", "uvicorn", *arguments)
    try:
        server.await_line(lambda line: "running on" in line)
        url = f"http://127.0.0.1:{port}/visits"
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as browser:
            nobody = browser.post(url, content="unheard")
            assert (nobody.status_code, nobody.json()) == (503, {"error": "no_subscribers"})
            with Client(nodes, name="reader") as reader:
                reader.subscribe("visits")
                with ThreadPoolExecutor(100) as pool:
                    posts = [pool.submit(browser.post, url, content=str(n)) for n in range(100)]
                answers = [post.result() for post in posts]
                read = [message.publication for message in reader.messages("visits", idle=0)]
        assert {answer.status_code for answer in answers} == {201}
        ids = [answer.json()["id"] for answer in answers]
        assert sorted(ids) == list(range(1, 101))
        assert [read[id_ - 1] for id_ in ids] == [str(number).encode() for number in range(100)]
        server.process.send_signal(signal.SIGTERM)
        server.end(-signal.SIGTERM)
    finally:
        server.clear()


def test_lines_of_a_file_go_into_a_topic_and_out_again_though_it_is_rotated(
    nodes: str, tmp_path: Path
) -> None:
    log = tmp_path / "app.log"
    lines = [f"line {number}" for number in range(60)]
    log.write_text("".join(f"{line}\n" for line in lines[:20]))
    reader, writer = ["--state", tmp_path / "reader"], ["--state", tmp_path / "writer"]
    subprocess.run([*FLOTILLA, *reader, "sub", "log"], check=True, timeout=PATIENCE_S)

    tail = subprocess.Popen(["tail", "-n", "+1", "-F", log], stdout=subprocess.PIPE, stderr=-3)
    put = subprocess.Popen([*FLOTILLA, *writer, "put", "log", "-"], stdin=tail.stdout, stdout=-3)
    assert tail.stdout is not None
    tail.stdout.close()  # it is the other one's
    get = Program(*FLOTILLA, *reader, "get", "log", "--follow")
    try:
        get.await_line(lambda line: line.endswith(lines[19]))
        log.rename(tmp_path / "app.log.1")
        log.write_text("".join(f"{line}\n" for line in lines[20:40]))
        get.await_line(lambda line: line.endswith(lines[39]))
        with log.open("a") as more:
            more.writelines(f"{line}\n" for line in lines[40:])
        get.await_line(lambda line: line.endswith(lines[-1]))
    finally:
        tail.kill()
        tail.wait()
        assert put.wait(PATIENCE_S) == 0  # the end of its input
        get.process.send_signal(signal.SIGINT)
        get.process.wait(PATIENCE_S)
        get.clear()
    assert [line[line.index("line") :] for line in get.lines] == lines


def test_a_new_service_reads_what_was_published_before_it_was_there(
    nodes: str, run: Callable[..., Program]
) -> None:
    with Admin(nodes) as admin:
        admin.create_topic("prices", keep="30d")
    run("replay/prices.py", "200").end()
    [first] = run("replay/highest.py", "0.5").end()
    assert first.startswith("200 prices read; coffee ")
    run("replay/prices.py", "30").end()
    [second] = run("replay/highest.py", "0.5").end()
    assert second.startswith("30 prices read; ")


@pytest.mark.slow
@pytest.mark.spark
def test_a_query_publishes_each_alarm_once(
    nodes: str, run: Callable[..., Program], tmp_path: Path
) -> None:
    with Admin(nodes) as admin:
        admin.create_topic("prices", keep="30d")
        admin.create_topic("alarms", keep="30d")
    run("replay/prices.py", "200").end()
    for _ in range(2):
        alarms = run("spark/alarms.py", "900", tmp_path / "checkpoint")
        assert alarms.process.wait(SPARK_PATIENCE_S) == 0, alarms.lines
    with Client(nodes) as client:
        prices, found = client.read("prices", 1, 10_000), client.read("alarms", 1, 10_000)
    assert prices is not None
    assert found is not None
    expected = [price for price in prices.publications if int(price) > 900]
    assert list(found.publications) == expected


def test_dead_letters_are_looked_at_and_sent_again(nodes: str, run: Callable[..., Program]) -> None:
    assert run("dead_letters/letters.py", "list").end() == []
    run("dead_letters/mailer.py", "0").end()
    with Client(nodes) as client:
        client.publish("mails", "ada@example.org", headers={"lang": "en"})
        client.publish("mails", "nowhere", key="k", headers={"lang": "en"})
    sent = run("dead_letters/mailer.py", "2").end()
    assert sent.count("sent to ada@example.org") == 1
    tries = [line for line in sent if "no address" in line]
    assert [line.split(":")[0] for line in tries] == ["attempt 1", "attempt 2", "attempt 3"]
    for _ in range(2):  # looking moves nothing
        [letter] = run("dead_letters/letters.py", "list").end()
        assert letter.startswith("1: nowhere (from mails 2, group mailer: ")
    assert run("dead_letters/letters.py", "again").end() == ["1: sent again, mails 3"]
    assert run("dead_letters/letters.py", "list").end() == []
    with Client(nodes) as client:
        again = client.read("mails", 3)
    assert again is not None
    [message] = again
    assert (message.publication, message.key, message.headers) == (b"nowhere", "k", {"lang": "en"})


def test_a_consumer_stops_between_two_messages_and_goes_on_behind_them(
    nodes: str, run: Callable[..., Program]
) -> None:
    consumer = run("graceful/audit.py")
    consumer.await_line(lambda line: line == "subscribed")
    with Client(nodes) as client:
        client.publish_many("events", [str(number) for number in range(1, 101)])
    consumer.await_line(lambda line: line.startswith("event 20"))
    consumer.process.send_signal(signal.SIGTERM)
    before = consumer.end()
    assert before[-1] == "stopped"
    consumer = run("graceful/audit.py")
    consumer.await_line(lambda line: line.startswith("event 100"))
    consumer.process.send_signal(signal.SIGINT)
    events = [line for line in (*before, *consumer.end()) if line.startswith("event")]
    ids = [int(line.split()[1].rstrip(":")) for line in events]
    assert ids == list(range(1, 101))  # each once: nothing was left in hand


def test_every_example_has_a_readme_and_a_place_in_the_list() -> None:
    listed = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    folders = [each for each in (ROOT / "examples").iterdir() if each.is_dir()]
    names = sorted(each.name for each in folders if not each.name.startswith("_"))
    assert names == sorted(name for name in names if f"({name}/README.md)" in listed)
    assert all((ROOT / "examples" / name / "README.md").exists() for name in names)


def test_faststream_confirms_each_purchase_though_a_process_is_killed(
    nodes: str, run: Callable[..., Program], tmp_path: Path
) -> None:
    purchases = [{"number": number, "cents": 100 + number} for number in range(1, 41)]
    with Client(nodes, state_dir=tmp_path / "shop") as shop:
        shop.subscribe("confirmations")
        shop.subscribe("purchases.dead")
        killed = run("faststream/confirm.py")
        killed.await_line(lambda line: "started successfully" in line)
        other = run("faststream/confirm.py")
        for purchase in purchases:
            shop.publish("purchases", orjson.dumps(purchase), headers={"shop": "north"})
        killed.await_line(lambda line: line.startswith("confirmed"))
        killed.kill()
        shop.publish("purchases", "no purchase")

        confirmed: set[int] = set()
        for message in shop.messages("confirmations", idle=PATIENCE_S):
            confirmation = orjson.loads(message.publication)
            assert confirmation["text"] == f"thank you for {1 + confirmation['purchase'] / 100:.2f}"
            assert message.headers["content-type"] == "application/json"
            confirmed.add(confirmation["purchase"])
            if len(confirmed) == len(purchases):
                break
        letter = next(shop.messages("purchases.dead", idle=PATIENCE_S))
    assert confirmed == {purchase["number"] for purchase in purchases}
    assert letter.publication == b"no purchase"
    assert letter.headers["dead-letter-group"] == "confirm"
    with Admin(nodes) as admin:  # what the killed one confirmed and did not acknowledge comes again

        def is_settled() -> bool:
            [row] = [row for row in admin.groups() if row.group == "confirm"]
            return (row.cursor, row.backlog, row.leased) == (len(purchases) + 1, 0, 0)

        until(is_settled, "not all is settled")
    other.process.send_signal(signal.SIGINT)
    assert any("validation error" in line for line in other.end())


def test_a_faststream_broker_that_meets_no_cluster_may_connect_again(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from flotilla_broker import FlotillaBroker\n"
        "from flotilla_client import Unavailable\n"
        "async def work():\n"
        "    broker = FlotillaBroker('127.0.0.1:1', state_dir=sys.argv[1], timeout=0.1)\n"
        "    for _ in range(2):\n"
        "        try:\n"
        "            await broker.connect()\n"
        "        except Unavailable as error:\n"
        "            print('unavailable')\n"
        "asyncio.run(work())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "state")],
        cwd=ROOT / "examples" / "faststream",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("unavailable\n" * 2, 0), done.stderr
