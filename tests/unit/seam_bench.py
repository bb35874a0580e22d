"""What the seam of cluster/log/files.py costs: a journal through it, and one with the calls put in.

Not a test: `python -m tests.unit.seam_bench [DIRECTORY]`; on a memory filesystem (the default) no
disk hides the difference. The two are run in turns; the least of each counts, so that other work on
the machine does not.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from cluster.log import journal as journal_module

ENTRIES = 5_000  # each appended and synced alone: the seam's share is largest then
ROUNDS = 15
COMMAND = b"\0" + b"x" * 100
FUTURE = "from __future__ import annotations"
CALLS = {"write": "os.write", "fdatasync": "os.fdatasync"}  # of an append


def without_seam() -> ModuleType:
    """Return the journal's module with the operating system's calls in the seam's place."""
    source = Path(journal_module.__file__).read_text(encoding="utf-8")
    for name, call in CALLS.items():
        source, count = re.subn(rf"self\._files\.{name}\b", call, source)
        assert count, name
    module = ModuleType("cluster.journal_without_seam")
    exec(source.replace(FUTURE, f"{FUTURE}\nimport os", 1), vars(module))
    return module


def entry_us(module: Any, directory: Path) -> float:
    """Return the CPU microseconds of one entry, appended and synced."""
    module.Journal.create(directory)
    journal = module.Journal.open(directory)
    journal.set_term(1, None)
    began_s = time.process_time()
    for index in range(1, ENTRIES + 1):
        journal.add(COMMAND, index, 1)
        journal.sync()
    took_s = time.process_time() - began_s
    journal.close()
    return took_s / ENTRIES * 1e6


def main() -> None:
    parent = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm"
    modules = {"with the seam": journal_module, "without": without_seam()}
    times: dict[str, list[float]] = {name: [] for name in modules}
    for _ in range(ROUNDS):
        for name, module in modules.items():
            with tempfile.TemporaryDirectory(dir=parent) as directory:
                times[name].append(entry_us(module, Path(directory) / "journal"))
    for name, found in times.items():
        found.sort()
        print(f"{name}: {found[0]:.2f} us an entry, median {found[len(found) // 2]:.2f}")


if __name__ == "__main__":
    main()
