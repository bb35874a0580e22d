"""Tests of the programs in examples/ and of the tutorial."""
