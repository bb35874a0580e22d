"""What breaks one sentence of docs/checks.md, or of docs/history.md, by one field alone.

What lives here: the kinds; random alterations of single fields had shown that nothing was said of
these (alterations.py). What must not: any rule of a judge.
"""

from __future__ import annotations

import random

from tests.judges.broken_files import rows_of
from tests.judges.broken_rows import ends_of, one
from tests.judges.broken_scenes import opening
from tests.judges.history import MadeHistory
from tests.judges.kinds import breaks, hides, need


@breaks("one-state-two-contents", "replica_divergence", "one state is one content", "content")
def _(history: MadeHistory, rng: random.Random) -> None:
    """Two nodes say that their states are the same, and not the same of a topic."""
    states = [row for node in sorted(history.truth) for row in rows_of(history, node, "state")]
    said = [(row["index"], row["digest"]) for row in states]
    row = one(rng, [row for row in states if said.count((row["index"], row["digest"])) > 1])
    topic = one(rng, rows_of(history, row["node"], "topic"))
    topic["last_id"] += rng.randint(1, 3)


@breaks("begins-above-its-cursor", "cursor_regression", "who begins anew passes nothing", "ahead")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    scene.sub("r", 0)
    scene.put("p", 1, 1)
    scene.get("r", 0, 1, ("p", 1))
    scene.sub("s", 0, last_id=scene.id(1))


@breaks("answered-in-term-0", "term_order", "nobody leads before the first term")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1, term=0)


@hides("time-of-what-did-not-come", "an answer says times of what it brings")
def _(history: MadeHistory, rng: random.Random) -> None:
    times = one(rng, ends_of(history, "get", "times"))["times"]
    times[-1][1] += rng.randint(1, 3)


@hides("mark-of-what-was-not-stored", "an acknowledgment says properties of what it has stored")
def _(history: MadeHistory, rng: random.Random) -> None:
    put = one(rng, ends_of(history, "put", "marked"))
    put["marked"][-1] = put["last_id"] + rng.randint(1, 3)


@hides("stands-above-its-start", "no subscription stands above ids that are still to come")
def _(history: MadeHistory, rng: random.Random) -> None:
    ends = [end for end in ends_of(history, "sub") if "cursor" in end]
    end = one(rng, ends)
    end["cursor"] = end["last_id"] + rng.randint(1, 3)
