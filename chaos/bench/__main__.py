"""`python -m chaos.bench`: the command line of cli.py, and nothing else."""

from cluster.extras import run

if __name__ == "__main__":
    raise SystemExit(run("chaos.bench", "chaos.bench.cli", "cluster"))
