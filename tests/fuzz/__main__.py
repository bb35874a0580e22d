"""`python -m tests.fuzz [TARGET…]`: see fuzzer.py."""

from tests.fuzz.fuzzer import main

if __name__ == "__main__":
    main(prog_name="fuzz")
