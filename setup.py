"""Where the broker's packages lie in a wheel; all else is in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class UnderOneName(build_py):
    """Puts the packages into one folder, so that no top-level name but ours is taken.

    `cluster`, `chaos` and `analytics` are other distributions' names too, and pip would write one
    over the other without a word. An editable installation has them where they are.
    """

    def finalize_options(self) -> None:
        """Say where packages go."""
        super().finalize_options()
        if not self.editable_mode:
            self.build_lib = str(Path(self.build_lib) / "flotilla_broker")

    def get_module_outfile(self, build_dir: str, package: list[str], module: str) -> str:
        """Return where a module goes: one of no package, which is the commands', beside them."""
        if not any(package) and not self.editable_mode:
            build_dir = str(Path(build_dir).parent)
        outfile: str = super().get_module_outfile(build_dir, package, module)
        return outfile


setup(cmdclass={"build_py": UnderOneName})
