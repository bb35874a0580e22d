"""Cuts and conditions of links between nodes in network namespaces: rules of iptables in there.

What lives here: which packets are dropped, doubled or handed to packets.py, and in whose
namespace. What must not: how namespaces come to be (namespaces.py, compose.py), what a fault cuts.

Only the nodes' own namespaces get rules, never the machine's: what is left of a run cannot hurt
anybody else. A link is cut where it ends; one to the clients, where it begins (of which the kernel
tells nothing to a TCP connection: it sends again, and again).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from chaos.targets import CLIENTS, Link, LinkConditions, TargetError
from chaos.targets.commands import output

PACKETS: Final = Path(__file__).parent / "packets.py"
READY: Final = b"ready\n"  # what packets.py says, in one write
READY_S_MAX: Final = 30.0  # an interpreter's start on a busy machine
END_S_MAX: Final = 5.0
ERROR_CHARACTERS_MAX: Final = 500
PROBE: Final = LinkConditions(delay_ms=1.0, duplicate=0.5)


class Network:
    """Rules for links between nodes.

    `enter(node)`: words that run a command in its namespace, None while it has none (and no packets
    either). `addresses()`: of every node, and of CLIENTS. Every method may raise TargetError.
    """

    def __init__(
        self,
        enter: Callable[[str], Sequence[str] | None],
        addresses: Callable[[], Mapping[str, str]],
        seed: int = 0,
    ) -> None:
        self._enter, self._addresses, self._seed = enter, addresses, seed
        self._cut: set[Link] = set()
        self._conditions: dict[Link, LinkConditions] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def cut(self, links: Collection[Link]) -> None:
        """Drop what is sent over these links."""
        self._cut.update(links)
        self._apply(_places(links))

    def join(self, links: Collection[Link]) -> None:
        """Drop nothing there any more."""
        joined = self._cut.intersection(links)
        self._cut -= joined
        self._apply(_places(joined))

    def degrade(self, links: Collection[Link], conditions: LinkConditions) -> None:
        """Put these conditions on the links."""
        self._conditions.update(dict.fromkeys(links, conditions))
        self._restart(_places(links))

    def clear(self, links: Collection[Link]) -> None:
        """Let these links be calm; packets that are held pass at once."""
        calm = self._conditions.keys() & set(links)
        self._conditions = {
            link: self._conditions[link] for link in self._conditions if link not in calm
        }
        self._restart(_places(calm))

    def renew(self, nodes: Collection[str]) -> None:
        """Write the rules of these nodes anew, which may have got other namespaces or addresses."""
        if self._cut or self._conditions:
            self._restart(nodes)

    def probe(self, node: str) -> None:
        """Raise TargetError unless this kernel can do all that `degrade` may ask for."""
        link = (CLIENTS, node), (node, CLIENTS)
        self.degrade(link, PROBE)
        self.clear(link)

    def forget(self) -> None:
        """End all processes; the rules go with the namespaces.

        Raises TargetError, like all that ends one, if one had ended before: its conditions did not
        reign.
        """
        self._cut.clear()
        self._conditions.clear()
        _raise_found(self._end(node) for node in list(self._processes))

    def _restart(self, nodes: Collection[str]) -> None:
        # While nobody serves a queue, its packets pass (--queue-bypass).
        complaints = [self._end(node) for node in nodes]
        begun = [node for node in nodes if self._begin(node)]
        for node in begun:
            self._await_ready(node)
        self._apply(nodes)
        _raise_found(complaints)  # now that all is as it should be

    def _queues(self, node: str) -> dict[Link, int]:
        links = [link for link in sorted(self._conditions) if _place(link) == node]
        return {link: number for number, link in enumerate(links)}

    def _begin(self, node: str) -> bool:
        queues, enter = self._queues(node), self._enter(node)
        if not queues or enter is None:
            return False
        order = {
            "seed": f"{self._seed} {node}",
            "queues": {number: asdict(self._conditions[link]) for link, number in queues.items()},
        }
        self._processes[node] = subprocess.Popen(
            [*enter, sys.executable, "-I", str(PACKETS), json.dumps(order)],
            stdin=subprocess.PIPE,  # at its end the process ends too: so it never outlives us
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # ctrl-C at our terminal is for us alone
        )
        return True

    def _await_ready(self, node: str) -> None:
        process = self._processes[node]
        assert process.stdout is not None
        heard, _, _ = select.select([process.stdout], [], [], READY_S_MAX)
        if not heard:
            self._end(node)
            raise TargetError(f"{node}: packets were not held back within {READY_S_MAX:g} s")
        if os.read(process.stdout.fileno(), len(READY)) != READY:
            said = _ended(process)
            del self._processes[node]
            raise TargetError(f"{node}: packets cannot be held back on this kernel: {said}")

    def _end(self, node: str) -> str:
        """End a node's process; return what there is to say if it was not there any more."""
        process = self._processes.pop(node, None)
        if process is None:
            return ""
        is_over = process.poll() is not None
        said = _ended(process)
        if not is_over:
            return ""
        return f"{node}: who held its packets had ended (exit code {process.returncode}): {said}"

    def _apply(self, nodes: Collection[str]) -> None:
        addresses = self._addresses()
        for node in nodes:
            if (enter := self._enter(node)) is not None:
                self._restore(enter, "\n".join(self._rules(node, addresses)) + "\n")

    def _restore(self, enter: Sequence[str], rules: str) -> None:
        assert enter, "these are the machine's own rules"
        output([*enter, "iptables-restore", "--wait"], rules)

    def _rules(self, node: str, addresses: Mapping[str, str]) -> list[str]:
        lines = ["*filter", ":INPUT ACCEPT", ":OUTPUT ACCEPT"]
        lines += [
            f"-A {_match(link, addresses)} -j DROP"
            for link in sorted(self._cut)
            if _place(link) == node
        ]
        lines += [
            f"-A {_match(link, addresses)} -j NFQUEUE --queue-num {number} --queue-bypass"
            for link, number in self._queues(node).items()
        ]
        lines += ["COMMIT", "*mangle", ":OUTPUT ACCEPT"]
        for (source, target), conditions in sorted(
            self._conditions.items(), key=lambda item: item[0]
        ):
            if source == node and conditions.duplicate:
                lines.append(
                    f"-A OUTPUT -d {addresses[target]} -m statistic --mode random "
                    f"--probability {conditions.duplicate:.4f} -j TEE --gateway {addresses[target]}"
                )
        return [*lines, "COMMIT"]


