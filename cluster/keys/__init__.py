"""Keys: who is a client, who is a node, and the proofs of both."""
