"""All small histories of both judges: a case is registered when its file is imported."""

from tests.judges import altered
from tests.judges.small import SMALL
from tests.spark import (
    cases_clocks,
    cases_disks,
    cases_groups,
    cases_handing,
    cases_owed,
    cases_stored,
)
from tests.spark.cases import CASES

__all__ = ["CASES", "SMALL"]

assert cases_clocks
assert cases_disks
assert cases_groups
assert cases_handing
assert cases_owed
assert cases_stored
assert altered
