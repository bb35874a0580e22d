"""One node: the turn without sockets, and the process around it."""
