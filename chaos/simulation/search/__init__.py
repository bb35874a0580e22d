"""Which worlds are run: drawn, guided, shrunk, repeated."""
