"""What is done around every test of a lab. No claims here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.lab import Lab


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    """Close the labs of a test: thirty of them would hold a thousand files until the last test."""
    yield
    for lab in list(Lab.alive):
        lab.close()
