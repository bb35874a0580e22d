"""Who may what: principals and their permissions, as the log has made them.

What lives here: the rows, what a change does to them, and whether a principal may do something.
What must not: where a principal comes from (client_port.py), what a request needs (broker.py).

A principal is the name of a key. One that has no row of its own is judged by EVERYBODY_ELSE's, if
that stands. Decision: docs/decisions/0014-principals.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from cluster.store.commands import ChangeUser
from cluster.store.outcomes import Done, Outcome, Refused, too_many
from cluster.store.tables import CorruptStore, Database, row_crc
from flotilla_client.protocol import (
    ADD_USER,
    ALLOW_USER,
    EVERYBODY_ELSE,
    PATTERNS_MAX,
    REMOVE_USER,
    matches,
)

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
OBSERVE: Final = "observe"
ADMIN: Final = "admin"
ANSWERS_CACHED_MAX: Final = 65_536  # (principal, right, topic): 10 MB; then it begins anew


@dataclass(frozen=True, slots=True)
class Rights:
    """What a principal may do: patterns of topics, sorted, and two that have no topic.

    What is denied is denied, whatever is allowed besides. Who is `admin` may observe, too.
    """

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    deny_publish: tuple[str, ...] = ()
    deny_subscribe: tuple[str, ...] = ()
    observe: bool = False
    admin: bool = False


NONE: Final = Rights()
# Until the operator says otherwise everybody may do what he could do before there were permissions,
# but for changing these.
OPEN: Final = Rights(publish=(">",), subscribe=(">",), observe=True)


def unauthorized(principal: str, needs: str, topic: str = "") -> Refused:
    """Return the refusal of what a principal may not do. It says nothing but what was asked."""
    on = f" on {topic}" if topic else ""
    return Refused("unauthorized", f"{principal} lacks `{needs}`{on}", {"needs": needs})


def not_the_owner() -> Refused:
    """Return the refusal of who uses another principal's client id. It does not say whose."""
    message = "the client_id belongs to another principal"
    return Refused("unauthorized", message, {"needs": "client_id"})


