"""`python -m cluster`: runs a broker node. What lives here: the call. What must not: the rest."""

from cluster.extras import run

if __name__ == "__main__":
    raise SystemExit(run("flotilla-node", "cluster.node.node", "cluster"))
