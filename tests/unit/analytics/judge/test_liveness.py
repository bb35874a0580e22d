"""Liveness: whom faults hit, when service came back, and what that comes to."""

from dataclasses import replace

from analytics.common.verdict import (
    PROGRESS_MS_MAX,
    RECOVERY_MS_MAX,
    InjectedFault,
    Observations,
    Verdict,
)
from analytics.judge.liveness import Healing, named, with_healing, with_recovery

NODES = ("n1", "n2", "n3")
MS = 1_000_000
SEEN = Observations(
    acknowledged=9,
    delivered=9,
    recovered=0,
    undrained_count=0,
    undrained=(),
    unplaced_answers=0,
    faults=(),
    rows={},
)


def fault(name: str, t_ns: int, *targets: str) -> InjectedFault:
    return InjectedFault(name, targets, t_ns, 5.0, 5.0)


def healing(name: str, t_ns: int, *targets: str) -> Healing:
    return Healing(t_ns, name, targets)


def test_fault_ends_with_its_own_healing() -> None:
    faults = [fault("kill", 1, "n1"), fault("pause", 2, "n2"), fault("kill", 5, "n3")]
    heals = [healing("pause", 3, "n2"), healing("kill", 4, "n1"), healing("kill", 6, "n3")]
    assert [one.healed_ns for one in with_healing(faults, heals, NODES)] == [4, 3, 6]


def test_fault_that_is_never_healed_stands_on() -> None:
    faults = [fault("kill", 1, "n1"), fault("pause", 5, "n2")]
    healed = with_healing(faults, [healing("pause", 9, "n2")], NODES)
    assert [(one.healed_ns, one.is_minority) for one in healed] == [(None, False), (9, False)]


def test_minority_is_counted_over_all_that_is_broken_at_the_time() -> None:
    faults = [fault("kill", 1, "n1"), fault("kill", 10, "n2"), fault("pause", 12, "n2", "n3")]
    heals = [healing("kill", 5, "n1"), healing("kill", 11, "n2"), healing("pause", 20, "n2", "n3")]
    found = [one.is_minority for one in with_healing(faults, heals, NODES)]
    assert found == [True, True, False]


def test_whom_a_fault_hit_may_be_unknown() -> None:
    assert with_healing([fault("slow", 1)], [], NODES)[0].is_minority is None
    assert with_healing([fault("kill", 1, "n1")], [], ())[0].is_minority is None
    assert with_healing([fault("client-crash", 1, "publisher-1")], [], NODES)[0].is_minority


def test_recovery_is_the_time_to_the_next_acknowledgment_and_not_due_under_another_fault() -> None:
    one = replace(fault("kill", 1, "n1"), healed_ns=4 * MS, is_minority=True)
    [alone] = with_recovery([one], {4 * MS: 9 * MS})
    assert (alone.recovery_ms, alone.is_recovery_due) == (5.0, True)
    later = replace(fault("kill", 8 * MS, "n1", "n2"), is_minority=False)
    assert not with_recovery([one, later], {})[0].is_recovery_due
    much_later = replace(later, t_ns=round((RECOVERY_MS_MAX + 5) * MS))
    assert with_recovery([one, much_later], {})[0].is_recovery_due


def test_liveness_is_judged_by_silences_recoveries_and_the_drain() -> None:
    fine = replace(fault("kill", 1, "n1"), is_minority=True)
    assert replace(SEEN, faults=(fine,)).liveness.verdict is Verdict.VALID
    silent = replace(fine, silence_ms=PROGRESS_MS_MAX + 1)
    of_most = replace(silent, is_minority=False)
    assert replace(SEEN, faults=(of_most,)).liveness.verdict is Verdict.VALID
    late = replace(fine, is_recovery_due=True, recovery_ms=RECOVERY_MS_MAX + 1)
    never = replace(late, recovery_ms=None)
    for bad in (silent, late, never):
        liveness = replace(SEEN, faults=(fine, bad)).liveness
        assert (liveness.verdict, len(liveness.findings)) == (Verdict.INVALID, 1)
    undrained = replace(SEEN, undrained_count=2)
    assert undrained.liveness.findings == ("2 subscriptions did not drain",)
    assert replace(undrained, is_drain_due=False).liveness.verdict is Verdict.VALID


def test_liveness_of_nothing_is_unknown() -> None:
    assert replace(SEEN, acknowledged=0).liveness.verdict is Verdict.UNKNOWN
    unknown = replace(SEEN, faults=(fault("slow", 1),)).liveness
    assert (unknown.verdict, unknown.findings) == (
        Verdict.UNKNOWN,
        ("whom 1 faults hit is not known",),
    )


def test_fault_is_named_by_its_row() -> None:
    text = '{"name": "kill", "action": "heal", "targets": ["n1"]}'
    assert named(text) == ("kill", ("n1",))
    assert named("{}") == ("", ())
