"""Compress files until nothing came for some seconds: `compress.py DIRECTORY [IDLE_S]`."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

from flotilla_client import Client

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")


def compress(file: Path, into: Path) -> None:
    """Compress a file; whoever does it twice, or dies in the middle, harms nothing."""
    aside = into / f".{file.name}.{os.getpid()}"  # hidden: kill -9 leaves it behind
    aside.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
    aside.replace(into / f"{file.name}.gz")


def main(into: Path, idle_s: float | None = None) -> None:
    into.mkdir(exist_ok=True)
    with Client(NODES) as client:
        jobs = client.work("files", group="compress", lease=2, prefetch=4, idle=idle_s)
        with jobs:
            for job in jobs:
                compress(Path(job.publication.decode()), into)
                print(f"job {job.id}, attempt {job.attempt}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
