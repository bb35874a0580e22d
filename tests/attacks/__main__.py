"""`python -m tests.attacks [SHARE]`: see measure.py."""

from tests.attacks.measure import main

if __name__ == "__main__":
    main()
