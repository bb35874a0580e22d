"""Quotas of a real node: a rate is waited for by the library, a count is an error."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flotilla_client import Client
from tests.cluster.by_hand import ByHand
from tests.conftest import ClusterFactory

PER_S = 20
PATIENCE_S = 30.0


def test_a_rate_makes_a_client_wait_and_nothing_of_what_it_puts_is_lost(
    local_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = local_cluster(1, {"quotas.requests_per_s_max": PER_S})
    endpoints = list(cluster.endpoints().values())
    with Client(endpoints, state_dir=tmp_path / "state") as client:
        client.subscribe("t")
        began = time.monotonic()
        ids = [client.publish("t", str(number)).id for number in range(3 * PER_S)]
        assert time.monotonic() - began >= 3 - 1 - 0.5  # the first second's worth is there at once
        assert ids == list(range(1, 3 * PER_S + 1))
    with ByHand(endpoints[0]) as hand:
        bodies = [hand.ask("STATUS")["body"] for _ in range(3 * PER_S)]
    refused = [body for body in bodies if "error" in body]
    assert {body["error"] for body in refused} == {"quota"}
    assert {body["quota"] for body in refused} == {"requests_per_s_max"}
    assert all(0 < body["retry_after_ms"] <= 1000 for body in refused)
    assert '"quota_refused"' in cluster.log_file("n1").read_text()


def test_a_connection_too_many_is_told_so(local_cluster: ClusterFactory) -> None:
    cluster = local_cluster(1, {"quotas.connections_max": 3})
    [endpoint] = cluster.endpoints().values()

    def asked() -> list[dict[str, Any]]:
        with ExitStack() as stack:
            hands = [stack.enter_context(ByHand(endpoint)) for _ in range(4)]
            return [hand.ask("STATUS")["body"] for hand in hands]

    # Connections of who has just gone may still be there: of ours, or of who started the cluster.
    give_up_at = time.monotonic() + PATIENCE_S
    answers = asked()
    while [body.get("error") for body in answers] != [None, None, None, "quota"]:
        assert time.monotonic() < give_up_at, answers
        answers = asked()
    assert answers[3]["quota"] == "connections_max"
    assert answers[3]["limit"] == 3
