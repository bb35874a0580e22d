"""What is planted in made-up histories, against what there is to plant: no rule is left out unsaid.

What lives here: the words that rows have, and by which plant each kind of sabotage is shown in
Spark's made-up histories. What must not: what a plant does (analytics/generate), and whether it is
found (tests/spark/test_generate.py).
"""

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

import analytics.anomalies
from analytics.common.check_specs import CHECK_SPECS
from analytics.generate.scripts import EVERY_PLANT
from tests.judges import detection
from tests.judges.kinds import INVALID, KINDS
from tests.judges.words import PAIRS, WORDS

DOCS: Final = Path(__file__).parents[2] / "docs" / "checks.md"
ANOMALIES: Final = Path(analytics.anomalies.__file__).parent
BULLET: Final = re.compile(r"^ *- `(\w+)`(?:, `\w+`)*:", re.MULTILINE)

# By kind: why it is planted nowhere.
UNPLANTED: Final[dict[str, str]] = {}
# Of these the row stands beside that of the plant, or has another word.
OTHERWISE: Final = {"answer-at-the-cursor", "behind-a-start", "lost-to-the-second-reading"}

# By plant: the kinds of sabotage whose sentence it breaks.
PLANTED: Final = {
    # --- by everyone's publications
    "lost": "lost-acknowledged id-never-brought",
    "gap": "answer-begins-too-high answer-without-its-first",
    "duplicate_stored": "stored-twice",
    "duplicate_delivered": "given-twice answer-at-the-cursor",
    "inconsistent_id": "acknowledged-elsewhere other-content",
    "properties": "time-goes-back",
    "reordered": "counters-out-of-order",
    "phantom": "ghost invented",
    "aborted_read": "failed-and-given put-said-to-have-failed",
    "corrupt": "payload-is-broken broken-on-the-way",
    "realtime_order": "behind-an-acknowledgment",
    "stale_read": "denied-an-acknowledged-one",
    "future_read": "read-of-the-future",
    "torn_batch": "torn-by-another",
    "subscription": "subscription-denied",
    "term_order": "term-goes-back answered-in-term-0",
    "leaders_per_term": "two-leaders another-node-led",
    "leaders_per_term_logged": "two-led-a-term",
    "lost_start": "lost-start-lies behind-a-start",
    "lost_tail": "lost-tail",
    "lost_unstored": "unstored",
    "lost_unplaced": "lost-duplicate-without-id",
    "lost_between": "lost-counter-between",
    "torn_batch_half": "torn-in-half",
    "aborted_read_nowhere": "said-to-be-nowhere",
    "stale_read_start": "begins-in-the-past",
    "subscription_forgotten": "subscription-forgotten",
    "subscription_start": "start-lands-elsewhere",
    "subscription_kept": "unsub-undone",
    "subscription_unsubscribed": "given-after-unsub",
    "subscription_topic": "another-topic",
    "subscription_limit": "over-the-limit too-many",
    "cursor_regression": "cursor-asked-lower",
    "cursor_regression_answered": "cursor-answered-lower",
    "cursor_regression_ahead": "cursor-ahead",
    "fencing": "fenced-one-goes-on",
    "fencing_shared": "two-under-one-epoch",
    "ack_not_durable": "counter-not-taken",
    "replica_divergence": "entries-differ",
    "replica_divergence_state": "states-differ",
    "replica_divergence_term": "term-goes-back-on-a-disk",
    "replica_divergence_content": "one-state-two-contents",
    # --- what is owed
    "lost_first": "lost-first",
    "lost_seek": "lost-behind-a-seek",
    "lost_behind_earliest": "lost-behind-a-start",
    "lost_left": "lost-before-unsub",
    "lost_cursor": "lost-by-cursor",
    "lost_second_life": "lost-in-second-life",
    "lost_unclear_sub": "lost-unclear-sub",
    "lost_seen": "lost-seen-by-another",
    "lost_tail_seen": "lost-seen-then-drained",
    "lost_reading": "lost-to-the-second-reading",
    "lost_unplaced_drained": "lost-drained-duplicate",
    "lost_unplaced_gone": "told-gone-before-it-was-put",
    "lost_unplaced_again": "lost-between-two-readings",
    "lost_unstored_group": "unstored-beside-a-group",
    "lost_collected": "collected-unread",
    "lost_collected_purge": "collected-beyond-a-purge",
    "lost_unhanded": "unhanded",
    "lost_unhanded_drained": "drained-and-never-handed",
    # --- places, order, time
    "duplicate_stored_again": "acknowledged-twice",
    "duplicate_stored_disk": "moved-on-disks",
    "duplicate_stored_nowhere": "nowhere-and-acknowledged-again",
    "duplicate_delivered_handed": "handed-twice",
    "duplicate_delivered_acknowledged": "handed-after-ack",
    "duplicate_delivered_unsaid": "handed-again-unsaid",
    "inconsistent_id_seen": "two-under-one-id",
    "inconsistent_id_acknowledged": "two-acknowledged-under-one-id",
    "inconsistent_id_disk": "under-another-id",
    "inconsistent_id_on_disk": "two-in-one-place-on-disk",
    "inconsistent_id_letter": "letter-on-a-publication",
    "reordered_subscriber": "answer-goes-back",
    "reordered_batch": "batch-goes-back",
    "phantom_between": "counter-of-nobody",
    "phantom_disk": "ghost-on-disks",
    "phantom_taken": "node-took-what-nobody-put",
    "aborted_read_between": "taken-though-it-failed",
    "aborted_read_taken": "node-took-what-failed",
    "ack_not_durable_gone": "not-on-disks",
    "ack_not_durable_below": "last-id-below",
    "ack_not_durable_given": "given-and-on-no-disk",
    "gap_inside": "answer-jumps hole-in-an-answer",
    "gap_handed": "handed-behind-a-higher-one",
    "future_read_failed": "failed-put-before-its-retry",
    "future_read_anew": "stored-anew-though-given",
    "torn_batch_half_first": "torn-first-half",
    "torn_batch_half_drained": "torn-and-drained",
    "torn_batch_half_again": "torn-in-the-second-reading",
    "torn_batch_beside": "batch-beside-another",
    "realtime_order_given": "behind-a-delivery",
    "realtime_order_cursor": "behind-a-cursor",
    "realtime_order_letter": "letter-of-what-is-not-there",
    "realtime_order_anew": "stored-anew-and-below",
    "realtime_order_delayed": "delayed-below-what-was-known",
    "realtime_order_clock": "behind-the-clock",
    "realtime_order_clock_letter": "letter-before-its-publication",
    "stale_read_given": "denied-a-given-one",
    "stale_read_begun": "denied-below-a-start",
    "stale_read_any": "any-topic-denied",
    "stale_read_any_again": "any-topic-denied-again",
    "stale_read_back": "denied-below-where-it-began",
    "stale_read_leased": "denied-what-a-worker-has",
    "stale_read_start_given": "begins-below-a-delivery",
    "stale_read_counter": "counter-denied",
    "stale_read_counter_given": "counter-denied-though-given",
    "stale_read_counter_first": "counter-denied-behind-none",
    "stale_read_idle": "group-told-nothing",
    "stale_read_idle_given_back": "told-nothing-though-given-back",
    "stale_read_idle_begun": "told-nothing-of-what-is-there",
    "cursor_regression_back": "back-without-a-seek",
    "cursor_regression_ahead_of_reading": "cursor-ahead-of-its-reading",
    "cursor_regression_ahead_of_cursor": "begins-above-its-cursor",
    "properties_time": "two-times",
    "properties_batch": "batch-of-two-times",
    "properties_content": "other-properties",
    "properties_content_gone": "properties-are-gone",
    # --- subscriptions, and what is gone
    "subscription_denied_unclear": "denied-after-unclear-sub",
    "subscription_denied_any": "any-topic-refused",
    "subscription_denied_topic": "no-topic-though-one-has-it",
    "subscription_start_gone": "earliest-in-what-is-gone",
    "subscription_denied_cursor": "refused-by-its-cursor",
    "subscription_unsubscribed_never": "given-without-sub",
    "subscription_group_forgotten": "group-forgotten",
    "subscription_group_denied": "group-denied",
    "subscription_group_kept": "group-of-nobody-found",
    "subscription_missed": "pattern-misses-a-topic",
    "subscription_missed_since": "pattern-misses-what-was-there",
    "subscription_missed_first": "pattern-without-its-first",
    "subscription_missed_behind": "pattern-behind-what-was-put",
    "subscription_missed_delayed": "pattern-misses-what-is-delayed",
    "subscription_missed_kept": "pattern-passes-what-is-kept",
    "subscription_missed_again": "pattern-misses-once-more",
    "purge_alive": "told-gone-and-given",
    "purge_alive_leased": "told-gone-and-leased",
    "purge_alive_expired": "told-expired-and-given",
    "purge_alive_compacted": "told-compacted-and-given",
    "purge_late": "given-though-expired",
    # --- delays
    "delayed": "delayed-too-early",
    "delayed_twice": "delayed-and-given-twice",
    "delayed_order": "delayed-and-overtaken",
    "delayed_order_shorter": "shorter-delay-comes-later",
    "delayed_lost": "delayed-and-lost",
    "delayed_lost_to_one": "delayed-and-lost-to-one",
    "delayed_unstored": "delayed-and-stored-nowhere",
    "delayed_phantom": "delayed-by-nobody",
    "delayed_aborted": "delayed-though-it-failed",
    "delayed_future": "delayed-and-not-yet-put",
    "delayed_other": "delayed-under-another-s-id",
    "delayed_content": "delayed-with-another-key",
    # --- groups
    "group_order": "leased-after-its-ack",
    "group_order_late": "late-ack-accepted",
    "group_order_twice": "acknowledged-by-two-takes",
    "group_order_attempt": "attempt-goes-back",
    "group_order_token": "token-goes-back",
    "group_order_token_shared": "token-of-two-takes",
    "group_order_settled": "given-though-settled",
    "group_order_settled_moved": "moved-and-given-below",
    "group_order_back": "settled-goes-back",
    "group_order_doubled": "leased-twice-in-a-take",
    "group_order_overtaken": "higher-ones-first",
    "group_order_step": "take-carried-out-twice",
    "group_order_step_lost": "lost-and-not-lost",
    "group_lease": "leased-to-two",
    "group_lease_soon": "given-before-its-delay",
    "group_lease_refused": "ack-refused",
    "group_lease_jump": "attempts-jump",
    "group_lease_foreign": "ack-of-a-stranger",
    "group_lease_foreign_nak": "nak-of-a-stranger",
    "group_lease_foreign_extension": "extension-of-a-stranger",
    "group_lease_over": "ack-of-what-was-given-back",
    "group_lease_over_extension": "extended-though-done",
    "group_lease_over_nak": "given-back-though-done",
    "group_lease_over_lost": "nak-of-what-another-has",
    "group_lease_over_refused": "accepted-though-refused",
    "group_lease_over_settled": "extended-though-settled",
    "group_lease_unsaid": "lost-and-never-said",
    "group_lease_foreign_ended": "lease-of-an-ended-group",
    "group_lease_publishes": "leased-to-two-as-one-publishes",
    "group_lease_extended": "extended-and-given",
    "group_lease_letter": "letter-while-leased",
    "group_lost": "settled-by-nobody",
    "group_lost_collected": "collected-unsettled",
    "group_lost_letter": "letter-never-came",
    "group_lost_given": "settled-and-read-afterwards",
    "group_lost_expires": "settled-before-it-expires",
    "group_lost_compacted": "settled-and-never-compacted",
    "group_content": "worker-given-a-ghost",
    "group_content_corrupt": "worker-given-what-is-broken",
    "group_content_nowhere": "worker-given-what-is-nowhere",
    "group_content_order": "worker-given-in-another-order",
    "group_content_behind": "worker-given-below-the-end",
    "group_content_lost": "lost-though-a-worker-has-it",
    "group_content_other": "worker-given-another",
    "group_content_twice": "worker-given-one-twice",
    "key_order": "next-of-a-key-before-the-ack",
    "key_order_together": "two-of-a-key-at-once",
    "key_order_again": "given-behind-the-next-of-its-key",
    "key_order_changed": "another-key",
    "key_order_keyless": "key-of-what-has-none",
    "key_order_open": "next-of-a-key-while-one-is-open",
    "key_order_held_extension": "next-of-a-key-while-one-is-held",
    "dead_letter": "letter-twice",
    "dead_letter_early": "letter-too-early",
    "dead_letter_early_expires": "letter-before-it-expires",
    "dead_letter_acknowledged": "letter-of-what-was-done",
    "dead_letter_leased": "leased-though-dead",
    "dead_letter_lost": "letter-lost-to-one",
    "fencing_reader": "fenced-reader-goes-on",
    # --- what was refused is done all the same
    "subscription_unsubscribed_denied": "denied-and-answered",
    "subscription_kept_denied": "denied-and-found",
    "subscription_group_unsubscribed": "group-denied-and-taken",
    "subscription_group_kept_denied": "group-denied-and-found",
    "subscription_denied_topic_group": "no-topic-though-a-group-has-it",
    "subscription_left": "left-by-its-name",
    "subscription_start_gone_id": "id-in-what-is-gone",
    "subscription_limit_put": "too-much-in-a-put",
    "subscription_limit_group": "over-a-limit-of-all",
    "fencing_refused": "refused-epoch-goes-on",
    "stale_read_client": "known-client-is-unknown",
    "stale_read_level": "level-goes-back",
    # --- what contradicts itself
    "lost_unsub_idle": "lost-though-its-unsub-never-acted",
    "group_lost_end_idle": "settled-though-its-end-never-acted",
    "subscription_denied_moved": "moved-though-it-never-was",
    "torn_batch_taken": "half-of-a-batch-taken",
}


