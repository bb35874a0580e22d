"""Claims about cluster/store/clients.py and the requests that clients make of it."""

from __future__ import annotations

import pytest

from cluster.store import clients
from cluster.store.commands import (
    Advance,
    DropClient,
    Forget,
    Hear,
    Put,
    Raise,
    Register,
    Subscribe,
    Unsubscribe,
    encode,
)
from cluster.store.idle import HEARD_MS
from cluster.store.store import CorruptStore, Store
from cluster.wire.levels import LEVEL_OF_NAMES
from flotilla_client.protocol import pack
from tests.unit.model_store import (
    SMALL,
    answer_of,
)
from tests.unit.store_bench import Bench, lose_the_last_of_three_rows


def test_a_fresh_client_begins_with_epoch_1_and_its_id_is_taken(bench: Bench) -> None:
    assert bench.ok(Register("n", True, 5, "x")) == {
        "client_id": "n",
        "epoch": 1,
        "sequence": 5,
    }
    assert bench.store.counters("n", "", 9) == bench.store.subscriptions("n") == {}
    assert bench.one(Register("n", True, 5, "x"))[0] == "bad_request"


def test_what_a_client_of_before_sent_means_nothing_to_the_one_of_its_name(bench: Bench) -> None:
    bench.ok(Raise(LEVEL_OF_NAMES))
    before = bench.ok(Register("billing", True, None, ""))["epoch"]
    bench.apply(*[Register("billing", False, None, "")] * 3)
    late = Put("billing", before + 3, "t", 1, *pack([b"paid"]))
    assert bench.one(late)[0] == "ok"
    bench.ok(DropClient("billing", is_root=True))
    bench.restart()
    after = bench.ok(Register("billing", True, None, ""))["epoch"]
    assert after == before + 4
    assert bench.one(late)[0] == "fenced"
    own = Put("billing", after, "t", 1, *pack([b"another"]))
    assert bench.ok(own) == {"id": 2, "count": 1, "duplicate": False, "stored": True}
    assert bench.get("s", 0) == [b"paid", b"another"]


def test_the_highest_epoch_of_all_who_are_gone_is_kept(bench: Bench) -> None:
    bench.ok(Raise(LEVEL_OF_NAMES))
    for name in ("often", "once"):
        bench.ok(Register(name, True, None, ""))
    highest = max(bench.ok(Register("often", False, None, ""))["epoch"] for _ in range(3))
    bench.ok(DropClient("often", is_root=True))
    bench.ok(DropClient("once", is_root=True))
    assert bench.ok(Register("often", True, None, ""))["epoch"] == highest + 1


def test_a_damaged_epoch_of_those_who_are_gone_is_not_believed(bench: Bench) -> None:
    bench.ok(Raise(LEVEL_OF_NAMES))
    bench.ok(Register("billing", True, None, ""))
    bench.ok(DropClient("billing", is_root=True))
    bench.store._database.write("UPDATE gone_epochs SET epoch = 0", [()])
    bench.store.commit()
    with pytest.raises(CorruptStore, match="checksum"):
        bench.restart()


def test_below_the_level_of_names_every_client_begins_with_epoch_1(bench: Bench) -> None:
    """As it does on nodes of an older version, which keep no epoch of those that are gone."""
    bench.ok(Raise(LEVEL_OF_NAMES - 1))
    bench.ok(Register("n", True, None, ""))
    bench.ok(DropClient("n", is_root=True))
    assert bench.ok(Register("m", True, None, ""))["epoch"] == 1


def test_a_client_that_was_never_issued_is_unknown_to_every_operation(bench: Bench) -> None:
    for operation in (
        Register("?", False, None, ""),
        Subscribe("?", None, "t", None),
        Unsubscribe("?", None, "t", None),
        Put("?", None, "t", 0, *pack([b"x"])),
        Advance("?", None, {"t": 0}),
    ):
        assert bench.one(operation) == ("unknown_client", {})
    refused = bench.store.check_client("?", None)
    assert refused is not None
    assert refused.code == "unknown_client"


