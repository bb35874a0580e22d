"""`flotilla-keys`: what it makes, whom that lets in, and that no secret is told to anybody."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
import threading
from itertools import accumulate, count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cluster.keys import authority, cli
from cluster.keys.authority import Authority
from cluster.keys.directory import (
    CERTIFICATE,
    FILES,
    REVOKED,
    KeysDirectory,
    KeysError,
    NodeKeys,
    load,
)
from flotilla_client.errors import KeyUnusable
from flotilla_client.keys import from_z85, read_key

PASTE = "x" * 40  # 40 characters of Z85, as a secret


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    run(made, "init", "--cluster-id", "orders")
    for name in ("n1", "n2"):
        run(made, "node", name)
    run(made, "client", "app")
    return made


def run(directory: Path, command: str, *arguments: str) -> Result:
    result = CliRunner().invoke(
        cli.commands, [command, "--dir", str(directory), *arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    for secret in secrets(directory):
        assert secret not in result.output
    return result


def secrets(directory: Path) -> list[str]:
    found = [read_key(file).secret for file in directory.glob("clients/*.key")]
    lines = (directory / "server.key").read_text().splitlines()
    found += [line.split()[2] for line in lines if line.startswith("curve")]
    keys = (directory / "ca.pem").read_text().split("-----BEGIN PRIVATE KEY-----")[1:]
    return found + [key.split("-----END")[0].strip() for key in keys]


def refused(directory: Path, command: str, *arguments: str) -> str:
    with pytest.raises(KeysError) as caught:
        run(directory, command, *arguments)
    return str(caught.value)


def keys_of(directory: Path, node: str = "n1") -> NodeKeys:
    return load(directory / "nodes" / node, "orders", node)


def key_is_good(directory: Path, public: str) -> bool:
    return all(
        from_z85(public) in keys_of(directory, node).keyring.clients for node in ("n1", "n2")
    )


def test_files_are_their_owners_alone_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = tmp_path / "keys"
        run(made, "init", "--cluster-id", "orders")
        run(made, "node", "n1")
        run(made, "client", "app")
    finally:
        os.umask(before)
    modes = {each: stat.S_IMODE(each.stat().st_mode) for each in (made, *made.rglob("*"))}
    assert {mode for each, mode in modes.items() if each.is_dir()} == {0o700}
    assert {mode for each, mode in modes.items() if each.is_file()} == {0o600}
    assert {each.name for each in (made / "nodes" / "n1").iterdir()} == set(FILES)


def test_who_is_revoked_stays_so_when_the_power_fails(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[Path] = []  # and not durable yet
    real_replace, real_fsync = Path.replace, os.fsync

    def replace(here: Path, there: Path) -> Path:
        renamed.append(there.parent)
        return real_replace(here, there)

    def fsync(descriptor: int) -> None:
        synced = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        renamed[:] = [each for each in renamed if each != synced]
        real_fsync(descriptor)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    run(directory, "revoke", "client", "app")
    assert renamed == []


def test_a_node_gets_no_key_of_the_ca_and_none_of_a_client(directory: Path) -> None:
    text = "".join(file.read_text() for file in (directory / "nodes" / "n1").iterdir())
    ca_key = (directory / "ca.pem").read_text().split("-----BEGIN PRIVATE KEY-----")[1]
    assert ca_key.strip().splitlines()[1] not in text
    assert read_key(directory / "clients" / "app.key").secret not in text


def test_a_clients_key_is_changed_in_two_steps_and_revoked_in_one(directory: Path) -> None:
    file = directory / "clients" / "app.key"
    old = read_key(file)
    assert "has a new key" in run(directory, "rotate", "client", "app").output
    new = read_key(file)
    assert old.public != new.public
    assert old.server == new.server
    assert key_is_good(directory, old.public)
    assert key_is_good(directory, new.public)
    assert "two keys already" in refused(directory, "rotate", "client", "app")
    run(directory, "rotate", "client", "app", "--finish")
    assert not key_is_good(directory, old.public)
    assert key_is_good(directory, new.public)
    run(directory, "revoke", "client", "app")
    assert set(keys_of(directory).keyring.clients.values()) == {"admin"}
    assert not file.exists()
    assert "no client 'app'; there are: admin" in refused(directory, "revoke", "client", "app")
    run(directory, "client", "app")  # the name is free again
    assert not key_is_good(directory, new.public)


def test_the_servers_key_is_changed_in_two_steps(directory: Path) -> None:
    file = directory / "clients" / "app.key"
    old = read_key(file)
    run(directory, "rotate", "server")
    new = read_key(file)
    assert (old.public, old.secret) == (new.public, new.secret)
    servers = keys_of(directory).keyring.servers
    assert [each.public for each in servers] == [from_z85(new.server), from_z85(old.server)]
    assert "two keys already" in refused(directory, "rotate", "server")
    run(directory, "rotate", "server", "--finish")
    assert [each.public for each in keys_of(directory, "n2").keyring.servers] == [
        from_z85(new.server)
    ]


def test_a_nodes_certificate_is_changed_in_two_steps_and_revoked_in_one(directory: Path) -> None:
    old = keys_of(directory).tls.own.serial
    run(directory, "rotate", "node", "n1")
    new = keys_of(directory).tls.own.serial
    assert old != new
    assert keys_of(directory, "n2").tls.revoked == frozenset()
    run(directory, "rotate", "node", "n1", "--finish")
    assert keys_of(directory, "n2").tls.revoked == {old}
    run(directory, "revoke", "node", "n1")
    assert keys_of(directory, "n2").tls.revoked == {old, new}
    assert not (directory / "nodes" / "n1").exists()
    run(directory, "node", "n1")
    assert keys_of(directory).tls.own.serial not in {old, new}


def test_a_ca_is_not_given_up_before_every_node_has_a_certificate_of_the_new_one(
    directory: Path,
) -> None:
    run(directory, "rotate", "ca")
    assert "two CAs already" in refused(directory, "rotate", "ca")
    assert "node 'n1' has a certificate of the old CA" in refused(
        directory, "rotate", "ca", "--finish"
    )
    for name in ("n1", "n2"):
        run(directory, "rotate", "node", name)
    run(directory, "rotate", "ca", "--finish")
    assert (directory / "nodes" / "n1" / "ca.pem").read_text().count("BEGIN CERT") == 1


def test_a_recovered_cluster_has_certificates_for_its_new_id(directory: Path) -> None:
    run(directory, "rename", "orders-2")
    assert load(directory / "nodes" / "n1", "orders-2", "n1").tls.own.cluster_id == "orders-2"
    with pytest.raises(KeysError, match="is of node 'n1' of cluster 'orders-2', not of 'n1' of"):
        keys_of(directory)


def test_list_tells_what_there_is_and_no_secret(directory: Path) -> None:
    run(directory, "rotate", "client", "app")
    rows = json.loads(run(directory, "list", "--json").output)
    assert rows == [
        {"kind": "ca", "name": "orders", "keys": 1, "file": "ca.pem"},
        {"kind": "server", "name": "orders", "keys": 1, "file": "server.key"},
        {"kind": "node", "name": "n1", "keys": 1, "file": "nodes/n1"},
        {"kind": "node", "name": "n2", "keys": 1, "file": "nodes/n2"},
        {"kind": "client", "name": "admin", "keys": 1, "file": "clients/admin.key"},
        {"kind": "client", "name": "app", "keys": 2, "file": "clients/app.key"},
    ]
    assert run(directory, "list").output.count("\n") == 6


class BrokenOff(OSError):
    """The disk is full, or the command was killed."""


def broken_off_at(patched: pytest.MonkeyPatch, place: int) -> None:
    """Let no more than `place` files be written."""
    written, write = count(1), authority._write

    def refusing(file: Path, text: str) -> None:
        if next(written) > place:
            raise BrokenOff
        write(file, text)

    patched.setattr(authority, "_write", refusing)


def say_twice(directory: Path, place: int, *command: str) -> bool:
    """Say a command that is broken off there, and again; return whether it was broken off.

    The second one may be refused, where there is nothing left to do.
    """
    with pytest.MonkeyPatch.context() as patched:
        broken_off_at(patched, place)
        try:
            run(directory, *command)
        except BrokenOff:
            pass
        else:
            return False
    with contextlib.suppress(KeysError):
        run(directory, *command)
    return True


def test_a_revocation_that_was_broken_off_is_whole_when_it_is_said_again(directory: Path) -> None:
    broken = 0
    for place in range(20):
        if place:
            run(directory, "client", "app")
            run(directory, "node", "n1")
        stolen = read_key(directory / "clients" / "app.key").public
        serial = keys_of(directory).tls.own.serial
        broken += say_twice(directory, place, "revoke", "client", "app")
        for node in ("n1", "n2"):
            assert from_z85(stolen) not in keys_of(directory, node).keyring.clients, place
        broken += say_twice(directory, place, "revoke", "node", "n1")
        assert serial in keys_of(directory, "n2").tls.revoked, place
        assert not (directory / "nodes" / "n1").exists(), place
        run(directory, "list")
    assert broken > 6


def test_a_client_s_file_that_is_damaged_does_not_save_its_key(directory: Path) -> None:
    stolen = read_key(directory / "clients" / "app.key").public
    (directory / "clients" / "app.key").write_text("garbage")
    run(directory, "revoke", "client", "app")
    assert not key_is_good(directory, stolen)
    (directory / "clients" / "admin.key").write_text("garbage")
    with pytest.raises(KeyUnusable):
        run(directory, "revoke", "node", "n1")  # it says so, once the others know of it
    assert keys_of(directory, "n2").tls.revoked


def test_a_rotation_that_was_broken_off_puts_no_client_out(directory: Path) -> None:
    broken = 0
    for place in range(20):
        broken += say_twice(directory, place, "rotate", "client", "app")
        key = read_key(directory / "clients" / "app.key")
        assert key_is_good(directory, key.public), place
        broken += say_twice(directory, place, "rotate", "client", "app", "--finish")
        assert key_is_good(directory, key.public), place
        broken += say_twice(directory, place, "rotate", "server")
        newest = (directory / "server.key").read_text().splitlines()[1].split()[1]
        files = sorted(directory.glob("clients/*.key"))
        assert [read_key(file).server for file in files] == [newest] * 2, place
        run(directory, "rotate", "server", "--finish")
    assert broken > 10


def broken_off_before(name: str, directory: Path, *command: str) -> None:
    """Say a command that is broken off when a file of that name is to be written."""
    write = authority._write

    def refusing(file: Path, text: str) -> None:
        if file.name == name and not authority._says(file, text):
            raise BrokenOff
        write(file, text)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(authority, "_write", refusing)
        with pytest.raises(BrokenOff):
            run(directory, *command)


def is_let_in(directory: Path, node: str) -> bool:
    return keys_of(directory, "n2").tls.objection(keys_of(directory, node).tls.own) == ""


def test_a_rotation_that_was_broken_off_puts_no_node_out(directory: Path) -> None:
    broken_off_before(CERTIFICATE, directory, "rotate", "node", "n1")
    assert "`rotate node n1` again" in refused(directory, "rotate", "node", "n1", "--finish")
    assert is_let_in(directory, "n1")
    run(directory, "rotate", "node", "n1")
    run(directory, "rotate", "node", "n1", "--finish")
    assert is_let_in(directory, "n1")
    assert "node    n1                               1  nodes/n1" in run(directory, "list").output


def test_a_node_whose_making_was_broken_off_is_made_when_it_is_said_again(directory: Path) -> None:
    broken_off_before(CERTIFICATE, directory, "node", "n3")
    assert "node 'n3' has none" in refused(directory, "rotate", "ca", "--finish")
    run(directory, "node", "n3")
    assert is_let_in(directory, "n3")


def test_a_node_whose_revocation_was_broken_off_has_no_certificate_to_finish(
    directory: Path,
) -> None:
    broken_off_before(REVOKED, directory, "revoke", "node", "n1")
    assert "`rotate node n1` again" in refused(directory, "rotate", "node", "n1", "--finish")


def test_a_beginning_that_was_broken_off_anywhere_has_the_administrator_s_key_in_the_end(
    tmp_path: Path,
) -> None:
    for place in count():
        made = tmp_path / str(place)
        was_broken_off = say_twice(made, place, "init", "--cluster-id", "orders")
        run(made, "node", "n1")
        admin = read_key(made / "clients" / "admin.key")
        keyring = keys_of(made).keyring
        assert keyring.clients == {from_z85(admin.public): "admin"}, place
        assert from_z85(admin.server) == keyring.servers[0].public, place
        if not was_broken_off:
            break
    assert place > 4


def test_keys_are_not_made_where_others_may_put_theirs_in_their_place(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(KeysError, match="may be written by others: chmod 700"):
        Authority.create(tmp_path, "orders")
    assert list(tmp_path.iterdir()) == []


def test_half_of_the_operator_s_list_is_no_shorter_list(directory: Path) -> None:
    """Who stood behind the cut was put out with the next command."""
    file = directory / "authorized_clients"
    whole = file.read_text()
    file.write_text(whole[: whole.index("app")])
    assert "is not whole" in refused(directory, "client", "late")
    assert "is not whole" in refused(directory, "list")
    assert set(keys_of(directory).keyring.clients.values()) == {"admin", "app"}
    file.write_text(whole)
    run(directory, "client", "late")


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("cluster.json", "{", "list"),
        ("cluster.json", "[]", "list"),
        ("cluster.json", "{}", "client x"),
        ("authorized_clients", "one two three\n", "list"),
        ("server.key", "# nothing\n", "client x"),
        ("ca.pem", "", "node n3"),
        ("ca.pem", "-----BEGIN -----END PRIVATE KEY-----\n", "node n3"),
        ("nodes/n1/node.pem", "x", "rotate ca --finish"),
    ],
)
def test_the_operator_s_files_are_read_strictly(
    directory: Path, name: str, text: str, command: str
) -> None:
    (directory / name).write_text(text)
    assert f"{directory / name}: " in refused(directory, *command.split())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("init", "--cluster-id", "orders"), "has the keys of a cluster already"),
        (("client", "app"), "there is a client 'app'"),
        (("node", "n1"), "there is a node 'n1'"),
        (("client", "../../etc"), "is not 1 to 32 of a-z, 0-9 and -"),
        (("node", "N1"), "is not 1 to 32 of a-z, 0-9 and -"),
        (("rotate", "client", "nobody"), "no client 'nobody'; there are: admin, app"),
        (("revoke", "node", ".."), "no node '..'; there are: n1, n2"),
    ],
)
def test_what_can_not_be_done_says_why(
    directory: Path, arguments: tuple[str, ...], reason: str
) -> None:
    before = {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    assert reason in refused(directory, *arguments)
    assert before == {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("rotate", "client"), "whose? rotate client NAME"),
        (("rotate", "ca", "n1"), "there is one ca key"),
        (("revoke", "server", "x"), "rotate server, then --finish"),
        (("rotate", "nose"), "'nose' is not one of"),
    ],
)
def test_wrong_usage_is_told(directory: Path, arguments: tuple[str, ...], reason: str) -> None:
    command, *rest = arguments
    result = CliRunner().invoke(cli.commands, [command, "--dir", str(directory), *rest])
    assert result.exit_code == 2
    assert reason in result.output


def test_an_error_of_the_command_is_one_line_and_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["flotilla-keys", "list", "--dir", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    err = capsys.readouterr().err
    assert err == (
        f"flotilla-keys: {tmp_path / 'none'} has no keys of a cluster; `flotilla-keys init` makes"
        " them\n"
    )


def test_a_full_disk_is_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write's, it names no file

    monkeypatch.setattr(cli, "commands", full)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "flotilla-keys: No space left on device\n"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("ca.pem", "", "ca.pem"),
        ("ca.pem", None, "No such file"),
        ("node.pem", "-----BEGIN", "node.pem"),
        ("server.key", "", "is not whole"),
        ("server.key", "# nothing\n", "0 keys; 1 or 2 are due"),
        ("authorized_clients", "", "is not whole"),
        ("revoked", "", "is not whole"),
        ("server.key", f"curve {PASTE}\n", "line 1 is not: curve PUBLIC SECRET"),
        ("server.key", f"{PASTE} {PASTE}\n", "line 1"),
        ("server.key", f"curve {PASTE} {PASTE}\n", "line 1"),
        ("authorized_clients", f"app {PASTE[1:]}\n", "line 1: 39 characters"),
        ("authorized_clients", f"App {PASTE}\n", "line 1"),
        ("authorized_clients", "app\n", "line 1: 0 characters"),
    ],
)
def test_a_nodes_directory_is_read_strictly_and_its_secrets_stay_in_it(
    directory: Path, name: str, text: str | None, reason: str
) -> None:
    file = directory / "nodes" / "n1" / name
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with pytest.raises(KeysError, match=reason) as caught:
        keys_of(directory)
    assert PASTE not in str(caught.value)


def test_one_key_has_one_name(directory: Path) -> None:
    file = directory / "nodes" / "n1" / "authorized_clients"
    file.write_text(file.read_text() + file.read_text().replace("app ", "other "))
    with pytest.raises(KeysError, match="the key of app is not other's"):
        keys_of(directory)


def test_another_nodes_directory_is_refused(directory: Path) -> None:
    with pytest.raises(KeysError, match="is of node 'n2' of cluster 'orders', not of 'n1'"):
        load(directory / "nodes" / "n2", "orders", "n1")


def test_a_certificate_that_the_others_would_not_believe_is_refused(
    directory: Path, tmp_path: Path
) -> None:
    foreign = Authority.create(tmp_path / "foreign", "orders").node("n1")
    (directory / "nodes" / "n1" / "node.pem").write_bytes((foreign / "node.pem").read_bytes())
    with pytest.raises(KeysError, match="certificate verify failed"):
        keys_of(directory)


def look(keys: KeysDirectory, now: float, asked: bool = False) -> bool:
    """Look, and once more when what that began to read has been read."""
    is_new = keys.look(now, asked)
    if keys._reader is None:
        return is_new
    assert not is_new
    keys._reader.join()
    return keys.look(now, asked=False)


def test_a_directory_is_read_again_when_it_changed_or_somebody_asks(directory: Path) -> None:
    keys = KeysDirectory(directory / "nodes" / "n1", "orders", "n1")
    assert not look(keys, 0.0, asked=False)
    run(directory, "client", "late")
    assert not look(keys, 0.5, asked=False)  # it looks once a second
    assert look(keys, 1.0, asked=False)
    assert set(keys.keys.keyring.clients.values()) == {"admin", "app", "late"}
    assert not look(keys, 2.0, asked=False)
    assert look(keys, 2.1, asked=True)


def test_keys_that_no_thread_can_read_now_are_read_when_one_can(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KeysDirectory(directory / "nodes" / "n1", "orders", "n1")
    run(directory, "client", "late")

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeysError, match="can't start new thread"):
            keys.look(0.0, asked=True)
        assert not keys.look(0.5, asked=False), "it is not tried in each turn"
    assert look(keys, 1.0)
    assert "late" in keys.keys.keyring.clients.values()


@pytest.mark.parametrize("name", ["authorized_clients", "revoked", "server.key"])
def test_half_a_copy_is_none_wherever_it_is_cut(directory: Path, name: str) -> None:
    """Cut behind a line, it was a shorter list: whose lines came later were put out."""
    run(directory, "rotate", "node", "n1")
    run(directory, "rotate", "node", "n1", "--finish")
    run(directory, "rotate", "server")
    file = directory / "nodes" / "n1" / name
    whole = file.read_text()
    ends = accumulate(map(len, whole.splitlines(keepends=True)))
    for size in sorted({*range(0, len(whole), 29), *ends} - {len(whole)}):
        file.write_text(whole[:size])
        with pytest.raises(KeysError):
            keys_of(directory)
    file.write_text(whole)
    assert keys_of(directory)


def test_files_of_before_that_have_no_end_are_read(directory: Path) -> None:
    for name in ("authorized_clients", "revoked", "server.key"):
        file = directory / "nodes" / "n1" / name
        lines = file.read_text().splitlines()[1:-1]
        file.write_text("\n".join(["# Made by flotilla-keys; one a line.", *lines, ""]))
    assert set(keys_of(directory).keyring.clients.values()) == {"admin", "app"}


def test_keys_that_become_unusable_change_nothing_until_they_are_whole(directory: Path) -> None:
    keys = KeysDirectory(directory / "nodes" / "n1", "orders", "n1")
    before = keys.keys
    file = directory / "nodes" / "n1" / "authorized_clients"
    whole = file.read_text()
    file.write_text(whole[:-5])
    with pytest.raises(KeysError):
        look(keys, 1.0, asked=False)
    assert not look(keys, 2.0, asked=False)  # told once
    assert keys.keys is before
    file.write_text(whole + "# whole\n")
    assert look(keys, 3.0, asked=False)
