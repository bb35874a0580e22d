"""Records what clients do, as the history that `flotilla-check` judges (docs/recording.md).

What lives here: the writer of rows, the observer that turns a client's operations into rows, and
the directory in which an application's processes record, with what its `run.json` says of each
file. What must not: judging a history (analytics shares nothing but the format with this file),
requests, retries.

The order is the contract: an `invoke` is in the kernel's hands before its request leaves (what an
answer brings beside what it says is gone: before the answer is acted upon), and an outcome before
the outbox or the cursor changes. So a process that is killed, or a disk that is
full, leaves at most operations without an end, never an effect without its operation.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Self

import orjson

from flotilla_client.errors import Compacted, Expired, Gap, Purged, RecordError
from flotilla_client.observer import Handling, Operation, Outcome
from flotilla_client.properties import Properties, decode, encode
from flotilla_client.protocol import delays, envelopes, expiries, text_of, topic_of, unpack

FUNCTIONS: Final = frozenset({"put", "get", "sub", "unsub", "group", "ungroup", "take"})
# Headers of a dead letter: where it is from, and by which group.
OF_DEAD_LETTERS: Final = ("dead-letter-topic", "dead-letter-group", "dead-letter-id")
HANDLINGS: Final = frozenset({"hand", "ack", "release"})  # single events
OUTCOMES: Final = frozenset({"ok", "fail", "info"})
OPEN_OPERATIONS_MAX: Final = 65_536  # far above what is in flight: older ones were cancelled
DIGEST_BYTES: Final = 8  # two contents share one by chance once in 2^64 comparisons
TOLD_OF_GONE: Final = frozenset({Purged.CODE, Gap.CODE, Expired.CODE, Compacted.CODE})
RUN_FILE_BYTES_MAX: Final = 16 * 1024 * 1024  # about 100,000 clients: each start writes it anew
LOCK_S_MAX: Final = 10.0  # for others' turns to write it: milliseconds each
LOCK_POLL_S: Final = 0.005
ID_DIGITS: Final = re.compile(r"[1-9][0-9]{0,14}")
FILE_DIGEST_BYTES: Final = 16
PIECE_BYTES: Final = 1024 * 1024
APPLICATION: Final = "application"  # who recorded, in run.json: no phases, payloads of its own
RECOVERY_NAME: Final = "recovery"  # the cluster's last one when the run began; empty: none
TORN_END: Final = b"\x18\n"  # CAN: what stands before it was cut off, and is to be disregarded
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
BOOT_ID_DIGITS: Final = 8


class Recorder:
    """Writes the events of one process to `<directory>/<process>.jsonl`, a JSON object a line.

    A process that comes back opens the same file: its `session` is one higher than the last one
    there and `op_id` goes on, so (process, op_id) stays unique. `client_id` joins every event once
    it is known. Safe to use from several threads. Raises OSError with the file's name when a line
    can't be written; nothing of that line stays.
    """

    def __init__(
        self,
        directory: Path,
        process: str,
        run_id: str,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{process}.jsonl"
        self.client_id: str | None = None
        self._clocks = (monotonic_ns, wall_ns)
        self._lock = threading.Lock()
        self._open: dict[int, dict[str, Any]] = {}
        self._last_op_id, last_session, missing_end = _tail(self.path)
        self._common = {
            "run_id": run_id,
            "process": process,
            "host": this_host(),
            "session": last_session + 1,
        }
        self._file = self.path.open("ab", buffering=0)
        if missing_end:
            self._write_bytes(missing_end)

    def invoke(self, f: str, topic: str, beside: int | None = None, **fields: Any) -> int:
        """Record that an operation is about to be sent; return its op_id.

        `beside`: the one, under way, in whose request it was sent: it began when that one did.
        """
        assert f in FUNCTIONS, f
        with self._lock:
            op_id = self._last_op_id + 1
            operation = {"op_id": op_id, "client_id": self.client_id, "f": f, "topic": topic}
            began_ns = None if beside is None else self._open[beside]["invoke_ns"]
            t_ns = self._write({**operation, "type": "invoke", **fields}, began_ns)
            self._last_op_id = op_id  # not before: a line that can't be written leaves no hole
            self._open[op_id] = {**operation, "invoke_ns": t_ns, **_repeated(fields)}
            if len(self._open) > OPEN_OPERATIONS_MAX:
                del self._open[next(iter(self._open))]  # stays without an end
            return op_id

    def complete(self, op_id: int, type: str, **fields: Any) -> None:
        """Record the end of operation `op_id`: `ok`, `fail` (definitely not done) or `info`."""
        assert type in OUTCOMES, type
        with self._lock:
            operation = self._open.pop(op_id, None)
            assert operation is not None, f"operation {op_id} was not invoked or has ended already"
            self._write({**operation, "type": type, **fields})

    def single(self, f: str, **fields: Any) -> int:
        """Record an event that has no end of its own; return its t_ns."""
        with self._lock:
            op_id = self._last_op_id + 1
            now_ns = self._write({"op_id": op_id, "f": f, "type": "info", **fields})
            self._last_op_id = op_id
            return now_ns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Operations still open stay without an end, as after a crash."""
        self._file.close()

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be recorded any more."""
        return self._file.closed

    def labels(self) -> dict[str, Any]:
        """Return what joins every event; what is None stays out."""
        return {"client_id": self.client_id}

    def _write(self, fields: dict[str, Any], t_ns: int | None = None) -> int:
        """Write a line of now, or of a moment before; return its `t_ns`."""
        monotonic_ns, wall_ns = self._clocks
        now_ns = monotonic_ns()
        t_ns = now_ns if t_ns is None else t_ns
        stamps = {"t_ns": t_ns, "wall_ns": wall_ns() - (now_ns - t_ns)}
        event = {**self._common, **self.labels(), **stamps, **fields}
        known = {name: value for name, value in event.items() if value is not None}
        self._write_bytes(orjson.dumps(known) + b"\n")
        return t_ns

    def _write_bytes(self, line: bytes) -> None:
        written = 0
        if self.is_closed:  # under a thread that its client has waited for in vain
            raise OSError(errno.EBADF, "it is closed", str(self.path))
        start = os.fstat(self._file.fileno()).st_size
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except BaseException as error:
            # The next line must not be glued to half of this one, nor take the place of a whole one
            # behind which ctrl-C came.
            os.ftruncate(self._file.fileno(), start)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, str(self.path)) from error
            raise


def _repeated(invoke: dict[str, Any]) -> dict[str, Any]:
    """Return what of an invoke its end repeats: it is a whole operation to whoever reads on.

    Not the digests, which are long.
    """
    names = ("counter", "count", "epoch", "max_count")
    repeated = {name: invoke.get(name) for name in names}
    return {**repeated, "asked": invoke.get("last_id")}


class ClientObserver:
    """Records what a client of the library does, through the library's Observer Protocol.

    `definite` errors become `fail`, all others `info`. The client calls `on_invoke` before the
    request leaves and `on_complete` before its cursor moves, so the recorder's order is the truth.
    What a history says of publications is a subclass's: `published` and `delivered`.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._op_ids: dict[int, int] = {}

    def on_handling(self, handling: Handling) -> None:
        """Record what the application is handed next, is done with, or gives back."""
        assert handling.f in HANDLINGS, handling
        self._recorder.client_id = handling.client_id or None
        self._recorder.single(
            handling.f,
            topic=handling.topic,
            first_id=handling.first_id,
            last_id=handling.last_id,
            cursor=handling.cursor,
            redelivered=handling.redelivered or None,
        )

    def published(self, operation: Operation) -> dict[str, Any]:
        """Return what a PUT's invoke says of its publications beside their counters."""
        return {}

    def _published(self, operation: Operation) -> dict[str, Any]:
        return {
            **_expiring(operation, operation.counter),
            **_delayed(operation),
            **self.published(operation),
        }

    def delivered(self, outcome: Outcome) -> dict[str, Any]:
        """Return what a GET's end says of its publications beside their ids."""
        return {}

    def given(self, outcome: Outcome) -> dict[str, Any]:
        """Return what a TAKE's end says of its publications beside their leases."""
        return {}

    def on_invoke(self, operation: Operation) -> None:
        """Record an operation that is about to be sent."""
        self._recorder.client_id = operation.client_id
        self._op_ids[operation.number] = self._recorder.invoke(
            operation.f,
            operation.topic,
            counter=operation.counter,
            count=operation.count,
            last_id=operation.last_id,
            max_count=operation.max_count,
            start=operation.start,
            epoch=operation.epoch or None,
            group=operation.group or None,
            beside=None if operation.beside is None else self._op_ids[operation.beside],
            **{name: value for name, value in operation.said.items() if value != []},
            **(self._published(operation) if operation.f == "put" else {}),
        )
        if len(self._op_ids) > OPEN_OPERATIONS_MAX:
            del self._op_ids[next(iter(self._op_ids))]

    def on_complete(self, operation: Operation, outcome: Outcome) -> None:
        """Record how it ended."""
        op_id = self._op_ids.pop(operation.number)
        common = {
            "attempt": outcome.attempts,
            "node": outcome.leader or None,
            "term": outcome.term or None,
        }
        if outcome.error:
            # That is an answer, whatever came of others.
            is_told = outcome.error in TOLD_OF_GONE and operation.f == "get"
            kind = "fail" if outcome.definite or is_told else "info"
            gone = _gone(outcome) if is_told else {}
            self._recorder.complete(op_id, kind, error=outcome.error, **gone, **common)
        else:
            self._recorder.complete(op_id, "ok", **self._answer(operation, outcome), **common)

    def _answer(self, operation: Operation, outcome: Outcome) -> dict[str, Any]:
        if operation.f == "put":
            return _stored(operation, outcome)
        if operation.f == "get":
            return _brought(outcome) | (self.delivered(outcome) if outcome.publications else {})
        if operation.f == "take":
            return _leased(outcome) | (self.given(outcome) if outcome.publications else {})
        return {
            "last_id": outcome.last_id,
            "resumed": outcome.resumed,
            "cursor": outcome.cursor,
            "compacted": outcome.compacted,
        }


