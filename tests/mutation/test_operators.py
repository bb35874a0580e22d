"""Operators make the mutants that they say, and nothing else."""

from __future__ import annotations

import textwrap
from pathlib import Path

from chaos.mutation import mutants, operators, project

ROOT = Path(__file__).resolve().parents[2]


def _made(operator: str, source: str) -> list[str]:
    """Return the changed lines that an operator makes of a function's body."""
    body = textwrap.indent(textwrap.dedent(source), "    ")
    text = f"def f(self, a: int, b: int, name: str):\n{body}"
    made = [each for each in operators.generate("m.py", text) if each.origin == operator]
    lines = []
    for mutant in made:
        mutants.check(mutant, text)
        before, after = text.splitlines(), mutant.applied(text).splitlines()
        lines += [new.strip() for old, new in zip(before, after, strict=True) if old != new]
    return lines


def test_conditions_are_negated() -> None:
    assert _made("negate-condition", "if a < b:\n    return 1\n") == ["if (not (a < b)):"]


def test_conditions_are_dropped_one_by_one() -> None:
    assert _made("drop-condition", "if a and b and name:\n    return 1\n") == [
        "if ((b) and (name)):",
        "if ((a) and (name)):",
        "if ((a) and (b)):",
    ]
    assert _made("drop-condition", "if a < b:\n    return 1\n") == ["if True:"]


def test_boundaries_move_by_one() -> None:
    assert _made("off-by-one", "return a <= b\n") == ["return a < b"]
    assert _made("off-by-one", "return a + 1\n") == ["return (a)"]
    assert _made("off-by-one", "return max(a, b)\n") == ["return min(a, b)"]


def test_calls_whose_result_nobody_takes_are_dropped() -> None:
    assert _made("drop-statement", "self.sync()\nx = self.read()\n") == ["pass"]


def test_what_outlives_the_function_is_not_reset() -> None:
    assert _made("drop-reset", "self.count = 0\nlocal = 0\n") == ["pass"]
    assert _made("drop-reset", "self.count += 1\n") == ["pass"]
    assert _made("drop-reset", "del self.table[a]\n") == ["pass"]


def test_statements_change_places_unless_that_fails_by_itself() -> None:
    assert _made("swap-statements", "self.write()\nself.sync()\n") == [
        "self.sync()",
        "self.write()",
    ]
    assert _made("swap-statements", "x = self.read()\nself.take(x)\n") == []


def test_a_sibling_of_the_same_type_is_taken() -> None:
    assert _made("sibling-variable", "return self.f(a, name)\n") == ["return self.f(b, name)"]


def test_assertions_errors_and_logs_are_left_alone() -> None:
    source = """\
        assert a < b
        self._log("x", a=a + 1)
        raise ValueError(a if a < b else b)
    """

    assert operators.generate("m.py", f"def f(self, a, b):\n{textwrap.indent(source, '')}") == []


def test_letters_of_several_bytes_move_no_place() -> None:
    assert _made("off-by-one", 'x = "äöü€"; return a < b\n') == ['x = "äöü€"; return a <= b']


def test_mutants_of_the_product_compile_and_have_names_of_their_own() -> None:
    ours = project.load(ROOT)
    source = ours.source("cluster/raft/transport.py")
    made = operators.generate("cluster/raft/transport.py", source)

    assert len(made) > 50
    assert len({mutant.name for mutant in made}) == len(made)
    for mutant in made:
        mutants.check(mutant, source)