class Networked:
    """The powers Links and DegradesLinks of a target, which has a Network."""

    _network: Network

    def cut(self, links: Collection[Link]) -> None:
        """Drop what is sent over these links."""
        self._network.cut(links)

    def join(self, links: Collection[Link]) -> None:
        """Drop nothing there any more."""
        self._network.join(links)

    def degrade(self, links: Collection[Link], conditions: LinkConditions) -> None:
        """Put these conditions on these links."""
        self._network.degrade(links, conditions)

    def clear(self, links: Collection[Link]) -> None:
        """Let these links be calm; what was held back arrives now."""
        self._network.clear(links)


def _ended(process: subprocess.Popen[bytes]) -> str:
    """End a process, and return the end of its stderr."""
    process.terminate()
    try:
        _, errors = process.communicate(timeout=END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
    return errors.decode(errors="replace").strip()[-ERROR_CHARACTERS_MAX:]


def _raise_found(complaints: Iterable[str]) -> None:
    if found := [complaint for complaint in complaints if complaint]:
        raise TargetError("; ".join(found))


def _place(link: Link) -> str:
    """Return in whose namespace a link's packets are dropped or held."""
    source, target = link
    return source if target == CLIENTS else target


def _places(links: Collection[Link]) -> list[str]:
    # Of both ends: duplicates are made where a link begins.
    return sorted({end for link in links for end in link} - {CLIENTS})


def _match(link: Link, addresses: Mapping[str, str]) -> str:
    source, target = link
    if target == CLIENTS:
        return f"OUTPUT -d {addresses[CLIENTS]}"
    return f"INPUT -s {addresses[source]}"
