"""`flotilla` on the command line: output, exit codes, pipes and signals."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
import pexpect
import pytest

from flotilla_client import Client, PutResult, arguments, cli, shell
from flotilla_client.lines import Lines
from flotilla_client.protocol import GET, PUBLICATION_BYTES_MAX, PUT, READ, STATUS, TAKE
from flotilla_client.version import VERSION
from tests.unit.fake_node import FakeNode, client_of, nak

Run = Callable[..., tuple[int, bytes, bytes]]


@pytest.fixture
def run(
    node: FakeNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Run:
    monkeypatch.setenv("FLOTILLA_ENDPOINTS", node.endpoint)
    monkeypatch.setenv("FLOTILLA_STATE", str(tmp_path / "state"))

    def run(*argv: str) -> tuple[int, bytes, bytes]:
        code = cli.main(argv)
        out, err = capfdbinary.readouterr()
        return code, out, err

    return run


def _process(node: FakeNode, state: Path, *argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "flotilla_client.cli",
            "-e",
            node.endpoint,
            "--state",
            str(state),
            *argv,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": "client"},
    )


def test_put_prints_the_id_and_get_the_publication(run: Run) -> None:
    assert run("sub", "t") == (0, b"subscribed: publications after id 0 will come\n", b"")
    assert run("put", "t", "hello") == (0, b"1\n", b"")
    assert run("get", "t") == (0, b"hello\n", b"")


def test_get_says_nothing_new_by_its_exit_code(run: Run) -> None:
    run("sub", "t")
    assert run("get", "t") == (1, b"", b"")
    assert run("get", "--all") == (1, b"", b"")


def test_sub_and_unsub_say_what_was_before(run: Run) -> None:
    run("sub", "t")
    assert run("sub", "t")[1].startswith(b"resumed")
    assert run("unsub", "t") == (0, b"unsubscribed\n", b"")
    assert run("unsub", "t") == (0, b"was not subscribed\n", b"")


def test_a_publication_that_nobody_could_read_is_pointed_out(run: Run) -> None:
    for options, exit_code in (((), 3), (("--allow-unheard",), 0)):
        code, out, err = run("put", *options, "t", "x")
        assert (code, out) == (exit_code, b"not stored\n")
        assert err == b"flotilla: nobody subscribes to t: not stored\n"


def test_a_refusal_is_3_with_its_code_on_stderr(run: Run) -> None:
    code, out, err = run("get", "elsewhere")
    assert (code, out) == (3, b"")
    assert err == b"flotilla: not_subscribed: no subscription to elsewhere\n"


@pytest.mark.parametrize(
    "argv",
    [
        ("-e", "\udcff:7001", "status"),
        ("sub", "t", "--from", "0001-01-01T00:00+14:00"),
        ("admin", "transfer-leader", "\udcff"),
        ("admin", "user", "allow", "a", "--publish", "\udcff"),
        ("topic", "create", "t", "--dead-letter", "\udcff"),
    ],
)
def test_what_is_no_text_and_no_time_is_wrong_usage(run: Run, argv: Sequence[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(*argv)


@pytest.mark.parametrize("verb", ["topics", "sub"])
def test_a_directory_that_can_not_be_is_unusable(run: Run, tmp_path: Path, verb: str) -> None:
    code, out, err = run("--state", f"{tmp_path}/{300 * 'a'}", verb, *(["t"] * (verb == "sub")))
    assert (code, out) == (3, b"")
    assert err.startswith(b"flotilla: state_unusable: ")


def test_the_doctor_looks_where_a_directory_that_can_not_be_would_be_made(
    run: Run, tmp_path: Path
) -> None:
    _, out, _ = run("--state", f"{tmp_path}/{300 * 'a'}", "doctor")
    assert f"fsync in {tmp_path}".encode() in out


def test_a_worker_takes_no_more_than_it_is_to_print(run: Run, node: FakeNode) -> None:
    run("sub", "t")
    with client_of(node) as client:
        client.publish_many("t", [b"x"] * 400)
    code, out, _ = run("work", "t", "--group", "g", "--count", "300")
    assert (code, out) == (0, b"x\n" * 300)
    counts = [request.body["max_count"] for request in node.of_type(TAKE)]
    assert [count for count in counts if count] == [256, 44]


def test_no_answer_is_4(run: Run, node: FakeNode) -> None:
    run("sub", "t")
    node.always(PUT, "deaf")
    code, _, err = run("--deadline", "0.3", "put", "t", "x")
    assert code == 4
    assert err.startswith(b"flotilla: unavailable: ")
    assert err.endswith(b" (kept in the outbox: it is sent before your next one)\n")
    node.always(PUT, None)
    assert run("put", "t", "y") == (0, b"2\n", b"")


def test_a_refused_put_says_that_it_is_not_stored(run: Run, node: FakeNode) -> None:
    node.script(PUT, nak("too_large"))
    code, _, err = run("put", "t", "x")
    assert (code, err) == (3, b"flotilla: too_large: scripted too_large (not stored)\n")


def test_a_deadline_spent_on_elections_is_4_though_definite(run: Run, node: FakeNode) -> None:
    node.always(PUT, nak("electing"))
    assert run("--deadline", "0.3", "put", "t", "x")[0] == 4


def test_what_is_no_pattern_is_refused(run: Run) -> None:
    for name in ("orders/#", "orders.new*"):
        code, out, err = run("sub", name)
        assert (code, out) == (3, b"")
        assert err.startswith(b"flotilla: bad_request: `%s`" % name.encode())


def test_options_stand_before_or_behind_the_command(
    run: Run, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = str(tmp_path / "other")
    assert run("sub", "t", "--state", state)[0] == 0
    monkeypatch.delenv("FLOTILLA_ENDPOINTS")
    there = ("-e", node.endpoint, "--deadline", "5")
    assert run("put", "t", "x", *there, "--state", state)[1] == b"1\n"
    assert run("put", *there, "--state", state, "t", "y")[1] == b"2\n"
    # What stands behind the command counts, and what stands before it where that says nothing.
    assert run("-e", "127.0.0.1:1", "--state", state, "get", "t", *there)[1] == b"x\n"
    assert run("-v", *there, "topics", "--state", state, "--json")[0] == 0
    assert run(*there, "status", "-e", node.endpoint)[0] == 0


def test_colour_is_for_terminals_without_no_color(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(*argv: str, **environ: str) -> str:
        environ = {"PATH": os.environ["PATH"], "TERM": "xterm", "PYTHONPATH": "client"} | environ
        options = ["-e", node.endpoint, "--state", str(tmp_path / "state")]
        command = ["-m", "flotilla_client.cli", *options, *argv]
        child = pexpect.spawn(sys.executable, command, env=environ, encoding="utf-8")
        child.expect(pexpect.EOF)
        child.close()
        return str(child.before)

    status = seen("status")
    assert "\x1b[1mendpoint" in status
    assert "\x1b[32mleader" in status
    assert "\x1b[31mflotilla:\x1b[0m bad_request" in seen("sub", "a/#")
    for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in seen("status", **environ)
    plain = re.sub(r"\x1b\[\d+m", "", status)
    assert plain == seen("status", NO_COLOR="1")  # and the columns stand where they did


def test_a_whole_day_is_a_time_and_more_is_not() -> None:
    assert arguments.seconds("86400") == 86_400
    assert arguments.deadline_s("86400") == 86_400
    with pytest.raises(argparse.ArgumentTypeError, match="from 0 to 86400"):
        arguments.seconds("86401")


def test_the_shell_has_all_verbs_of_the_command_line() -> None:
    verbs = argparse.ArgumentParser().add_subparsers()
    cli.add_verbs(verbs)
    assert set(shell.VERBS) == set(verbs.choices)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["frobnicate"],
        ["put", "t"],
        ["get", "--all", "--follow"],
        ["--deadline", "-1", "topics"],
        ["--deadline", "soon", "topics"],
        ["-e", "nonsense", "topics"],
        ["-e", "a:65536", "topics"],
        ["--deadline", "0", "topics"],
        ["get", "--count", "0"],
        ["put", "t", "two", "words"],
        ["--state", "", "topics"],
        ["--record", "", "topics"],
    ],
)
def test_wrong_usage_is_2(run: Run, argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*argv)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--deadline", "abc", "topics"], "'abc' is not a number of seconds"),
        (["get", "--count", "0"], "0 is not from 1 to "),
        (["work", "t", "--group", "g", "--lease", "0"], "0 is not from 0.1 to 43200 (12 hours)"),
        (["-e", "http://a:7001", "topics"], "'http://a:7001' is no endpoint"),
        (["put", "t", "two", "words"], "needs quotes: flotilla put t 'two words'"),
    ],
)
def test_wrong_usage_is_explained(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(argv)
    assert said in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"flotilla {VERSION}\n"


def test_get_takes_as_many_as_it_is_told_and_no_more(run: Run, node: FakeNode) -> None:
    run("sub", "t")
    with Client(node.endpoint, state_dir=node.new_directory()) as client:
        client.publish_many("t", [b"a", b"b", b"c"])
    assert run("get", "t", "--count", "2") == (0, b"a\nb\n", b"")
    assert run("get", "t", "--follow", "--count", "1") == (0, b"c\n", b"")
    assert run("get", "t", "--count", "2") == (1, b"", b"")


def test_a_person_is_told_when_nobody_answers(
    run: Run, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "SILENCE_S", 0.1)
    monkeypatch.setattr(cli, "LOOK_S", 0.01)
    code, _, err = run("-v", "-e", "127.0.0.1:1", "--deadline", "0.5", "put", "t", "x")
    first, second = err.decode().splitlines()
    assert code == 4
    assert first == "flotilla: no answer from 127.0.0.1:1; trying until 0.5 s are over"
    assert "127.0.0.1:1: connection refused" in second


def test_a_follow_outlives_an_outage_and_says_when_it_begins_and_ends(
    node: FakeNode, tmp_path: Path
) -> None:
    with Client(node.endpoint, state_dir=node.new_directory()) as client:
        client.subscribe("t")
        code = (
            "import sys; from flotilla_client import cli\n"
            "cli.LOOK_S = 0.01; cli.SILENCE_S = 0.05; cli.FOLLOW_SILENCE_S = 0.2\n"
            "cli.FOLLOW_WAIT_S = 0.05; sys.exit(cli.main(sys.argv[1:]))"
        )
        arguments = ["-v", "-e", node.endpoint, "--deadline", "0.5", "--state", str(tmp_path)]
        with Client(node.endpoint, state_dir=tmp_path) as mine:
            mine.subscribe("t")
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments, "get", "--follow", "--count", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": "client"},
        )
        node.await_requests(GET, 1)
        node.always(GET, "deaf")
        assert process.stderr is not None
        while b"still trying" not in (line := process.stderr.readline()):
            assert line, "it says nothing more"  # on a slow machine it has said more before
        node.always(GET, None)
        assert b"answers again" in process.stderr.readline()
        client.publish("t", "x")
        assert process.communicate(timeout=10)[0] == b"x\n"
        assert process.returncode == 0


def test_a_follow_ends_when_its_reader_has_gone(node: FakeNode, tmp_path: Path) -> None:
    process = _process(node, tmp_path, "get", "--follow")
    node.await_requests(GET, 1)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(10) == cli.PIPE_CLOSED
    for pipe in (process.stdin, process.stderr):
        assert pipe is not None
        pipe.close()


def test_status_and_all_topics_need_no_state_directory(run: Run, tmp_path: Path) -> None:
    with Client("127.0.0.1:1", state_dir=tmp_path / "state"):
        assert run("status")[0] == 0
        assert run("topics", "--all")[0] == 0


def test_the_help_documents_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    codes = [cli.OK, cli.NOTHING_NEW, cli.USAGE, cli.REFUSED, cli.UNKNOWN]
    assert all(f"\n  {code}    " in text for code in codes)
    assert f"{cli.INTERRUPTED}" in text
    assert f"{cli.PIPE_CLOSED}" in text


def test_json_is_one_object_a_line_and_says_bytes_as_base64(run: Run, node: FakeNode) -> None:
    run("sub", "t")
    with Client(node.endpoint, state_dir=node.new_directory()) as client:
        client.publish_many("t", ["text\nof two lines", b"\xff\x00"])
    code, out, _ = run("get", "t", "--all", "--json")
    assert code == 0
    assert [orjson.loads(line) for line in out.splitlines()] == [
        {"topic": "t", "id": 1, "publication": "text\nof two lines"},
        {"topic": "t", "id": 2, "publication_base64": "/wA="},
    ]


def test_key_and_headers_go_with_a_text_or_with_each_line(run: Run, node: FakeNode) -> None:
    run("sub", "t")
    assert run("put", "t", "x", "-k", "k", "--header", "a=1=2", "--header", "b=")[0] == 0
    state = node.new_directory()
    process = _process(node, state, "put", "t", "--header", "a=1", "-")
    assert process.communicate(b"y\nz\n")[0] == b"2 stored, last id 3\n"
    with Client(node.endpoint, state_dir=node.new_directory()) as client:
        client.publish("t", "w", key=b"\xff", headers={"raw": b"\x00", "text": "t"})
    rows = [orjson.loads(line) for line in run("get", "t", "--all", "--json")[1].splitlines()]
    assert rows == [
        {"topic": "t", "id": 1, "key": "k", "headers": {"a": "1=2", "b": ""}, "publication": "x"},
        {"topic": "t", "id": 2, "headers": {"a": "1"}, "publication": "y"},
        {"topic": "t", "id": 3, "headers": {"a": "1"}, "publication": "z"},
        {
            "topic": "t",
            "id": 4,
            "key_base64": "/w==",
            "headers": {"text": "t"},
            "headers_base64": {"raw": "AA=="},
            "publication": "w",
        },
    ]


@pytest.mark.parametrize(
    ("headers", "what"), [(("a",), "is not NAME=VALUE"), (("a=1", "a=2"), "'a' is given twice")]
)
def test_a_header_that_is_none_is_wrong_usage(
    headers: tuple[str, ...], what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["put", "t", "x", *(f"--header={header}" for header in headers)])
    assert caught.value.code == cli.USAGE
    assert what in capfd.readouterr().err


def test_a_header_that_no_cluster_takes_is_refused(run: Run) -> None:
    code, _, err = run("put", "t", "x", "--header", "a\nb=1")
    assert (code, b"printable" in err) == (cli.REFUSED, True)


def test_an_expiry_goes_with_a_text_or_with_each_line(run: Run, node: FakeNode) -> None:
    run("sub", "t")
    assert run("put", "t", "x", "--expires", "2h")[0] == 0
    process = _process(node, node.new_directory(), "put", "t", "--expires", "30s", "-")
    assert process.communicate(b"y\n")[0] == b"1 stored, last id 2\n"
    rows = [orjson.loads(line) for line in run("get", "t", "--all", "--json")[1].splitlines()]
    assert rows == [
        {"topic": "t", "id": 1, "expires_ms": 7_200_000, "publication": "x"},
        {"topic": "t", "id": 2, "expires_ms": 30_000, "publication": "y"},
    ]


@pytest.mark.parametrize(
    ("text", "what"), [("soon", "'soon'"), ("0s", "'0s'"), ("9999d", "9999d is over 3650d")]
)
def test_an_expiry_that_is_none_is_wrong_usage(
    text: str, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["put", "t", "x", "--expires", text])
    assert caught.value.code == cli.USAGE
    assert what in capfd.readouterr().err


def test_topics_are_a_table_or_json(run: Run) -> None:
    run("sub", "t")
    run("put", "t", "abc")
    table = run("topics")[1].decode().splitlines()
    assert [line.split() for line in table] == [
        ["topic", "last_id", "cursor", "backlog"],
        ["t", "1", "0", "1"],
    ]
    row = orjson.loads(run("topics", "--all", "--json")[1])
    assert row == {"topic": "t", "last_id": 1, "subscribers": 1, "backlog_bytes": 3}


def test_status_shows_every_endpoint_the_silent_ones_too(run: Run, node: FakeNode) -> None:
    code, out, _ = run("-e", f"{node.endpoint},127.0.0.1:1", "--deadline", "0.3", "status")
    assert code == 0
    first, second, why = out.decode().splitlines()[1:]
    assert first.split()[:5] == [node.endpoint, "a", "leader", "1", "a"]
    assert second.split()[:3] == ["127.0.0.1:1", "-", "unavailable"]
    assert why == "127.0.0.1:1 is unavailable: connection refused"
    assert run("-e", "127.0.0.1:1", "--deadline", "0.3", "status")[0] == 4


@contextmanager
def _server(said: bytes | None) -> Iterator[str]:
    """Listen; say something to everybody and hang up (None: say nothing)."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # the test is over
                open_ones.append(connection)
                if said is not None:
                    with suppress(OSError):  # the client may have hung up before
                        connection.sendall(said)
                        connection.shutdown(socket.SHUT_RDWR)

        open_ones: list[socket.socket] = []
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            serving.join()
            for connection in open_ones:
                connection.close()


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (None, "takes connections and says nothing: a stopped node, or no node's client port"),
        (b"SSH-2.0-OpenSSH", "speaks another protocol: no node's client port"),
        (b"", "ends connections at once: no node's client port, or a node that has too many"),
    ],
)
def test_status_says_of_what_is_no_node_what_it_does(
    run: Run, said: bytes | None, cause: str
) -> None:
    with _server(said) as endpoint:
        code, out, _ = run("-e", endpoint, "--deadline", "0.5", "status")
        told = run("-e", endpoint, "--deadline", "0.5", "status", "--json")[1]
    assert code == 4
    assert out.decode().splitlines()[2:] == [f"{endpoint} is unavailable: {cause}"]
    assert orjson.loads(told)["cause"] == cause


