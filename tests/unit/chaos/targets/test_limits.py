"""Where targets refuse, and say why: too little, too late, or not on this machine."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from chaos.targets import (
    Links,
    LosesPower,
    TargetError,
    commands,
    disks,
    leftovers,
    namespaces,
    privileges,
    recovery,
)
from chaos.targets.compose import ComposeTarget
from chaos.targets.local import LocalTarget
from chaos.targets.namespaces import NamespacesTarget
from chaos.targets.recovery import TargetRecovery
from cluster.log.journal import Journal

RNG = random.Random(1)


# --- disks ----------------------------------------------------------------------------------------


def test_a_journal_without_proof_and_one_of_one_file_are_not_damaged(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="nothing is proved to be durable"):
        disks.flip_bit(tmp_path, RNG)
    journal(tmp_path, entries=3)
    before = [file.read_bytes() for file in disks.journal_files(tmp_path)]
    with pytest.raises(TargetError, match="the journal has one file"):
        disks.truncate(tmp_path, RNG)
    assert [file.read_bytes() for file in disks.journal_files(tmp_path)] == before


def test_damage_goes_where_bytes_were_durable(tmp_path: Path) -> None:
    journal(tmp_path, entries=3)
    before = disks.journal_files(tmp_path)[0].read_bytes()
    where = disks.flip_bit(tmp_path, RNG)
    after = disks.journal_files(tmp_path)[0].read_bytes()
    [at] = [at for at in range(len(before)) if before[at] != after[at]]
    assert (before[at] ^ after[at]).bit_count() == 1
    assert f"byte {at}" in where
    assert disks.last_index(tmp_path / "none") == 0


def test_the_last_index_is_that_of_the_journal_s_last_entry(tmp_path: Path) -> None:
    last = journal(tmp_path, entries=5)
    assert disks.last_index(tmp_path) == last


def journal(directory: Path, entries: int) -> int:
    """Make a journal of one file, each entry synced; return the last one's index."""
    Journal.create(directory / "journal")
    made = Journal.open(directory / "journal")
    for index in range(1, 1 + entries):
        made.add(b"\0" + bytes([index]) * 50, index, 1)
        made.sync()
    last = made.last_index
    made.close()
    return last


# --- waiting --------------------------------------------------------------------------------------


def test_waiting_for_a_node_that_never_comes_back_ends_and_shows_the_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "BACK_S_MAX", 0.15)
    fresh: Mapping[str, Mapping[str, Any]] = {"n1": {"role": "joining"}}
    waiting = TargetRecovery(["n1", "n2", "n3"], lambda: fresh, lambda: "the logs' ends")
    waiting.lose(["n1"])
    with pytest.raises(TargetError, match=r"(?s)0.15 s in vain for \['n1'\].*the logs' ends"):
        waiting.await_whole()
    with pytest.raises(TargetError, match="n1 to be back"):
        waiting.await_back("n1")


def test_of_five_nodes_two_may_be_without_their_disks_until_they_are_members_again() -> None:
    bodies: dict[str, dict[str, Any]] = {}
    waiting = TargetRecovery(["n1", "n2", "n3", "n4", "n5"], lambda: bodies)
    waiting.lose(["n1", "n2"])
    with pytest.raises(TargetError, match=r"\['n1', 'n2', 'n3'\] without their disks"):
        waiting.lose(["n3"])
    assert waiting.unsound == {"n1", "n2"}
    bodies |= {"n1": {"role": "follower"}, "n2": {"role": "leader"}}
    waiting.await_whole()
    waiting.lose(["n3"])


def test_a_disk_counts_as_it_did_if_taking_it_away_fails() -> None:
    waiting = TargetRecovery(["n1", "n2", "n3", "n4", "n5"], dict)
    waiting.lose(["n1"])
    with pytest.raises(TargetError, match="no bytes"), waiting.losing(["n2"]):
        raise TargetError("no bytes")
    assert waiting.unsound == {"n1"}
    with waiting.losing(["n2"]):
        pass
    assert waiting.unsound == {"n1", "n2"}


# --- machines -------------------------------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, *tools: str) -> None:
    """Let this machine lack some tools, and have root and all that root may do."""
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool in tools else which(tool) or "x")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(privileges, "lacking", lambda status: [])


def test_namespaces_without_root_or_tools_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without(monkeypatch, "ip", "iptables")
    with pytest.raises(TargetError, match="apt-get install iproute2 iptables"):
        NamespacesTarget(tmp_path, 3)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(TargetError, match="need root; the target local does not"):
        NamespacesTarget(tmp_path, 3)


