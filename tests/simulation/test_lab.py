"""The cluster in one process does what the real one promises."""

from __future__ import annotations

from pathlib import Path

from flotilla_client.protocol import Request
from tests.simulation.lab import Lab


def client(lab: Lab, node: str) -> str:
    return str(lab.ask(node, Request("REQUEST_ID", "")).body["client_id"])


def put(client_id: str, counter: int, text: str) -> Request:
    return Request("PUT", "", "t", client_id, body={"counter": counter, "publication": text})


def test_three_fresh_nodes_found_a_cluster_and_serve(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.start()
    leader = lab.elect()
    other = next(name for name in lab.names if name != leader)
    me = client(lab, other)
    assert lab.ask(leader, Request("SUB", "", "t", me)).body["last_id"] == 0
    for counter in range(1, 20):
        reply = lab.ask(lab.names[counter % 3], put(me, counter, f"p{counter}"))
        assert reply.ok, reply
        assert reply.body == {"id": counter, "count": 1, "duplicate": False, "stored": True}
    got = lab.ask(other, Request("GET", "", "t", me, body={"text": True}))
    assert got.body["publication"] == "p1"
