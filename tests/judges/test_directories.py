"""The judge in plain Python comes to what small directories are made for."""

from pathlib import Path

import pytest

from analytics.command.judging import by_twins
from tests.judges.directories import DIRECTORIES, came_to


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_comes_to_what_it_is_made_for(tmp_path: Path, name: str) -> None:
    made = DIRECTORIES[name]()
    made.write(tmp_path)
    assert came_to(by_twins(tmp_path)) == made.expected
