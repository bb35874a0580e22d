"""What goes wrong with clusters on one machine."""

from __future__ import annotations


class LocalError(Exception):
    """A local cluster cannot do what was asked; the text says why and what to do."""
