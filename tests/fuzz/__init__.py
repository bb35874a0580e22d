"""Fuzzing: what reads the bytes of strangers and of disks, fed with what a fuzzer makes of them."""
