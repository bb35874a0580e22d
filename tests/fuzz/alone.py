#!/usr/bin/env python3
"""`FUZZ_TARGET=… alone.py …`: libFuzzer at work on one target, with its own options; see fuzzer.py.

A file of its own, since libFuzzer calls itself again by its name.
"""

import os
import sys

import atheris

with atheris.instrument_imports(include=["cluster", "flotilla_client"]):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    atheris.Setup(sys.argv, TARGETS[os.environ["FUZZ_TARGET"]])
    atheris.Fuzz()
