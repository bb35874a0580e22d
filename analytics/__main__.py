"""`python -m analytics DIR`. The command itself is in cli.py.

What lives here too: what is said where the extra is not installed. Not cluster/extras.py's words,
as nothing of the cluster's is imported here.
"""

import sys

try:
    from analytics.cli import main
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "analytics":
        raise
    sys.stderr.write(
        f"flotilla-check: needs the extra `analytics` ({error.name} is not installed). Run,"
        " in a checkout:\n    pip install ./client '.[analytics]'\n"
    )
    raise SystemExit(2) from None

if __name__ == "__main__":
    main()
