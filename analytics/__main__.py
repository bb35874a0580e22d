"""`python -m analytics DIR`. The command itself is in cli.py."""

from analytics.cli import main

if __name__ == "__main__":
    main()
