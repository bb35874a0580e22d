"""`python -m cluster`: runs a broker node. What lives here: the call. What must not: the rest."""

from cluster.node import main

if __name__ == "__main__":
    main()
