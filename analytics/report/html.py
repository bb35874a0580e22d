"""How templates become a page that stands alone: escaping, what goes inline, and what may run.

A page's policy allows the scripts written here, by their digests, and nothing from anywhere else:
should a name in a history ever get through the escaping, it still does not run. No content here.
"""

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES: Final = Path(__file__).with_name("templates")
POLICY: Final = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


def rendered(template: str, scripts: tuple[str, ...] = (), **context: Any) -> str:
    """Return `template` filled with `context`, all of which is escaped. `scripts`: their text."""
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts) or "'none'"
    page = _environment().get_template(template)
    return page.render(
        policy=Markup(POLICY.format(scripts=allowed)),
        scripts=[Markup(script) for script in scripts],
        style=Markup(asset("style.css")),
        **context,
    )


@cache
def asset(name: str) -> str:
    """Return the text of a file in `templates/`."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def data_block(text: str) -> Markup:
    """Return JSON as it may stand in a `<script>` element: nothing in it can end the element."""
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def percent(share: float) -> str:
    """Return a share of 1 as a length in a style."""
    return f"{max(0.0, min(share, 1.0)) * 100:.2f}%"


def by_file(places: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return places like `history/p.jsonl:12` as files with their lines' numbers."""
    lines: dict[str, list[str]] = {}
    for place in places:
        file, _, number = place.rpartition(":")
        lines.setdefault(file, []).append(number)
    return list(lines.items())


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thousands"] = "{:,}".format
    environment.filters["percent"] = percent
    environment.filters["by_file"] = by_file
    return environment


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
