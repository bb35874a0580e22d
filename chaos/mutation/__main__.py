"""`python -m chaos.mutation`: what `make mutants` runs. Nothing else lives here."""

from chaos.mutation.cli import main

if __name__ == "__main__":
    main(prog_name="python -m chaos.mutation")
