"""A process of the product with a bug in it: `python -m tests.chaos_bugs.sabotaged BUG MODULE …`.

What lives here: planting one of the simulator's bugs (chaos/simulation/bugs) or of ours and then
being the module, as `python -m MODULE …` would. What must not: any bug, and what finds it.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from chaos.simulation.bugs import BUGS, store
from tests.chaos_bugs.sharper import SHARPER

LAME = "n1"  # the node that has a bug of one node alone


def main() -> None:
    """Run the module to its end with the bug in it."""
    _, bug, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    is_lame = Path(arguments[-1]).parent.name == LAME
    store._LAME = "data" if is_lame else ""  # where a node's store is, seen from its file
    with {**BUGS, **SHARPER}[bug].planted():
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
