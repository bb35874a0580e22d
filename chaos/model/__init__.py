"""A small model of the product's own extensions of Raft, explored to its end (docs/model.md).

What lives here: states, steps, rules, and the search. What must not: the product's code; the model
says what its rules (docs/raft.md) are, so that they can be wrong without the code being wrong.
"""