def status(*bits: int) -> str:
    """Return what /proc/PID/status says of a process with these capabilities."""
    mask = f"{sum(1 << bit for bit in bits):016x}"
    return f"Name:\tpython\nCapPrm:\t{'f' * 16}\nCapEff:\t{mask}\nCapBnd:\t{'f' * 16}\n"


def test_root_without_capabilities_is_told_which_and_how_a_container_gets_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(privileges, "STATUS", tmp_path / "status")
    for bits, told in (
        ((12, 21, 37), ""),
        ((21,), "need CAP_NET_ADMIN, which .* docker run --cap-add NET_ADMIN …$"),
        ((12,), "need CAP_SYS_ADMIN, .* --cap-add SYS_ADMIN --security-opt apparmor=unconfined …$"),
        ((), "CAP_NET_ADMIN and CAP_SYS_ADMIN, .*--cap-add NET_ADMIN --cap-add SYS_ADMIN --sec"),
    ):
        (tmp_path / "status").write_text(status(*bits))
        with ExitStack() as stack:
            if told:
                stack.enter_context(pytest.raises(TargetError, match=told))
            privileges.check_networking("these")


@pytest.mark.root
@pytest.mark.needs("setpriv", "ip", "iptables")
def test_a_run_by_root_in_a_plain_container_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    bare = ("setpriv", "--bounding-set", "-net_admin,-sys_admin")
    run = (sys.executable, "-m", "chaos", "run", "none", "--target", "namespaces")
    done = subprocess.run(
        [*bare, *run, "--out", str(tmp_path / "new")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert "--cap-add NET_ADMIN --cap-add SYS_ADMIN" in done.stderr
    assert "ip netns" not in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.root
@pytest.mark.needs("unshare", "ip", "iptables")
def test_root_that_a_system_does_not_let_build_networks_is_told_so_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    of_nobody = ("unshare", "--user", "--map-root-user")  # all capabilities, over nothing here
    run = (sys.executable, "-m", "chaos", "run", "none", "--target", "namespaces")
    done = subprocess.run(
        [*of_nobody, *run, "--out", str(tmp_path / "new")],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 2, done.stderr
    told = " ".join(done.stderr.split())
    assert "this system does not let its root build networks; in a container, start it" in told
    assert "--cap-add NET_ADMIN --cap-add SYS_ADMIN --security-opt apparmor=unconfined" in told
    assert list(tmp_path.glob("flotilla-chaos-*/*.json")) == []
    label = f"flotilla-{zlib.crc32(bytes(tmp_path / 'new' / 'cluster')):08x}"
    assert not list(Path("/run/netns").glob(f"{label}-*"))
    assert leftovers.host_interface(label) not in os.listdir("/sys/class/net")


def test_no_free_network_is_told_and_used_ones_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespaces, "output", lambda *_: "1: a inet 10.213.7.1/24 scope global")
    assert namespaces._free_subnet(7) == 8
    monkeypatch.setattr(
        namespaces, "output", lambda *_: " ".join(f" 10.213.{n}." for n in range(256))
    )
    with pytest.raises(TargetError, match="no part of 10"):
        namespaces._free_subnet(7)


def test_a_command_that_fails_is_told_with_its_words_and_its_input() -> None:
    with pytest.raises(TargetError, match=r"(?s)No such file.*the input"):
        commands.output(["ls", "/nonexistent"], "the input")


def test_what_somebody_else_has_just_removed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(command: Sequence[str]) -> str:
        raise TargetError(" ".join(command))

    monkeypatch.setattr(leftovers, "output", fails)
    leftovers._remove("netns", "x", lambda name: False)
    with pytest.raises(TargetError, match="ip netns delete x"):
        leftovers._remove("netns", "x", lambda name: True)


def test_compose_refuses_networks_without_root_or_tools_before_it_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = ComposeTarget(3, lambda arguments: "")
    target.equip([])
    without(monkeypatch, "nsenter")
    with pytest.raises(TargetError, match="apt-get install util-linux iptables"):
        target.equip([Links])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(TargetError, match="need root"):
        target.equip([Links])


def test_local_refuses_faults_of_disks_without_a_compiler_before_it_is_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without(monkeypatch, "cc")
    target = LocalTarget(tmp_path / "cluster", 3)
    target.equip([])
    with pytest.raises(TargetError, match="apt-get install gcc libc6-dev"):
        target.equip([LosesPower])
    assert not (tmp_path / "cluster").exists()
