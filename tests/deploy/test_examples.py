"""Claims about what `deploy/` gives to be copied. No engine is needed for these."""

from __future__ import annotations

import tomllib
from typing import Final

from cluster.config import SETTINGS, load
from tests.deploy import engine

EXAMPLE: Final = engine.ROOT / "deploy" / "node.example.toml"


def test_example_is_a_configuration_that_a_node_takes() -> None:
    config = load(EXAMPLE, {})
    assert config.node in config.members


def test_what_the_example_calls_a_default_is_the_default() -> None:
    sections = {k: v for k, v in tomllib.loads(EXAMPLE.read_text()).items() if k != "members"}
    shown = {
        f"{section}.{name}": value
        for section, settings in sections.items()
        if isinstance(settings, dict)
        for name, value in settings.items()
    }
    assert shown
    assert shown == {key: SETTINGS[key].default for key in shown}
