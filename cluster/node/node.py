"""The process of one node: sockets, poll, signals, the worker thread, and the loop that joins them.

What lives here: everything that touches the operating system on the loop's way. What must not: any
decision; those are replica.py's, which this module feeds and obeys.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import queue
import random
import resource
import select
import signal
import socket
import sqlite3
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from cluster.keys.directory import KeysDirectory, KeysError
from cluster.log.files import EXIT_STATUS, Files
from cluster.log.segments import JournalError
from cluster.members.about import ADMINS, TEXT_CHARACTERS_MAX
from cluster.members.identity import DirectoryLock, Identity, IdentityError
from cluster.members.membership import ReplacedError, hello_of
from cluster.members.peers import PeerPort
from cluster.node.context import ReplicaSettings
from cluster.node.maintenance import Maintenance
from cluster.node.replica import Replica
from cluster.node.scrub import ScrubPace
from cluster.observe.observer import NodeObserver, TimedFiles
from cluster.observe.server import HttpThread, listen, tls_of
from cluster.raft.ready import Timing
from cluster.recovery.cli import recover
from cluster.serve.broker import BrokerLimits, Traced
from cluster.serve.client_port import ClientPort, PortLimits
from cluster.serve.frontend import ClientRoutes
from cluster.serve.meters import FSYNC_S, Histogram
from cluster.serve.quotas import Quotas
from cluster.serve.shares import rest_s
from cluster.settings import config, logs
from cluster.settings.config import ConfigError, NodeConfig, split_address
from cluster.store import tables
from cluster.store.tables import CorruptStore
from cluster.wire.levels import BUILD, UnsupportedLevel
from flotilla_client.version import VERSION

if TYPE_CHECKING:
    from cluster.observe.tracing import NodeSpans

DAY_MS: Final = 24 * 3600 * 1000
TICK_S: Final = 0.02  # an idle node wakes this often; elections and heartbeats need no finer
HEALTH_S: Final = 1.0  # between two touches of the health file; a probe allows for 30
SLOW_TURN_S: Final = 0.15  # half an election: an operator should know of such a disk
STOPPING_S_MAX: Final = 5.0  # a stopping node waits this long to hand over and answer
LINGER_S: Final = 0.2  # the last replies may take that long to leave
WORKER_JOBS_MAX: Final = 16  # copies, checks and checkpoints: one each at most is usual
ENDED: Final = select.EPOLLERR | select.EPOLLHUP  # read as such, and written as such
READABLE: Final = select.EPOLLIN | ENDED
WRITABLE: Final = select.EPOLLOUT | ENDED
CONNECTIONS_OF_DESCRIPTORS: Final = 2  # clients get half, journal, peers and store the other
READY_PER_TURN_MAX: Final = 1024  # descriptors; the others have their turn in the next
OLDEST_GENERATION: Final = 2  # a collection of it is a full one
EXIT_CONFIG: Final = 78  # EX_CONFIG of sysexits.h
EXIT_DATA: Final = 65  # EX_DATAERR: the data directory is damaged or not ours
_REBUILD: Final = (
    "If it can't be read any more, move the data directory away and start the node with an empty "
    "one: it copies the state from the others and is readmitted."
)
_MAKE_ROOM: Final = (
    "Make room there and start the node: nothing is damaged, and its data directory is to stay."
)
EXIT_LEVEL: Final = 76  # EX_PROTOCOL: this build can't take part in its cluster
_EVICTED: Final = (
    "If the other process is the right one, remove this data directory. If this one is, stop the "
    "other process and start this node with an empty data directory: it copies the state from the "
    "others and is readmitted."
)
EXIT_BROKEN: Final = 70  # EX_SOFTWARE: the replica must not go on
EXIT_EVICTED: Final = 77  # EX_NOPERM: another data directory was admitted under this node's name


_Job = tuple[Callable[[], Any], Callable[[Any], None], Callable[[Exception], None]]


class ThreadWorker:
    """Runs slow jobs in one thread and hands their results back to the loop."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[_Job] = queue.Queue(WORKER_JOBS_MAX)
        self._results: deque[Callable[[], None]] = deque()
        self._under_way = 0
        self.wake, self._wake = socket.socketpair()
        self.wake.setblocking(False)
        self._wake.setblocking(False)
        threading.Thread(target=self._run, name="worker", daemon=True).start()

    def submit(
        self,
        job: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Run `job` in the thread; see catchup.Worker."""
        self._under_way += 1
        try:
            self._jobs.put_nowait((job, done, failed))
        except queue.Full:
            self._results.append(lambda: failed(OSError("the worker's queue is full")))

    def _run(self) -> None:
        while True:
            job, done, failed = self._jobs.get()
            self._results.append(self._outcome(job, done, failed))
            with contextlib.suppress(BlockingIOError):  # it is awake already
                self._wake.send(b"\0")

    @staticmethod
    def _outcome(
        job: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> Callable[[], None]:
        try:
            result = job()
        except (OSError, sqlite3.Error) as error:
            expected = error
            return lambda: failed(expected)
        except Exception as error:  # noqa: BLE001  (a defect or a damaged store: the loop ends)
            return _raiser(error)
        return lambda: done(result)

    def deliver(self) -> None:
        """Call back for every finished job."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)
        while self._results:
            self._under_way -= 1
            self._results.popleft()()

    @property
    def idle(self) -> bool:
        """True when no job is under way (and none can begin but by the caller's own doing)."""
        return self._under_way == 0


def _raiser(error: Exception) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


class HealthFile:
    """A file whose age tells a probe how long ago the loop turned, without a question to the node.

    A node that has too much to do to answer a new connection in time still turns, and is healthy.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._due_s = 0.0

    def touch(self, now: float) -> None:
        """Make it new if it is time."""
        if now >= self._due_s:
            self._due_s = now + HEALTH_S
            os.utime(self._descriptor)


class Node:
    """One running node. `run()` returns when it was told to stop.

    `in_force`: the settings with where each comes from, for whoever asks.
    """

    def __init__(
        self, settings: NodeConfig, log: Any, in_force: Mapping[str, Any] | None = None
    ) -> None:
        self._settings, self._log = settings, log
        self._stop_at: float | None = None
        self._poller = select.epoll()
        self._watched: set[int] = set()
        self._rng = random.Random()
        identity = self._identity()
        self._keys = self._open_keys()
        self._must_read_keys = False
        with _blamed("client_listen", settings.client_listen):
            self._clients = self._open_clients()
        with _blamed("health_file", settings.health_file):
            self._health = HealthFile(settings.health_file) if settings.health_file else None
        self._worker = ThreadWorker()
        with _blamed("peer_listen", settings.peer_listen):
            self._peers = self._open_peers(identity)
        self._observer: NodeObserver | None = None
        self._fsync = Histogram(FSYNC_S)
        self._spans = self._open_spans()
        self._replica = self._open_replica(identity, in_force or {})
        self._meters = self._replica.frontend.meters
        if settings.http_listen:
            self._observer = self._show(settings)
        self._peers.update_hello(self._replica.hello())
        self._maintenance = Maintenance(
            self._replica, self._worker, settings.limits.disk_free_min_bytes, self._event
        )
        self._watch(self._worker.wake.fileno(), True, False)

    def _identity(self) -> Identity:
        settings = self._settings
        directory = settings.data_dir
        identity = Identity.load(directory)
        if identity is None:
            identity = Identity.create(settings.cluster_id, settings.node)
            identity.save(directory)
        identity.check(directory, settings.cluster_id, settings.node)
        return identity

    def _open_keys(self) -> KeysDirectory | None:
        settings = self._settings
        if not settings.keys_dir:
            return None
        try:
            return KeysDirectory(Path(settings.keys_dir), settings.cluster_id, settings.node)
        except KeysError as error:
            raise ConfigError([f"keys_dir: {error}"]) from error

    def _follow_keys(self, keys: KeysDirectory, now: float) -> None:
        """Take up keys that were changed; with ones that can't be used it goes on with the old."""
        asked, self._must_read_keys = self._must_read_keys, False
        try:
            if not keys.look(now, asked):
                return
        except KeysError as error:
            self._event("keys_unusable", "error", reason=str(error))
            self._show_keys(is_unusable=True)
            return
        self._show_keys(is_unusable=False)
        new = keys.keys
        self._clients.update_keyring(new.keyring)
        self._peers.update_tls(new.tls)
        self._event(
            "keys_read",
            clients=len(new.keyring.clients),
            server_keys=len(new.keyring.servers),
            revoked=len(new.tls.revoked),
        )

    def _show_keys(self, is_unusable: bool) -> None:
        if self._observer is not None:
            self._observer.keys_unusable = is_unusable

    def _read_keys(self, *signal_and_frame: object) -> None:
        self._must_read_keys = True

    def _open_clients(self) -> ClientPort:
        limits = self._settings.limits
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return ClientPort(
            split_address(self._settings.client_listen),
            PortLimits(
                min(limits.connections_max, descriptors // CONNECTIONS_OF_DESCRIPTORS),
                limits.client_queue_max,
                limits.unfinished_bytes_max,
                limits.unread_bytes_max,
                self._settings.quotas.connections_max,
            ),
            time.monotonic,
            watch=self._watch,
            report=self._report_clients,
            keyring=self._keys.keys.keyring if self._keys is not None else None,
        )

    def _open_peers(self, identity: Identity) -> PeerPort:
        settings = self._settings
        members = {
            name: split_address(address)
            for name, address in settings.members.items()
            if name != settings.node
        }
        return PeerPort(
            settings.node,
            split_address(settings.peer_listen),
            members,
            hello_of(identity, tuple(settings.members), BUILD),
            time.monotonic,
            watch=self._watch,
            random=self._rng,
            takeover_ms=settings.raft.takeover_ms,
            tls=self._keys.keys.tls if self._keys is not None else None,
        )

    def _open_replica(self, identity: Identity, in_force: Mapping[str, Any]) -> Replica:
        return Replica(
            _replica_settings(
                self._settings,
                in_force,
                TimedFiles(self._fsync),
                None if self._spans is None else self._spans.begin,
            ),
            identity,
            self._peers,
            self._worker,
            self._rng,
            lambda: str(uuid.uuid4()),
            self._event,
            time.monotonic(),
            time.monotonic,
            ClientRoutes(
                self._clients.room_bytes,
                self._clients.payer_of,
                None if self._keys is None else self._clients.principal_of,
                self._clients.payer_shares,
            ),
        )

    def _open_spans(self) -> NodeSpans | None:
        settings = self._settings
        if not settings.otlp_endpoint:
            return None
        try:
            from cluster.observe.tracing import NodeSpans
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "opentelemetry":
                raise
            problem = "otlp_endpoint: needs the extra `otel` (opentelemetry is not installed)"
            raise ConfigError([problem]) from error
        where = settings.otlp_endpoint, settings.node, settings.cluster_id, VERSION
        return NodeSpans(*where, time.monotonic)

    def _show(self, settings: NodeConfig) -> NodeObserver:
        """Show this node over HTTP, in a thread; return what tells that thread of it."""
        with _blamed("http_listen", settings.http_listen):
            listener = listen(split_address(settings.http_listen))
        with _blamed("http_certificate_file", settings.http_certificate_file):
            tls = tls_of(settings.http_certificate_file)
        observer = NodeObserver(
            self._replica.frontend,
            self._clients,
            self._fsync,
            settings.data_dir,
            settings.http_reads_as,
            None if self._keys is None else False,
        )
        HttpThread(
            observer,
            listener,
            settings.cluster_id,
            config.http_token(settings),
            lambda error: self._log.error("http_failed", exc_info=error),
            tls,
        )
        return observer

    def _event(self, event: str, level: str = "info", **fields: Any) -> None:
        getattr(self._log, level)(event, **fields)
        if self._observer is not None:
            self._observer.note(event, level, fields)

    def _report_clients(self, event: str, **fields: Any) -> None:
        self._event(event, "warning", **fields)

    def _watch(self, fd: int, read: bool, write: bool) -> None:
        """Keep an eye on a descriptor; one that is watched for nothing is not looked at at all."""
        flags = (select.EPOLLIN if read else 0) | (select.EPOLLOUT if write else 0)
        if not flags:
            if fd in self._watched:
                self._watched.remove(fd)
                self._poller.unregister(fd)
        elif fd in self._watched:
            self._poller.modify(fd, flags)
        else:
            self._watched.add(fd)
            self._poller.register(fd, flags)

    def stop(self, *signal_and_frame: object) -> None:
        """Begin to stop: hand leadership over, answer what is under way, return from `run`."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + STOPPING_S_MAX
            self._replica.frontend.stop()

    def run(self) -> None:
        """Run turns until stopped."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)
        if self._keys is not None:
            signal.signal(signal.SIGHUP, self._read_keys)
        else:
            self._log.warning(
                "insecure",
                reason="keys_dir is not set: whoever reaches the ports may publish, read and join"
                " the cluster; see docs/security.md",
            )
        self._event(
            "started", clients=self._settings.client_listen, peers=self._settings.peer_listen
        )
        more = False
        while not self._is_done():
            more = self._turn(0.0 if more else self._wait_s())
        self._peers.close()
        self._replica.close()
        self._event("stopped")
        self._clients.close(LINGER_S)
        if self._spans is not None:
            self._spans.close()
        self._poller.close()

    def _wait_s(self) -> float:
        rests_end = min(self._clients.next_deadline(), self._replica.next_deadline())
        next_deadline = min(self._peers.next_deadline(), rests_end)
        return max(0.0, min(TICK_S, next_deadline - time.monotonic()))

    def _turn(self, wait_s: float) -> bool:
        """Run one turn; True if the next is due at once."""
        clients, worker_fd = self._clients, self._worker.wake.fileno()
        for fd, flags in self._poller.poll(wait_s, READY_PER_TURN_MAX):
            port = clients if fd in clients else self._peers
            if fd == worker_fd:
                self._worker.deliver()
            else:
                port.on_ready(fd, bool(flags & READABLE), bool(flags & WRITABLE))
        now = time.monotonic()
        if self._keys is not None:
            self._follow_keys(self._keys, now)
        self._peers.tick(now)
        clients.tick(now)
        replica, requests = self._replica, []
        if replica.intake.wants_clients:  # otherwise they wait at their connections
            requests = clients.receive(self._settings.limits.requests_per_turn_max)
        clients.send(replica.turn(now, requests))
        answered = time.monotonic()
        replica.finish_turn(self._maintenance.room)
        self._maintenance.tick(now)
        if self._health is not None:
            self._health.touch(now)
        ended = time.monotonic()
        clients.turned(ended - now, ended, replica.stored)
        self._peers.turned(ended + rest_s(ended - now))
        self._meters.turned(now, answered, ended)
        if self._observer is not None:
            self._observer.tick(now)
        self._report_refusals(now)
        self._report_if_slow(now, answered, ended)
        return replica.busy or clients.has_more

    def _report_refusals(self, now: float) -> None:
        if refused := self._replica.frontend.refusals.report(now * 1000):
            self._event("quota_refused", "warning", refused=refused)
        lead = self._replica.frontend.lead
        if lead is not None and (denied := lead.broker.denied.report(now * 1000)):
            self._event("unauthorized", "warning", refused=denied)

    def _report_if_slow(self, began: float, answered: float, ended: float) -> None:
        if ended - began > SLOW_TURN_S:
            self._event(
                "slow_turn",
                "warning",
                answering_ms=round((answered - began) * 1000),
                storing_ms=round((ended - answered) * 1000),
            )

    def _is_done(self) -> bool:
        if self._stop_at is None:
            return False
        return self._replica.may_stop() or time.monotonic() >= self._stop_at


def _replica_settings(
    settings: NodeConfig, in_force: Mapping[str, Any], files: Files, traced: Traced | None
) -> ReplicaSettings:
    raft, limits = settings.raft, settings.limits
    return ReplicaSettings(
        cluster_id=settings.cluster_id,
        name=settings.node,
        members=tuple(sorted(settings.members)),
        data_dir=settings.data_dir,
        timing=Timing(
            raft.election_min_ms / 1000,
            raft.election_max_ms / 1000,
            raft.heartbeat_ms / 1000,
            raft.fallback_ms / 1000,
        ),
        broker_limits=BrokerLimits(
            limits.in_flight_max,
            limits.parked_gets_max,
            limits.backlog_bytes_max,
            limits.client_idle_days * DAY_MS,
        ),
        uncommitted_entries_max=limits.uncommitted_entries_max,
        relays_max=limits.relays_max,
        segment_bytes=settings.journal.segment_bytes,
        keep_bytes=settings.journal.keep_bytes,
        scrub=ScrubPace(settings.scrub.bytes_per_s_max, settings.scrub.period_s),
        takeover_s=raft.takeover_ms / 1000,
        admins=frozenset(settings.admins),
        traced=traced,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        quotas=Quotas(**asdict(settings.quotas)),
        announced={ADMINS: ",".join(settings.admins)[:TEXT_CHARACTERS_MAX]}
        | {
            f"{section}.{key}": value
            for section in ("raft", "limits", "quotas")
            for key, value in asdict(getattr(settings, section)).items()
        },
        in_force=in_force,
        http=config.http_page(settings),
        files=files,
    )


@contextlib.contextmanager
def _blamed(key: str, value: str) -> Iterator[None]:
    """Tell an error of the operating system as one of the setting that asked for it."""
    try:
        yield
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = f"{value} is taken" if taken else f"{value}: {error.strerror}"
        raise ConfigError([f"{key}: {reason}"]) from error


def main() -> None:
    """Run the command line. An output that takes nothing ends it in one line."""
    try:
        commands()
    except OSError as error:
        _exit(EXIT_STATUS, f"{error.filename or 'the output cannot be written'}: {error.strerror}")


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION)
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with the node's settings; FLOTILLA_… variables override it.",
)
@click.pass_context
def commands(context: click.Context, path: Path | None) -> None:
    """Run one Flotilla node until SIGTERM, or a command on its data directory.

    Exit codes: 0 stopped orderly, 65 the data directory is damaged or in use, 70 the replica had to
    stop, 74 a disk or file failed, 76 the cluster's level takes another build, 77 evicted: another
    data directory was admitted under its name, 78 the settings are wrong, or name a directory or a
    port that it cannot have.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        settings = config.load(path, os.environ)
    except ConfigError as error:
        _exit(EXIT_CONFIG, str(error))
    logs.configure(settings.log, settings.node)
    log = logs.get("cluster.node")
    _allow_descriptors()
    try:
        with contextlib.ExitStack() as stack:
            with _blamed("data_dir", f"cannot make {settings.data_dir}"):
                stack.enter_context(DirectoryLock(settings.data_dir))
            stack.enter_context(tables.disk_errors())
            node = Node(settings, log, config.in_force(settings, path, os.environ))
            shorten_collections()
            node.run()
    except ConfigError as error:
        _exit(EXIT_CONFIG, str(error))
    except (CorruptStore, JournalError, IdentityError) as error:
        log.error("unusable_data", reason=str(error))
        _exit(EXIT_DATA, str(error))
    except UnsupportedLevel as error:
        log.error("unsupported_level", reason=str(error))
        _exit(EXIT_LEVEL, str(error))
    except ReplacedError as error:
        log.error("evicted", reason=str(error))
        _exit(EXIT_EVICTED, f"{error}. {_EVICTED}")
    except OSError as error:
        log.exception("disk_failed")
        way_out = _MAKE_ROOM if error.errno == errno.ENOSPC else _REBUILD
        _exit(EXIT_STATUS, f"a disk or file failed this node: {error}. {way_out}")
    except Exception:
        # Fail-stop: a replica that could not apply an entry must not go on voting. Nothing is
        # sent or synced on the way out; the supervisor starts the node again from its disk.
        log.exception("failed")
        _exit(EXIT_BROKEN, "this node had to stop; its log has the traceback")


commands.add_command(recover)


def _allow_descriptors() -> None:
    """Take as many descriptors as the system allows: connections must not use up the journal's.

    The usual soft limit, 1,024, is there for programs that call select(); we don't.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def shorten_collections() -> None:
    """Let no garbage collection look at what is there now, or at what a full one has left.

    A full collection looks at every object, in the middle of a turn. Measured with 10,000 topics
    (97,000 objects, 38,000 of them modules): 50 ms of processor time, 300 ms at a load of six, of
    the 80 ms between two heartbeats; after this 10 ms, for what is new. What was left dies by its
    reference count as ever; only a cycle of it would stay, and the loop makes none that last. Those
    that modules have left by now are some hundred: to look for them takes a tenth of a start.
    """
    gc.freeze()
    if _freeze_what_is_left not in gc.callbacks:
        gc.callbacks.append(_freeze_what_is_left)


def _freeze_what_is_left(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == OLDEST_GENERATION:
        gc.freeze()


def _exit(code: int, message: str) -> NoReturn:
    click.echo(f"flotilla-node: {message}", err=True)
    sys.stderr.flush()
    os._exit(code)  # not sys.exit: the worker thread may be in the middle of a job


if __name__ == "__main__":
    main()
