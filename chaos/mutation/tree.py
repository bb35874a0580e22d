"""Copies of the tree, in which mutants live.

What lives here: making a copy, putting one mutant into it and taking it out again. What must not:
writing to the tree itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.mutation.mutants import Mutant
from chaos.mutation.project import Project


class Copy:
    """A copy of the project's tree at `path`, for one worker."""

    def __init__(self, project: Project, path: Path) -> None:
        self.path, self._project = path, project
        ignored = shutil.ignore_patterns(*project.left_out, *project.linked)
        shutil.copytree(project.root, path, ignore=ignored, symlinks=True)
        for name in project.linked:
            if (project.root / name).exists():
                (path / name).symlink_to((project.root / name).resolve())
        # By the sources' hashes: a mutated file is read again, whatever its time and size are.
        if project.precompiled:
            compile_all = (sys.executable, "-m", "compileall", "-q")
            by_hash = ("--invalidation-mode", "checked-hash")
            command = [*compile_all, *by_hash, *project.precompiled]
            subprocess.run(command, cwd=path, check=True)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment in which a process imports this copy."""
        paths = [str(self.path / name) for name in self._project.paths]
        own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        return os.environ | own

    def source(self, file: str) -> str:
        """Return the text of a file here: the tree may have changed since the copy was made."""
        return (self.path / file).read_text(encoding="utf-8")

    @contextmanager
    def mutated(self, mutant: Mutant | None) -> Iterator[None]:
        """Let the mutant stand in the copy; None: nothing, for the baseline."""
        if mutant is None:
            yield
            return
        file, source = self.path / mutant.file, self.source(mutant.file)
        file.write_text(mutant.applied(source), encoding="utf-8")
        try:
            yield
        finally:
            file.write_text(source, encoding="utf-8")
