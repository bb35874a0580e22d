"""A producer's queue and the futures of what is in it: one outcome a parcel, told to who waits."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, as_completed
from concurrent.futures import wait as await_futures

import pytest

from flotilla_client import Closed, FlotillaError, Forked
from flotilla_client.operations import PutResult
from flotilla_client.window import Parcel, PutFuture, Queue, settle

PATIENCE_S = 10.0


@pytest.fixture
def parcel() -> Parcel:
    return Parcel()


def _three(parcel: Parcel) -> list[PutFuture]:
    return [_add(parcel) for _ in range(3)]


def _add(parcel: Parcel) -> PutFuture:
    parcel.count += 1
    return PutFuture(parcel, parcel.count - 1)


def _stored(first_id: int) -> PutResult:
    return PutResult(first_id, 3, duplicate=False, stored=True)


def test_a_batch_gives_each_of_its_futures_its_own_id(parcel: Parcel) -> None:
    futures = _three(parcel)
    assert not any(future.done() for future in futures)
    settle([parcel], _stored(7))
    assert all(future.done() for future in futures)
    assert [future.result(0) for future in futures] == [
        PutResult(id_, 1, duplicate=False, stored=True) for id_ in (7, 8, 9)
    ]
    assert futures[1].exception(0) is None


def test_what_nobody_waits_for_makes_nothing_to_wait_with(parcel: Parcel) -> None:
    futures = _three(parcel)
    settle([parcel], _stored(1))
    assert [future.result().id for future in futures] == [1, 2, 3]
    assert all(set(vars(future)) == {"_parcel", "_number"} for future in futures)


def test_an_error_is_every_futures(parcel: Parcel) -> None:
    futures = _three(parcel)
    assert futures[0].running()  # so that somebody may wait for it
    settle([parcel], Closed("over"))
    for future in futures:
        assert isinstance(future.exception(0), Closed)
        with pytest.raises(Closed, match="over"):
            future.result(0)


@pytest.mark.parametrize("outcome", [_stored(4), Closed("over")])
def test_threads_that_wait_for_different_futures_of_a_batch_all_hear_of_it(
    parcel: Parcel, outcome: PutResult | FlotillaError
) -> None:
    futures, heard, begun = _three(parcel) * 2, list[object](), threading.Barrier(7)

    def await_it(future: PutFuture) -> None:
        begun.wait()
        heard.append(future.exception(PATIENCE_S) or future.result(0).id)

    threads = [threading.Thread(target=await_it, args=(future,)) for future in futures]
    for thread in threads:
        thread.start()
    begun.wait()
    settle([parcel], outcome)
    for thread in threads:
        thread.join()
    assert len(heard) == 6
    assert set(heard) == ({4, 5, 6} if isinstance(outcome, PutResult) else {outcome})


def test_a_future_that_never_comes_is_waited_for_no_longer_than_asked(parcel: Parcel) -> None:
    future, *_ = _three(parcel)
    with pytest.raises(TimeoutError):
        future.result(0)
    assert future.running()
    assert "running" in repr(future)


def test_it_cannot_be_cancelled_whether_somebody_waits_or_not(parcel: Parcel) -> None:
    one, two, _ = _three(parcel)
    assert not one.cancel()
    settle([parcel], _stored(1))
    assert not two.cancel()
    assert not two.cancelled()
    assert (one.result(0).id, two.result(0).id) == (1, 2)


def test_callbacks_come_once_each_in_the_order_of_the_publications(parcel: Parcel) -> None:
    futures, called = _three(parcel), list[int]()
    for future in reversed(futures):
        future.add_done_callback(lambda future: called.append(future.result(0).id))
    assert called == []
    settle([parcel], _stored(1))
    assert called == [1, 2, 3]
    futures[0].add_done_callback(lambda future: called.append(future.result(0).id))
    assert called == [1, 2, 3, 1]


def test_the_standard_librarys_waiting_knows_them(parcel: Parcel) -> None:
    futures, later = _three(parcel), Parcel()
    [other, *_] = _three(later)
    threading.Timer(0.0, settle, [[parcel], _stored(1)]).start()
    done, not_done = await_futures([*futures, other], PATIENCE_S, FIRST_COMPLETED)
    assert done <= set(futures)
    assert other in not_done
    settle([later], Closed("over"))
    everything = [*futures, other]
    assert set(as_completed(everything, PATIENCE_S)) == set(everything)
    assert await_futures(everything, 0).not_done == set()


def test_asyncio_awaits_them(parcel: Parcel) -> None:
    async def work() -> list[int]:
        wrapped = [asyncio.wrap_future(future) for future in _three(parcel)]
        threading.Timer(0.0, settle, [[parcel], _stored(5)]).start()
        return [result.id for result in await asyncio.gather(*wrapped)]

    assert asyncio.run(work()) == [5, 6, 7]


def test_a_callback_that_ends_the_thread_ends_it_when_all_are_told(parcel: Parcel) -> None:
    later = Parcel()
    futures = [*_three(parcel), _add(later)]
    futures[0].add_done_callback(lambda _: sys.exit("by a callback"))
    begun = [future.running() for future in futures]
    with pytest.raises(SystemExit, match="by a callback"):
        settle([parcel, later], Closed("over"))
    assert begun == [True] * 4
    assert await_futures(futures, 0).not_done == set()


def test_a_callback_that_fails_keeps_the_others_from_nothing(
    parcel: Parcel, caplog: pytest.LogCaptureFixture
) -> None:
    futures, called = _three(parcel), list[int]()
    futures[0].add_done_callback(lambda _: 1 // 0)
    futures[1].add_done_callback(lambda future: called.append(future.result(0).id))
    settle([parcel], _stored(1))
    assert called == [2]
    assert "exception calling callback" in caplog.text


@pytest.mark.parametrize("is_settled", [False, True])
def test_it_is_of_this_process_alone(parcel: Parcel, is_settled: bool) -> None:
    future, *_ = _three(parcel)
    if is_settled:
        settle([parcel], _stored(1))
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(future)
    with pytest.raises(AttributeError, match="'PutFuture' object has no attribute 'id'"):
        getattr(future, "id")  # noqa: B009 - mypy knows as well


def test_a_forked_process_asks_no_lock_that_was_taken_when_it_was_copied(parcel: Parcel) -> None:
    """Who settles a batch has its lock for a moment; a process forked in it has it for ever."""
    stored, *_ = _three(parcel)
    settle([parcel], _stored(4))
    pending = Parcel()
    [under_way, *_] = _three(pending)
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with parcel._lock, pending._lock:
            is_held.set()
            is_over.wait(PATIENCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait(PATIENCE_S)
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(PATIENCE_S))
        called: list[int] = []
        stored.add_done_callback(lambda future: called.append(future.result(0).id))
        under_way.add_done_callback(lambda _: called.append(0))
        is_right = called == [4] and not await_futures([stored, under_way], 0).done - {stored}
        is_right = is_right and isinstance(under_way.exception(0), Forked) and not under_way.done()
        os._exit(0 if is_right and not under_way.cancel() else 1)
    _, status = os.waitpid(pid, 0)
    is_over.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


# --- the queue ------------------------------------------------------------------------------------


def _put(queue: Queue, *publications: bytes) -> list[bool]:
    """Put publications; return of each whether whoever takes batches has to hear of it."""
    news = []
    for publication in publications:
        news.append(queue.is_news(len(publication)))
        queue.put(publication, lambda: 0.0)
    return news


def test_a_batch_takes_what_fits_and_one_publication_at_least() -> None:
    queue = Queue(batch_bytes=4)
    _put(queue, b"12", b"34", b"5", b"too large", b"", b"6")
    taken = [queue.take(0.0) for _ in range(len(queue.parcels))]
    assert [parcel.publications for parcel in taken] == [
        [b"12", b"34"],
        [b"5"],
        [b"too large"],
        [b"", b"6"],
    ]
    assert (queue.count, queue.size_bytes, queue.sent) == (0, 0, 6)


def test_what_is_put_back_goes_first_and_its_last_batch_takes_more() -> None:
    queue = Queue(batch_bytes=2)
    _put(queue, b"1", b"2", b"3")
    queue.put_back([queue.take(0.0), queue.take(0.0)])
    assert (queue.count, queue.size_bytes) == (3, 3)
    _put(queue, b"4", b"5")
    taken = [queue.take(0.0).publications for _ in range(len(queue.parcels))]
    assert taken == [[b"1", b"2"], [b"3", b"4"], [b"5"]]


def test_whoever_takes_batches_is_told_of_the_first_and_of_a_full_one_once() -> None:
    queue = Queue(batch_bytes=3)
    assert _put(queue, b"1", b"2", b"3", b"4", b"5", b"6", b"7") == [
        *(True, False, True),
        *(False, False, False, False),
    ]
    queue.take(0.0)  # there is more than a batch still: whoever took this one knows
    assert _put(queue, b"8") == [False]
    queue.take(0.0)
    assert _put(queue, b"9") == [True]


def test_a_parcel_takes_no_more_publications_than_a_request_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flotilla_client.window.BATCH_COUNT_MAX", 2)
    queue = Queue(1_000)
    for _ in range(5):
        queue.put(b"1", lambda: 0.0)
    assert [parcel.count for parcel in queue.parcels] == [2, 2, 1]