def test_status_says_why_a_node_does_not_answer(run: Run, node: FakeNode) -> None:
    for fault, cause, patience_s in (
        ("deaf", "no answer", "0.5"),
        ("garbage", "answers as no node does", "3"),  # it has to come within that
    ):
        node.always(STATUS, fault)
        out = run("--deadline", patience_s, "status")[1].decode()
        assert out.splitlines()[2:] == [f"{node.endpoint} is unavailable: {cause}"]
    unknown = "nosuch.invalid:7001"
    out = run("-e", unknown, "--deadline", "3", "status")[1].decode()
    assert out.splitlines()[2].startswith(f"{unknown} is unavailable: name ")


def test_status_says_which_nodes_are_of_another_cluster(run: Run, node: FakeNode) -> None:
    ours = {"members": {"b": {}, "c": {}}}
    node.about |= {**ours, "incarnation": "one"}
    with FakeNode() as other:
        both = f"{node.endpoint},{other.endpoint}"
        said = f"{other.endpoint} is of another cluster than {node.endpoint}: that of a"
        for about, lines in (
            ({**ours, "incarnation": "one"}, []),
            ({"members": {}, "incarnation": "one"}, [said]),
            ({**ours, "incarnation": "two"}, [f"{said}, b, c"]),
        ):
            other.about.clear()
            other.about |= about
            assert run("-e", both, "status")[1].decode().splitlines()[3:] == lines


