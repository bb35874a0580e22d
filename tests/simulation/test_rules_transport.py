"""Rules 14 to 23 of docs/raft.md: what happens with each, and without it.

The bytes that rule 14 refuses are the business of tests/unit/test_messages.py, the bounds of a
connection (rule 23) of tests/unit/test_peers.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.log import journal as journal_module
from cluster.raft import transport as transport_module
from cluster.raft.ready import Timing
from cluster.raft.transport import Guard
from cluster.wire.messages import AppendEntries, Message, NextIndex, Vote
from tests.simulation.network import LabPeers
from tests.simulation.schedules import Stage, compare_with_and_without

FIVE = "abcde"


def receive_by(patch: pytest.MonkeyPatch, kind: type[Message], handler: Any) -> None:
    patch.setitem(transport_module._RECEIVE, kind, handler)


# --- 15: an acknowledgment of another term does not count -----------------------------------------


def acknowledgment_of_an_earlier_term(directory: Path) -> list[str]:
    """An acknowledgment is late; its sender's entries were replaced meanwhile (audit: e02)."""
    stage = Stage(directory, FIVE)
    net, lab = stage.net, stage.lab
    for name in "cde":  # in term 1 a reaches b alone
        net.cut_off(name, "a", "b")
    acknowledgments = stage.record("b", "a")
    net.cut_one_way("b", "a")
    for text in ("old0", "old1", "old2"):
        stage.put("a", text)
        lab.run(0.05)
    stuck = [each for each in acknowledgments if isinstance(each, NextIndex)]
    net.cut.clear()
    net.cut_off("a", *"bcde")  # term 2: e replaces what a and b have
    stage.elect("e")
    net.cut.clear()
    lab.run(0.5)
    net.cut_off("b", *"acde")
    stage.elect("a")  # term 3: its entries reach d alone, after the no-op
    lab.run(0.3)
    net.cut_off("c", *"abde")
    net.cut_off("e", *"abcd")
    stage.put("a", "new")
    lab.run(0.1)
    net.put("b", "a", *stuck)
    lab.run(0.1)
    lab.crash("a", "d")
    return stage.damage("c")


def test_an_acknowledgment_of_an_earlier_term_does_not_count(tmp_path: Path) -> None:
    def believe(guard: Guard, name: str, message: NextIndex) -> None:
        now = NextIndex(guard._core.term, message.next_index, message.reset, message.success)
        Guard._receive_next_index(guard, name, now)

    compare_with_and_without(
        acknowledgment_of_an_earlier_term,
        lambda patch: receive_by(patch, NextIndex, believe),
        tmp_path,
        "lost acknowledged new",
    )


# --- 16: an append commits no more than it proves -------------------------------------------------


def stale_end_behind_the_first_message(directory: Path) -> list[str]:
    """Of several messages a deposed leader hears the first; its own entries follow it (e01 e)."""
    stage = Stage(directory)
    stage.net.cut_one_way("b", "a")
    stage.net.cut_off("c", "a", "b")
    stage.put("a", "common0")
    stage.lab.step()
    stage.put("a", "common1")
    stage.lab.run(0.1)
    stage.net.cut_off("a", "b")
    for number in range(6):
        stage.put("a", f"stale{number}")
        stage.lab.step()
    stage.net.cut.clear()
    stage.net.cut_off("a", "b", "c")
    stage.elect("b")
    stage.publish("b", *(f"good{number}" for number in range(4)))
    stage.lab.may_end = (AssertionError,)
    stage.net.cut.clear()
    stage.net.hold("b", "a")
    for _ in range(40):  # let a's answers through, and of each round the first message alone
        stage.lab.step()
        first = [each for each in stage.net.take("b", "a") if isinstance(each, AppendEntries)][:1]
        stage.net.held.clear()
        stage.net.put("b", "a", *first)
        stage.lab.turn("a") if "a" in stage.lab.nodes else None
        stage.net.hold("b", "a")
    return stage.damage("b")


def test_an_append_commits_no_more_than_it_proves(tmp_path: Path) -> None:
    def unclamped(guard: Guard, name: str, message: AppendEntries) -> None:
        entries = [*message.entries]
        guard._proved_index = message.previous_index + len(entries)
        append = {"type": "append_entries", "term": message.term, "entries": entries}
        append |= {"prevLogIdx": message.previous_index, "prevLogTerm": message.previous_term}
        guard._pass(name, append | {"commit_index": message.commit_index})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "SLICE_ENTRIES_MAX", 2)
        compare_with_and_without(
            stale_end_behind_the_first_message,
            lambda inner: receive_by(inner, AppendEntries, unclamped),
            tmp_path,
            "a applies entry",
        )


# --- 19: a reset asks for what is settled, once a heartbeat ---------------------------------------


def conflicting_end_and_a_long_backlog(directory: Path) -> list[str]:
    """A deposed leader has a conflicting end and many messages to catch up with (audit: e13)."""
    stage = Stage(directory)
    stage.net.cut_off("a", "b", "c")
    for number in range(20):
        stage.put("a", f"stale{number}")
        stage.lab.step()
    stage.elect("b")
    for number in range(PUBLICATIONS_BEHIND):
        stage.put("b", f"good{number}")
        stage.lab.step()
    stage.lab.run(0.2)
    stage.net.heal()
    stage.lab.run(10.0)
    lag = stage.raft("b").applied_index - stage.raft("a").applied_index
    return [f"a lags {lag} entries"] if lag else stage.damage("b")


