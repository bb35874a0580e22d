"""The documentation says what the code does: generated tables are fresh, examples are accepted."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from dataclasses import fields
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest

from cluster.members import peers
from cluster.serve import broker, client_port, intake, zmtp
from cluster.settings.config import SETTINGS, load
from cluster.store.groups import GroupLimits
from cluster.store.store import Limits
from flotilla_client import properties, protocol
from flotilla_client.version import VERSION

ROOT = Path(__file__).resolve().parents[2]


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate_docs = _script("generate_docs")


@pytest.mark.parametrize(("name", "marker"), generate_docs.GENERATED)
def test_generated_parts_are_fresh(name: str, marker: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")

    expected = generate_docs.rendered(text, marker, generate_docs.GENERATED[name, marker]())

    assert text == expected, f"{name} is stale: run `make docs`"


def test_every_limit_of_the_wire_and_of_the_state_is_in_the_table() -> None:
    of_the_wire = {name for name in vars(protocol) if name.endswith("_MAX")}
    assert {name for name in vars(properties) if name.endswith("_MAX")} <= of_the_wire
    assert of_the_wire == {name for _, name, _ in generate_docs.WIRE_LIMITS}
    of_the_state = {field.name for field in fields(Limits)}
    assert of_the_state == {"groups"} | {name for _, name in generate_docs.STATE_LIMITS}
    of_groups = {field.name for field in fields(GroupLimits)}
    assert of_groups == {name for _, name, _ in generate_docs.GROUP_LIMITS}


def test_every_limit_that_is_a_nodes_setting_is_in_the_table_with_what_happens_over_it() -> None:
    settings = {key for key in SETTINGS if key.startswith("limits.")}
    assert settings == {f"limits.{name}" for _, name, _ in generate_docs.SETTING_LIMITS}
    quotas = {key for key in SETTINGS if key.startswith("quotas.")}
    assert quotas == {f"quotas.{name}" for _, name, _ in generate_docs.QUOTAS}
    rows = [row.split(" | ") for row in generate_docs.limit_table().splitlines()[2:]]
    assert all(len(row) == 4 and all(cell.strip(" |") for cell in row) for row in rows), rows


# What bounds a node's own work or words, and nothing that a client or a stranger has it hold.
OWN = {
    broker: {"ENTRY_WORK_MAX", "HEARD_MAX", "HELD_TOPICS_MAX", "READ_BYTES_PER_TURN_MAX"},
    client_port: {
        *("GATHER_REPLIES_MAX", "LARGE_READ_BYTES_MAX", "READS_PER_TURN_MAX", "REASONS_MAX"),
        *("READ_BYTES_PER_TURN_MAX", "STRANGERS_PER_TURN_MAX", "HURRY_SILENCE_S_MAX"),
    },
    peers: {
        *("SEND_BUFFER_BYTES_MAX", "ACCEPTS_PER_EVENT_MAX", "DIAL_MS_MAX", "EXTENSION_MS_MAX"),
        *("UNFIT_CHARACTERS_MAX", "PEER_SILENCE_MS_MAX"),
    },
    intake: set(),
    zmtp: set(),
}


def test_every_limit_of_what_a_node_holds_for_clients_and_strangers_is_in_the_table() -> None:
    for module, own in OWN.items():
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        made = set(re.findall(r"^([A-Z][A-Z_]*_MAX): Final", source, re.MULTILINE))
        in_table = {name for _, of, name, _ in generate_docs.NODE_LIMITS if of is module}
        assert own <= made
        assert made - own == {name for name in in_table if name.endswith("_MAX")}, module.__name__


def test_a_file_without_its_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 places for 'errors'"):
        generate_docs.rendered("no markers here", "errors", "table")


def test_the_example_configuration_is_accepted(tmp_path: Path) -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    example = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    file = tmp_path / "node.toml"
    file.write_text(example[1])

    assert load(file, {}).limits.parked_gets_max == 20_000


def test_every_make_target_is_described_and_every_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    described = set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE))
    assert described == set(phony[1].split())

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`make ([a-z-]+)", readme)) <= described


def test_local_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_two_distributions_have_one_version() -> None:
    files = (ROOT / "pyproject.toml", ROOT / "client/pyproject.toml")
    broker, client = (tomllib.loads(file.read_text())["project"] for file in files)
    assert broker["version"] == client["version"] == VERSION
    assert f"flotilla-client=={VERSION}" in broker["dependencies"]


def test_every_dependency_has_a_reason() -> None:
    files = (ROOT / "pyproject.toml", ROOT / "client/pyproject.toml")
    projects = [tomllib.loads(file.read_text())["project"] for file in files]
    groups = [project["dependencies"] for project in projects]
    groups += [
        extra for each in projects for extra in each.get("optional-dependencies", {}).values()
    ]
    reasons = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    for each in chain.from_iterable(groups):
        name, bounds = re.fullmatch(r"([a-z0-9-]+)(.*)", each).groups()  # type: ignore[union-attr]
        if name not in ("flotilla-broker", "flotilla-client"):
            assert f"| `{name}` | `{bounds}` |" in reasons, f"{each}: no row in dependencies.md"
            assert "<" in bounds or "==" in bounds, f"{each}: no upper bound"


PROMISE = (
    "A subscriber gets every publication after its SUB, whatever crashes on either side. It gets it"
    " once, and again only if it was not acknowledged: then `redelivered` is set."
)


@pytest.mark.parametrize("name", ["README.md", "docs/design.md", "docs/client.md"])
def test_a_subscriber_is_promised_the_same_in_the_same_words(name: str) -> None:
    assert PROMISE in " ".join((ROOT / name).read_text(encoding="utf-8").split())
