"""What the second judge finds in a small history, short enough to be written into a test."""

from analytics.twins import find_all
from tests.spark.histories import RunRecorder


def found(run: RunRecorder) -> dict[str, list[str]]:
    """Return of each check that found something its rows, as their words and numbers in order."""
    evidence = find_all(run.rows, run.truth, run.nodes)
    return {
        check: [
            " ".join(
                str(one)
                for one in (row.detail, row.client_id, row.producer, row.counter, row.id)
                if one is not None
            )
            for row in rows
        ]
        for check, rows in evidence.items()
        if rows
    }


def put(run: RunRecorder, counter: int, id_: int | None, count: int = 1, **fields: object) -> None:
    """Let `p` put to `t`; `id_` None: no answer comes, 0: nobody subscribes."""
    producer = str(fields.pop("producer", "p"))
    if id_ is None:
        run.put(producer, "t", counter, "info", count, error="timeout", **fields)
    else:
        last_id = id_ + count - 1 if id_ else 0
        ids = {"first_id": id_, "last_id": last_id}
        run.put(producer, "t", counter, "ok", count, **{**ids, **fields})


def get(
    run: RunRecorder, asked: int | None, *items: list[object], client: str = "s", **f: object
) -> None:
    """Let `s` get from `t` what `items` say: [first id, producer, first counter, count]."""
    run.get(client, "t", asked, [list(item) for item in items], **f)