@pytest.mark.parametrize(
    "argv",
    [
        ["sub", "orders/#"],
        ["sub", ""],
        ["put", "a\nb", "x"],
        ["put", "t" * 256, "-"],
        ["get", ""],
        ["unsub", "t", "--client", ""],
        ["--record", "record", "sub", "orders.>.eu"],
    ],
)
def test_what_every_cluster_refuses_is_refused_before_anything_is_made(
    run: Run, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOTILLA_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    code, out, err = run(*argv)
    assert (code, out) == (3, b"")
    assert err.startswith(b"flotilla: ")
    assert list(tmp_path.iterdir()) == []
    assert not node.requests


def test_upgrade_says_the_level_or_who_stands_in_its_way(run: Run, tmp_path: Path) -> None:
    assert run("upgrade", "--level", "3") == (
        3,
        b"",
        b"flotilla: not_upgraded: n2 runs version 0.2\n",
    )
    assert run("upgrade") == (0, b"level 2; it was 1\n", b"")
    assert run("upgrade") == (0, b"level 2 already\n", b"")
    assert orjson.loads(run("upgrade", "--json")[1]) == {"level": 2, "before": 2}
    assert not (tmp_path / "state").exists()


def test_status_shows_each_nodes_version_and_levels(run: Run, node: FakeNode) -> None:
    told = {"versions": {"flotilla": "0.2.0", "levels": [1, 2]}, "level": 2}
    node.about |= told
    head, row = (line.split() for line in run("status")[1].decode().splitlines())
    shown = dict(zip(head, [*row[:5], "-", "-", *row[7:]], strict=True))
    assert [shown[name] for name in ("level", "version", "levels")] == ["2", "0.2.0", "1-2"]
    node.about.clear()
    assert run("status")[1].decode().split()[-3:] == ["-", "-", "1-1"]  # as version 0.1 answers


def test_status_fits_into_80_columns_and_goes_apart_where_there_is_room(
    run: Run, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.about |= {"versions": {"flotilla": "0.4.0", "levels": [1, 5]}, "level": 5}
    node.about |= {"role": "follower", "commit_index": 123_456, "applied_index": 123_456}
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run("status")[1].decode().splitlines()[:2]
    monkeypatch.setenv("COLUMNS", "120")
    wide = run("status")[1].decode().splitlines()[:2]
    assert max(map(len, narrow)) <= 80 < max(map(len, wide))
    assert [line.split() for line in narrow] == [line.split() for line in wide]


def test_the_list_of_commands_has_a_sentence_of_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = capsys.readouterr().out.partition("COMMAND\n")[2].partition("\noptions:")[0]
    told = re.split(r"^    (?=\S)", listed, flags=re.MULTILINE)[1:]
    assert [text for text in told if text.count("\n") > 3] == []
    with pytest.raises(SystemExit):
        cli.main(["admin", "--help"])
    assert "`purge TOPIC`" in " ".join(capsys.readouterr().out.split())


def test_status_says_what_a_node_waits_for_and_what_is_wrong(run: Run, node: FakeNode) -> None:
    node.about |= {
        "waiting_for": ["b: n1 has to be silent for 3.0 s"],
        "refused_by": {"c": "evicted"},
        "settings_differ": {"b": {"raft.heartbeat_ms": [80, 70]}},
    }
    lines = run("status")[1].decode().splitlines()
    assert lines[2:] == [
        "a waits for b: n1 has to be silent for 3.0 s",
        "a is refused: evicted",
        "a has raft.heartbeat_ms = 80, b has 70",
    ]
    assert orjson.loads(run("status", "--json")[1])["refused_by"] == {"c": "evicted"}


def test_a_state_directory_in_use_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    with Client("127.0.0.1:1", state_dir=tmp_path / "state"):
        code, _, err = run("get", "t")
    assert code == 3
    assert b"state_in_use" in err
    assert b"--state DIR or FLOTILLA_STATE" in err
    assert str(tmp_path / "state").encode() in err


def test_the_default_state_directory_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert cli.default_state_dir() == "/somewhere/flotilla"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cli.default_state_dir() == "/home/me/.local/state/flotilla"


def test_lines_from_a_pipe_become_publications_bytes_and_all(
    node: FakeNode, tmp_path: Path
) -> None:
    with Client(node.endpoint, state_dir=node.new_directory()) as client:
        client.subscribe("t")
        out, err = _process(node, tmp_path, "put", "t", "-").communicate(b"a\n\xff\xfe\n\nlast")
        assert (out, err) == (b"4 stored, last id 4\n", b"")
        assert [m.publication for m in client.messages("t", idle=0)] == [
            b"a",
            b"\xff\xfe",
            b"",
            b"last",
        ]


def test_a_line_over_the_limit_is_refused_and_those_before_it_are_stored(
    node: FakeNode, tmp_path: Path
) -> None:
    with Client(node.endpoint, state_dir=node.new_directory()) as client:
        client.subscribe("t")
    process = _process(node, tmp_path, "put", "t", "-")
    _, err = process.communicate(b"a\n" + b"x" * (1024 * 1024 + 1) + b"\n")
    assert process.returncode == 3
    assert err == (
        b"flotilla: too_large: line 2 has more than 1,048,576 bytes, its end not counted\n"
        b"flotilla: 1 stored, 0 kept in the outbox, stopped before line 2\n"
    )
    assert len(node.of_type(PUT)) == 1


def test_a_lines_length_is_counted_in_bytes_without_its_end(node: FakeNode, tmp_path: Path) -> None:
    with Client(node.endpoint, state_dir=node.new_directory()) as client:
        client.subscribe("t")
    longest, longer = b"x" * PUBLICATION_BYTES_MAX + b"\n", "é".encode() * 524_289
    process = _process(node, tmp_path, "put", "t", "-")
    out, err = process.communicate(longest + longest + longer)
    assert out == b"2 stored, last id 2\n"
    assert b"too_large: line 3 has more than 1,048,576 bytes" in err
    assert process.returncode == 3


LINES = [b"%d\n" % number for number in range(1, 1_001)]


def _unheard_of(state: Path, node: FakeNode) -> str:
    """Return an endpoint at which nobody listens, for a client that has subscribed at `node`."""
    with Client(node.endpoint, state_dir=state) as client:
        client.subscribe("t")
    return "127.0.0.1:1"


def test_lines_for_a_cluster_that_is_down_are_kept_and_sent_by_the_next_command(
    node: FakeNode, tmp_path: Path
) -> None:
    dead = _unheard_of(tmp_path / "state", node)
    for half in (LINES[:500], LINES[500:]):
        options = ("-e", dead, "--deadline", "0.3", "put", "t", "-")
        process = _process(node, tmp_path / "state", *options)
        out, err = process.communicate(b"".join(half))
        assert (process.returncode, out) == (4, b"0 stored, 500 kept in the outbox\n")
        unavailable, summary = err.decode().splitlines()
        assert unavailable.startswith("flotilla: unavailable: no answer from any node before")
        assert summary == (
            "flotilla: 0 stored, 500 kept in the outbox, stopped before line 501"
            " (the end of the input)"
        )
    process = _process(node, tmp_path / "state", "get", "t", "--all")
    assert process.communicate() == (b"".join(LINES), b"")


def test_lines_of_a_client_that_no_cluster_has_heard_of_are_kept_too(
    node: FakeNode, tmp_path: Path
) -> None:
    with Client(node.endpoint, state_dir=node.new_directory()) as client:
        client.subscribe("t")
        options = ("-e", "127.0.0.1:1", "--deadline", "0.3", "put", "t", "-")
        _process(node, tmp_path, *options).communicate(b"a\nb")
        assert _process(node, tmp_path, "put", "t", "c").communicate() == (b"3\n", b"")
        assert [m.publication for m in client.messages("t", idle=0)] == [b"a", b"b", b"c"]


def test_an_input_that_pauses_is_not_waited_for_while_nobody_answers(
    node: FakeNode, tmp_path: Path
) -> None:
    dead = _unheard_of(tmp_path, node)
    process = _process(node, tmp_path, "-e", dead, "--deadline", "0.3", "put", "t", "-")
    assert process.stdin is not None
    process.stdin.write(b"a\nnot yet a line")
    process.stdin.flush()
    assert process.wait(30) == 4
    _, err = process.communicate()
    assert err.endswith(b"flotilla: 0 stored, 1 kept in the outbox, stopped before line 2\n")


def test_a_line_over_the_limit_is_named_while_nobody_answers_and_those_before_it_kept(
    node: FakeNode, tmp_path: Path
) -> None:
    dead = _unheard_of(tmp_path, node)
    process = _process(node, tmp_path, "-e", dead, "--deadline", "0.3", "put", "t", "-")
    _, err = process.communicate(b"a\nb\n" + b"x" * (PUBLICATION_BYTES_MAX + 1) + b"\nc\n")
    assert process.returncode == 4
    assert b"flotilla: too_large: line 3 has more than 1,048,576 bytes" in err
    assert err.endswith(b"flotilla: 0 stored, 2 kept in the outbox, stopped before line 3\n")


def test_lines_that_a_full_outbox_has_no_room_for_are_not_said_to_be_kept(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = _unheard_of(tmp_path / "state", node)
    monkeypatch.setattr(cli, "BATCH_COUNT_MAX", 4)
    monkeypatch.setattr(cli, "KEEP_PAUSE_S", 0.1)
    (tmp_path / "lines").write_bytes(b"".join(LINES[:9]))
    said: list[str] = []
    monkeypatch.setattr(cli, "say", said.append)
    with Client(dead, state_dir=tmp_path / "state", timeout=0.3) as client:
        client._session.state._outbox_bytes_max = 44  # two batches, not three
        with (tmp_path / "lines").open("rb") as file:
            assert cli._put_lines(client, "t", Lines(file.fileno()), bytes)[0] == 4
    assert [line.split()[1] for line in said[:2]] == ["outbox_full:", "unavailable:"]
    assert said[-1] == "flotilla: 0 stored, 8 kept in the outbox, stopped before line 9"


def test_lines_that_nobody_could_read_are_pointed_out_and_not_counted_as_stored(
    node: FakeNode, tmp_path: Path
) -> None:
    for options, exit_code in (((), 3), (("--allow-unheard",), 0)):
        process = _process(node, tmp_path, "put", *options, "t", "-")
        out, err = process.communicate(b"a\nb\n")
        assert (process.returncode, out) == (exit_code, b"0 stored, last id 0\n")
        assert err == b"flotilla: nobody subscribes to t: 2 not stored\n"


def test_a_rerun_from_the_line_that_it_names_doubles_nothing(
    node: FakeNode, tmp_path: Path
) -> None:
    lines = [b"%d\n" % number for number in range(1, 41)]
    with Client(node.endpoint, state_dir=node.new_directory()) as client:
        client.subscribe("t")
        node.script(PUT, "twice")
        node.always(PUT, "deaf")
        process = _process(node, tmp_path, "--deadline", "0.5", "put", "t", "-")
        assert process.stdin is not None
        for line in lines:
            process.stdin.write(line)
            process.stdin.flush()
            if line == b"1\n":
                node.await_requests(PUT, 1)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 4
        said = re.search(
            rb"flotilla: (\d+) stored, (\d+) kept in the outbox, stopped before line (\d+)"
            rb" \(the end of the input\)\n$",
            err,
        )
        assert said is not None, err
        stored, kept, line = map(int, said.groups())
        assert stored + kept == line - 1
        assert out.startswith(b"%d stored" % stored)
        node.always(PUT, None)
        again = _process(node, tmp_path, "put", "t", "-")
        assert again.communicate(b"".join(lines[line - 1 :]), timeout=20)[1] == b""
        got = [message.publication for message in client.messages("t", idle=0)]
    assert got == [line.rstrip() for line in lines]


@pytest.fixture
def three_lines() -> Iterator[Lines]:
    """An input of three lines."""
    read, write = os.pipe()
    os.write(write, b"1\n2\n3\n")
    os.close(write)
    yield Lines(read)
    os.close(read)


def test_what_ctrl_c_comes_behind_the_sending_of_is_not_to_be_sent_again(
    node: FakeNode, three_lines: Lines
) -> None:
    tally = cli._Tally(lambda line: line)
    with client_of(node) as client:
        client.subscribe("t")
        with client.producer("t") as producer:
            send = producer.send

            def interrupted(publication: bytes) -> Future[PutResult]:
                future = send(publication)
                if publication == b"2":
                    raise KeyboardInterrupt
                return future

            producer.send = interrupted  # type: ignore[method-assign, assignment]
            with pytest.raises(KeyboardInterrupt):
                cli._send_burst(producer, three_lines, tally)
        assert node.cluster.topics["t"] == [b"1", b"2"]
    assert tally.summary(is_at_end=False).endswith("stopped before line 3")


def test_what_ctrl_c_comes_behind_the_keeping_of_is_not_to_be_sent_again(
    node: FakeNode, three_lines: Lines
) -> None:
    tally = cli._Tally(lambda line: line)
    with client_of(node) as client:
        commit = client._session.state._commit

        def interrupted(*statements: Any, **how: Any) -> int:
            commit(*statements, **how)
            raise KeyboardInterrupt

        client._session.state._commit = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            cli._keep_lines(client, "t", three_lines, tally)
        assert [entry.count for entry in client._session.state.outbox("t")] == [3]
    assert tally.summary(three_lines.have_ended()) == (
        "0 stored, 3 kept in the outbox, stopped before line 4 (the end of the input)"
    )


def test_a_topic_that_drops_while_its_begin_is_looked_for_is_read_from_there(
    run: Run, node: FakeNode
) -> None:
    run("sub", "t")
    for text in "abc":
        run("put", "t", text)
    gaps = [nak("gap", topic="t", first_id=1, last_id=last, missed=last) for last in (1, 2)]
    node.script(READ, *gaps)
    assert run("read", "t") == (0, b"c\n", b"")
    node.script(READ, gaps[0])
    assert run("read", "t", "--from", "1")[0] == 3


def test_ctrl_c_ends_a_follow_with_130_and_no_traceback(node: FakeNode, tmp_path: Path) -> None:
    process = _process(node, tmp_path, "get", "--follow")
    node.await_requests(GET, 1)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10) == (b"", b"")
    assert process.returncode == cli.INTERRUPTED


def test_what_a_full_disk_did_not_take_comes_again(node: FakeNode, tmp_path: Path) -> None:
    def said(argv: str, redirected: str) -> tuple[int, bytes]:
        line = f"exec {sys.executable} -m flotilla_client.cli {argv} {redirected}"
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            capture_output=True,
            env=os.environ | environment,
            check=False,
        )
        return done.returncode, done.stderr + done.stdout

    environment = {"PYTHONPATH": "client", "FLOTILLA_STATE": str(tmp_path / "state")}
    environment["FLOTILLA_ENDPOINTS"] = node.endpoint
    full = b"flotilla: the output cannot be written: No space left on device\n"
    closed = b"flotilla: the output cannot be written: Bad file descriptor\n"
    assert said("sub t", "")[0] == 0
    assert said("put t a", ">/dev/full") == (5, full)
    assert said("get t", ">/dev/full") == (5, full)
    assert said("get t", ">&-") == (5, closed)
    assert said("get t --json", "")[1] == b'{"topic":"t","id":1,"redelivered":true,' + (
        b'"publication":"a"}\n'
    )
    assert said("status", ">/dev/full") == (5, full)
    assert said("completion bash", ">/dev/full") == (5, full)
    assert said("shell", ">/dev/full <<E\ntopics\nE") == (5, full)
    assert said("put t b", "2>&-") == (0, b"2\n")
    assert said("put t -", "<&-") == (0, b"0 stored, last id 0\n")
    assert said("shell", "<&-") == (0, b"")
    refused = said("put t -", "0>/dev/null")
    assert refused == (
        5,
        b"flotilla: 0 stored, 0 kept in the outbox, stopped before line 1\n"
        b"flotilla: the input cannot be read: Bad file descriptor\n",
    )


def test_what_a_closed_pipe_did_not_take_comes_again(node: FakeNode, tmp_path: Path) -> None:
    with Client(node.endpoint, state_dir=tmp_path) as client:
        client.subscribe("t")
        client.publish_many("t", [b"x" * 1000] * 500)
    process = _process(node, tmp_path, "get", "t", "--all")
    assert process.stdout is not None
    assert process.stdout.readline() == b"x" * 1000 + b"\n"
    process.stdout.close()
    assert process.wait(10) == cli.PIPE_CLOSED
    assert process.stderr is not None
    assert process.stderr.read() == b""
    for pipe in (process.stdin, process.stderr):
        assert pipe is not None
        pipe.close()
    with Client(node.endpoint, state_dir=tmp_path) as client:
        delivery = client.get("t")
        assert delivery is not None
        assert delivery.first_id == 1
