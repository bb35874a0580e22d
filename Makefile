# `make` or `make help` lists what there is. Every target works on a fresh checkout: what needs
# the virtual environment makes it first (scripts/setup.sh).

PYTHON := .venv/bin/python
STAMP := .venv/.flotilla-stamp
SIMULATE := $(PYTHON) -m chaos.simulation
CHAOS := $(PYTHON) -m chaos
SHORT_LOCAL := churn client-crash-and-kill power-loss
SHORT_SIMULATED := client-twin everything kill-all many-topics
SHORT_NAMESPACES := isolate-leader bad-network
# Python keeps what it compiles: a node starts in two thirds of the time, the tests are read in half.
export PYTHONDONTWRITEBYTECODE :=
TESTS ?=
ARGS ?=
MINUTES ?= 3
# Tests mostly wait for processes, so two processors are busy with six of them. Which of them share
# a worker, and which come first, tests/conftest.py says.
PARALLEL := -n 6 --dist loadgroup --no-loadscope-reorder
# Every worker reads all tests. What pytest makes of a test's `assert`s it keeps: once it is made,
# reading takes a fourth of the time.
READ := .venv/.tests-read

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-system test-deep check fmt docs bench attacks fuzz fuzz-store scale simulate simulate-long mutants chaos chaos-short chaos-long chaos-bugs test-deploy clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv, all included (anew when dependencies changed)

$(STAMP): pyproject.toml client/pyproject.toml cluster/requirements.txt scripts/setup.sh
	@scripts/setup.sh
	@touch $@

$(READ): $(STAMP)
	@-find tests -name 'test_*.py' | xargs -n 90 -P 2 $(PYTHON) -m pytest --collect-only -q >/dev/null
	@touch $@

demo: setup  ## kill a leader under load; check that nothing was lost
	@$(PYTHON) -m chaos demo

test: setup $(READ)  ## run the tests, real processes too (TESTS=path chooses)
	@$(PYTHON) -m pytest $(PARALLEL) -m "not docker and not slow" $(TESTS)

test-system: setup $(READ)  ## run those that need iptables, a compiler, a browser
	@$(PYTHON) -m pytest $(PARALLEL) -m "needs and not docker and not slow" $(TESTS)

test-deep: setup $(READ)  ## run those that take long: Spark's own, a 1 GB backlog
	@$(PYTHON) -m pytest $(PARALLEL) -m slow --ignore tests/chaos_bugs $(TESTS)

check: setup  ## lint, formatting, types
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@$(PYTHON) -m mypy

fmt: setup  ## format the code and mend what ruff can mend
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

docs: setup  ## write the generated parts of docs/ anew
	@$(PYTHON) scripts/generate_docs.py

bench: setup  ## measure speed (ARGS="--peers nats,etcd": others' too)
	@$(PYTHON) -m chaos.bench $(ARGS)
	@$(if $(ARGS),,$(PYTHON) -m tests.unit.simulation_bench)

attacks: setup  ## attack a cluster in twelve ways (SHARE=0.1: a tenth)
	@$(PYTHON) -m tests.attacks $(SHARE)

fuzz: setup  ## look for bytes that break what reads them (ARGS=--help)
	@.venv/bin/pip --disable-pip-version-check install -q -e '.[fuzz]'
	@$(PYTHON) -m tests.fuzz $(ARGS)

fuzz-store: setup  ## try entries of many operations on stores, ten minutes (ARGS=--help)
	@$(PYTHON) -m tests.fuzz_store $(or $(ARGS),--count 100000 --minutes 10 --seed $$(date -u +%Y%m%d)0000)

scale: setup  ## check made-up histories of 1 and 10 million operations
	@$(PYTHON) -m analytics.generate.measure

simulate: setup  ## run whole clusters from today's 150 seeds (MINUTES=3)
	@day=$$(date -u +%Y%m%d); echo "seeds from $${day}0000"; \
	$(SIMULATE) --seeds $${day}0000..$${day}0149 --minutes $(MINUTES)

simulate-long: setup  ## 2,500 seeds, determinism, every planted bug
	@$(SIMULATE) --seeds 1..50 --check-determinism
	@$(SIMULATE) --hunt all --minutes 90
	@$(SIMULATE) --seeds 1..2000 --mode safety
	@$(SIMULATE) --seeds 1..500 --mode live

mutants: setup  ## break the product in small ways: is it seen? (ARGS=--help)
	@nice $(PYTHON) -m chaos.mutation $(ARGS)

chaos: setup  ## run experiments, each judged by Spark, ten minutes
	@$(CHAOS) suite --minutes 10 --seed $$(date -u +%Y%m%d)

chaos-short: setup  ## nine experiments on three targets, two minutes or so
	@$(CHAOS) suite --seed $$(date -u +%Y%m%d) --judge twins $(SHORT_LOCAL)
	@$(CHAOS) suite --seed $$(date -u +%Y%m%d) --target simulated --judge twins $(SHORT_SIMULATED)
	@if [ $$(id -u) = 0 ]; then \
	$(CHAOS) suite --seed $$(date -u +%Y%m%d) --target namespaces --judge twins $(SHORT_NAMESPACES); \
	else echo "*** NOT ROOT: $(SHORT_NAMESPACES) are NOT run ***"; fi

chaos-long: setup  ## every experiment on every target (root; docker)
	@for target in local simulated namespaces compose; do \
	$(CHAOS) suite --duration 60 --target $$target || code=1; done; exit $${code:-0}

chaos-bugs: setup  ## catch each planted bug on real clusters (root for all)
	@$(PYTHON) -m pytest -m slow -s tests/chaos_bugs $(TESTS)

test-deploy: setup  ## test the images and compose (needs a docker engine)
	@$(PYTHON) -m pytest -m docker tests/deploy $(TESTS)

clean:  ## remove .venv, caches and build products (no data)
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} + -o -name '*.egg-info' -prune -exec rm -rf {} +