PUBLICATIONS_BEHIND = 15


def raw_next_index(guard: Guard, name: str, message: dict[str, Any]) -> NextIndex:
    reset, success = message["reset"], message["success"]
    return NextIndex(guard._core.term, message["next_node_idx"], reset, success)


def test_a_conflicting_follower_catches_up(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "SLICE_ENTRIES_MAX", 2)
        compare_with_and_without(
            conflicting_end_and_a_long_backlog,
            lambda inner: inner.setattr(Guard, "_next_index", raw_next_index),
            tmp_path,
            "a lags",
        )


# --- 20: a vote is counted once -------------------------------------------------------------------


def duplicated_vote(directory: Path) -> list[str]:
    """Two candidates in one term; one of them hears its only voter twice (audit: e04 b)."""
    stage = Stage(directory, FIVE)
    net = stage.net
    net.cut_off("a", *"bcde")
    net.cut_off("e", *"bcd")
    net.cut_off("d", *"bc")
    stage.campaign("b")
    stage.lab.turn("b")
    stage.lab.turn("c")
    votes = [each for each in net.take("c", "b") if isinstance(each, Vote)]
    net.put("c", "b", *votes, *votes)
    stage.lab.step()
    net.cut.clear()
    net.cut_off("b", *"acde")
    stage.campaign("d")
    stage.lab.run(0.1)
    return stage.lab.oracle.evidence


def test_a_vote_is_counted_once(tmp_path: Path) -> None:
    def count(guard: Guard, name: str, message: Vote) -> None:
        guard._pass(name, {"type": "response_vote", "term": message.term})

    compare_with_and_without(
        duplicated_vote, lambda patch: receive_by(patch, Vote, count), tmp_path, "lead term"
    )


# --- 21: a leader of an older term learns of the newer one ----------------------------------------


def follower_in_a_newer_term(directory: Path) -> list[str]:
    """A follower has campaigned in vain; its term is above the leader's (audit: e04b)."""
    stage = Stage(directory, timing=Timing())
    leader = stage.lab.elect()
    follower, other = (name for name in stage.lab.names if name != leader)
    stage.net.cut_one_way(follower, leader, other)
    stage.campaign(follower)
    stage.lab.step()
    stage.net.heal()
    stage.lab.run(5.0)
    stage.publish(stage.lab.elect(), "x")
    stage.lab.run(1.0)
    applied = {name: stage.raft(name).applied_index for name in stage.lab.names}
    lag = max(applied.values()) - applied[follower]
    return [f"the follower lags {lag} entries"] if lag else []


def test_a_follower_in_a_newer_term_rejoins(tmp_path: Path) -> None:
    compare_with_and_without(
        follower_in_a_newer_term,
        lambda patch: patch.setattr(Guard, "_refused_as_stale", lambda guard, name, term: False),
        tmp_path,
        "lags",
    )


# --- 22: an acknowledgment does not pull back what is sent next -----------------------------------


def slow_follower(directory: Path) -> list[str]:
    """A follower answers late while entries keep coming (audit: e15)."""
    stage = Stage(directory)
    sent = stage.record("a", "b")
    first = stage.node("a").journal.last_index
    in_flight: list[list[Message]] = [[] for _ in range(5)]  # what takes five steps to arrive
    for number in range(30):
        stage.put("a", f"x{number}")
        stage.net.hold("a", "b")
        stage.lab.step()
        in_flight.append(stage.net.take("a", "b"))
        stage.net.held.clear()
        stage.net.put("a", "b", *in_flight.pop(0))
        stage.lab.turn("b")
    for messages in in_flight:
        stage.net.put("a", "b", *messages)
    stage.lab.run(0.3)
    appended = stage.node("a").journal.last_index - first
    entries = sum(len(each.entries) for each in sent if isinstance(each, AppendEntries))
    evidence = [] if entries <= appended else [f"{entries} entries were sent for {appended}"]
    return evidence + stage.damage("a")


def test_nothing_is_sent_twice_without_a_loss(tmp_path: Path) -> None:
    compare_with_and_without(
        slow_follower,
        lambda patch: patch.setattr(Guard, "_keep_next_index", lambda guard, name, before: None),
        tmp_path,
        "entries were sent for",
    )


# --- 23: sending never raises ---------------------------------------------------------------------


def full_link(directory: Path) -> list[str]:
    """A follower takes nothing for a while; what is over its link's bound is dropped."""
    stage = Stage(directory)
    stage.lab.may_end = (BufferError,)
    stage.lab.paused = {"b"}
    for number in range(20):
        stage.put("a", f"x{number}")
        stage.lab.step()
        if "a" not in stage.lab.nodes:
            return [f"a ended: {stage.lab.ended['a']!r}"]
    stage.lab.paused = set()
    stage.lab.run(1.0)
    return stage.damage("a")


def bounded_send(peers: LabPeers, name: str, message: Message) -> None:
    if len(peers._net.queues.get((peers._name, name), ())) < 4:
        peers._net.send(peers._name, name, message)


def bounded_send_that_raises(peers: LabPeers, name: str, message: Message) -> None:
    if len(peers._net.queues.get((peers._name, name), ())) >= 4:
        raise BufferError(name)
    peers._net.send(peers._name, name, message)


def test_a_full_link_drops_and_the_cluster_goes_on(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LabPeers, "send", bounded_send)
        compare_with_and_without(
            full_link,
            lambda inner: inner.setattr(LabPeers, "send", bounded_send_that_raises),
            tmp_path,
            "a ended",
        )
