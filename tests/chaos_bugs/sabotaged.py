"""A process of the product with bugs in it: `python -m tests.chaos_bugs.sabotaged BUGS MODULE …`.

What lives here: planting some of the simulator's bugs (chaos/simulation/bugs) or of ours (BUGS has
commas between them) and then being the module, as `python -m MODULE …` would. What must not: any
bug, and what finds it.
"""

from __future__ import annotations

import runpy
import sys
from contextlib import ExitStack
from pathlib import Path

from chaos.simulation.bugs import BUGS, store
from tests.chaos_bugs.sharper import SHARPER

LAME = "n1"  # the node that has a bug of one node alone


def main() -> None:
    """Run the module to its end with the bugs in it."""
    _, bugs, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    is_lame = Path(arguments[-1]).parent.name == LAME
    store._LAME = "data" if is_lame else ""  # where a node's store is, seen from its file
    with ExitStack() as stack:
        for bug in bugs.split(","):
            stack.enter_context({**BUGS, **SHARPER}[bug].planted())
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
