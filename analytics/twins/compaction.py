"""What may have been compacted away: of each key the last publication stays.

What lives here: what the keys of the PUTs of a topic say of ids. What must not: what somebody was
told of that (answers.py).
"""

from __future__ import annotations

from functools import cached_property

from analytics.twins.record import Record, RecordedOperation, Time


class Keys:
    """What the PUTs of a topic say of its ids, as of an operation's end.

    `known`: of each id the PUT that has stored it. `end`: an id that was surely stored after that
    operation, 0 if none was: nothing from there on can have replaced anything by then.
    """

    def __init__(self, run: Record, topic: str, own: RecordedOperation) -> None:
        said = run.stored_in.get(topic, ())
        self.known: dict[int, RecordedOperation] = {}
        for put in sorted(said, key=lambda put: (put.is_duplicate, put.invoke, put.op_id)):
            for id_ in range(put.first_id or 0, (put.first_id or 0) + put.count):
                self.known.setdefault(id_, put)
        self.end = min(
            (
                put.first_id or 0
                for put in said
                if not put.is_duplicate and put.host == own.host and put.invoke > own.end
            ),
            default=0,
        )

    @cached_property
    def _last_of(self) -> dict[str, int]:
        """The last id of each key that may have been there by then."""
        last: dict[str, int] = {}
        for id_ in self.known:
            key = self._key(id_)
            if key is not None and (id_ < self.end or not self.end):
                last[key] = max(id_, last.get(key, 0))
        return last

    def is_keyless(self, id_: int) -> bool:
        """Whether an id is known to have no properties, and so no key: nothing replaces it."""
        return id_ in self.known and id_ not in self.known[id_].properties

    def is_latest(self, id_: int) -> bool:
        """Whether no publication behind that one, and before `end`, has its key: all are known."""
        key = None if self.is_keyless(id_) else self._key(id_)
        behind = range(id_ + 1, self.end)
        return (
            key is not None
            and id_ < self.end
            and all(each in self.known and self._key(each) != key for each in behind)
        )

    def is_replaced(self, id_: int) -> bool:
        """Whether a later publication is known to have its key, that may have been there then."""
        key = self._key(id_)
        last_id = self._last_of.get(key, 0) if key is not None else 0
        return last_id > id_

    def _key(self, id_: int) -> str | None:
        return self.known[id_].keys.get(id_) if id_ in self.known else None


def unread(run: Record, get: RecordedOperation, keys: Keys) -> list[int]:
    """Return the ids of what an answer says is gone that were stored while its client stood."""
    stood = _stood_since(run, get)
    if stood is None:
        return []
    return [
        id_
        for id_ in named(get)
        if (put := keys.known.get(id_)) is not None
        and (not put.is_duplicate and put.host == get.host and put.invoke > stood)
    ]


def were_there(run: Record, control: RecordedOperation, ids: list[int]) -> bool:
    """Whether any of these ids was surely there when a start was looked for."""
    keys, is_compacted = Keys(run, control.topic, control), control.topic in run.compacted
    later = [
        set(get.ids())
        for get in run.brought_of.get(control.topic, ())
        if get.host == control.host and get.invoke > control.end
    ]
    for id_ in ids:
        is_of_compacted = keys.is_keyless(id_) or keys.is_latest(id_)
        is_kept = is_of_compacted if is_compacted else not keys.is_replaced(id_)
        if is_kept or any(id_ in each for each in later):
            return True
    return False


def named(get: RecordedOperation) -> range:
    """Return the ids of which an answer says that they are gone."""
    return range(min(get.ids()), max(get.ids()) + 1)


def replacements_of(run: Record) -> set[tuple[str, int]]:
    """Return the gaps that may be what is compacted away, as all of each was replaced: whoever
    knows no expiry is told that, and perhaps nobody was told that the topic is compacted.
    """
    return {get.key for get in run.told_of_purges if _is_replacement(run, get)}


def _is_replacement(run: Record, get: RecordedOperation) -> bool:
    if get.error != "gap" or not any(put.keys for put in run.stored_in.get(get.named, ())):
        return False
    keys = Keys(run, get.named, get)
    return all(keys.is_replaced(id_) for id_ in named(get)) and not unread(run, get, keys)


def _stood_since(run: Record, get: RecordedOperation) -> Time | None:
    """Return since when a subscription surely stands that a GET is of; None: it is not known."""
    controls = [
        one
        for f in ("sub", "unsub")
        for one in run.of(f)
        if (one.client, one.topic) == (get.client, get.named) and one.invoke < get.end
    ]
    if not controls or any(one.host != get.host or one.outcome == "info" for one in controls):
        return None
    last = max(controls, key=lambda one: (one.invoke, one.op_id))
    if last.f != "sub" or not last.is_ok:
        return None
    return max(one.end for one in controls)
