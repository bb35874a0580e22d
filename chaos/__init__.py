"""Experiments that break clusters while clients record what they see."""
