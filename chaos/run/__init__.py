"""One run from its plan to its verdict, and suites of runs."""
