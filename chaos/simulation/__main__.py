"""`python -m chaos.simulation`: the same as `flotilla-simulate`. Nothing else lives here."""

from cluster.extras import run

if __name__ == "__main__":
    raise SystemExit(run("flotilla-simulate", "chaos.simulation.cli", "cluster"))