class Users:
    """The users of the cluster, by name, all in memory."""

    def __init__(self, database: Database, users_max: int) -> None:
        self._database, self._users_max = database, users_max
        self._rights: dict[str, Rights] = {}
        self._dirty: set[str] = set()
        self._answers: dict[tuple[str, str, str], bool] = {}
        self.changes = 0  # since this object was made
        for name, text, crc in database.query("SELECT name, rights, crc FROM users"):
            database.verify(crc, (name, text))
            self._rights[name] = _read(database, name, text)

    # --- what one may ---

    def rights(self, principal: str) -> Rights:
        """Return what a principal may do."""
        return self._rights.get(principal) or self._rights.get(EVERYBODY_ELSE, NONE)

    def may(self, principal: str, right: str, topic: str) -> bool:
        """Return whether a principal has PUBLISH or SUBSCRIBE on a topic."""
        key = (principal, right, topic)
        answer = self._answers.get(key)
        if answer is None:
            rights = self.rights(principal)
            allowed: tuple[str, ...] = getattr(rights, right)
            denied: tuple[str, ...] = getattr(rights, f"deny_{right}")
            answer = any(matches(each, topic) for each in allowed)
            answer = answer and not any(matches(each, topic) for each in denied)
            if len(self._answers) >= ANSWERS_CACHED_MAX:
                self._answers.clear()
            self._answers[key] = answer
        return answer

    def may_see(self, principal: str, topic: str) -> bool:
        """Return whether a topic is shown to a principal."""
        return (
            self.may_observe(principal)
            or self.may(principal, SUBSCRIBE, topic)
            or self.may(principal, PUBLISH, topic)
        )

    def may_observe(self, principal: str) -> bool:
        """Return whether a principal may see what belongs to others."""
        rights = self.rights(principal)
        return rights.observe or rights.admin

    def may_administrate(self, principal: str) -> bool:
        """Return whether a principal may change what belongs to others."""
        return self.rights(principal).admin

    def may_anything(self, principal: str) -> bool:
        """Return whether a principal may publish or subscribe to anything."""
        rights = self.rights(principal)
        return bool(rights.publish or rights.subscribe)

    # --- changes ---

    def found(self) -> None:
        """Begin as a cluster does that gets users: everybody goes on."""
        self._set(EVERYBODY_ELSE, OPEN)

    def change(self, asked: ChangeUser) -> Outcome:
        """Carry out a change by somebody who may. Twice is as good as once."""
        name, before = asked.user, self._rights.get(asked.user)
        said = Rights(tuple(asked.publish), tuple(asked.subscribe), (), (), *_flags(asked))
        if asked.change == REMOVE_USER:
            if before is not None:
                self._set(name, None)
            return Done({"user": None, "removed": before is not None})
        if asked.change == ADD_USER:
            if before is not None and before != said:
                message = f"there is a user {name!r}: allow and deny change what it may"
                return Refused("bad_request", message)
            if before is None and len(self._rights) >= self._users_max:
                return too_many("users", self._users_max)
            after = said
        elif before is None:
            return Refused("bad_request", f"there is no user {name!r}: add it first")
        else:
            after = _allowed(before, said) if asked.change == ALLOW_USER else _denied(before, said)
            patterns = after.publish, after.subscribe, after.deny_publish, after.deny_subscribe
            if max(map(len, patterns)) > PATTERNS_MAX:
                return too_many("patterns of a kind", PATTERNS_MAX)
        if after != before:
            self._set(name, after)
        return Done({"user": _row(name, after)})

    def page(self, after: str, count_max: int) -> list[dict[str, Any]]:
        """Return users by name, those behind `after`."""
        names = sorted(name for name in self._rights if name > after)
        return [_row(name, self._rights[name]) for name in names[:count_max]]

    def _set(self, name: str, rights: Rights | None) -> None:
        if rights is None:
            del self._rights[name]
        else:
            self._rights[name] = rights
        self._dirty.add(name)
        self._answers.clear()
        self.changes += 1

    def flush(self) -> None:
        """Write what changed, in the open transaction."""
        if not self._dirty:
            return
        rows = []
        for name in sorted(self._dirty & self._rights.keys()):
            text = orjson.dumps(asdict(self._rights[name])).decode()
            rows.append((name, text, row_crc((name, text))))
        gone = [(name,) for name in sorted(self._dirty - self._rights.keys())]
        self._database.write("INSERT OR REPLACE INTO users VALUES(?, ?, ?)", rows)
        self._database.write("DELETE FROM users WHERE name = ?", gone)
        self._dirty.clear()


def _flags(asked: ChangeUser) -> tuple[bool, bool]:
    return asked.observe, asked.admin


def _allowed(before: Rights, more: Rights) -> Rights:
    return Rights(
        _with(before.publish, more.publish),
        _with(before.subscribe, more.subscribe),
        _without(before.deny_publish, more.publish),
        _without(before.deny_subscribe, more.subscribe),
        before.observe or more.observe,
        before.admin or more.admin,
    )


def _denied(before: Rights, less: Rights) -> Rights:
    return Rights(
        _without(before.publish, less.publish),
        _without(before.subscribe, less.subscribe),
        _with(before.deny_publish, less.publish),
        _with(before.deny_subscribe, less.subscribe),
        before.observe and not less.observe,
        before.admin and not less.admin,
    )


def _with(patterns: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*patterns, *more}))


def _without(patterns: tuple[str, ...], less: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each for each in patterns if each not in less)


def _row(name: str, rights: Rights) -> dict[str, Any]:
    return {"user": name, **asdict(rights)}


def _read(database: Database, name: str, text: str) -> Rights:
    try:
        fields = orjson.loads(text)
        lists = {key: tuple(value) for key, value in fields.items() if type(value) is list}
        return Rights(**fields | lists)
    except (orjson.JSONDecodeError, AttributeError, TypeError) as error:
        raise CorruptStore(database.path, f"rights of user {name!r}: {error}") from None
