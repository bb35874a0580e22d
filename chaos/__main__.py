"""`python -m chaos`: the command line of cli.py, and nothing else."""

from chaos.cli import main

if __name__ == "__main__":
    main()
