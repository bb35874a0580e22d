"""A node to look at without a node: what the loop would have handed over, made by hand."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from cluster.observe.observer import Distribution, Happened, Sample
from cluster.observe.reading import PageRead
from cluster.observe.survey import Survey
from flotilla_client.error_table import ERRORS
from flotilla_client.protocol import REQUEST_TYPES

STATUS: dict[str, Any] = {
    "node": "n1",
    "role": "leader",
    "serving": True,
    "term": 3,
    "leader": "n1",
    "commit_index": 10,
    "applied_index": 10,
    "last_index": 12,
    "first_index": 1,
    "journal_bytes": 4096,
    "disk_low": False,
    "full_topics": 0,
    "damage": [],
    "scrub": {"damaged": 0, "passes": 2, "bytes": 900, "pass_bytes": 0, "last_pass_bytes": 450}
    | {"last_pass_ended_ms": 1_699_999_000_000},
    "clients_silent": 0,
    "level": 1,
    "members": {
        "n2": {"connected": True, "silent_ms": 0, "match_index": 12, "lag": 0},
        "n3": {"connected": False, "silent_ms": 1500, "match_index": 4, "lag": 8},
    },
    "store": {
        "clients": 2,
        "producers": 1,
        "topics": 1,
        "topic_names": 3,
        "subscriptions": 1,
        "groups": 1,
        "backlog_bytes": 9,
        "delayed": 0,
        "compacted_bytes": 5,
        "clients_forgotten": 0,
    },
    "versions": {"flotilla": "0.4.0", "protocol": 1, "levels": [1, 2]},
    "http": "http://127.0.0.1:7201",
    "pages": {"n2": "http://127.0.0.1:7202"},
}


def distribution(*counts: int) -> Distribution:
    """Return a histogram of the bounds 1 ms, 10 ms and none, with so many values in each."""
    total, buckets = 0, []
    for bound, count in zip((0.001, 0.01, float("inf")), counts, strict=True):
        total += count
        buckets.append((bound, total))
    return Distribution(tuple(buckets), 0.5)


NOTHING = distribution(0, 0, 0)
SAMPLE = Sample(
    at=100.0,
    wall_s=1_700_000_000.0,
    status=STATUS,
    stopping=False,
    turn=NOTHING,
    fsync=NOTHING,
    put=NOTHING,
    requests=dict.fromkeys(sorted(REQUEST_TYPES), 0),
    refused=dict.fromkeys(sorted(ERRORS), 0),
    delivered=(0, 0),
    added=(0, 0),
    waiting={"entry": 0, "barrier": 0, "turn": 0, "publication": 0},
    relays=0,
    connections=0,
    unread_bytes=0,
    disk_free_bytes=10**9,
    disk_size_bytes=10**10,
    quota_refused={("shop", "requests_per_s_max"): 3},
    unauthorized={("shop", "publish"): 2},
    keys_unusable=False,
)


def later(sample: Sample, seconds: float, **changes: Any) -> Sample:
    """Return a sample so much later, with `status` changed in part and the rest replaced."""
    status = {**sample.status, **changes.pop("status", {})}
    moved = {"at": sample.at + seconds, "wall_s": sample.wall_s + seconds}
    return replace(sample, **moved, status=status, **changes)


class Observed:
    """In an Observer's place: `sample`, `survey` and `happened` are the test's to set."""

    def __init__(self) -> None:
        self.sample = SAMPLE
        self.survey = Survey()
        self.happened: deque[Happened] = deque()
        self.reader: Any = None


class ReadAtOnce:
    """In a PublicationReader's place: answers what is asked, with `found`."""

    def __init__(self, found: Any) -> None:
        self.found, self.asked = found, self
        self.given: list[PageRead] = []

    def __len__(self) -> int:
        return 0

    def append(self, asked: PageRead) -> None:
        self.given.append(asked)
        asked.found = self.found
