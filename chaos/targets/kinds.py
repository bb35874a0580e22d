"""The kinds of targets by name. Nothing else lives here; chaos/run/launch.py makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.targets.compose import ComposeTarget
from chaos.targets.local import LocalTarget
from chaos.targets.namespaces import NamespacesTarget
from chaos.targets.simulated_cluster import SimulatedCluster

KINDS: Final[Mapping[str, type]] = {
    "local": LocalTarget,
    "namespaces": NamespacesTarget,
    "compose": ComposeTarget,
    "simulated": SimulatedCluster,
}
