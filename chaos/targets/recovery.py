"""Who is a member again, and who keeps up: what targets of real processes wait for.

What lives here: waiting on what nodes say of themselves, and the count of disks that are missing.
What must not: how a node is asked, started or emptied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from chaos.targets import TargetError

POLL_S: Final = 0.1  # a node's start, or a copy of the database, takes longer
BACK_S_MAX: Final = 30.0  # start, election, and a copy of the database on a busy machine
JOINING: Final = "joining"  # the role of a node that is not yet a member (frontend.py)

Statuses = Callable[[], Mapping[str, Mapping[str, Any]]]
"""Returns the body of each node's STATUS; silent ones are absent."""


class TargetRecovery:
    """The nodes of one cluster. `tails()` is shown when one has waited in vain."""

    def __init__(
        self, nodes: Collection[str], statuses: Statuses, tails: Callable[[], str] = lambda: ""
    ) -> None:
        self._nodes, self._statuses, self._tails = nodes, statuses, tails
        self.unsound: set[str] = set()  # who lost its disk, or has damage on it

    def wait(self, condition: Callable[[], bool], what: str, seconds_max: float) -> None:
        """Return when `condition` holds. Raises TargetError after `seconds_max`."""
        deadline_s = time.monotonic() + seconds_max
        while not condition():
            if time.monotonic() >= deadline_s:
                raise TargetError(f"waited {seconds_max:g} s in vain for {what}\n{self._tails()}")
            time.sleep(POLL_S)

    def lose(self, nodes: Collection[str]) -> None:
        """Count these disks as lost. Raises TargetError if a majority's would be."""
        lost = self.unsound.union(nodes)
        if len(lost) > (len(self._nodes) - 1) // 2:
            raise TargetError(f"{sorted(lost)} without their disks: nothing is promised then")
        self.unsound.update(nodes)

    @contextmanager
    def losing(self, nodes: Collection[str]) -> Iterator[None]:
        """As `lose`, for what is done inside; if that fails, the disks count as they did before."""
        before = set(self.unsound)
        self.lose(nodes)
        try:
            yield
        except BaseException:
            self.unsound = before
            raise

    def await_whole(self) -> None:
        """Return when every node whose disk was lost is a member again."""
        self.wait(self._is_whole, f"{sorted(self.unsound)} to be readmitted", BACK_S_MAX)

    def _is_whole(self) -> bool:
        if self.unsound:
            bodies = self._statuses()
            self.unsound -= {node for node in bodies if bodies[node]["role"] != JOINING}
        return not self.unsound

    def await_back(self, node: str) -> None:
        """Return when the node has applied all that is committed."""
        self.wait(lambda: self._keeps_up(node), f"{node} to be back", BACK_S_MAX)

    def _keeps_up(self, node: str) -> bool:
        bodies = self._statuses()
        leaders = [body for body in bodies.values() if body["role"] == "leader"]
        if not leaders or bodies.get(node, {}).get("role") in (None, JOINING):
            return False
        return bool(bodies[node]["applied_index"] >= max(b["commit_index"] for b in leaders))
