"""Raft: the guarded core, its rules on messages, one member's part of a turn."""
