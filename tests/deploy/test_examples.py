"""Claims about what `deploy/` gives to be copied. No engine is needed for these."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from cluster.keys.directory import load as load_keys
from cluster.local.local import LocalCluster
from cluster.settings.config import SETTINGS, load
from tests.conftest import running
from tests.deploy import engine
from tests.waiting import until

EXAMPLE: Final = engine.ROOT / "deploy" / "node.example.toml"
PROBE: Final = engine.ROOT / "deploy" / "healthy.sh"
ASKED: Final = engine.ROOT / "deploy" / "asked.sh"
TOUCHED_S: Final = 20.0  # a second, and a busy machine


def test_example_is_a_configuration_that_a_node_takes() -> None:
    config = load(EXAMPLE, {})
    assert config.node in config.members


def test_what_the_example_calls_a_default_is_the_default() -> None:
    sections = {k: v for k, v in tomllib.loads(EXAMPLE.read_text()).items() if k != "members"}
    shown = {
        f"{section}.{name}": value
        for section, settings in sections.items()
        if isinstance(settings, dict)
        for name, value in settings.items()
    }
    assert shown
    assert shown == {key: SETTINGS[key].default for key in shown}


def test_the_probe_of_the_image_starts_no_python_and_is_kept_in_the_image() -> None:
    dockerfile = (engine.ROOT / "deploy" / "Dockerfile").read_text()
    assert 'CMD ["flotilla-healthy"]' in dockerfile
    assert "COPY deploy/healthy.sh /usr/local/bin/flotilla-healthy" in dockerfile
    assert os.access(PROBE, os.X_OK)
    assert PROBE.read_text().startswith("#!/bin/sh\n")


def test_the_first_start_of_the_compose_file_makes_keys_and_the_next_ones_none(
    tmp_path: Path,
) -> None:
    script, dockerfile = engine.ROOT / "deploy" / "keys.sh", engine.ROOT / "deploy" / "Dockerfile"
    assert os.access(script, os.X_OK)
    assert "COPY deploy/keys.sh /usr/local/bin/flotilla-first-keys" in dockerfile.read_text()
    keys = tmp_path / "keys"
    mine = tmp_path / "keys.sh"
    mine.write_text(script.read_text().replace("dir=/var/lib/flotilla-keys", f"dir={keys}"))
    command = tmp_path / "flotilla-keys"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m cluster.keys.cli "$@"\n')
    command.chmod(0o755)
    environ = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "FLOTILLA_CLUSTER_ID": "compose",
    }
    made: list[dict[Path, bytes]] = []
    for _ in range(2):
        said = subprocess.check_output(["/bin/sh", str(mine)], env=environ, text=True)
        made.append({file: file.read_bytes() for file in keys.rglob("*") if file.is_file()})
        assert f"exec -T n1 cat {keys}/clients/app.key > app.key" in said
    assert made[0] == made[1]
    assert (keys / "new-cluster").exists()
    for node in ("n1", "n2", "n3"):
        assert load_keys(keys / "nodes" / node, "compose", node).keyring.clients


def test_only_a_new_cluster_s_level_is_raised_and_tries_go_on_until_all_nodes_have_met(
    tmp_path: Path,
) -> None:
    script = engine.ROOT / "deploy" / "level.sh"
    assert os.access(script, os.X_OK)
    keys, calls, mark = tmp_path / "keys", tmp_path / "calls", tmp_path / "keys" / "new-cluster"
    keys.mkdir()
    mine = tmp_path / "level.sh"
    mine.write_text(script.read_text().replace("dir=/var/lib/flotilla-keys", f"dir={keys}"))
    for name, text in (
        ("flotilla", f'echo "$@" >> {calls}; [ $(wc -l < {calls}) = 3 ]'),  # the third time it does
        ("sleep", "exit 0"),
    ):
        command = tmp_path / name
        command.write_text(f"#!/bin/sh\n{text}\n")
        command.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    subprocess.run(["/bin/sh", str(mine)], env=environ, check=True)
    assert not calls.exists(), "a cluster that is not new was asked"

    mark.touch()
    subprocess.run(["/bin/sh", str(mine)], env=environ, check=True)
    assert calls.read_text().splitlines() == [f"--key {keys}/clients/admin.key upgrade"] * 3
    assert not mark.exists()


def probed(file: Path) -> int:
    environ = {"PATH": "/usr/bin:/bin", "FLOTILLA_HEALTH_FILE": str(file)}
    return subprocess.run([PROBE], env=environ, check=False, stdout=subprocess.DEVNULL).returncode


def test_a_node_is_healthy_while_its_loop_turns(
    local_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    file = tmp_path / "health"
    assert probed(file) == 1  # no node yet
    cluster = local_cluster(1, settings={"health_file": str(file)})
    assert probed(file) == 0
    os.utime(file, (0, 0))
    assert probed(file) == 1
    end_s = time.monotonic() + TOUCHED_S
    while probed(file) and time.monotonic() < end_s:
        time.sleep(0.05)  # it touches the file again within a second; there is no event to await
    assert probed(file) == 0
    cluster.kill("n1", "STOP")
    os.utime(file, (time.time() - 29, time.time() - 29))
    assert probed(file) == 0
    os.utime(file, (time.time() - 31, time.time() - 31))
    assert probed(file) == 1
    cluster.kill("n1", "CONT")


def asked(page: str) -> tuple[int, str]:
    """Ask a page as the compose file's health check does; return its exit code and words."""
    environ = {"PATH": "/usr/bin:/bin", "FLOTILLA_HTTP_LISTEN": page.removeprefix("http://")}
    done = subprocess.run([ASKED], env=environ, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_compose_file_asks_healthz_on_a_loopback_that_no_port_leads_to() -> None:
    compose = (engine.ROOT / "deploy" / "compose.yaml").read_text()
    dockerfile = (engine.ROOT / "deploy" / "Dockerfile").read_text()
    assert "COPY deploy/asked.sh /usr/local/bin/flotilla-asked" in dockerfile
    assert "!deploy/asked.sh" in (engine.ROOT / ".dockerignore").read_text().splitlines()
    assert "test: [CMD, flotilla-asked]" in compose
    assert "FLOTILLA_HTTP_LISTEN: 127.0.0.1:7200 " in compose
    assert os.access(ASKED, os.X_OK)
    assert "7200" not in compose.replace("FLOTILLA_HTTP_LISTEN: 127.0.0.1:7200 ", "")


@pytest.mark.slow  # it waits as long as a health check does
def test_a_node_with_keys_is_asked_without_a_token_and_a_frozen_one_is_ill(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", 1, keys=True, pages=True) as cluster:
        page = cluster.pages()["n1"]
        assert asked(page) == (0, "")
        cluster.kill("n1", "STOP")
        code, said = asked(page)
        assert (code, "no answer in 10 s" in said) == (1, True), said
        cluster.kill("n1", "CONT")
        until(lambda: asked(page)[0] == 0)
    assert asked(page)[0] == 1  # nobody listens


def test_a_node_that_calls_itself_ill_is_ill_and_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as heard:
                while heard.readline().strip():  # it comes line by line
                    pass
                connection.sendall(b"HTTP/1.1 503 \r\n\r\nthe loop has not turned for 31 s\n")

        threading.Thread(target=answer, daemon=True).start()
        code, said = asked(f"127.0.0.1:{listener.getsockname()[1]}")
    assert code == 1
    assert "503" in said
    assert "the loop has not turned for 31 s" in said


def test_a_node_that_closes_at_once_has_not_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
        code, said = asked(f"127.0.0.1:{listener.getsockname()[1]}")
    assert code == 1
    assert "no answer" in said