def test_resuming_tells_counters_and_cursors_and_raises_the_epoch(bench: Bench) -> None:
    bench.put(7, b"1", b"2", client="s")
    bench.put(3, client="s", topic="nobody's")
    bench.ok(Advance("s", None, {"t": 1}))
    body = bench.ok(Register("s", False, None, ""))
    assert body["epoch"] == 2
    assert bench.store.counters("s", "", 9) == {"t": 8, "nobody's": 3}
    assert bench.store.counters("s", "nobody's", 9) == {"t": 8}
    assert bench.store.subscriptions("s") == {"t": 1}
    put = encode(bench.now_ms, [Put("s", None, "t", 9, *pack([b"3"]))])
    bench.store.apply(bench.store.applied_index + 1, 1, put)
    assert bench.store.counters("s", "nobody's", 9) == {"t": 9}, "though nothing is committed"


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        ("UPDATE clients SET epoch = epoch + 32", "clients_page"),
        ("UPDATE clients SET producers = producers + 32", "clients_page"),
        ("UPDATE producers SET counter = counter + 32", "counters"),
    ],
)
def test_nothing_is_told_of_a_row_that_is_damaged(bench: Bench, sql: str, read: str) -> None:
    """A client that is told a higher counter goes on behind it, and is refused for ever."""
    bench.put(0, b"a")
    bench.store.commit()
    assert bench.store.clients_page("", 9)
    assert bench.store.counters("p", "", 9) == {"t": 0}
    bench.store._database.write(sql, [()])
    arguments = ("p", "", 9) if read == "counters" else ("", 9)
    with pytest.raises(CorruptStore, match="checksum"):
        getattr(bench.store, read)(*arguments)


def test_a_retry_of_a_resume_is_the_same_and_an_older_one_is_stale(bench: Bench) -> None:
    assert bench.ok(Register("p", False, 4, "nonce"))["epoch"] == 2
    assert bench.ok(Register("p", False, 4, "nonce"))["epoch"] == 2
    assert bench.one(Register("p", False, 4, "other")) == ("stale_request", {"expected": 5})
    assert bench.one(Register("p", False, 3, "nonce")) == ("stale_request", {"expected": 5})
    assert bench.ok(Register("p", False, 5, ""))["epoch"] == 3
    assert bench.one(Register("p", False, 5, "")) == ("stale_request", {"expected": 6})


def test_a_retry_after_another_process_took_over_does_not_share_its_epoch(bench: Bench) -> None:
    bench.ok(Register("p", False, 4, "nonce"))
    bench.ok(Register("p", False, None, ""))
    assert bench.one(Register("p", False, 4, "nonce"))[0] == "stale_request"
    bench.ok(Register("p", False, 6, "nonce"))
    bench.ok(Subscribe("p", None, "t", 7))
    assert bench.one(Register("p", False, 7, "nonce"))[0] == "stale_request"


def test_an_older_epoch_is_fenced_and_one_never_issued_is_of_another_history(bench: Bench) -> None:
    bench.ok(Register("s", False, None, ""))
    for epoch, answer in ((1, ("fenced", {"epoch": 2})), (3, ("recovered", {"epoch": 2}))):
        for operation in (
            Subscribe("s", epoch, "t", None),
            Unsubscribe("s", epoch, "t", None),
            Put("s", epoch, "t", 0, *pack([b"x"])),
            Advance("s", epoch, {"t": 0}),
        ):
            assert bench.one(operation) == answer
        refused = bench.store.check_client("s", epoch)
        assert refused is not None
        assert answer_of(refused) == answer
    for current in (None, 2):
        assert bench.store.check_client("s", current) is None
        assert bench.put(0)[0] == "ok"


def test_a_late_copy_of_an_old_unsub_cannot_undo_a_newer_sub(bench: Bench) -> None:
    bench.ok(Unsubscribe("s", None, "t", 1))
    bench.ok(Subscribe("s", None, "t", 2))
    assert bench.one(Unsubscribe("s", None, "t", 1)) == ("stale_request", {"expected": 3})
    assert bench.store.cursor("s", "t") == 0


def test_a_control_request_repeated_with_its_sequence_is_carried_out_again(bench: Bench) -> None:
    assert bench.ok(Subscribe("p", None, "t", 2))["resumed"] is False
    assert bench.ok(Subscribe("p", None, "t", 2))["resumed"] is True


