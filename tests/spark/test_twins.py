"""Spark and plain Python find the same in histories that nobody thought of."""

import random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from analytics.twins import find_all
from tests.spark.conftest import Find
from tests.spark.histories import Row, Run

BATCH = 200  # histories a Spark job; starting one costs more than the rows in it
BORDER = 65_533  # ids and counters from here on cross a bucket


def random_run(seed: int) -> list[Row]:
    """Return up to 16 operations over few clients, ids and counters: most break some promise."""
    rng = random.Random(seed)
    run = Run(str(seed))
    base = rng.choice((0, BORDER))
    for _ in range(rng.randint(1, 16)):
        rng.choice((random_put, random_put, random_get, random_get, random_control))(rng, run, base)
    return run.rows


def random_put(rng: random.Random, run: Run, base: int) -> None:
    fields = {"session": rng.randint(0, 1), "error": None}
    outcome = rng.choice(("ok", "ok", "fail", "info"))
    if outcome == "ok":
        fields |= {"first_id": rng.choice((0, *range(base + 1, base + 7)))}
        fields |= {"duplicate": rng.choice((True, False, None))}
    counter, count = base + rng.randint(1, 6), rng.randint(1, 3)
    run.put(rng.choice("pq"), rng.choice("tu"), counter, outcome, count, **fields)


def random_get(rng: random.Random, run: Run, base: int) -> None:
    client_id, topic = rng.choice("sr"), rng.choice("ttu")
    asked = rng.choice((None, *range(base, base + 7)))
    session = rng.randint(0, 1)
    if rng.random() < 0.15:
        run.invoke(client_id, "get", topic, last_id=asked, session=session)
        return
    items = [
        [base + rng.randint(1, 6), rng.choice("pq"), base + rng.randint(1, 6), rng.randint(1, 3)]
        for _ in range(rng.randint(0, 3))
    ]
    corrupt = [[base + rng.randint(1, 6), "checksum"]] if rng.random() < 0.2 else None
    run.get(client_id, topic, asked, items, session, corrupt=corrupt)


def random_control(rng: random.Random, run: Run, base: int) -> None:
    client_id, topic = rng.choice("sr"), rng.choice("tu")
    kind = rng.choice(("sub", "sub", "unsub", "drained"))
    if kind == "sub":
        run.sub(client_id, topic, base + rng.randint(0, 4))
    elif kind == "unsub":
        run.unsub(client_id, topic, rng.choice(("ok", "fail", "info")))
    else:
        run.drained(client_id, topic, base)


@settings(
    max_examples=1,
    deadline=None,  # a batch takes seconds on a busy machine
    phases=[Phase.generate],  # a failure names its run's seed: small already, nothing to shrink
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(st.integers(0, 2**32), min_size=BATCH, max_size=BATCH, unique=True))
def test_spark_and_python_find_the_same_in_random_histories(find: Find, seeds: list[int]) -> None:
    runs = {seed: random_run(seed) for seed in seeds}
    found = find([row for rows in runs.values() for row in rows])
    for seed, rows in runs.items():
        assert dict(found[str(seed)]) == find_all(rows), f"random_run({seed})"
