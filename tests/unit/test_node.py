"""The node's worker thread: whose results reach the loop, and which errors end it."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster import node
from cluster.node import ThreadWorker
from cluster.tables import CorruptStore

WAIT_S = 10.0


@pytest.fixture
def worker() -> ThreadWorker:
    return ThreadWorker()


def outcome_of(worker: ThreadWorker, job: Callable[[], Any]) -> tuple[str, Any]:
    """Return ("done", result) or ("failed", error) of a job, delivered as by the loop."""
    outcomes: list[tuple[str, Any]] = []
    worker.submit(
        job,
        lambda result: outcomes.append(("done", result)),
        lambda e: outcomes.append(("failed", e)),
    )
    assert not worker.idle
    assert select.select([worker.wake], [], [], WAIT_S)[0], "the worker does not wake the loop"
    worker.deliver()
    assert worker.idle
    [outcome] = outcomes
    return outcome


def raising(error: Exception) -> Callable[[], None]:
    def job() -> None:
        raise error

    return job


def test_a_result_is_delivered_in_the_loop_s_thread(worker: ThreadWorker) -> None:
    assert outcome_of(worker, threading.get_ident) != ("done", threading.get_ident())
    threads = []
    worker.submit(lambda: None, lambda _: threads.append(threading.get_ident()), raising)
    select.select([worker.wake], [], [], WAIT_S)
    worker.deliver()
    assert threads == [threading.get_ident()]


def test_a_disk_s_error_is_told_to_who_submitted(worker: ThreadWorker) -> None:
    error = OSError("no room")
    assert outcome_of(worker, raising(error)) == ("failed", error)


@pytest.mark.parametrize("error", [CorruptStore(Path("store.db"), "torn"), ZeroDivisionError()])
def test_a_damaged_store_or_a_defect_ends_the_loop(worker: ThreadWorker, error: Exception) -> None:
    with pytest.raises(type(error)):
        outcome_of(worker, raising(error))


def test_one_job_over_the_limit_fails(worker: ThreadWorker) -> None:
    free = threading.Event()
    failed: list[Exception] = []
    done: list[None] = []
    for _ in range(node.WORKER_JOBS_MAX + 2):  # one may have been taken by the thread
        worker.submit(lambda: free.wait(WAIT_S), lambda _: done.append(None), failed.append)
    free.set()
    while not worker.idle:
        assert select.select([worker.wake], [], [], WAIT_S)[0]
        worker.deliver()
    assert len(failed) + len(done) == node.WORKER_JOBS_MAX + 2
    assert 1 <= len(failed) <= 2
