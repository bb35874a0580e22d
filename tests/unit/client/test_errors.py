"""The exceptions: one class a code, drawn in the module's docstring, made from a NAK."""

from __future__ import annotations

import pytest

import flotilla_client
from flotilla_client import errors
from flotilla_client.errors import BY_CODE, FlotillaError, Refused, from_reply
from flotilla_client.protocol import ERRORS, NAK, Reply, nak_body
from flotilla_client.retry import ON_NAK


def _nak(code: str, **details: object) -> Reply:
    return Reply(NAK, "r.1", "a", "b", 7, nak_body(code, f"about {code}", **details))


def test_every_code_has_a_class_or_is_only_ever_a_step_on_the_way() -> None:
    steps = {"not_leader", "electing", "uncertain", "shutting_down"}
    assert set(BY_CODE) | steps == set(ERRORS)
    assert steps < set(ON_NAK)


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_a_nak_becomes_the_class_of_its_code_with_its_details(code: str) -> None:
    error = from_reply(_nak(code, limit=5), definite=False, attempts=3)
    assert type(error) is BY_CODE.get(code, Refused)
    assert (error.code, error.message, error.definite) == (code, f"about {code}", False)
    assert error.details == {"limit": 5, "attempts": 3, "node": "a", "leader": "b", "term": 7}


def test_a_code_of_a_newer_broker_is_refused_by_its_name() -> None:
    reply = Reply(NAK, "r.1", "a", "", 0, {"error": "from_the_future"})
    error = from_reply(reply, definite=True, attempts=1)
    assert (type(error), error.code) == (Refused, "from_the_future")


def test_an_operation_that_never_began_did_definitely_not_happen() -> None:
    error = errors.Fenced("gone", definite=False, details={"epoch": 3}).before_start()
    assert (type(error), error.definite, error.details) == (errors.Fenced, True, {"epoch": 3})


def test_the_tree_in_the_docstring_shows_every_class_and_no_other() -> None:
    def names(root: type[FlotillaError]) -> set[str]:
        return {root.__name__}.union(*map(names, root.__subclasses__()))

    drawn = {_first_name(line) for line in _tree_lines()}
    assert drawn == names(FlotillaError)
    assert drawn <= set(flotilla_client.__all__)


def _tree_lines() -> list[str]:
    lines = (errors.__doc__ or "").splitlines()
    return [line for line in lines if "── " in line or line.startswith("    FlotillaError")]


def _first_name(line: str) -> str:
    return next(word for word in line.split() if word[0].isalpha())
