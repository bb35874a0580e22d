"""One client, several processes: turns, one epoch for all of them, and what each may not do."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from flotilla_client import Client, cli
from flotilla_client.directory import DATABASE_NAME, LOCK_NAME
from flotilla_client.errors import Fenced, StateInUse, StateUnusable
from flotilla_client.protocol import GET, PUT, REQUEST_ID
from flotilla_client.sharing import SharedClient
from flotilla_client.state import State
from tests.unit.fake_node import FakeNode, texts_of

TIMEOUT_S = 3.0
Ran = Callable[..., tuple[int, bytes, bytes]]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def shared(node: FakeNode, directory: str, timeout: float = TIMEOUT_S) -> SharedClient:
    return SharedClient(node.endpoint, directory, timeout)


@contextmanager
def terminal(node: FakeNode, directory: str, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process of its own; it is gone afterwards."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "flotilla_client.cli",
            "-e",
            node.endpoint,
            "--state",
            directory,
            *argv,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": "client"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def ran(node: FakeNode, capfdbinary: pytest.CaptureFixture[bytes]) -> Ran:
    """Run a command to its end in this process: locks part descriptors, not processes."""

    def ran(directory: str, *argv: str) -> tuple[int, bytes, bytes]:
        code = cli.main(["-e", node.endpoint, "--state", directory, *argv])
        out, err = capfdbinary.readouterr()
        return code, out, err

    return ran


def test_put_topics_and_status_work_beside_a_follow(
    node: FakeNode, directory: str, ran: Ran
) -> None:
    assert ran(directory, "sub", "t")[0] == 0
    with terminal(node, directory, "get", "t", "--follow") as follow:
        node.await_requests(GET, 1)
        assert follow.stdout is not None
        for number in (1, 2, 3):
            assert ran(directory, "put", "t", f"p{number}") == (0, b"%d\n" % number, b"")
            assert follow.stdout.readline() == b"p%d\n" % number
        assert ran(directory, "topics")[0] == 0
        assert ran(directory, "status")[0] == 0
        assert ran(directory, "sub", "u")[0] == 0
        follow.send_signal(signal.SIGINT)
        assert follow.wait(10) == 130
    assert ran(directory, "get", "t")[0] == 1  # the follow's cursor is everybody's


def test_commands_work_beside_a_shell_and_it_sees_what_they_did(
    node: FakeNode, directory: str, ran: Ran
) -> None:
    with terminal(node, directory, "shell") as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(b"sub t\n")
        shell.stdin.flush()
        assert shell.stdout.readline().startswith(b"subscribed")
        assert ran(directory, "put", "t", "from outside") == (0, b"1\n", b"")
        assert ran(directory, "get", "t") == (0, b"from outside\n", b"")
        shell.stdin.write(b"put t inside\nget t\nget t\n")
        shell.stdin.close()
        assert shell.stdout.read() == b"2\ninside\n"
        assert shell.wait(10) == 0
    assert ran(directory, "get", "t")[0] == 1


def test_those_that_share_have_one_epoch(node: FakeNode, directory: str) -> None:
    with shared(node, directory) as one, shared(node, directory) as two:
        one.subscribe("t")
        assert two.publish("t", "a").id == 1
        assert one.publish("t", "b").id == 2
        assert two.client_id == one.client_id
        assert len(node.of_type(REQUEST_ID)) == 1
    with shared(node, directory) as later:
        later.publish("t", "c")
    assert len(node.of_type(REQUEST_ID)) == 2


def test_a_copy_of_the_directory_is_no_part_of_the_session(
    node: FakeNode, directory: str, tmp_path: Path
) -> None:
    with shared(node, directory) as one:
        one.subscribe("t")
        one.publish("t", "a")
        shutil.copytree(directory, tmp_path / "copy")
        with shared(node, str(tmp_path / "copy")) as twin:
            assert twin.publish("t", "b").id == 2
            with pytest.raises(Fenced):
                one.publish("t", "c")


def test_what_a_killed_process_left_is_sent_by_the_next_one_once(
    node: FakeNode, directory: str
) -> None:
    with shared(node, directory) as one:
        one.subscribe("t")
        node.script(PUT, "silent")
        with terminal(node, directory, "put", "t", "left") as killed:
            node.await_requests(PUT, 1)
            killed.kill()
        with shared(node, directory) as two:
            two.topics()
        assert one.publish("t", "next").id == 2
        assert texts_of(one, "t") == [b"left", b"next"]


def test_a_turn_is_waited_for(node: FakeNode, directory: str) -> None:
    with shared(node, directory) as one, shared(node, directory, 20) as two:
        one.subscribe("t")
        node.always(PUT, "deaf")
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(one.publish, "t", "a")
            node.await_requests(PUT, 1)
            second = pool.submit(two.publish, "t", "b")
            node.always(PUT, None)
            assert (first.result().id, second.result().id) == (1, 2)


def test_the_wait_has_a_bound(node: FakeNode, directory: str, ran: Ran) -> None:
    with shared(node, directory) as one:
        one.subscribe("t")
        node.always(PUT, "deaf")
        with terminal(node, directory, "--deadline", "60", "put", "t", "x") as stopped:
            node.await_requests(PUT, 1)
            stopped.send_signal(signal.SIGSTOP)
            code, _, err = ran(directory, "--deadline", "0.3", "topics")
            assert code == 3
            assert f"in use by process {stopped.pid}; its operation outlasted".encode() in err


def test_a_get_that_waits_holds_nobody_up(node: FakeNode, directory: str) -> None:
    with shared(node, directory) as one, shared(node, directory, 1) as two:
        one.subscribe("t")
        got: list[object] = []
        waiting = threading.Thread(target=lambda: got.append(one.get("t", idle=20)))
        waiting.start()
        node.await_requests(GET, 1)
        assert two.publish("t", "a").id == 1
        waiting.join(10)
        assert len(got) == 1


def test_one_process_reads_at_a_time(node: FakeNode, directory: str, ran: Ran) -> None:
    assert ran(directory, "sub", "t")[0] == 0
    with terminal(node, directory, "get", "t", "--follow") as follow:
        node.await_requests(GET, 1)
        code, out, err = ran(directory, "--deadline", "0.3", "get", "t")
        assert (code, out) == (3, b"")
        assert f"in use by process {follow.pid}; it is being handed".encode() in err
        assert b"end it, or read as another client" in err


def test_a_producer_has_the_turn_until_it_is_closed(node: FakeNode, directory: str) -> None:
    with shared(node, directory) as one, shared(node, directory, 0.3) as two:
        one.subscribe("t")
        with one.producer("t") as producer:
            sent = producer.send("a")
            with pytest.raises(StateInUse):
                two.publish("t", "b")
        assert sent.result().id == 1
        assert two.publish("t", "c").id == 2


def test_put_of_lines_lets_others_in_while_its_input_pauses(
    node: FakeNode, directory: str, ran: Ran
) -> None:
    assert ran(directory, "sub", "t")[0] == 0
    with terminal(node, directory, "put", "t", "-") as lines:
        assert lines.stdin is not None
        assert lines.stdout is not None
        for number in range(3):
            lines.stdin.write(b"line %d\n" % number)
            lines.stdin.flush()
            node.await_requests(PUT, 2 * number + 1)
            assert ran(directory, "put", "t", "between") == (0, b"%d\n" % (2 * number + 2), b"")
        lines.stdin.close()
        assert lines.stdout.read() == b"3 stored, last id 5\n"
        assert lines.wait(10) == 0
    got = ran(directory, "get", "t", "--all")[1].splitlines()
    assert got == [b"line 0", b"between", b"line 1", b"between", b"line 2", b"between"]


def test_put_of_lines_that_never_pause_lets_others_in(
    node: FakeNode, directory: str, ran: Ran
) -> None:
    assert ran(directory, "sub", "t")[0] == 0
    source = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
    command = [
        "-m",
        "flotilla_client.cli",
        "-e",
        node.endpoint,
        "--state",
        directory,
        "put",
        "t",
        "-",
    ]
    endless = subprocess.Popen(
        [sys.executable, *command], stdin=source.stdout, env=os.environ | {"PYTHONPATH": "client"}
    )
    try:
        node.await_requests(PUT, 1)
        assert ran(directory, "--deadline", "20", "topics")[0] == 0
        assert endless.poll() is None
    finally:
        for process in (endless, source):
            process.kill()
            process.wait()
        assert source.stdout is not None
        source.stdout.close()


def test_a_get_that_waits_goes_on_under_an_epoch_that_another_process_has_raised(
    node: FakeNode, directory: str
) -> None:
    with shared(node, directory) as one, shared(node, directory) as two:
        one.subscribe("t")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(one.get, "t", idle=20)
            node.await_requests(GET, 1)
            two._operations.reopen()
            assert two.publish("t", "a").id == 1
            got = waiting.result()
        assert got is not None
        assert got.publications == (b"a",)


def test_a_command_of_the_shell_that_ctrl_c_ends_keeps_no_turn(
    node: FakeNode, directory: str
) -> None:
    with shared(node, directory) as one, shared(node, directory, 0.3) as two:
        one.subscribe("t")

        def ended_within_a_turn(client: SharedClient, options: object) -> int:
            client._shared_state._shared.begin()  # and Ctrl-C comes before the `try` behind it
            raise KeyboardInterrupt

        options = Namespace(run=ended_within_a_turn, verbose=False, deadline=1.0)
        with pytest.raises(KeyboardInterrupt):
            cli._perform(one, options, options)
        assert two.publish("t", "a").id == 1


def test_a_turn_that_could_not_be_gone_on_with_is_not_taken_for_one_that_is_held(
    node: FakeNode, directory: str
) -> None:
    with shared(node, directory, 0.5) as one, shared(node, directory) as two:
        one.subscribe("t")
        state = one._shared_state
        with ExitStack() as of_two:
            with pytest.raises(StateInUse), state.turn(), state.away():
                of_two.enter_context(two._shared_state.turn())
            with pytest.raises(StateInUse):
                one.publish("t", "a")  # its counter may be one that the other is about to use
        assert one.publish("t", "b").id == 1


def test_a_thread_that_waits_for_a_turn_makes_no_other_wait_longer_than_it_wants(
    node: FakeNode, directory: str
) -> None:
    with shared(node, directory) as one, shared(node, directory) as two:
        state, has_begun = two._shared_state, threading.Event()

        def wait_long() -> None:
            has_begun.set()
            with pytest.raises(StateInUse), state.turn(patience_s=6.0):
                raise AssertionError("the other process has it")

        with one._shared_state.turn():
            patient = threading.Thread(target=wait_long)
            patient.start()
            has_begun.wait()
            began_s = time.monotonic()
            with pytest.raises(StateInUse), state.turn(patience_s=0.1):
                raise AssertionError("the other process has it")
            assert time.monotonic() - began_s < 5.0
            patient.join()


def _pipes() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of this very listing
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {name for name in found if name.startswith("pipe:")}


def test_a_producer_that_could_not_be_opened_keeps_no_turn_and_no_descriptor(
    node: FakeNode, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pipe() -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with shared(node, directory) as one, shared(node, directory, 0.3) as two:
        one.subscribe("t")
        open_before = _pipes()
        for target, name, failing, error in (
            (os, "pipe", no_pipe, OSError),
            (threading.Thread, "start", no_thread, RuntimeError),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(target, name, failing)
                with pytest.raises(error):
                    one.producer("t")
            assert _pipes() == open_before
            two.topics()  # has its turn
        with one.producer("t") as out:
            assert out.send("a").result(5).id == 1


def test_a_full_disk_is_said_and_no_turn_kept_on_it(
    node: FakeNode, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with shared(node, directory) as one, shared(node, directory, 0.3) as two:
        one.subscribe("t")
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", no_space)
            with pytest.raises(StateUnusable, match="No space left on device"):
                one.publish("t", "a")
        assert two.publish("t", "b").id == 1
        assert one.publish("t", "c").id == 2
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", no_space)
        for make in (shared, lambda node, directory: Client(node.endpoint, state_dir=directory)):
            with pytest.raises(StateUnusable, match="No space left on device"):
                make(node, directory)
    Client(node.endpoint, state_dir=directory).close()


def test_a_client_of_the_library_shares_with_nobody(node: FakeNode, directory: str) -> None:
    with Client(node.endpoint, state_dir=directory) as alone:
        alone.subscribe("t")
        for _ in range(2):
            with pytest.raises(StateInUse):
                shared(node, directory, 60)  # at once: it would wait for a program's end
    with shared(node, directory) as one:
        one.publish("t", "a")
        with pytest.raises(StateInUse):
            Client(node.endpoint, state_dir=directory)
    Client(node.endpoint, state_dir=directory).close()


def test_what_a_killed_client_left_in_the_lock_keeps_nobody_out(
    node: FakeNode, directory: str
) -> None:
    State(Path(directory)).close()
    (Path(directory) / LOCK_NAME).write_text("99999999 alone\n")
    with shared(node, directory) as one, shared(node, directory) as two:
        one.subscribe("t")
        two.publish("t", "a")


def test_a_process_of_before_in_between_ends_the_session(node: FakeNode, directory: str) -> None:
    with shared(node, directory) as one:
        one.subscribe("t")
        # 0.1 knows `lock` alone, which nobody has between two operations, and took the id up.
        node.cluster.clients[one.client_id].epoch += 1
        with closing(sqlite3.connect(Path(directory) / DATABASE_NAME)) as database, database:
            database.execute("UPDATE client SET epoch = epoch + 1")
        assert one.publish("t", "a").id == 1
        assert len(node.of_type(REQUEST_ID)) == 2


def test_many_processes_put_and_all_of_it_is_stored_once(node: FakeNode, directory: str) -> None:
    script = "".join(f"put t {{name}}-{number}\n" for number in range(20))
    with Client(node.endpoint, state_dir=f"{directory}-2") as reader, ExitStack() as stack:
        reader.subscribe("t")
        processes = [stack.enter_context(terminal(node, directory, "shell")) for _ in "abc"]
        for process, name in zip(processes, "abc", strict=True):
            assert process.stdin is not None
            process.stdin.write(script.format(name=name).encode())
            process.stdin.close()
        assert [process.wait(60) for process in processes] == [0, 0, 0]
        got = texts_of(reader, "t")
    for name in "abc":
        own = [text for text in got if text.startswith(name.encode())]
        assert own == [f"{name}-{number}".encode() for number in range(20)]
    assert len(got) == 60


# --- whose directory it is ------------------------------------------------------------------------


@pytest.mark.parametrize("strange", ["passwd", ".hidden", "lock.d"])
def test_nothing_is_written_into_a_directory_that_is_not_ours(
    node: FakeNode, tmp_path: Path, ran: Ran, strange: str
) -> None:
    (tmp_path / strange).write_text("")
    (tmp_path / LOCK_NAME).write_text("")  # others have such a file too
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    for argv in (("topics",), ("put", "t", "x"), ("shell",), ("--record", "r", "topics")):
        code, out, err = ran(str(tmp_path), *argv)
        assert (code, out) == (3, b"")
        assert f"{tmp_path} is no client's state directory".encode() in err
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before
    with pytest.raises(StateUnusable, match="name an empty directory or a new one"):
        Client(node.endpoint, state_dir=tmp_path)


def test_a_directory_that_died_before_it_had_a_database_is_ours(
    node: FakeNode, tmp_path: Path
) -> None:
    (tmp_path / LOCK_NAME).write_text("1\n")
    with shared(node, str(tmp_path)) as client:
        client.subscribe("t")
    assert (tmp_path / DATABASE_NAME).exists()