def test_a_refused_sub_takes_its_sequence(bench: Bench) -> None:
    for topic in "uv":
        bench.ok(Subscribe("p", None, topic, None))
    assert bench.one(Subscribe("p", None, "w", 5)) == ("too_many", {"limit": SMALL.topics_max})
    assert bench.one(Unsubscribe("p", None, "u", 4))[0] == "stale_request"


@pytest.mark.parametrize("cached", [True, False])
def test_original_ids_are_known_for_the_last_1024_puts(bench: Bench, cached: bool) -> None:
    bench.store.close()
    bench.store = Store.open(bench.path, {})  # without the small limits
    total = 3 * clients.PUTS_KEPT + 345  # the ring of chunks begins in its middle
    for counter in range(0, 2 * total, 2):
        operation = Put("p", None, "t", counter, *pack([b"", b""]))
        bench.store.apply(bench.store.applied_index + 1, 1, encode(1, [operation]))
    if not cached:
        bench.store.commit()
        bench.store.close()
        bench.store = Store.open(bench.path, {})
    oldest = 2 * (total - clients.PUTS_KEPT)
    for counter in (oldest, oldest + 1, oldest + 777, 2 * total - 1):
        assert bench.put(counter)[1] == {
            "id": counter + 1,
            "count": 1,
            "duplicate": True,
            "stored": True,
        }
    for counter in (0, oldest - 1):
        assert bench.put(counter)[1] == {"id": 0, "count": 1, "duplicate": True, "stored": None}


def test_a_producer_that_its_index_has_lost_is_not_taken_for_a_new_one(bench: Bench) -> None:
    """Or what it sends again would be stored twice."""
    for topic in "tuv":
        bench.put(1, topic=topic)
    bench.store.close()
    lose_the_last_of_three_rows(bench.path, "sqlite_autoindex_producers_1")
    bench.store = Store.open(bench.path, {}, SMALL)
    with pytest.raises(CorruptStore, match="3 producers, of which 2 are found"):
        bench.put(1, topic="v")


def test_earlier_puts_that_are_gone_give_no_others_id(bench: Bench) -> None:
    for counter in range(3 * clients.CHUNK_PUTS + 1):
        bench.put(counter)
    bench.store.close()
    lose_the_last_of_three_rows(bench.path, "earlier_puts")
    bench.store = Store.open(bench.path, {}, SMALL)
    with pytest.raises(CorruptStore, match="2 of 3 chunks of PUTs are there"):
        bench.put(2 * clients.CHUNK_PUTS + 1)


def test_a_producer_that_fell_out_of_the_cache_keeps_its_counter(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.close()
    monkeypatch.setattr(clients, "PRODUCERS_CACHED_MAX", 1)
    monkeypatch.setattr(clients, "CLIENTS_CACHED_MAX", 1)
    bench.store = Store.open(bench.path, {}, SMALL)
    for counter in range(3):
        for topic in "tuvw":
            answer = bench.put(counter, topic=topic)
            assert answer[0] == "ok"
            assert answer[1]["duplicate"] is False
    assert len(bench.store._clients._producers._young) <= 1
    assert bench.store.counters("p", "", 9) == dict.fromkeys("tuvw", 2)


def test_when_a_client_was_heard_is_known_though_it_fell_out_of_the_cache(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.close()
    monkeypatch.setattr(clients, "CLIENTS_CACHED_MAX", 1)
    bench.store = Store.open(bench.path, {}, SMALL)
    bench.ok(Raise(LEVEL_OF_NAMES))
    stamp_ms, told = 0, []
    for operation in (
        *(Hear([]) for _ in range(6)),
        Hear(["p"]),
        Register("s", False, None, ""),
        Register("s", False, None, ""),
        Forget(["p"], 2 * HEARD_MS),
    ):
        stamp_ms += HEARD_MS if operation == Hear([]) else 0
        payload = encode(stamp_ms, [operation])
        told = bench.store.apply(bench.store.applied_index + 1, 1, payload)
        bench.store.clients_page("", 9)  # a leader is asked for them, and followers are not
    assert answer_of(told[0])[1]["forgotten"] == []


def test_a_nonce_is_worth_nothing_behind_the_next_control_request(bench: Bench) -> None:
    bench.ok(Register("s", False, 5, "mine"))
    bench.ok(Subscribe("s", None, "u", 6))
    code, _ = bench.one(Register("s", False, 6, "mine"))
    assert code == "stale_request"
