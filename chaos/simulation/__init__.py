"""The whole cluster in one process, from a seed: deterministic simulation of the real code.

What lives here: a world of virtual time (world.py) with its nodes, network and disks, the clients
and faults in it, what must hold, and the campaigns over many seeds. What must not: a copy of any
rule of the product; sockets, threads, real clocks, randomness that does not come from a plan.
"""
