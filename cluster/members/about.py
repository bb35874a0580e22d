"""What nodes tell each other beside Raft: their settings, whom they hear, what they advise.

What lives here: the facts in an `About` message and their reading. What must not: what a node does
about them, and anything that a promise rests on: a peer may say nothing, or be of another version.

The facts are a JSON object. A reader skips keys that it does not know, and refuses the whole if one
that it knows holds something else than it should.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from cluster.wire.messages import (
    ABOUT_BYTES_MAX,
    MEMBER_COUNT_MAX,
    NAME_BYTES_MAX,
    About,
    MessageError,
)

Value = int | str  # of a setting
ADMINS: Final = "admins"  # the setting that has names of others in it
SETTINGS_MAX: Final = 256  # far above the number there are
DIGESTS_MAX: Final = 64  # above what any node tells
DIGEST_CHARACTERS_MAX: Final = 64
_INDEX: Final = re.compile(r"[0-9]{1,19}")
TEXT_CHARACTERS_MAX: Final = 1024  # a sentence or two for a log or a status


@dataclass(frozen=True, slots=True)
class Heard:
    """A member's `incarnation`, and for how long the sender has not heard it."""

    incarnation: str
    silent_ms: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What one node says.

    `settings`: what should be the same on all nodes, by key. `seen`: when it last heard
    each member. `double`: what it knows of another process that claims the receiver's name.
    `advice`: why the receiver is no member yet. `http`: where the sender's page is. "" = nothing.
    `digests`: of the sender's state, by the index of the entry behind which it was so.
    """

    settings: Mapping[str, Value] = field(default_factory=dict)
    seen: Mapping[str, Heard] = field(default_factory=dict)
    double: str = ""
    advice: str = ""
    http: str = ""
    digests: Mapping[int, str] = field(default_factory=dict)


def encode(facts: Facts) -> About:
    """Return the message that says these facts.

    Settings that are texts stand apart: versions before they were said refuse them among numbers.
    """
    numbers = {key: each for key, each in facts.settings.items() if type(each) is int}
    texts = {key: each for key, each in facts.settings.items() if type(each) is str}
    seen = {name: [each.incarnation, each.silent_ms] for name, each in facts.seen.items()}
    document: dict[str, Any] = {"settings": numbers, "texts": texts, "seen": seen}
    document["double"] = facts.double[:TEXT_CHARACTERS_MAX]
    document["advice"] = facts.advice[:TEXT_CHARACTERS_MAX]
    document["http"] = facts.http[:TEXT_CHARACTERS_MAX]
    document["digests"] = {str(index): digest for index, digest in facts.digests.items()}
    data = orjson.dumps(document)
    assert len(data) <= ABOUT_BYTES_MAX, len(data)
    return About(data)


def decode(message: About) -> Facts:
    """Return the facts of a message. Raises MessageError."""
    try:
        document = orjson.loads(message.facts)
    except orjson.JSONDecodeError as error:
        raise MessageError(f"About is not JSON: {error}") from None
    if type(document) is not dict:
        raise MessageError("About is no JSON object")
    return Facts(
        _settings(document.get("settings", {})) | _texts(document.get("texts", {})),
        _seen(document.get("seen", {})),
        _text("double", document.get("double", "")),
        _text("advice", document.get("advice", "")),
        _text("http", document.get("http", "")),
        _digests(document.get("digests", {})),
    )


def differences(mine: Mapping[str, Value], theirs: Mapping[str, Value]) -> dict[str, list[Value]]:
    """Return {key: [mine, theirs]} of the settings that both sides have and that differ."""
    common = sorted(mine.keys() & theirs)
    return {key: [mine[key], theirs[key]] for key in common if mine[key] != theirs[key]}


def _settings(value: Any) -> dict[str, Value]:
    if type(value) is not dict or len(value) > SETTINGS_MAX:
        raise MessageError("About has `settings` that are none")
    if not all(type(each) is int for each in value.values()):
        raise MessageError("About has a setting that is no number")
    return value


def _texts(value: Any) -> dict[str, Value]:
    if type(value) is not dict or len(value) > SETTINGS_MAX:
        raise MessageError("About has `texts` that are none")
    return {key: _text(key, each) for key, each in value.items()}


def _seen(value: Any) -> dict[str, Heard]:
    if type(value) is not dict or len(value) > MEMBER_COUNT_MAX:
        raise MessageError("About has `seen` that is none")
    seen = {}
    for name, each in value.items():
        if type(each) is not list or len(each) != 2 or type(each[0]) is not str:
            raise MessageError(f"About has seen {name!r} as {each!r}")
        if len(each[0]) > NAME_BYTES_MAX or type(each[1]) is not int or each[1] < 0:
            raise MessageError(f"About has seen {name!r} as {each!r}")
        seen[name] = Heard(*each)
    return seen


def _digests(value: Any) -> dict[int, str]:
    if type(value) is not dict or len(value) > DIGESTS_MAX:
        raise MessageError("About has `digests` that are none")
    if not all(_INDEX.fullmatch(index) and type(each) is str for index, each in value.items()):
        raise MessageError("About has a digest that is none")
    return {int(index): digest[:DIGEST_CHARACTERS_MAX] for index, digest in value.items()}


def _text(key: str, value: Any) -> str:
    if type(value) is not str or len(value) > TEXT_CHARACTERS_MAX:
        raise MessageError(f"About has `{key}` that is no short text")
    return value
