"""`python -m chaos`: the command line of cli.py, and nothing else."""

from cluster.extras import run

if __name__ == "__main__":
    raise SystemExit(run("flotilla-chaos", "chaos.cli", "chaos"))
