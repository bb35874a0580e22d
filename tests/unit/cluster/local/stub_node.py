"""Stands in for a node process in the tests of `cluster/local`: `stub_node.py --config FILE`.

It reads its configuration, answers STATUS on its client port, and leads while it holds a file
lock that all stubs of the cluster compete for, so that the next one leads when it dies. SIGTERM
ends it, except when the file `deaf` stands in the cluster's directory. What is asked of an UPGRADE
is noted in the file `upgrades` there, a line each.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from pathlib import Path

import zmq

from cluster.keys.directory import SERVER_KEY
from cluster.settings.config import load
from flotilla_client.protocol import ACK, UPGRADE, Reply, decode_request, encode_reply


def main() -> None:
    config = load(Path(sys.argv[sys.argv.index("--config") + 1]), os.environ)
    directory = config.data_dir.parents[1]
    if (directory / "deaf").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    config.data_dir.mkdir(parents=True, exist_ok=True)
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    if config.keys_dir:
        lines = (Path(config.keys_dir) / SERVER_KEY).read_text().splitlines()
        socket.curve_server = True
        socket.curve_secretkey = lines[1].split()[2].encode()
    socket.bind(f"tcp://{config.client_listen}")
    with (directory / "leader.lock").open("w") as lock:
        while True:
            client, _, *frames = socket.recv_multipart()
            request = decode_request(frames)
            if request.type == UPGRADE:
                with (directory / "upgrades").open("a") as upgrades:
                    upgrades.write(f"{json.dumps(request.body)}\n")
            body = {"node": config.node, "role": _role(lock.fileno()), "term": 1}
            reply = Reply(ACK, request.request_id, config.node, "", 1, body)
            socket.send_multipart([client, b"", *encode_reply(reply)])


def _role(lock: int) -> str:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "follower"
    return "leader"


if __name__ == "__main__":
    main()
