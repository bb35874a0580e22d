"""A process of the product with a bug in it: `python -m tests.chaos_bugs.sabotaged BUG MODULE …`.

What lives here: planting one of the simulator's bugs (chaos/simulation/bugs) and then being the
module, as `python -m MODULE …` would. What must not: any bug, and what finds it.
"""

from __future__ import annotations

import runpy
import sys

from chaos.simulation.bugs import BUGS, store

store._LAME = "n1"  # the node that a bug of one node alone is on: here it is called so


def main() -> None:
    """Run the module to its end with the bug in it."""
    _, bug, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    with BUGS[bug].planted():
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
