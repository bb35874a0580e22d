"""A real browser for the tests of pages: what a page shows, and what it does beside."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from playwright.sync_api import Browser, Page, sync_playwright

FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WAIT_MS: Final = 60_000  # a page is drawn in 2 s; a machine that is busy takes longer
PHONE_WIDTH_MAX: Final = 640


@dataclass
class Seen:
    """A page that is open, and what it did."""

    page: Page
    troubles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium, for tests that are marked as in need of it."""
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


def opened(
    browser: Browser, url: str, width: int = 1280, scheme: str = "light", offline: bool = False
) -> Seen:
    """Open a page as a desktop's browser does or, where it is narrow, as a phone's."""
    is_phone = width < PHONE_WIDTH_MAX
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
        offline=offline,
        is_mobile=is_phone,
        has_touch=is_phone,
    )
    context.set_default_timeout(WAIT_MS)
    seen = Seen(context.new_page())
    seen.page.on("console", lambda message: seen.troubles.append(message.text))
    seen.page.on("pageerror", lambda error: seen.troubles.append(str(error)))
    seen.page.on("dialog", lambda dialog: seen.troubles.append(dialog.message))
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.goto(url)
    return seen
