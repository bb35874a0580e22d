"""A broker node: the Raft-replicated state machine, its log, its peers and its clients."""
