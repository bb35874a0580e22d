"""`flotilla-check prepare`: keeps what a JVM loads to check a short history, for those to come.

What lives here: making that file once, by checking a history that is made up for it. What must
not: where it lies, or which JVM it fits (session.py).

Spark has 20,000 classes to load and verify before it has answered anything; that takes longer than
to check a short history. Java can map them into memory as it left them (JDK's class-data sharing).
"""

import tempfile
from pathlib import Path
from typing import Final

from analytics.common import session
from analytics.generate.shape import Shape
from analytics.generate.writing import generate
from analytics.judge.check import check
from analytics.report.page import write_report

SHAPE: Final = Shape(operations=4_096)


def prepare() -> Path:
    """Make the archive for this machine's Java, and return it; one that is there is replaced.

    For a process of its own, which starts no session after it. Raises JavaMissing and OSError.
    """
    archive = session.class_archive(session.found_java())
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_name(f"{archive.name}.new")
    new.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="flotilla-prepare-") as directory:
        run = Path(directory) / "run"
        with session.opened(is_for_short=True, archive_to=new) as spark:
            generate(spark, run, SHAPE, {}, as_jsonl=True)
            check(run, finish=write_report)
        session.end_jvm()
    return new.replace(archive)
