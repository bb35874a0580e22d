"""`python -m chaos.bench`: the command line of cli.py, and nothing else."""

from chaos.bench.cli import main

if __name__ == "__main__":
    main()
