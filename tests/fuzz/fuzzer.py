"""Looks for inputs that break a target: atheris (libFuzzer), guided by which lines an input runs.

Each target is fuzzed in a process of its own, for its readers have to be imported while atheris
watches. What is new in what it found joins the corpus; an input that breaks the target is written
to runs/fuzz/TARGET/, and the exit code is 1. What must not live here: targets and corpora.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from chaos.terminal.options import Named
from tests.fuzz.corpora import CORPUS, made
from tests.fuzz.targets import INPUT_BYTES_MAX, TARGETS

FOUND: Final = Path("runs/fuzz")
WAIT_S: Final = 60.0  # beyond the time it was given, a fuzzer has to end
ONE_INPUT_S: Final = 10  # an input that takes longer is a finding
MEMORY_MIB: Final = 2048  # so is one that takes more
ALONE: Final = Path(__file__).with_name("alone.py")


def run(target: str, *arguments: str | Path, timeout_s: float) -> bool:
    """Let libFuzzer work on a target; return whether it ended well. Its words go to stderr."""
    command = [ALONE, f"-max_len={INPUT_BYTES_MAX}", *arguments]
    own = os.environ | {
        "FUZZ_TARGET": target,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    }
    ended = subprocess.run(list(map(str, command)), env=own, timeout=timeout_s, check=False)
    return ended.returncode == 0


def look(target: str, seconds: int, seed: int) -> bool:
    """Fuzz a target and keep what is new; return whether nothing was found."""
    artifacts = FOUND / target
    artifacts.mkdir(parents=True, exist_ok=True)
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as least:
        for place, data in enumerate(made(target)):
            (Path(work) / f"made-{place}").write_bytes(data)
        limits = (
            f"-max_total_time={seconds}", f"-seed={seed}", f"-timeout={ONE_INPUT_S}",
            f"-rss_limit_mb={MEMORY_MIB}", f"-artifact_prefix={artifacts}/", "-print_final_stats=1",
        )  # fmt: skip
        if not run(target, *limits, work, CORPUS / target, timeout_s=seconds + WAIT_S):
            return False
        merged = ("-merge=1", least, work, CORPUS / target)
        if not run(target, *merged, timeout_s=seconds + WAIT_S):
            return False
        shutil.rmtree(CORPUS / target)
        shutil.copytree(least, CORPUS / target)
    return True


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("targets", nargs=-1, type=Named("target", TARGETS))
@click.option("--seconds", type=click.IntRange(1), default=60, show_default=True, help="A target.")
@click.option("--seed", type=click.IntRange(1), default=1, show_default=True)
def main(targets: tuple[str, ...], seconds: int, seed: int) -> None:
    """Fuzz what reads the bytes of strangers and of disks; all targets unless some are named."""
    broken = [each for each in targets or TARGETS if not look(each, seconds, seed)]
    if broken:
        click.echo(f"broken: {', '.join(broken)}; the inputs are in {FOUND}", err=True)
    sys.exit(bool(broken))
