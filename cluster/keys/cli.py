"""`flotilla-keys`: the keys of a cluster from the command line.

What lives here: commands and their output. What must not: the making of keys (authority.py). No
secret is ever an argument or printed: arguments stand in process lists, output in logs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from cluster.keys.authority import Authority
from cluster.keys.directory import KeysError
from flotilla_client.errors import KeyUnusable
from flotilla_client.version import VERSION

DEFAULT_DIR: Final = Path("flotilla-keys")
ADMIN_NAME: Final = "admin"  # the default of the nodes' setting `admins`
KINDS: Final = ("client", "node", "server", "ca")
NAMED: Final = ("client", "node")

_dir_option: Final = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DIR,
    show_default=True,
    help="Where the cluster's keys are: on a machine of the operator's, not on a node's.",
)
_name_argument: Final = click.argument("name", metavar="NAME")
_kind_argument: Final = click.argument("kind", metavar="KIND", type=click.Choice(KINDS))
_optional_name: Final = click.argument("name", metavar="[NAME]", required=False)


def main() -> None:
    """Run the command line; exit 1 with a message for everything that a user can mend."""
    try:
        commands()
    except (KeysError, KeyUnusable) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))


def _fail(reason: str) -> None:
    click.echo(f"flotilla-keys: {reason}", err=True)
    sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION)
def commands() -> None:
    """Make, change and revoke the keys of a cluster: docs/security.md.

    What changes is written into the files of DIR. A node reads its directory (`keys_dir`) again
    when it changes: copy it to where the node is.
    """


@commands.command()
@_dir_option
@click.option("--cluster-id", required=True, metavar="ID", help="As in the nodes' settings.")
def init(directory: Path, cluster_id: str) -> None:
    """Make the CA and the servers' key of a cluster, and the key of its first administrator."""
    file = Authority.create(directory, cluster_id, (ADMIN_NAME,)).client_file(ADMIN_NAME)
    click.echo(f"{directory}: keys of cluster {cluster_id}; next: node NAME, client NAME")
    click.echo(f"{file}: may say who may what (flotilla --key …/{file.name} admin user)")


@commands.command()
@_dir_option
@_name_argument
def client(directory: Path, name: str) -> None:
    """Make a client's key: one file, for that client alone."""
    file = Authority(directory).client(name)
    click.echo(f"{file}: give it to the client (key=, --key or FLOTILLA_KEY)")
    _say_copy(directory)


@commands.command()
@_dir_option
@_name_argument
def node(directory: Path, name: str) -> None:
    """Make a node's keys: a directory, for that node alone."""
    made = Authority(directory).node(name)
    click.echo(f"{made}: copy it to the node and name it there as keys_dir")


@commands.command()
@_dir_option
@click.option("--finish", is_flag=True, help="Accept only the newest from now on.")
@_kind_argument
@_optional_name
def rotate(directory: Path, kind: str, name: str | None, finish: bool) -> None:
    """Make a new key beside the old one, then (--finish) accept the new one alone.

    KIND is client NAME, node NAME, server (the key by which clients know the nodes) or ca. Bring
    what the first step has changed to where it is used before the second one.
    """
    keys, name = Authority(directory), _named(kind, name)
    if finish:
        finishes: dict[str, Callable[[], None]] = {
            "client": lambda: keys.finish_client(name),
            "node": lambda: keys.finish_node(name),
            "server": keys.finish_server,
            "ca": keys.finish_ca,
        }
        finishes[kind]()
        click.echo(f"{_what(kind, name)}: the newest key alone is accepted")
        _say_copy(directory)
        return
    if kind == "client":
        click.echo(f"{keys.rotate_client(name)}: has a new key; the old one is good until --finish")
    elif kind == "node":
        click.echo(f"{keys.rotate_node(name)}: has a new certificate; copy it to the node")
    elif kind == "server":
        for file in keys.rotate_server():
            click.echo(f"{file}: knows the new key; give it to the client before --finish")
    else:
        keys.rotate_ca()
        click.echo(
            "ca: a new one; bring every node its directory, then rotate node NAME for each, bring"
            " these, then --finish"
        )
    _say_copy(directory)


@commands.command()
@_dir_option
@_kind_argument
@_name_argument
def revoke(directory: Path, kind: str, name: str) -> None:
    """Accept no key of a client or a node any more (KIND), and forget it.

    A connection that has one is closed when the nodes read it.
    """
    keys = Authority(directory)
    if kind == "client":
        keys.revoke_client(name)
    elif kind == "node":
        keys.revoke_node(name)
    else:
        raise click.UsageError(f"a {kind}'s key is replaced: rotate {kind}, then --finish")
    click.echo(f"{_what(kind, name)}: revoked")
    _say_copy(directory)


@commands.command()
@_dir_option
@click.argument("cluster_id", metavar="ID")
def rename(directory: Path, cluster_id: str) -> None:
    """Make the nodes' certificates anew for a recovered cluster, which has another id."""
    Authority(directory).rename(cluster_id)
    click.echo(f"{directory}: keys of cluster {cluster_id}")
    _say_copy(directory)


@commands.command(name="list")
@_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def list_(directory: Path, as_json: bool) -> None:
    """List whose keys there are, and how many of each are accepted: two while one is changed."""
    rows = Authority(directory).listed()
    if as_json:
        click.echo(json.dumps([row.__dict__ for row in rows]))
        return
    for row in rows:
        click.echo(f"{row.kind:<7} {row.name:<32} {row.keys}  {row.file}")


def _named(kind: str, name: str | None) -> str:
    if kind in NAMED and name is None:
        raise click.UsageError(f"whose? rotate {kind} NAME")
    if kind not in NAMED and name is not None:
        raise click.UsageError(f"there is one {kind} key: rotate {kind}")
    return name or ""


def _what(kind: str, name: str) -> str:
    return f"{kind} {name}".strip()


def _say_copy(directory: Path) -> None:
    nodes = [str(Path(directory) / "nodes" / each) for each in Authority(directory).nodes()]
    if nodes:
        click.echo(f"nodes read it from {', '.join(nodes)}: copy these to where the nodes are")


if __name__ == "__main__":
    main()
