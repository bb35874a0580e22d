"""cluster/settings/config.py: every wrong setting is found before the start, and named."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.settings.config import (
    SECTIONS,
    SETTINGS,
    ConfigError,
    NodeConfig,
    RaftSettings,
    http_page,
    http_token,
    is_loopback,
    load,
    split_address,
)
from flotilla_client import doctor

NEEDED = {
    "FLOTILLA_CLUSTER_ID": "harbour",
    "FLOTILLA_NODE": "n1",
    "FLOTILLA_DATA_DIR": "/var/lib/flotilla",
    "FLOTILLA_CLIENT_LISTEN": "0.0.0.0:7001",
    "FLOTILLA_PEER_LISTEN": "0.0.0.0:7101",
    "FLOTILLA_MEMBERS": "n1=a:7101,n2=b:7101,n3=c:7101",
}
AS_TOML = """
cluster_id = "harbour"
node = "n1"
data_dir = "/var/lib/flotilla"
client_listen = "0.0.0.0:7001"
peer_listen = "0.0.0.0:7101"
[members]
n1 = "a:7101"
n2 = "b:7101"
n3 = "c:7101"
"""


def _problems(changes: Mapping[str, str], path: Path | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, {**({} if path else NEEDED), **changes})
    return caught.value.problems


def _file(directory: Path, text: str) -> Path:
    file = directory / "node.toml"
    file.write_text(text)
    return file


def _value(config: NodeConfig, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_the_environment_alone_is_enough() -> None:
    config = load(None, NEEDED)

    assert config.node == "n1"
    assert config.data_dir == Path("/var/lib/flotilla")
    assert config.members == {"n1": "a:7101", "n2": "b:7101", "n3": "c:7101"}


def test_a_file_alone_is_enough_and_says_the_same(tmp_path: Path) -> None:
    assert load(_file(tmp_path, AS_TOML), {}) == load(None, NEEDED)


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = _file(tmp_path, AS_TOML + "[raft]\nheartbeat_ms = 50\n")

    config = load(file, {"FLOTILLA_RAFT_HEARTBEAT_MS": "60", "FLOTILLA_NODE": "n2"})

    assert config.raft.heartbeat_ms == 60
    assert config.node == "n2"


@pytest.mark.parametrize(
    "key", [key for key, row in SETTINGS.items() if row.default is not MISSING]
)
def test_what_is_left_out_has_its_default(key: str) -> None:
    assert _value(load(None, NEEDED), key) == SETTINGS[key].default


@pytest.mark.parametrize("key", [key for key, row in SETTINGS.items() if row.kind is int])
def test_every_number_can_be_set_in_both_places_and_has_bounds(key: str, tmp_path: Path) -> None:
    row = SETTINGS[key]
    assert row.low <= row.default <= row.high
    in_file = _file(tmp_path, f"{key} = {row.high + 1}\n" + AS_TOML)

    assert f"{key}: {row.high + 1} is not from" in _problems({}, in_file)[0]
    assert f"{key}: {row.low - 1} is not from" in _problems({row.env: str(row.low - 1)})[0]


def test_every_section_is_a_field_of_the_config() -> None:
    assert {field.name for field in dataclasses.fields(NodeConfig)} >= set(SECTIONS)


def test_all_problems_are_reported_at_once() -> None:
    problems = _problems({"FLOTILLA_NODE": "N 1", "FLOTILLA_LOG_LEVEL": "loud"})

    assert problems == [
        "node: 'N 1' is not 1 to 32 of a-z, 0-9 and -",
        "log.level: 'loud' is not one of debug, info, warning, error",
    ]


def test_what_is_missing_is_named_with_both_ways_to_set_it() -> None:
    with pytest.raises(ConfigError, match=r"node: is missing; .* as FLOTILLA_NODE"):
        load(None, {})


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("[limits]\nparked_get_max = 1", "limits.parked_gets_max"),
        ("[raft]\nheartbeat = 1", "raft.heartbeat_ms"),
        ("[limit]\nx = 1", "limit: no such setting"),
    ],
)
def test_an_unknown_key_of_the_file_is_told_the_likely_one(
    line: str, meant: str, tmp_path: Path
) -> None:
    assert meant in "\n".join(_problems({}, _file(tmp_path, AS_TOML + line)))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FLOTILLA_LIMITS_PARKED_GET_MAX", "FLOTILLA_LIMITS_PARKED_GETS_MAX"),
        ("FLOTILLA_MEMBER", "FLOTILLA_MEMBERS"),
        ("FLOTILLA_LOG_COLOUR", "FLOTILLA_LOG_COLOUR: no such variable"),
    ],
)
def test_an_unknown_variable_of_ours_is_told_the_likely_one(name: str, meant: str) -> None:
    assert meant in _problems({name: "1"})[0]


def test_variables_of_others_are_left_alone() -> None:
    load(None, {**NEEDED, "FLOTILLA_PORT": "tcp://10.0.0.1:7001", "FLOTILLA_STATE_DIR": "/x"})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"FLOTILLA_RAFT_HEARTBEAT_MS": "100"}, "raft.election_min_ms: 300 is not over 3 *"),
        ({"FLOTILLA_RAFT_ELECTION_MAX_MS": "300"}, "raft.election_max_ms: 300 is not over"),
        ({"FLOTILLA_RAFT_FALLBACK_MS": "80"}, "raft.fallback_ms: 80 is not over"),
        ({"FLOTILLA_JOURNAL_KEEP_BYTES": "65536"}, "journal.keep_bytes: 65536 is less than"),
        ({"FLOTILLA_MEMBERS": "n1=a:1,n2=b:1"}, "members: 2 of them"),
        ({"FLOTILLA_MEMBERS": "n1=a:1,n2=a:1,n3=b:1"}, "members: two of them have the same"),
        ({"FLOTILLA_MEMBERS": "n1=a:1,n1=b:1,n3=b:2"}, "members: names one node twice"),
        ({"FLOTILLA_MEMBERS": "n1=a"}, "members: 'a' is not host:port"),
        ({"FLOTILLA_MEMBERS": "N1=a:1"}, "members: 'N1' is not 1 to 32"),
        ({"FLOTILLA_NODE": "n9"}, "node: 'n9' is not among the members n1, n2, n3"),
        ({"FLOTILLA_PEER_LISTEN": "0.0.0.0:7001"}, "peer_listen: is the same address"),
        ({"FLOTILLA_CLIENT_LISTEN": "7001"}, "client_listen: '7001' is not host:port"),
        ({"FLOTILLA_CLIENT_LISTEN": "h:0"}, "client_listen: the port of 'h:0' is not"),
        ({"FLOTILLA_CLIENT_LISTEN": "::1:70"}, "client_listen: '::1:70': an IPv6"),
        ({"FLOTILLA_LIMITS_RELAYS_MAX": "many"}, "limits.relays_max: 'many' is not a whole"),
        ({"FLOTILLA_DATA_DIR": ""}, "data_dir: '' is not a text"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, str], key: str) -> None:
    assert _problems(changes)[0].startswith(key)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("raft = 3", "raft: is a table of settings"),
        ("limits.relays_max = true", "limits.relays_max: True is not a whole number"),
        ("limits.relays_max = 1.5", "limits.relays_max: 1.5 is not a whole number"),
        ("log.level = 3", "log.level: 3 is not a text"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(line: str, problem: str, tmp_path: Path) -> None:
    assert _problems({}, _file(tmp_path, f"{line}\n{AS_TOML}"))[0].startswith(problem)


@pytest.mark.parametrize(
    ("members", "problem"), [("members = 3", "is not a table"), ("[members]\nn1 = 3", "n1: 3 is")]
)
def test_members_of_the_wrong_kind_are_named(members: str, problem: str, tmp_path: Path) -> None:
    head = AS_TOML.partition("[members]")[0]

    assert problem in _problems({}, _file(tmp_path, head + members))[0]


def test_a_file_that_is_no_toml_or_not_there_is_named(tmp_path: Path) -> None:
    assert "node.toml: cannot be read" in _problems({}, _file(tmp_path, "node ="))[0]
    assert "nowhere: cannot be read" in _problems({}, tmp_path / "nowhere")[0]


def test_an_ipv6_address_loses_its_brackets() -> None:
    assert split_address("[::1]:7001") == ("::1", 7001)


@given(st.text(max_size=40))
def test_an_address_is_taken_apart_or_refused(text: str) -> None:
    try:
        host, port = split_address(text)
    except ValueError:
        return
    assert host
    assert 1 <= port <= 65_535


@given(st.dictionaries(st.sampled_from([row.env for row in SETTINGS.values()]), st.text()))
def test_no_environment_gets_anything_but_a_config_or_a_config_error(
    environ: dict[str, str],
) -> None:
    with contextlib.suppress(ConfigError):
        assert load(None, {**NEEDED, **environ}).members


# --- HTTP ---


@pytest.mark.parametrize(
    "address", ["127.0.0.1:7201", "localhost:7201", "[::1]:7201", "127.9.9.9:1"]
)
def test_a_page_on_loopback_needs_no_token(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0:7201", "10.0.0.1:7201", "[::]:7201", "n1:7201"])
def test_a_page_elsewhere_needs_one(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ((), ["http_token_file", "http_certificate_file"]),
        (("http_token_file",), ["http_certificate_file"]),
        (("http_certificate_file",), ["http_token_file"]),
        (("http_certificate_file", "http_token_file"), []),
    ],
)
def test_what_a_page_elsewhere_lacks_is_told(given: tuple[str, ...], missing: list[str]) -> None:
    """By plain HTTP its token would be everybody's who can listen on the way."""
    files = {SETTINGS[key].env: "/run/file" for key in given}
    environ = {**NEEDED, "FLOTILLA_HTTP_LISTEN": "0.0.0.0:7201", **files}
    try:
        load(None, environ)
        problems = []
    except ConfigError as error:
        problems = error.problems
    said = [each.rpartition("give ")[2].split()[0] for each in problems]
    assert said == missing, problems


