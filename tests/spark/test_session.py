"""Which Java is taken, and how it is started. No session is started here."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from analytics.common import session


def fake_java(directory: Path, version: str) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nprintf '<%s>' \"$@\"\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("17.0.15", 17), ("21", 21)])
def test_java_version_is_its_major_number(tmp_path: Path, version: str, major: int) -> None:
    assert session.java_version(fake_java(tmp_path, version)) == major


def test_old_java_is_passed_over_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(session, "_bundled", lambda: None)
    with pytest.raises(session.JavaMissing, match=f"{old} \\(version 11\\)"):
        session.found_java()
    monkeypatch.setattr(session, "_bundled", lambda: fake_java(tmp_path / "pip", "21.0.8"))
    assert session.write_shim(session.found_java(), tmp_path / "shim") == tmp_path / "shim"


def test_shim_drops_the_vector_module_and_keeps_all_else(tmp_path: Path) -> None:
    home = session.write_shim(fake_java(tmp_path / "real", "21"), tmp_path / "shim")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, check=True)
    assert done.stdout == b"<-Xmx1g><a b><>"


def test_archive_of_classes_is_that_of_one_java_and_taken_if_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.sys, "prefix", str(tmp_path / "an environment"))
    old, new = (fake_java(tmp_path / name, "21") for name in ("old", "new"))
    archive = session.class_archive(old)
    assert archive != session.class_archive(new)
    assert session.sharing(old) == ""
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert f'"-XX:SharedArchiveFile={archive}"' in session.sharing(old)
    assert session.sharing(new) == ""
    assert f'"-XX:ArchiveClassesAtExit={tmp_path}/x"' in session.sharing(old, tmp_path / "x")


@pytest.mark.parametrize("before", [None, "/of/the/user"])
def test_no_file_is_needed_once_the_jvm_runs_and_java_home_is_the_user_s_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """So a check that is killed leaves nothing in the directory of temporary files."""
    monkeypatch.setattr(session.tempfile, "tempdir", str(tmp_path))
    if before is None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setenv("JAVA_HOME", before)
    java = fake_java(tmp_path / "real", "21")
    with session._shim_for(java):
        assert (Path(os.environ["JAVA_HOME"]) / "bin" / "java").is_file()
    assert os.environ.get("JAVA_HOME") == before
    assert list(tmp_path.iterdir()) == [tmp_path / "real"]


def test_a_jvm_for_short_histories_has_room_for_the_code_of_many() -> None:
    """With one compiler it has 48 MB by itself. When they are full, it compiles no more."""
    command = [str(session.found_java()), *f"{session.JVM_SHORT}64m".split()]
    done = subprocess.run(
        [*command, "-XX:+PrintFlagsFinal", "-version"], capture_output=True, text=True, check=True
    )
    found = re.search(r"ReservedCodeCacheSize\s+= (\d+)", done.stdout)
    assert found is not None
    assert int(found[1]) >= 200 << 20