def _gone(outcome: Outcome) -> dict[str, Any]:
    """Return what a subscriber was told that is gone; nothing if it had all of that."""
    if outcome.first_id is None:
        return {}
    return {
        "topic": outcome.topic,
        "first_id": outcome.first_id,
        "last_id": outcome.last_id,
        "cursor": outcome.cursor,
        "unsaid": outcome.is_unsaid or None,
    }


class Recording(ClientObserver):
    """An application's record: `directory` is its run, each client in it has a file of its own.

    Use: `Client(…, record=directory)`. The first process that comes makes `run.json`, which names
    the run and what each file is; all others join it. Publications are recorded as digests, 16 hex
    digits each.

    Raises RecordError, with the file's name, when the directory can't be used; from `on_invoke`
    (then the operation is not sent) and from `on_complete` (then outbox and cursor stay as they
    are, and the client asks again later) when a line can't be written.
    """

    def __init__(self, directory: str | Path) -> None:
        directory = Path(directory)
        self._run_file, self._recovery = directory / "run.json", directory / RECOVERY_NAME
        with _as_record_error(directory):
            _check_ours(directory)
            (directory / "history").mkdir(parents=True, exist_ok=True)
            self.run_id = _joined_run(self._run_file)
            recorder = Recorder(directory / "history", _unique(), self.run_id)
            self.path = recorder.path
            try:
                # The file first: one that is not named yet is empty, one that is named is there.
                _vouch(self._run_file, self.path, closed=False)
            except BaseException:
                recorder.close()
                raise
        super().__init__(recorder)

    def on_taken_up(self, recovery: str) -> None:
        """Refuse to go on with a record that was begun before a recovery. Raises RecordError."""
        with _as_record_error(self._recovery):
            if not self._recovery.exists():
                mine = self._recovery.with_name(f"{RECOVERY_NAME}.{_unique()}")
                mine.write_text(recovery, encoding="utf-8")
                with suppress(FileExistsError):  # another process was first
                    os.link(mine, self._recovery)  # whole at once
                mine.unlink()
            begun_under = self._recovery.read_text(encoding="utf-8")
        if begun_under != recovery:
            message = (
                f"the cluster was recovered since the record in {self._recovery.parent} was begun,"
                " and what stands there need not hold any more: begin a new record, in a new"
                " directory"
            )
            raise RecordError(message, details={"file": str(self._recovery)})

    def published(self, operation: Operation) -> dict[str, Any]:
        """Return the digests of a PUT's publications."""
        return {"digests": digests(list(map(text_of, unpack(operation.lengths, operation.data))))}

    def delivered(self, outcome: Outcome) -> dict[str, Any]:
        """Return the digests of what a GET brought."""
        return {"digests": digests(outcome.publications)}

    def on_invoke(self, operation: Operation) -> None:
        """Record an operation that is about to be sent, or was sent beside another one."""
        with _as_record_error(self.path, definite=operation.beside is None):
            super().on_invoke(operation)

    def on_complete(self, operation: Operation, outcome: Outcome) -> None:
        """Record how it ended; without that, whether it happened is open."""
        with _as_record_error(self.path, definite=False):
            super().on_complete(operation, outcome)

    def on_handling(self, handling: Handling) -> None:
        """Record what the application is handed next, is done with, or gives back."""
        with _as_record_error(self.path, definite=handling.f != "hand"):
            super().on_handling(handling)

    def close(self) -> None:
        """Close the file, and let run.json say what it is. What is still open stays without an end.

        Raises RecordError where that can't be written: the file is whole, and nothing says so.
        """
        if not self._recorder.is_closed:
            self._recorder.close()
            with _as_record_error(self._run_file):
                _vouch(self._run_file, self.path, closed=True)