@pytest.mark.parametrize("text", ["", "short", "with a space in the middle of it", "ÿ" * 20])
def test_a_token_that_is_none_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text, encoding="latin-1")
    config = NodeConfig("c", "n1", tmp_path, "a:1", "a:2", {}, http_token_file=str(file))

    with pytest.raises(ConfigError, match="http_token_file: ") as caught:
        http_token(config)

    assert not text or text not in str(caught.value)


def test_a_password_in_the_collectors_address_is_refused_as_settings_are_shown() -> None:
    environ = {**NEEDED, "FLOTILLA_OTLP_ENDPOINT": "https://me:wonder@collector/v1/traces"}
    with pytest.raises(ConfigError) as caught:
        load(None, environ)
    [problem] = caught.value.problems
    assert problem.startswith("otlp_endpoint: ")
    assert "OTEL_EXPORTER_OTLP_HEADERS" in problem
    assert "wonder" not in problem


def test_a_page_that_listens_everywhere_is_where_the_peers_find_the_node(tmp_path: Path) -> None:
    members = {"n1": "10.0.0.7:7101"}
    config = NodeConfig("c", "n1", tmp_path, "a:1", "a:2", members, http_listen="0.0.0.0:7201")

    assert http_page(config) == "http://10.0.0.7:7201"


def test_the_client_s_doctor_knows_the_default_time_outs() -> None:
    """It may not import this package."""
    defaults = dataclasses.asdict(RaftSettings())
    assert {f"raft.{key}": value for key, value in defaults.items()} == doctor.TIMEOUTS_MS
