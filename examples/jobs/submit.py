"""Submit a job for each file: `submit.py FILE...`."""

from __future__ import annotations

import os
import sys

from flotilla_client import Client

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")


def main(files: list[str]) -> None:
    with Client(NODES) as client:
        client.make_group("files", "compress", lease=2)
        jobs = [client.publish_soon("files", os.path.abspath(file)) for file in files]
        for job in jobs:
            job.result()  # it is on the disks of a majority, or this raises
    print(f"{len(jobs)} jobs")


if __name__ == "__main__":
    main(sys.argv[1:])