def _check_ours(directory: Path) -> None:
    """Raise RecordError for a directory that holds other things than a run."""
    names = set(os.listdir(directory)) if directory.exists() else set()
    if names and names.isdisjoint({"history", "run.json"}):
        message = (
            f"{directory} holds no run but {min(names)!r}; name a new directory for the record"
        )
        raise RecordError(message, details={"file": str(directory)})


def digests(publications: Sequence[bytes]) -> str:
    """Return 16 hex digits a publication, joined: BLAKE2b of 8 bytes."""
    return "".join([blake2b(one, digest_size=DIGEST_BYTES).hexdigest() for one in publications])


def this_host() -> str:
    """Return a name for what shares one monotonic clock: this machine, until it boots again.

    Where a boot has no name the process has one of its own: its times are compared with nobody's.
    """
    try:
        boot = BOOT_ID.read_text(encoding="ascii").replace("-", "")[:BOOT_ID_DIGITS]
    except OSError:
        boot = f"{os.getpid()}.{uuid.uuid4().hex[:BOOT_ID_DIGITS]}"
    return f"{platform.node()}/{boot}"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file in order; lines that are torn are left out."""
    with path.open("rb") as file:
        for line in file:
            if event := _event_of(line):
                yield event


def _event_of(line: bytes) -> dict[str, Any] | None:
    try:
        event: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None  # analytics counts and reports these
    return event


def _expiring(operation: Operation, first: int | None) -> dict[str, Any]:
    """Return runs of first and last counter, or id, and ms of what is to expire; {} of nothing."""
    if not first or not envelopes(operation.lengths, operation.data):
        return {}  # as a rule
    runs = _runs_of_ms(first, expiries(operation.lengths, operation.data))
    return {"expires": runs} if runs else {}


def _delayed(operation: Operation) -> dict[str, Any]:
    """Return runs of first and last counter, and ms, of what is delayed; {} of nothing."""
    if not operation.counter or operation.topic == topic_of(operation.topic):
        return {}  # as a rule: it is no lane
    return {"delays": _runs_of_ms(operation.counter, delays(operation.lengths, operation.data))}


def _runs_of_ms(first: int, each_ms: Sequence[int]) -> list[list[int]]:
    """Return runs of first and last place, and ms, of publications from `first` on; 0 ms: none."""
    runs: list[list[int]] = []
    for place, ms in enumerate(each_ms, first):
        if ms and runs and runs[-1][1:] == [place - 1, ms]:
            runs[-1][1] = place
        elif ms:
            runs.append([place, place, ms])
    return runs


def _stored(operation: Operation, outcome: Outcome) -> dict[str, Any]:
    assert operation.count, operation
    assert outcome.first_id is not None, outcome
    last_id = outcome.first_id + operation.count - 1 if outcome.first_id else 0
    stood = envelopes(operation.lengths, operation.data) if outcome.first_id else {}
    return {
        "first_id": outcome.first_id,
        "last_id": last_id,
        "duplicate": outcome.duplicate,
        **_expiring(operation, outcome.first_id),
        **_marked(own := {outcome.first_id + n: decode(each)[0] for n, each in stood.items()}),
        **_keyed(own),
    }


def _marked(properties: Mapping[int, Properties]) -> dict[str, Any]:
    """Return which ids have properties, and the digests of these; nothing if none has.

    But for the expiry: a client that does not know it is not sent it.
    """
    said = {id_: encode(own.lasting()) for id_, own in properties.items()}
    marked = {id_: envelope for id_, envelope in said.items() if envelope}
    return {"marked": list(marked), "properties": digests(list(marked.values()))} if marked else {}


def _keyed(properties: Mapping[int, Properties]) -> dict[str, Any]:
    """Return which ids have a key, and the digests of these; nothing if none has."""
    keys = {id_: own.key for id_, own in sorted(properties.items()) if own.key is not None}
    if not keys:
        return {}
    return {
        "keyed": list(keys),
        "keys": digests([encode(Properties(key)) for key in keys.values()]),
    }


def _brought(outcome: Outcome) -> dict[str, Any]:
    if not outcome.publications:
        named = {"topic": outcome.topic} if outcome.topic else {}
        return {"count": 0, "first_id": outcome.first_id, **named}
    assert outcome.first_id is not None, outcome
    count = len(outcome.publications)
    return {
        "topic": outcome.topic,
        "count": count,
        "first_id": outcome.first_id,
        "last_id": outcome.first_id + count - 1,
        "bytes": sum(map(len, outcome.publications)),
        "cursor": outcome.cursor,
        "unsaid": outcome.is_unsaid or None,
        "handed_apart": True,
        "times": _times(outcome) or None,
        **_marked(outcome.properties),
        "letters": letters(outcome) or None,
    }


def _leased(outcome: Outcome) -> dict[str, Any]:
    assert outcome.leased is not None, outcome
    leased = outcome.leased
    if not leased.runs:
        return {"count": 0, "lost": leased.lost or None}
    return {
        "count": len(outcome.publications),
        "token": leased.token,
        "leases": leased.runs,
        "lost": leased.lost or None,
        "left_ms": max(0, leased.left_ms),
        "lease_ms": leased.lease_ms,
        **_keyed(outcome.properties),
        "letters": letters(outcome) or None,
    }


def letters(outcome: Outcome) -> list[tuple[int, str, str, int]]:
    """Return (id, topic, group, id there) of the dead letters that an answer brought, by id."""
    found = []
    for id_, own in sorted(outcome.properties.items()):
        values = [own.headers.get(name) for name in OF_DEAD_LETTERS]
        match values:
            case [str(topic), str(group), str(from_id)] if ID_DIGITS.fullmatch(from_id):
                found.append((id_, topic, group, int(from_id)))
    return found


def _times(outcome: Outcome) -> list[list[int]]:
    """Return runs of first id, last id and time; what has none is left out."""
    runs, first_id = [], outcome.first_id or 0
    for last_id, timestamp_ms in outcome.timestamps:
        if last_id < first_id:
            continue  # of what the client had already
        if timestamp_ms is not None:
            runs.append([first_id, last_id, timestamp_ms])
        first_id = last_id + 1
    return runs


def _tail(path: Path) -> tuple[int, int, bytes]:
    """Return (last op_id, last session, what its last line lacks) of a file; 0, 0 if there is none.

    A line that a kill has torn stays, alone, for the reader to count; one that has all but its end
    is an event as any other.
    """
    if not path.exists():
        return 0, 0, b""
    op_id = session = 0
    line, event = b"", None
    with path.open("rb") as file:
        for line in file:
            if event := _event_of(line):
                op_id, session = max(op_id, event["op_id"]), max(session, event["session"])
    if line.endswith(b"\n") or not line:
        return op_id, session, b""
    return op_id, session, b"\n" if event else TORN_END


def _unique() -> str:
    """Return a name that no other client has, on any host."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", platform.node()) or "host"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _joined_run(path: Path) -> str:
    """Return the id of the run that `path` (run.json) names; make it if it is not there."""
    about = {
        "run_id": str(uuid.uuid4()),
        "recorded_by": APPLICATION,
        "start": datetime.now(UTC).isoformat(timespec="seconds"),
        "history": {},
    }
    if not path.exists():
        mine = path.with_name(f"run.json.{_unique()}")
        mine.write_bytes(_encoded(about))
        try:
            os.link(mine, path)  # whole at once, and only if no other process was first
        except FileExistsError:
            return _joined_run(path)
        finally:
            mine.unlink()
    return str(_about(path)["run_id"])


