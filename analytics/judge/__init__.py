"""Spark's verdict: loading, checking, observations, witnesses, what to do about a lost context."""
