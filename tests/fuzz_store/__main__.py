"""`python -m tests.fuzz_store`: see fuzzer.py."""

from tests.fuzz_store.fuzzer import main

if __name__ == "__main__":
    main(prog_name="fuzz_store")
