"""Small histories whose rows are altered afterwards: at one moment, doubled, without a question."""

from tests.judges.small import small
from tests.judges.steps import got, stored, three
from tests.spark.histories import RunRecorder


@small
def who_never_subscribed_is_answered_and_its_question_is_gone(run: RunRecorder) -> set[str]:
    stored(run, "p", 1, 1)
    got(run, "s", 0, (1, "p", 1))
    run.rows[-1]["invoke_ns"] = None
    del run.rows[-2]
    return {"subscription unsubscribed"}


@small
def who_leaves_and_comes_back_at_one_moment_of_a_virtual_clock(run: RunRecorder) -> set[str]:
    """A gap would look the same: the SUB without an answer may have come after the UNSUB."""
    three(run)
    got(run, "s", 0, (1, "p", 1))
    leaving = run.invoke("s", "unsub", "t")
    run.complete(leaving, "ok")
    coming = run.invoke("s", "sub", "t")
    run.rows[-2]["t_ns"] = coming["t_ns"] = leaving["t_ns"]
    stored(run, "p", 4, 4)
    got(run, "s", 1, (4, "p", 4))
    return set()


@small
def who_drains_at_the_moment_of_its_last_answer_need_not_have_what_came_since_it_asked(
    run: RunRecorder,
) -> set[str]:
    run.sub("s", "t", 0)
    asked = run.invoke("s", "get", "t", last_id=0)
    stored(run, "p", 1, 1)
    run.complete(asked, "ok", count=0)
    run.drained("s", "t", 0)
    run.rows[-1]["t_ns"] = run.rows[-2]["t_ns"]
    return set()


@small
def nothing_is_told_at_the_moment_of_the_acknowledgment(run: RunRecorder) -> set[str]:
    """A tick later it would deny what was acknowledged."""
    run.sub("s", "t", 0)
    put = run.invoke("p", "put", "t", counter=1, count=1)
    done = run.complete(put, "ok", first_id=1, last_id=1)
    got(run, "s", 0)
    invoke, end = run.rows[-2:]
    invoke["t_ns"] = end["invoke_ns"] = done["t_ns"]
    return set()


@small
def line_of_a_hand_over_is_doubled(run: RunRecorder) -> set[str]:
    """Two hand-overs would have two numbers: that one number comes twice is a hole."""
    run.handle("s", "hand", "t", 1, 1, cursor=0)
    run.rows.append(dict(run.rows[-1]))
    return set()
