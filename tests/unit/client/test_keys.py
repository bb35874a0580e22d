"""A client's key file: strict, secret in every text, and read anew for each connection."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq.auth
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85 as zmq_z85

from flotilla_client import AsyncClient, Client, KeyUnusable
from flotilla_client.keys import Key, KeyFile, from_z85, key_file, read_key, z85

PUBLIC, SECRET, SERVER = (z85(bytes([number]) * 32) for number in (1, 2, 3))
KEY = Key("orders", PUBLIC, SECRET, SERVER)


@given(st.binary(min_size=32, max_size=32))
def test_z85_is_that_of_zeromq(key: bytes) -> None:
    assert z85(key).encode() == zmq_z85.encode(key)
    assert from_z85(z85(key)) == key


@given(st.text(max_size=50))
def test_what_is_no_z85_is_a_value_error_that_does_not_repeat_it(text: str) -> None:
    try:
        key = from_z85(text)
    except ValueError as error:
        told = str(error)
    else:
        told = "" if z85(key) == text else text
    own_words = "3 characters; a key has 40"  # which a text may be a part of, such as "act"
    assert len(text) < 3 or text in own_words or text not in told


def test_a_key_file_is_a_certificate_of_zeromq_too(tmp_path: Path) -> None:
    file = tmp_path / "orders.key"
    file.write_text(KEY.text())
    assert read_key(file) == KEY
    assert zmq.auth.load_certificate(file) == (PUBLIC.encode(), SECRET.encode())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no public-key"),
        (KEY.text().replace("server-key", "server"), "has no server-key"),
        (KEY.text().replace(SECRET, SECRET[1:]), "secret-key: 39 characters"),
        (KEY.text().replace(SECRET, '~"'.rjust(41, "a")), "line 6 is none of a key file"),
        (KEY.text().replace(SECRET, "#" * 40), "secret-key: five characters above"),
        (KEY.text() + "curve = 5\n", "line 8 is none of a key file"),
        ("x" * 20_000, "over 16384 bytes"),
    ],
)
def test_a_damaged_key_file_is_refused_without_its_secret(
    tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "orders.key"
    file.write_text(text)
    for make in (Client, AsyncClient):
        with pytest.raises(KeyUnusable, match=reason) as caught:
            make("127.0.0.1:1", key=file)
        assert caught.value.details == {"file": str(file)}
        assert SECRET not in f"{caught.value!r} {caught.value}"
    with pytest.raises(KeyUnusable, match="No such file"):
        Client("127.0.0.1:1", key=tmp_path / "none.key")
    assert SECRET not in repr(KEY)


def test_a_key_is_a_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="key is a path, not int"):
        Client("127.0.0.1:1", key=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="key is '', which names no file"):
        Client("127.0.0.1:1", key="")
    monkeypatch.delenv("FLOTILLA_KEY", raising=False)
    assert key_file(None) is None
    file = tmp_path / "orders.key"
    file.write_text(KEY.text())
    monkeypatch.setenv("FLOTILLA_KEY", str(file))
    found = key_file(None)
    assert found is not None
    assert found.current() == KEY


def test_a_file_that_is_replaced_counts_from_the_next_connection_on(tmp_path: Path) -> None:
    file = tmp_path / "orders.key"
    file.write_text(KEY.text())
    key = KeyFile(file)
    newer = Key("orders", SERVER, SECRET, PUBLIC)
    file.write_text(newer.text())
    assert key.current() == newer
    file.write_text("damaged")
    assert key.current() == newer
    file.unlink()
    assert key.current() == newer
