"""What the tests of `deploy/` start from: the image, built once from this tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy import engine


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """Yield the tag of an image built from this tree; remove it at the end."""
    tag = engine.unique("flotilla-test")
    dockerfile = str(engine.ROOT / "deploy" / "Dockerfile")
    engine.run(
        *("docker", "build", "-f", dockerfile, "-t", tag, str(engine.ROOT)),
        timeout_s=engine.BUILD_TIMEOUT_S,
    )
    yield tag
    engine.run("docker", "rmi", "--force", tag)