def described(path: Path, closed: bool = True) -> dict[str, Any]:
    """Return what `history` in run.json says of a file of lines.

    `closed`: nothing will be written any more. The digest is BLAKE2b of the `bytes`.
    """
    digest, lines, size = blake2b(digest_size=FILE_DIGEST_BYTES), 0, 0
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            lines += piece.count(b"\n")
            size += len(piece)
    return {"lines": lines, "bytes": size, "blake2b": digest.hexdigest(), "closed": closed}


def _vouch(run_file: Path, file: Path, closed: bool) -> None:
    """Let run.json say what `file` is by now, durably; what others wrote there stays.

    A run.json that a client of version 0.2 began says nothing of files, and stays so: to name some
    of them would make strangers of the others.
    """
    member = described(file, closed)
    with _held(run_file.with_name(f"{run_file.name}.lock")):
        about = _about(run_file)
        if not isinstance(about.get("history"), dict):
            return
        about["history"][file.name] = member
        new = run_file.with_name(f"{run_file.name}.new")  # one at a time: a dead one's is replaced
        with new.open("wb") as written:
            written.write(_encoded(about))
            written.flush()
            os.fsync(written.fileno())
        new.replace(run_file)


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Keep other processes from writing run.json. Raises RecordError if its turn does not come."""
    deadline_s = time.monotonic() + LOCK_S_MAX
    descriptor = os.open(lock, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while not _taken(descriptor):
            if time.monotonic() >= deadline_s:
                message = f"another process has held {lock} for {LOCK_S_MAX:g} s"
                raise RecordError(message, details={"file": str(lock)})
            time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _encoded(about: dict[str, Any]) -> bytes:
    return orjson.dumps(about, option=orjson.OPT_INDENT_2) + b"\n"


def _about(path: Path) -> dict[str, Any]:
    """Return what `path` (run.json) says of an application's run. Raises RecordError."""
    with path.open("rb") as file:
        data = file.read(RUN_FILE_BYTES_MAX + 1)
    if len(data) > RUN_FILE_BYTES_MAX:
        message = f"{path} names too many clients ({RUN_FILE_BYTES_MAX} bytes): begin a new record"
        raise RecordError(message, details={"file": str(path)})
    try:
        about = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{path} is not JSON: {error}", details={"file": str(path)}) from error
    if not isinstance(about, dict) or about.get("recorded_by") != APPLICATION:
        message = f'{path} names no recording of an application: "recorded_by" is due'
        raise RecordError(message, details={"file": str(path)})
    run_id = about.get("run_id")
    if not isinstance(run_id, str) or not run_id:
        raise RecordError(f"{path} has no run_id", details={"file": str(path)})
    return about


@contextmanager
def _as_record_error(path: Path, definite: bool = True) -> Iterator[None]:
    """Turn what the file system refuses into RecordError."""
    try:
        yield
    except OSError as error:
        file = str(error.filename or path)
        message = f"the record cannot be written: {file}: {error.strerror}"
        raise RecordError(message, definite=definite, details={"file": file}) from error
