"""Write into the scenarios what their commands print now; a diff shows what has changed."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.raft.driver import files, played


def main() -> None:
    for file in map(Path, sys.argv[1:]) if sys.argv[1:] else files():
        lines = list(played(file.read_text(encoding="utf-8")))
        file.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
