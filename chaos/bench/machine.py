"""What a figure has to be read with: the machine, its load, and the versions.

What lives here: facts. What must not: judging them; a busy machine is reported, not refused.
"""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from flotilla_client.version import VERSION

PACKAGES: Final = ("pyzmq", "orjson", "pysyncobj")


@dataclass(frozen=True)
class Machine:
    """The facts of one run. `load_before`: load averages of 1, 5 and 15 minutes."""

    cores: int
    cpu: str
    system: str
    python: str
    packages: dict[str, str]
    load_before: tuple[float, float, float]

    def as_json(self) -> dict[str, Any]:
        """Return the facts as JSON holds them."""
        return asdict(self)


@dataclass(frozen=True)
class Processors:
    """Processor time since the machine started, in seconds: all there was, all used, our own."""

    all_s: float
    busy_s: float
    own_s: float

    @classmethod
    def now(cls) -> Processors:
        """Return the times as they stand; a child counts as ours once it has been waited for."""
        # user nice system idle iowait irq softirq steal; what a hypervisor took is busy to us.
        ticks = [int(text) for text in Path("/proc/stat").read_text().split()[1:9]]
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        own_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        hertz = os.sysconf("SC_CLK_TCK")
        return cls(sum(ticks) / hertz, (sum(ticks) - ticks[3] - ticks[4]) / hertz, own_s)

    def others_share(self, before: Processors) -> float:
        """Return which share of all processors others have used since `before`, 0 to 1."""
        others_s = (self.busy_s - before.busy_s) - (self.own_s - before.own_s)
        return max(0.0, others_s / max(self.all_s - before.all_s, 1e-9))


def facts() -> Machine:
    """Return the facts of this machine now."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        cpu=_cpu(),
        system=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        packages={"flotilla": VERSION} | {name: version(name) for name in PACKAGES},
        load_before=os.getloadavg(),
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()  # ARM names no model there
