"""Copies for members that are behind: whose copy is good enough, and how one is pulled."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.members import catchup
from cluster.members.catchup import SnapshotFetch, SnapshotServer
from cluster.store import snapshots
from cluster.store.snapshots import Download
from cluster.store.store import Store
from cluster.wire.messages import Message, SnapshotChunk, SnapshotRefused, SnapshotRequest

MEMBERS = {"a": "1", "b": "2"}
NEW = SnapshotRequest("", 0)


class CatchupBench:
    """A server and a fetch on one directory each; jobs run when told to."""

    def __init__(self, directory: Path) -> None:
        self.store = Store.open(directory / "store.db", MEMBERS)
        self.jobs: list[Callable[[], None]] = []
        self.sent: list[tuple[str, Message]] = []
        self.idle = True
        self.events: list[str] = []
        self.server = SnapshotServer(directory / "store.db", directory, self, self.send, self.log)
        self.fetch = SnapshotFetch(directory / "fetched", self, self.send, self.log)
        self.apply()

    def send(self, name: str, message: Message) -> None:
        self.sent.append((name, message))

    def log(self, event: str, **_fields: Any) -> None:
        self.events.append(event)

    def submit(
        self,
        job: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        def run() -> None:
            try:
                result = job()
            except (OSError, sqlite3.Error) as error:
                failed(error)
            else:
                done(result)

        self.jobs.append(run)

    def apply(self) -> None:
        self.store.apply(self.store.applied_index + 1, 1, b"")
        self.store.commit()

    def work(self) -> list[tuple[str, Message]]:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()
        sent, self.sent = self.sent, []
        return sent

    def chunk(self) -> SnapshotChunk:
        [(_, chunk)] = self.work()
        assert isinstance(chunk, SnapshotChunk)
        return chunk


@pytest.fixture
def bench(tmp_path: Path) -> CatchupBench:
    return CatchupBench(tmp_path)


def test_those_who_wait_for_one_copy_get_one_answer_each(bench: CatchupBench) -> None:
    for _ in range(3):
        bench.server.request("b", NEW, 1, 0.0)
    bench.server.request("c", NEW, 1, 0.0)
    assert len(bench.jobs) == 1
    assert [name for name, _ in bench.work()] == ["b", "c"]


def test_a_copy_serves_again_until_it_is_too_old(bench: CatchupBench) -> None:
    bench.server.request("b", NEW, 1, 0.0)
    first = bench.chunk()
    bench.apply()
    bench.server.request("c", NEW, first.index, 0.0)
    assert bench.chunk().index == first.index
    bench.server.request("c", NEW, first.index + 1, 0.0)
    assert bench.chunk().index == first.index + 1


def test_a_copy_from_before_an_admission_is_made_anew(bench: CatchupBench) -> None:
    bench.server.request("b", NEW, 1, 0.0)
    first = bench.chunk()
    bench.apply()
    bench.server.members_changed(bench.store.applied_index)
    bench.server.request("c", NEW, 1, 0.0)
    assert bench.chunk().index == first.index + 1


def test_a_copy_is_removed_when_nobody_asks_for_it(bench: CatchupBench) -> None:
    bench.server.request("b", NEW, 1, 0.0)
    chunk = bench.chunk()
    bench.server.tick(catchup.COPY_KEPT_S + 0.1)
    bench.server.request("b", SnapshotRequest(chunk.snapshot_id, 0), 1, catchup.COPY_KEPT_S + 0.2)
    assert bench.work() == [("b", SnapshotRefused("that copy is gone"))]


def test_an_offset_beyond_the_copy_is_refused(bench: CatchupBench) -> None:
    bench.server.request("b", NEW, 1, 0.0)
    chunk = bench.chunk()
    beyond = SnapshotRequest(chunk.snapshot_id, chunk.size_bytes + 1)
    bench.server.request("b", beyond, 1, 0.0)
    assert isinstance(bench.work()[0][1], SnapshotRefused)


def test_a_copy_that_can_t_be_made_is_refused(bench: CatchupBench) -> None:
    bench.server.database = bench.server.directory / "missing" / "store.db"
    bench.server.request("b", NEW, 1, 0.0)
    [(name, refused)] = bench.work()
    assert (name, type(refused)) == ("b", SnapshotRefused)


def test_a_copy_that_can_t_be_read_back_is_refused_removed_and_made_anew(
    bench: CatchupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    bench.server.request("b", NEW, 1, 0.0)
    bench.server.request("c", NEW, 1, 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "read_chunk", fails)
        assert [(name, type(answer)) for name, answer in bench.work()] == [
            ("b", SnapshotRefused),
            ("c", SnapshotRefused),
        ]
    assert bench.events == ["copy_unreadable"]
    assert list(bench.server.directory.glob("copy-*")) == []
    bench.server.request("b", NEW, 1, 0.0)
    assert bench.chunk().offset == 0


def pull(
    bench: CatchupBench, mangle: Callable[[SnapshotChunk], SnapshotChunk], times: int = 1
) -> None:
    """Pull one copy to its end, each chunk mangled on its way and coming so many times."""
    bench.fetch.start("a", 0.0)
    for _ in range(1000):
        for _, message in bench.work():
            if isinstance(message, SnapshotRequest):
                bench.server.request("b", message, 1, 0.0)
            elif isinstance(message, SnapshotChunk):
                for _ in range(times):
                    bench.fetch.take_chunk("a", mangle(message), 0.0)
        if not bench.fetch.under_way:
            return
    raise AssertionError("the copy never ends")


def test_a_damaged_copy_is_reported_and_pulled_anew_after_a_pause(bench: CatchupBench) -> None:
    pull(bench, lambda chunk: replace(chunk, data=chunk.data[:-1] + b"\xff"))
    assert (bench.fetch.ready, bench.events) == (None, ["copy_damaged"])
    bench.fetch.start("a", catchup.DAMAGED_PAUSE_S / 2)
    assert not bench.fetch.under_way
    bench.fetch.start("a", catchup.DAMAGED_PAUSE_S)
    assert bench.fetch.under_way


def test_a_copy_that_finds_no_room_is_reported_and_ends_nothing(
    bench: CatchupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(download: Download, chunk: SnapshotChunk) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(Download, "write", no_room)
    pull(bench, lambda chunk: chunk)
    assert bench.events == ["copy_damaged"]
    assert list((bench.fetch.directory).glob("download*")) == []


def test_a_copy_arrives_whole_and_verified(bench: CatchupBench) -> None:
    pull(bench, lambda chunk: chunk)
    assert bench.fetch.ready is not None
    assert bench.fetch.ready.members == MEMBERS
    assert bench.fetch.ready.index == bench.store.applied_index


def test_a_refused_receiver_pauses_before_it_asks_again(bench: CatchupBench) -> None:
    bench.fetch.start("a", 0.0)
    bench.fetch.refused("a", 0.0)
    bench.fetch.start("a", catchup.REFUSED_PAUSE_S / 2)
    assert not bench.fetch.under_way
    bench.fetch.start("a", catchup.REFUSED_PAUSE_S)
    assert bench.fetch.under_way


def test_what_does_not_come_is_asked_for_again(bench: CatchupBench) -> None:
    bench.fetch.start("a", 0.0)
    bench.fetch.tick(catchup.RETRY_S)
    bench.fetch.tick(catchup.RETRY_S + 0.1)
    assert bench.work() == [("a", NEW)] * 2


def test_a_lost_source_is_given_up_and_another_s_loss_changes_nothing(bench: CatchupBench) -> None:
    bench.fetch.start("a", 0.0)
    bench.fetch.lost("c")
    assert bench.fetch.source == "a"
    bench.fetch.lost("a")
    assert not bench.fetch.under_way


def test_a_piece_of_a_copy_that_is_gone_is_refused_though_there_is_another(
    bench: CatchupBench,
) -> None:
    bench.server.request("b", NEW, 1, 0.0)
    first = bench.chunk()
    bench.apply()
    bench.server.request("c", NEW, first.index + 1, 0.0)
    second = bench.chunk()
    assert second.snapshot_id != first.snapshot_id
    bench.server.request("b", SnapshotRequest(first.snapshot_id, 1), 1, 0.0)
    [(name, refused)] = bench.work()
    assert (name, type(refused)) == ("b", SnapshotRefused)


def test_a_piece_that_comes_when_its_source_was_given_up_begins_nothing(
    bench: CatchupBench,
) -> None:
    bench.server.request("b", NEW, 1, 0.0)
    chunk = bench.chunk()
    bench.fetch.start("a", 0.0)
    bench.fetch.lost("a")
    bench.sent.clear()
    bench.fetch.take_chunk("a", chunk, 0.1)
    assert not bench.fetch.under_way
    assert bench.sent == []
    assert bench.jobs == []


def test_a_copy_that_is_too_old_makes_room_for_the_next_one(tmp_path: Path) -> None:
    bench = CatchupBench(tmp_path)
    bench.server.request("b", NEW, 1, 0.0)
    bench.work()
    first = sorted(tmp_path.glob("copy-*.db"))
    bench.apply()
    bench.server.request("b", NEW, bench.store.applied_index, 1.0)
    bench.work()
    assert len(sorted(tmp_path.glob("copy-*.db"))) == 1
    assert sorted(tmp_path.glob("copy-*.db")) != first


def test_a_copy_that_has_come_whole_outlives_its_source(bench: CatchupBench) -> None:
    bench.server.request("b", NEW, 1, 0.0)
    chunk = bench.chunk()
    bench.fetch.start("a", 0.0)
    bench.fetch.take_chunk("a", chunk, 0.1)
    bench.fetch.lost("a")
    bench.work()
    assert bench.fetch.ready is not None
    assert bench.fetch.ready.path.exists()


def test_a_piece_that_was_asked_for_twice_and_comes_twice_is_no_damage(
    bench: CatchupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup, "CHUNK_BYTES", 16 * 1024)
    pull(bench, lambda chunk: chunk, times=2)
    assert bench.events == ["copy_fetched"]
    assert bench.fetch.ready is not None


def test_who_could_make_no_copy_makes_one_when_it_can(bench: CatchupBench) -> None:
    database = bench.server.database
    bench.server.database = bench.server.directory / "missing" / "store.db"
    bench.server.request("b", NEW, 1, 0.0)
    bench.work()
    bench.server.database = database
    bench.server.request("b", NEW, 1, 1.0)
    assert bench.chunk().index == bench.store.applied_index
