"""Cases of what is stored, and of who is given which of it."""

from tests.spark.cases import EvidenceRow, Expected, case, may_subscribe, row
from tests.spark.histories import RunRecorder

BORDER = 65_536  # of a bucket: runs are cut there, and no check may notice


def half(run: RunRecorder, missing: int, given: int, get: tuple[str, int]) -> EvidenceRow:
    """Return the evidence that `s` got `given` without its neighbour; ids are counters."""
    return row(
        run, id=missing, other_id=given, producer="p", counter=missing, detail="half",
        operations=(get, ("s", 1)),
    )  # fmt: skip


def delivered(run: RunRecorder, *answers: tuple[int, int, int]) -> None:
    """Record a PUT of publications 1..9 and answers (asked, first id, count) to the client `s`."""
    run.put("p", "t", 1, "ok", 9, first_id=1, last_id=9)
    for asked, first_id, count in answers:
        run.get("s", "t", asked, [[first_id, "p", first_id, count]])


# --- lost ---------------------------------------------------------------------------------------


@case
def lost_tail_is_found_once_drained(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    delivered(run, (0, 1, 8))
    run.drained("s", "t", 8)
    proof = (("p", 1), ("s", 1))
    lost = row(run, client_id="s", id=9, producer="p", counter=9, detail="tail", operations=proof)
    return {"lost": [lost], "torn_batch": [half(run, 9, 8, ("s", 2))]}


@case
def tail_is_not_lost_before_the_drain(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    delivered(run, (0, 1, 8))
    return {}


@case
def nothing_is_owed_below_the_start_or_after_leaving(run: RunRecorder) -> Expected:
    run.put("p", "t", 1, "ok", 5, first_id=1, last_id=5)
    run.sub("s", "t", 5)
    run.put("p", "t", 6, "ok", 4, first_id=6, last_id=9)
    run.get("s", "t", 5, [[6, "p", 6, 4]])
    run.drained("s", "t", 9)
    run.sub("quitter", "t", 0)
    run.unsub("quitter", "t", "info")
    run.drained("quitter", "t", 0)
    return {}


@case
def one_that_never_got_anything_lost_everything_acknowledged(run: RunRecorder) -> Expected:
    run.sub("s", "t", BORDER - 2)
    run.put("p", "t", 1, "ok", 2, first_id=BORDER - 1, last_id=BORDER)
    run.put("p", "t", 3, "info")
    run.put("p", "t", 4, "fail", error="electing")
    run.drained("s", "t", 0)
    ids = ((BORDER - 1, 1), (BORDER, 2))
    proof = (("p", 1), ("s", 1))
    return {
        "lost": [
            row(run, client_id="s", id=i, producer="p", counter=c, detail="tail", operations=proof)
            for i, c in ids
        ]
    }


@case
def put_that_found_no_subscriber_is_lost_if_there_was_one(run: RunRecorder) -> Expected:
    run.put("p", "t", 1, "ok", first_id=0, last_id=0)
    run.sub("s", "t")
    run.put("p", "t", 2, "ok", first_id=0, last_id=0)
    run.put("p", "t", 1, "ok", first_id=0, last_id=0, duplicate=True)
    proof = (("p", 2), ("s", 1))
    found = row(run, client_id="s", producer="p", counter=2, detail="unstored", operations=proof)
    return {"lost": [found]}


# --- duplicate_delivered, gap, reordered within a subscriber --------------------------------------


@case
def asking_again_may_deliver_again(run: RunRecorder) -> Expected:
    """As long as no cursor goes back that an answer has taken."""
    run.sub("s", "t")
    delivered(run, (0, 1, 3), (0, 1, 5), (5, 6, 2), (5, 6, 1))
    silent = run.invoke("s", "get", "t", last_id=7)
    run.complete(silent, "info", error="timeout")
    run.get("s", "t", 5, [[6, "p", 6, 2]])
    run.get("s", "t", 5, [[6, "p", 6, 1]], session=1)
    return {}


@case
def id_at_the_cursor_is_delivered_twice(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    delivered(run, (0, 1, 3), (3, 3, 2))
    proof = (("s", 1), ("s", 2))
    back = row(run, client_id="s", id=3, other_id=3, detail="subscriber", operations=(("s", 2),))
    return {
        "duplicate_delivered": [row(run, client_id="s", id=3, operations=proof)],
        "reordered": [back],
    }


@case
def id_below_the_cursor_goes_back_too(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    delivered(run, (0, 1, 3))
    run.get("s", "t", 3, [[2, "p", 2, 1]], session=1)
    proof = (("s", 1), ("s", 2))
    back = row(run, client_id="s", id=2, other_id=3, detail="subscriber", operations=(("s", 2),))
    return {
        "duplicate_delivered": [row(run, client_id="s", id=2, operations=proof)],
        "reordered": [back],
    }


@case
def cursor_moved_partly_in_one_session_doubles(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    delivered(run, (0, 1, 3), (2, 3, 2))
    proof = (("s", 1), ("s", 2))
    return {"duplicate_delivered": [row(run, client_id="s", id=3, operations=proof)]}


@case
def one_answer_may_not_repeat_or_go_back(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    run.put("p", "t", 1, "ok", 4, first_id=1, last_id=4)
    run.get("s", "t", 0, [[3, "p", 3, 2], [1, "p", 1, 3]])
    one = (("s", 1),)
    back = row(run, client_id="s", id=1, other_id=4, detail="subscriber", operations=one)
    return {
        "duplicate_delivered": [row(run, client_id="s", id=3, operations=one * 2)],
        "reordered": [back],
    }


@case
def ids_jump_after_the_cursor(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    delivered(run, (0, 2, 2))
    proof = (("p", 1), ("s", 1))
    return {
        "gap": [row(run, client_id="s", id=2, other_id=0, operations=(("s", 2),))],
        "lost": [
            row(
                run, client_id="s", id=1, producer="p", counter=1, detail="prefix",
                operations=proof,
            )
        ],
        "torn_batch": [half(run, 1, 2, ("s", 2))],
    }  # fmt: skip


@case
def client_that_skips_ahead_in_a_session_jumps(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    delivered(run, (0, 1, 2), (4, 5, 1))
    proof = (("p", 1), ("s", 1))
    lost = {"detail": "middle", "operations": proof}
    return {
        "gap": [row(run, client_id="s", id=5, other_id=2, operations=(("s", 3),))],
        "lost": [row(run, client_id="s", id=i, producer="p", counter=i, **lost) for i in (3, 4)],
        "torn_batch": [half(run, 3, 2, ("s", 2)), half(run, 4, 5, ("s", 3))],
    }


@case
def answer_jumps_inside(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    run.put("p", "t", 1, "ok", 5, first_id=BORDER - 2, last_id=BORDER + 2)
    answer = [[BORDER - 2, "p", 1, 2], [BORDER + 2, "p", 5, 1]]
    run.get("s", "t", BORDER - 3, answer, corrupt=[[BORDER, "checksum"]])
    one = (("s", 1),)
    missed = {"id": BORDER + 1, "producer": "p", "counter": 4}
    lost = row(run, client_id="s", detail="middle", operations=(("p", 1), *one), **missed)
    torn = row(run, other_id=BORDER + 2, detail="half", operations=one * 2, **missed)
    return {
        "lost": [lost],
        "torn_batch": [torn],
        "gap": [row(run, client_id="s", id=BORDER + 2, other_id=BORDER, operations=one)],
        "corrupt": [row(run, client_id="s", id=BORDER, detail="checksum", operations=one)],
    }


@case
def leaving_and_coming_back_may_jump(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    delivered(run, (0, 1, 2))
    run.unsub("s", "t")
    run.sub("s", "t", 6)
    run.get("s", "t", 2, [[7, "p", 7, 1]])
    run.get("s", "t", 7, [[8, "p", 8, 1]], session=1)
    return {}


@case
def resumed_subscription_is_no_new_start(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    delivered(run, (0, 1, 2))
    run.sub("s", "t", 4, session=1)
    run.get("s", "t", 2, [[5, "p", 5, 1]], session=1)
    proof = (("p", 1), ("s", 1))
    ids = (3, 4)
    return {
        "gap": [row(run, client_id="s", id=5, other_id=2, operations=(("s", 4),))],
        "lost": [
            row(
                run, client_id="s", id=i, producer="p", counter=i, detail="middle",
                operations=proof,
            )
            for i in ids
        ],
        "torn_batch": [half(run, 3, 2, ("s", 2)), half(run, 4, 5, ("s", 4))],
    }  # fmt: skip


@case
def answer_without_a_cursor_is_not_judged(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    run.put("p", "t", 1, "ok", 9, first_id=1, last_id=9)
    run.get("s", "t", None, [[5, "p", 5, 1]])
    run.get("s", "t", None, [[5, "p", 5, 1]])
    return {}


# --- what stands where ----------------------------------------------------------------------------


@case
def retry_stored_again_has_two_ids(run: RunRecorder) -> Expected:
    run.put("p", "t", 1, "ok", 3, first_id=1, last_id=3)
    run.put("p", "t", 2, "ok", first_id=BORDER, last_id=BORDER, session=1)
    proof = (("p", 1), ("p", 2))
    twice = row(run, id=2, other_id=BORDER, producer="p", counter=2, operations=proof)
    return {"duplicate_stored": [twice]}


@case
def retry_answered_with_its_first_id_is_clean(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    run.put("p", "t", 1, "info", 3, error="timeout")
    run.put("p", "t", 1, "ok", 3, first_id=1, last_id=3, duplicate=True, session=1)
    run.get("s", "t", 0, [[1, "p", 1, 3]])
    return {}


@case
def acknowledged_id_delivered_with_another_content(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    run.put("p", "t", 1, "ok", 3, first_id=1, last_id=3)
    run.put("q", "t", 7, "info", error="timeout")
    run.get("s", "t", 1, [[2, "q", 7, 1]])
    proof = (("p", 1), ("s", 1))
    torn = row(run, id=2, producer="p", counter=2, detail="q 7", operations=proof)
    above = row(run, id=2, other_id=3, producer="q", counter=7, operations=proof)
    return {"inconsistent_id": [torn], "realtime_order": [above]}


@case
def later_counter_under_a_lower_id(run: RunRecorder) -> Expected:
    run.put("p", "t", 1, "ok", 2, first_id=BORDER, last_id=BORDER + 1)
    run.put("p", "t", 3, "ok", 2, first_id=BORDER - 2, last_id=BORDER - 1)
    proof = (("p", 1), ("p", 2))
    return {
        "realtime_order": [
            row(
                run, id=BORDER - 2 + place, other_id=BORDER + 1, producer="p", counter=3 + place,
                operations=proof,
            )
            for place in (0, 1)
        ],
        "reordered": [
            row(
                run, id=BORDER + place, other_id=BORDER - 1, producer="p", counter=1 + place,
                detail="producer", operations=proof,
            )
            for place in (0, 1)
        ]
    }  # fmt: skip


@case
def delivered_but_never_tried_is_a_phantom(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    run.put("p", "t", 1, "ok", 2, first_id=1, last_id=2)
    run.put("p", "other", 3, "info")
    run.get("s", "t", 0, [[1, "p", 1, 3]])
    return {"phantom": [row(run, id=3, producer="p", counter=3, operations=(("s", 1),))]}


@case
def delivered_but_refused_is_an_aborted_read(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    run.put("p", "t", 1, "fail", 2, error="electing")
    run.put("p", "t", 1, "info", session=1, error="timeout")
    run.get("s", "t", 0, [[1, "p", 1, 2]])
    proof = (("p", 1), ("s", 1))
    return {"aborted_read": [row(run, id=2, producer="p", counter=2, operations=proof)]}


@case
def corrupt_payload_is_named_with_its_reason(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    run.get("s", "t", 0, [], corrupt=[[1, "topic"], [2, "format"]])
    one = (("s", 1),)
    return {
        "corrupt": [
            row(run, client_id="s", id=1, detail="topic", operations=one),
            row(run, client_id="s", id=2, detail="format", operations=one),
        ]
    }


@case
def answer_without_publications_says_nothing_of_properties(run: RunRecorder) -> Expected:
    """It names another topic than it was asked for: that alone is judged."""
    may_subscribe(run, "s", "r")
    run.invoke("s", "sub", "u", process="s-before")
    said = {"times": [[1, 1, 9]], "marked": [1], "properties": "01" * 8}
    run.get("s", "t", 0, [], **said)
    run.get("s", "u", 0, [], answered="t", **said)
    run.put("p", "t", 1, "ok", first_id=1)
    run.get("r", "t", 0, [[1, "p", 1, 1]], times=[[1, 1, 8]])
    asked = row(run, topic="u", client_id="s", detail="topic", operations=(("s", 2),))
    return {"subscription": [asked]}


@case
def get_without_an_answer_is_answered_with_no_topic(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    asked = run.invoke("s", "get", "t", last_id=0)
    run.complete(asked, "info", topic="u")
    return {}