def said_of(check: str) -> str:
    """Return what docs/checks.md says of the rows of a check: in its table, and by its words."""
    lines = DOCS.read_text().splitlines()
    row = next(line for line in lines if line.startswith(f"| `{check}`"))
    begin, end = lines.index("### Rows by their word"), lines.index("## What is allowed")
    said, is_here = [row], False
    for line in lines[begin:end]:
        heading = re.match(r"`(\w+)`", line)
        if heading and heading[1] in CHECK_SPECS:
            is_here = heading[1] == check
        if is_here:
            said.append(line)
    return "\n".join(said)


def test_all_checks_have_their_words_here() -> None:
    assert WORDS.keys() == CHECK_SPECS.keys()


@pytest.mark.parametrize("check", WORDS)
def test_words_are_those_of_the_document_and_of_spark(check: str) -> None:
    said, words = said_of(check), {word for one, word in PAIRS if one == check and word}
    assert {word for word in words if not re.search(rf"\b{word}\b", said)} == set()
    assert set(BULLET.findall(said)) <= words
    tree = ast.parse((ANOMALIES / f"{check}.py").read_text())
    texts = [one.value for one in ast.walk(tree) if isinstance(one, ast.Constant)]
    in_code = {word for one in texts if isinstance(one, str) for word in re.findall(r"\w+", one)}
    assert words <= in_code


def test_each_word_of_each_check_is_planted() -> None:
    planted = {(one.check, one.word) for one in EVERY_PLANT.values()}
    assert planted == PAIRS


def test_each_kind_of_sabotage_is_planted_or_it_is_said_why_not() -> None:
    assert detection.SOURCES  # they have registered their kinds
    wanted = {name for name, kind in KINDS.items() if kind.verdict == INVALID}
    named = Counter(name for kinds in PLANTED.values() for name in kinds.split())
    named.update(UNPLANTED)
    assert named == Counter(wanted)


def test_a_plant_breaks_what_its_kinds_break() -> None:
    for plant, kinds in PLANTED.items():
        for kind in map(KINDS.__getitem__, kinds.split()):
            if kind.name not in OTHERWISE:
                found = EVERY_PLANT[plant]
                assert (found.check, found.word) == (kind.check, kind.word or found.word), plant
