"""Runs mutants: each in a copy of the tree, the simulation first, then the nearest tests.

What lives here: the baseline, the workers, what has to be run at all. What must not: what a person
sees (cli.py, report.py).
"""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from chaos.mutation import stages
from chaos.mutation.ledger import (
    BASELINE,
    EQUIVALENT,
    KILLED,
    SIMULATION,
    SURVIVED,
    TESTS,
    Ledger,
    MutantResult,
)
from chaos.mutation.mutants import Mutant, MutationError
from chaos.mutation.project import Project
from chaos.mutation.stages import StageBounds, Stopped
from chaos.mutation.tree import Copy

Told = Callable[[Mutant, MutantResult], None]


class MutantRunner:
    """Runs mutants of a project within bounds, on `jobs` copies, and keeps the results.

    `again`: run those again that the simulation has not noticed, as it may have learned.
    `equivalents`: {name: why}; they are not run. `stop()` ends a run soon, from any thread.
    """

    def __init__(
        self,
        project: Project,
        ledger: Ledger,
        bounds: StageBounds,
        equivalents: Mapping[str, str],
        *,
        again: bool = False,
    ) -> None:
        self._project, self._ledger, self._bounds = project, ledger, bounds
        self._equivalents, self._again = equivalents, again
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []

    def stop(self) -> None:
        """End the run soon; what is under way counts for nothing."""
        self._stop.set()

    def known(self, mutant: Mutant) -> MutantResult | None:
        """Return the result of a mutant that need not be run, None if it has to."""
        fingerprint = mutant.fingerprint(self._project.source(mutant.file))
        if mutant.name in self._equivalents:
            reason = self._equivalents[mutant.name]
            return MutantResult(
                mutant.name, fingerprint, EQUIVALENT, "", "", None, 0, 0, False, 0.0, reason
            )
        result = self._ledger.known(mutant.name, fingerprint)
        if result is None or (self._again and result.by != SIMULATION):
            return None
        return result if result.answers(self._bounds) else None

    def check_baseline(self, mutants: Sequence[Mutant]) -> None:
        """Run the tree as it is as the mutants will be. Raises MutationError, Stopped."""
        files = sorted({mutant.file for mutant in mutants} if self._bounds.tests else ())
        fingerprint = self._tree_fingerprint(files)
        known = self._ledger.known(BASELINE, fingerprint)
        if known is not None and known.answers(self._bounds):
            return
        began = time.monotonic()
        with self._copy() as copy:
            seeds = 0
            if self._bounds.seeds:
                seen = stages.simulate(self._project, copy, self._bounds, self._stop.is_set)
                self._check_unseen("the simulation", seen)
                seeds = seen.seeds
            tests = {self._project.nearest.get(file, ()): file for file in files}
            for file in tests.values():
                found = stages.test(self._project, copy, file, self._stop.is_set)
                self._check_unseen(f"a test of {file}", found)
        seconds = time.monotonic() - began
        tested = self._bounds.tests
        asked = self._bounds.seeds
        self._ledger.add(
            MutantResult(
                BASELINE, fingerprint, SURVIVED, "", "", None, seeds, asked, tested, seconds
            )
        )

    @staticmethod
    def _check_unseen(who: str, seen: stages.StageVerdict) -> None:
        if seen.what:
            where = "" if seen.seed is None else f" at seed {seen.seed}"
            raise MutationError(
                f"{who} finds fault with the tree as it is: {seen.what}{where} {seen.detail}; no"
                " mutant would prove anything"
            )

    def _tree_fingerprint(self, files: Sequence[str]) -> str:
        """Return what changes when the baseline has to be run again."""
        digest = sha256("\0".join(files).encode())
        for path in sorted(self._project.root.rglob("*.py")):
            place = path.relative_to(self._project.root)
            if not {*place.parts} & {*self._project.left_out, *self._project.linked}:
                digest.update(f"{place}\0".encode() + path.read_bytes())
        return digest.hexdigest()[:16]

    def run(self, mutants: Sequence[Mutant], jobs: int, minutes: float, told: Told) -> None:
        """Run mutants, none begun after so many minutes; `told` hears of each result.

        Raises MutationError, or whatever else a worker has met.
        """
        until_s = time.monotonic() + minutes * 60
        waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        for mutant in mutants:
            waiting.put(mutant)
        # A `join` that ctrl-C has ended takes its thread for ended too (CPython 3.11).
        ends = [threading.Event() for _ in range(min(jobs, len(mutants)))]
        for end in ends:
            work = (waiting, until_s, told, end)
            threading.Thread(target=self._work, args=work, daemon=True).start()
        try:
            _wait_for(ends)
        except BaseException:  # ctrl-C: the copies and the processes in them must go
            self.stop()
            _wait_for(ends)
            raise
        if self._errors:
            raise self._errors[0]

    def _work(
        self,
        waiting: queue.SimpleQueue[Mutant],
        until_s: float,
        told: Told,
        end: threading.Event,
    ) -> None:
        try:
            with self._copy() as copy:
                while time.monotonic() < until_s and not self._stop.is_set():
                    try:
                        mutant = waiting.get_nowait()
                    except queue.Empty:
                        return
                    result = self._judge(copy, mutant)
                    with self._lock:
                        self._ledger.add(result)
                        told(mutant, result)
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001  (raised by `run`)
            self._errors.append(error)
            self.stop()
        finally:
            end.set()

    def _judge(self, copy: Copy, mutant: Mutant) -> MutantResult:
        fingerprint = mutant.fingerprint(copy.source(mutant.file))
        bounds, began, seeds = self._bounds, time.monotonic(), 0
        known = None if self._again else self._ledger.known(mutant.name, fingerprint)
        is_simulated = known is not None and known.asked >= bounds.seeds
        if known is not None and is_simulated:
            seeds = known.seeds  # the tests alone are missing

        def result(by: str, seen: stages.StageVerdict) -> MutantResult:
            return MutantResult(
                mutant.name,
                fingerprint,
                KILLED if seen.what else SURVIVED,
                by if seen.what else "",
                seen.what,
                seen.seed,
                seeds,
                bounds.seeds,
                bounds.tests,
                round(time.monotonic() - began, 1),
                seen.detail,
            )

        with copy.mutated(mutant):
            if bounds.seeds and not is_simulated:
                seen = stages.simulate(self._project, copy, bounds, self._stop.is_set)
                seeds = seen.seeds
                if seen.what or not bounds.tests:
                    return result(SIMULATION, seen)
            return result(TESTS, stages.test(self._project, copy, mutant.file, self._stop.is_set))

    @contextmanager
    def _copy(self) -> Iterator[Copy]:
        with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
            yield Copy(self._project, Path(directory) / "tree")


def _wait_for(ends: Sequence[threading.Event]) -> None:
    """Wait until all are set, by and by: where another thread is given ctrl-C, a wait sleeps on."""
    for end in ends:
        while not end.wait(stages.POLL_S):
            pass
