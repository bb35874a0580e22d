"""`flotilla-node recover`: what a recovery found, what it may lose, and the question whether to.

What lives here: arguments, output, exit codes. What must not: the recovery itself (recovery.py).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NoReturn

import click

from cluster.members.identity import IdentityError
from cluster.recovery.recovery import BACKUP_NAME, Found, Recovery, RecoveryError, new_cluster_id

EXIT_DATA: Final = 65  # EX_DATAERR: nothing can be recovered from that directory
EXIT_IO: Final = 74  # EX_IOERR
_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--from", "source", type=_DIRECTORY, required=True, help="The survivor's data directory."
)
@click.option("--to", "target", type=_DIRECTORY, help="Where to make the new one; --from stays.")
@click.option(
    "--in-place",
    is_flag=True,
    help=f"Instead: make it in --from; what it held goes to {BACKUP_NAME}/ in it.",
)
@click.option("--cluster-id", help="The new cluster's. Default: the old one and a random end.")
@click.option("--members", help="NAME,... of the new cluster's nodes. Default: as they were.")
@click.option(
    "--without-journal",
    is_flag=True,
    help="Take the store alone, where the journal is damaged: what only that holds is lost.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def recover(
    source: Path,
    target: Path | None,
    in_place: bool,
    cluster_id: str | None,
    members: str | None,
    without_journal: bool,
    yes: bool,
) -> None:
    """Make a new cluster from the data directory of one node, after a majority was lost.

    For when the others' disks are gone for good, and for restoring a backup of a data directory.
    The node must be stopped. Nothing is changed before you have answered.

    Exit codes: 0 done, 1 you said no, 2 wrong usage, 65 the directory can't be used, 74 a disk or
    file failed.
    """
    if in_place == (target is not None):
        raise click.UsageError("say --to NEW_DIR, or --in-place")
    try:
        with Recovery(source, target, with_journal=not without_journal) as recovery:
            found = recovery.found
            new_id = cluster_id or new_cluster_id(found.identity.cluster_id)
            names = members.split(",") if members else found.members
            click.echo(report(found))
            if not yes:
                click.confirm(f"Make the new cluster {new_id!r} of it?", abort=True)
            made = recovery.finish(new_id, names)
    except (RecoveryError, IdentityError) as error:
        _exit(EXIT_DATA, str(error))
    except OSError as error:
        _exit(EXIT_IO, str(error))
    click.echo(_next_steps(made, found.identity.node, new_id, sorted(names)))


def report(found: Found) -> str:
    """Return what was found, and what a recovery from it keeps and may lose, for a person."""
    identity = found.identity
    tail = found.last_index - found.settled_index
    kept = (
        "All of them were committed for certain."
        if not tail
        else f"The last {tail} may never have been acknowledged to anybody. They are kept all the"
        " same: of those that were\nacknowledged these may be the last copies. A publication among"
        " them whose producer was told that its fate is\nunknown is stored."
    )
    return f"""\
{found.directory}: node {identity.node} of cluster {identity.cluster_id!r}, members \
{", ".join(found.members)}
  incarnation {identity.incarnation}
  entries up to {found.last_index}: {found.applied_index} in the store, \
{found.last_index - found.applied_index} more in the journal; the last of term {found.last_term}
  known to be committed: up to entry {found.settled_index}
  {found.clients} clients, {found.topics} topics, {found.subscriptions} subscriptions, \
{found.publications} publications that somebody has still to read

What is kept: all {found.last_index} entries that this node has. {kept}
What may be lost: whatever only other nodes had, acknowledged publications too. This node can't
know how much that is. If another one's directory is left, look at it as well (answer no), and
take the one whose last entry is of the newer term, or of equal ones the one with more entries.
Ids and counters of what is lost are given again.
Old nodes: none of cluster {identity.cluster_id!r} can join the new cluster. If a majority of them
could still come back, do not do this: start them instead."""


def _next_steps(made: Path, node: str, cluster_id: str, members: list[str]) -> str:
    others = [name for name in members if name != node]
    steps = [
        f'set cluster_id = "{cluster_id}" (FLOTILLA_CLUSTER_ID) and the members'
        f" {', '.join(members)} for every node",
        f"where nodes have keys: `flotilla-keys rename {cluster_id}`, and bring each its directory",
    ]
    if others:
        steps.append(
            f"give {' and '.join(others)} empty data directories (move old ones away), and start"
            f" all: each copies the state\n     from {node}, and all of them have to be there once"
        )
    steps.append(
        "let the clients go on, or restart them: one that was told more than was recovered fails"
        " with\n     `cluster_recovered`, and says what is lost, until `flotilla --state DIR adopt`"
    )
    lines = [f"  {number}. {step}" for number, step in enumerate(steps, start=1)]
    head = f"\n{made} is node {node} of the new cluster {cluster_id!r}. Next:"
    return "\n".join([head, *lines])


def _exit(code: int, message: str) -> NoReturn:
    click.echo(f"flotilla-node: {message}", err=True)
    sys.exit(code)
