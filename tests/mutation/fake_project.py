"""A project of one module, whose simulation is a script: for tests of the runner."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PRODUCT: Final = '''\
"""A product."""


def order(values):
    return sorted(values)


def limit(number):
    return number <= 3


def spare(number):
    return number


def wait(until):
    count = 0
    while count < until:
        count += 1
    return count
'''
SIMULATION: Final = """\
import json, sys
import product

first, last = map(int, sys.argv[1].split(".."))
for seed in range(first, last + 1):
    failures = []
    if seed >= 3 and product.order([seed, 1]) != [1, seed]:
        failures = [{"check": "order", "text": "not in order", "at_s": 1.0}]
    product.wait(seed)
    verdict = "failed" if failures else "clean"
    print(json.dumps({"seed": seed, "verdict": verdict, "failures": failures}), flush=True)
print(json.dumps({"runs": last}))
"""
TESTS: Final = """\
import product


def test_the_limit_is_three():
    assert product.limit(3)
    assert not product.limit(4)
"""
ORDER: Final = ("unordered", "return sorted(values)", "return values")
LIMIT: Final = ("limit", "return number <= 3", "return number < 3")
SPARE: Final = ("spare", "return number\n", "return number + 0\n")
HANGING: Final = ("hanging", "while count < until:", "while count <= until or count:")
FAILING: Final = ("failing", '"""A product."""', 'raise RuntimeError("no product")')


def make(
    root: Path,
    mutants: Sequence[tuple[str, str, str]] = (ORDER, LIMIT, SPARE),
    *,
    silence_s_max: float = 30,
    equivalents: str = "",
) -> Path:
    """Write the project to `root`; `mutants`: (name, old, new) of the product."""
    directory = root / "tests/mutation/mutants"
    directory.mkdir(parents=True)
    (root / "product.py").write_text(PRODUCT)
    (root / "simulation.py").write_text(SIMULATION)
    (root / "test_product.py").write_text(TESTS)
    write_mutants(root, mutants)
    (directory.parent / "mutation.toml").write_text(
        textwrap.dedent(f"""\
        [simulation]
        command = ["{{python}}", "simulation.py", "{{seeds}}"]
        silence_s_max = {silence_s_max}
        [tests]
        command = ["{{python}}", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no"]
        seconds_max = 60
        [tests.nearest]
        "product.py" = ["test_product.py"]
        [tree]
        paths = ["."]
        left_out = [".git", "runs"]
        linked = []
        precompiled = ["product.py"]
        [operators]
        modules = ["product.py"]
        """)
    )
    if equivalents:
        row = f'[[equivalent]]\nname = "{equivalents}"\nreason = "it adds nothing"\n'
        (directory.parent / "equivalents.toml").write_text(row)
    return root


def write_mutants(root: Path, mutants: Sequence[tuple[str, str, str]]) -> None:
    """Write the file of mutants."""
    text = "[product.py]\n"
    for name, old, new in mutants:
        text += f"\n@ {name}: a promise\nwhen always\n"
        text += "".join(f"-{line}\n" for line in old.split("\n"))
        text += "".join(f"+{line}\n" for line in new.split("\n"))
    (root / "tests/mutation/mutants/product.txt").write_text(text)
