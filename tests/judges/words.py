"""The words that rows of evidence have, by docs/checks.md: the first one of their `detail`.

What lives here: which check has which. What must not: what a word means.
"""

from __future__ import annotations

from typing import Final

# Each check's words; "-": a row without one.
WORDS: Final = {
    "lost": "prefix middle tail start unplaced unstored unhanded",
    "duplicate_stored": "- nowhere",
    "properties": "back time batch content",
    "gap": "- handed",
    "reordered": "subscriber producer",
    "torn_batch": "split half taken",
    "realtime_order": "- clock due",
    "stale_read": "nothing start counter idle client level",
    "cursor_regression": "asked answered ahead",
    "subscription": "forgotten kept denied unsubscribed topic limit start missed left",
    "purge": "unsaid early latest unread late kept alive",
    "delayed": "phantom aborted future early twice order other content lost unstored",
    "group_order": "again late twice attempt settled step back doubled overtaken token",
    "group_lease": "shared jump soon refused foreign unsaid over",
    "group_lost": "settled early",
    "group_content": "corrupt phantom aborted future other twice order behind lost",
    "key_order": "changed together again held open",
    "dead_letter": "twice acknowledged leased lost early elsewhere",
    "fencing": "- shared",
    "replica_divergence": "entry state term content",
} | dict.fromkeys(
    (
        *("duplicate_delivered", "inconsistent_id", "phantom", "aborted_read", "future_read"),
        *("corrupt", "term_order", "leaders_per_term", "ack_not_durable"),
    ),
    "-",
)
PAIRS: Final = {
    (check, word.strip("-")) for check, words in WORDS.items() for word in words.split()
}


def word_of(check: str, detail: str | None) -> str:
    """Return the word of a row; "" where what its `detail` says is none."""
    first = (detail or "").partition(" ")[0].rstrip(":")
    return first if (check, first) in PAIRS else ""
