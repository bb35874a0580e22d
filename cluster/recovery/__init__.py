"""The way back from a lost majority."""
