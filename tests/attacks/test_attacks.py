"""A few of each attack: nobody gets in, nobody ends, nothing changes, others go on."""

from __future__ import annotations

import pytest

from tests.attacks.measure import measure


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nobody_gets_in_no_node_ends_and_the_state_is_unchanged() -> None:
    for row in measure(0.0, calm_s=1.0, is_quick=True):
        assert row.answered == 0, row
        assert row.same, row
