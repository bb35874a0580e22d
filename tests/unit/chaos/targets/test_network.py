"""What chaos/targets promises of packets: whose rules are written, and what becomes of a packet."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from chaos.targets import CLIENTS, LinkConditions, TargetError, network
from chaos.targets.network import PACKETS, Network
from chaos.targets.packets import Fates, Queues, serve

ADDRESSES = {"n1": "10.0.0.11", "n2": "10.0.0.12", CLIENTS: "10.0.0.1"}


class Written(Network):
    """Remembers what would be written: {words that enter a namespace: rules}."""

    def __init__(self, dead: Sequence[str] = ()) -> None:
        self.files: dict[tuple[str, ...], str] = {}
        super().__init__(lambda node: None if node in dead else ("in", node), lambda: ADDRESSES)

    def _restore(self, enter: Sequence[str], rules: str) -> None:
        self.files[tuple(enter)] = rules

    def _begin(self, node: str) -> bool:
        return False

    def drops(self, node: str) -> list[str]:
        return [line for line in self.files["in", node].splitlines() if "DROP" in line]


def test_a_cut_is_dropped_where_the_link_ends_and_one_to_the_clients_where_it_begins() -> None:
    network = Written()
    network.cut([("n1", "n2"), (CLIENTS, "n2"), ("n2", CLIENTS)])
    assert sorted(network.drops("n2")) == [
        "-A INPUT -s 10.0.0.1 -j DROP",
        "-A INPUT -s 10.0.0.11 -j DROP",
        "-A OUTPUT -d 10.0.0.1 -j DROP",
    ]
    assert network.drops("n1") == []
    network.join([("n1", "n2")])
    assert len(network.drops("n2")) == 2


def test_nothing_is_written_for_a_node_without_a_namespace_nor_on_the_machine() -> None:
    network = Written(dead=["n2"])
    network.cut([("n1", "n2"), ("n2", "n1")])
    assert list(network.files) == [("in", "n1")]
    with pytest.raises(AssertionError, match="the machine's own"):
        Network(lambda node: (), lambda: ADDRESSES).cut([("n1", "n2")])


def test_each_link_of_a_node_has_a_queue_and_duplicates_are_made_where_it_begins() -> None:
    network = Written()
    network.degrade([("n1", "n2"), (CLIENTS, "n2"), ("n2", "n1")], LinkConditions(duplicate=0.25))
    rules = network.files["in", "n2"].splitlines()
    assert "-A INPUT -s 10.0.0.11 -j NFQUEUE --queue-num 1 --queue-bypass" in rules
    assert "-A INPUT -s 10.0.0.1 -j NFQUEUE --queue-num 0 --queue-bypass" in rules
    [tee] = [line for line in rules if "TEE" in line]
    assert "-d 10.0.0.11 " in tee
    assert "--probability 0.2500 " in tee


def test_clearing_links_leaves_the_conditions_of_others() -> None:
    network = Written()
    network.degrade([("n1", "n2")], LinkConditions(loss=0.5))
    network.degrade([(CLIENTS, "n2")], LinkConditions(delay_ms=5))
    network.clear([("n1", "n2"), ("n2", "n1")])
    queues = [line for line in network.files["in", "n2"].splitlines() if "NFQUEUE" in line]
    assert len(queues) == 1
    assert "10.0.0.1 " in queues[0]


def test_rules_are_written_anew_only_if_there_are_any() -> None:
    network = Written()
    network.renew(["n1", "n2"])
    assert network.files == {}
    network.cut([("n1", "n2")])
    network.files.clear()
    network.renew(["n1", "n2"])
    assert set(network.files) == {("in", "n1"), ("in", "n2")}
    network.forget()
    network.files.clear()
    network.renew(["n2"])
    assert network.files == {}


# --- the process that holds packets ---------------------------------------------------------------


class Held(Written):
    """With real processes, in the machine's own namespace; no rules are written."""

    def __init__(self) -> None:
        super().__init__()
        self._enter = lambda node: ["env"]

    def _restore(self, enter: Sequence[str], rules: str) -> None:
        self.files["in", rules.partition("-s ")[2][:9]] = rules

    def _begin(self, node: str) -> bool:
        return Network._begin(self, node)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the process that holds packets be this script."""

    def write(text: str) -> None:
        (tmp_path / "packets.py").write_text(text)
        monkeypatch.setattr(network, "PACKETS", tmp_path / "packets.py")

    return write


LINK = [("n1", "n2")]
BREAKS = """
import sys
print("ready", flush=True)
sys.exit("the socket broke")
"""


@pytest.mark.parametrize("way", ["clear", "degrade", "forget"])
def test_a_process_that_has_ended_is_told_when_all_the_rest_is_done(
    script: Callable[[str], None], way: str
) -> None:
    script(BREAKS)
    held = Held()
    held.degrade(LINK, LinkConditions(clog=True))
    held._processes["n2"].wait(10)
    script("import sys; print('ready', flush=True); sys.stdin.read()")
    held.files.clear()
    done = {
        "clear": lambda: held.clear(LINK),
        "degrade": lambda: held.degrade(LINK, LinkConditions(loss=0.5)),
        "forget": held.forget,
    }
    with pytest.raises(TargetError, match=r"n2: who held .*exit code 1\): the socket broke"):
        done[way]()
    assert bool(held.files) == (way != "forget")
    assert held._processes.keys() == ({"n2"} if way == "degrade" else set())
    held.forget()


def test_a_process_that_is_not_ready_in_time_is_ended_and_told(
    script: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "READY_S_MAX", 0.1)
    script("import sys; sys.stdin.read()")
    held = Held()
    with pytest.raises(TargetError, match=r"n2: packets were not held back within 0\.1 s"):
        held.degrade(LINK, LinkConditions(clog=True))
    assert held._processes == {}


@pytest.mark.root
def test_the_process_ends_with_whoever_started_it() -> None:
    order = {"seed": "1", "queues": {"65001": asdict(LinkConditions(clog=True))}}
    with subprocess.Popen(
        [sys.executable, "-I", str(PACKETS), json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.3)  # it looks every 0.1 s
        assert process.poll() is None
        process.stdin.close()  # as the kernel does for one that was killed
        assert process.wait(10) == 0


# --- what becomes of a packet ---------------------------------------------------------------------


def fates(conditions: LinkConditions, seed: int = 1) -> Fates:
    return Fates(asdict(conditions), random.Random(seed))


def test_jitter_alone_lets_nobody_overtake() -> None:
    slow = fates(LinkConditions(delay_ms=100, jitter_ms=90))
    due = [slow.due_s(n / 1000) for n in range(500)]
    times = [each for each in due if each is not None]
    assert times == sorted(times)
    assert len(times) == 500
    assert 0.05 < times[-1] - 0.5 < 0.2


def test_a_share_overtakes_and_a_share_is_lost() -> None:
    reordering = fates(LinkConditions(delay_ms=100, reorder=0.2))
    at_once = sum(reordering.due_s(1.0) == 1.0 for _ in range(1000))
    assert 150 < at_once < 250
    lossy = fates(LinkConditions(loss=0.1))
    lost = sum(lossy.due_s(1.0) is None for _ in range(1000))
    assert 60 < lost < 140


def test_a_clogged_link_holds_everything() -> None:
    assert fates(LinkConditions(clog=True, loss=1.0)).due_s(1.0) == float("inf")


def test_the_same_seed_is_the_same_fate() -> None:
    conditions = LinkConditions(delay_ms=9, jitter_ms=9, loss=0.3, reorder=0.3)
    one, other = fates(conditions), fates(conditions)
    assert [one.due_s(n) for n in range(99)] == [other.due_s(n) for n in range(99)]


def test_what_is_held_passes_in_its_order_when_it_is_over() -> None:
    class Fake:
        """Two queues with packets 1 and 2 each, all at once."""

        def __init__(self) -> None:
            self.decided: list[tuple[int, int, int]] = []
            self.coming = [(0, 1), (1, 1), (0, 2), (1, 2)]

        def fileno(self) -> int:
            return 0

        def take(self) -> list[tuple[int, int]]:
            coming, self.coming = self.coming, []
            return coming

        def decide(self, number: int, packet: int, verdict: int) -> None:
            self.decided.append((number, packet, verdict))

    fake: Any = Fake()
    rounds = iter([False, True])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chaos.targets.packets.select.select", lambda *_: ([fake], [], []))
        clogged, lossy = fates(LinkConditions(clog=True)), fates(LinkConditions(loss=1.0))
        serve(fake, {0: clogged, 1: lossy}, lambda: next(rounds))
    assert fake.decided == [(1, 1, 0), (1, 2, 0), (0, 1, 1), (0, 2, 1)]


@pytest.mark.root
def test_a_queue_that_another_process_serves_is_refused() -> None:
    first = Queues([65_000])
    try:
        with pytest.raises(OSError, match="NFQUEUE 65000"):
            Queues([65_000])
    finally:
        first._socket.close()
