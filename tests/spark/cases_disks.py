"""Histories about what stood on the nodes' disks at the end."""

from tests.spark.cases import EvidenceRow, Expected, case, row
from tests.spark.histories import RunRecorder

OTHER = "0123456789abcdef"
SAME = "fedcba9876543210"

# --- replica_divergence ---------------------------------------------------------------------------


def half(run: RunRecorder, counter: int, node: str) -> EvidenceRow:
    """Return that a node has taken a part of a batch alone, up to that counter."""
    return row(run, producer="p", counter=counter, detail=f"taken {node}")


@case
def nodes_that_hold_different_entries_at_an_index_diverge(run: RunRecorder) -> Expected:
    run.disk("a", "b", "c")
    run.found_on("abc", "entry", index=1, term=1, digest=SAME)
    run.found_on("ab", "entry", index=2, term=1, digest=SAME)
    run.found_on("c", "entry", index=2, term=2, digest=SAME)
    run.found_on("a", "entry", index=3, term=2, digest=SAME)
    run.found_on("b", "entry", index=3, term=2, digest=OTHER)
    terms = "entry: a/1/fedcba98 c/2/fedcba98"
    digests = "entry: b/2/01234567 a/2/fedcba98"
    return {
        "replica_divergence": [
            row(run, topic=None, id=2, detail=terms),
            row(run, topic=None, id=3, detail=digests),
        ]
    }


@case
def nodes_in_different_states_at_one_index_diverge(run: RunRecorder) -> Expected:
    run.disk("a", "b", "c")
    run.found_on("ab", "state", index=7, digest=SAME)
    run.found_on("c", "state", index=6, digest=OTHER)
    run.found_on("c", "state", index=7, digest=OTHER)
    states = "state: c/01234567 b/fedcba98"
    return {"replica_divergence": [row(run, topic=None, id=7, detail=states)]}


# --- ack_not_durable ------------------------------------------------------------------------------


@case
def acknowledged_on_a_minority_alone_is_not_durable(run: RunRecorder) -> Expected:
    run.disk("a", "b", "c")
    run.put("p", "t", 1, "ok", 3, first_id=1, last_id=3)
    run.put("q", "t", 3, "info", error="timeout")
    run.held("abc", "p", "t", 1)
    run.held("ab", "p", "t", 2)
    run.held("b", "p", "t", 3)
    run.held("c", "q", "t", 3)
    missing = row(run, id=3, producer="p", counter=3, detail="not on a c", operations=(("p", 1),))
    return {"ack_not_durable": [missing], "torn_batch": [half(run, 1, "c"), half(run, 2, "a")]}


@case
def collected_as_garbage_is_durable_if_its_counter_was_taken(run: RunRecorder) -> Expected:
    run.disk("a", "b", "c")
    run.put("p", "t", 1, "ok", 2, first_id=65_536, last_id=65_537)
    run.put("q", "t", 1, "ok", first_id=65_538, last_id=65_538)
    run.found_on("abc", "topic", topic="t", last_id=65_538, floor_id=65_537)
    run.found_on("abc", "counter", topic="t", producer="p", counter=2)
    run.found_on("abc", "counter", topic="t", producer="q", counter=1)
    above = row(
        run, id=65_538, producer="q", counter=1, detail="not on a b c", operations=(("q", 1),)
    )
    return {"ack_not_durable": [above]}


@case
def counter_that_was_forgotten_is_not_durable(run: RunRecorder) -> Expected:
    run.disk("a", "b", "c", "d")
    run.put("p", "t", 1, "ok", 2, first_id=1, last_id=2)
    run.put("p", "u", 1, "ok", first_id=0, last_id=0)
    run.put("p", "v", 1, "ok", first_id=0, last_id=0)
    run.found_on("abcd", "topic", topic="t", last_id=2, floor_id=2)
    run.found_on("ab", "counter", topic="t", producer="p", counter=2)
    run.found_on("cd", "counter", topic="t", producer="p", counter=1)
    run.found_on("abc", "counter", topic="u", producer="p", counter=1)
    run.found_on("d", "counter", topic="v", producer="p", counter=1)
    forgotten = row(run, id=2, producer="p", counter=2, detail="not on c d", operations=(("p", 1),))
    unstored = row(
        run, topic="v", producer="p", counter=1, detail="not on a b c", operations=(("p", 3),)
    )
    return {"ack_not_durable": [forgotten, unstored], "torn_batch": [half(run, 1, "c")]}


@case
def node_whose_disk_was_not_read_may_have_it(run: RunRecorder) -> Expected:
    run.disk("a", "b")
    run.disk("c", is_read=False)
    run.put("p", "t", 1, "ok", 2, first_id=1, last_id=2)
    run.held("a", "p", "t", 1)
    missing = row(run, id=2, producer="p", counter=2, detail="not on a b", operations=(("p", 1),))
    return {"ack_not_durable": [missing], "torn_batch": [half(run, 1, "a")]}
