"""The tables that checks read: runs, batches, cursors, and what is not proved to be in order."""
