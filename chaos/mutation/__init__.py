"""Mutation testing: small changes that break a promise, and who notices (docs/mutation.md).

What lives here: mutants by hand and by operators, copies of the tree with one of them each, the
runner, its record and its report. What must not: any knowledge of this project beyond the file that
describes it (`tests/mutation/mutation.toml`), and anything that changes the tree itself.
"""
