"""`python -m chaos.simulation`: the same as `flotilla-simulate`. Nothing else lives here."""

from chaos.simulation.cli import main

if __name__ == "__main__":
    main()
