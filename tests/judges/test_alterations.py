"""Fields that are altered one at a time: what is found of it, and that a seed decides which."""

from collections import Counter

import pytest

from tests.judges.alterations import altered
from tests.judges.detection import Trial
from tests.judges.judges import TWINS, judge_of

HISTORIES = 60
FOUND_SHARE_MIN = 0.2  # the rest is what another legal run would have recorded


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(judge_of(TWINS), tmp_path_factory.mktemp("altered") / "run")


@pytest.mark.slow
def test_many_altered_fields_are_found_and_no_check_crashes(trial: Trial) -> None:
    tried, verdicts = Counter[str](), Counter[str]()
    for seed in range(HISTORIES):
        said = trial.ask(altered(seed, trial.is_fit, tried).history)
        verdicts[said.verdict] += 1
        assert not [reason for reason in said.reasons if reason.startswith("crashed")], seed
    assert verdicts.total() - verdicts["valid"] >= FOUND_SHARE_MIN * HISTORIES, verdicts


def test_a_seed_makes_one_altered_history(trial: Trial) -> None:
    first, second = (altered(7, trial.is_fit, Counter()) for _ in range(2))
    assert first == second
