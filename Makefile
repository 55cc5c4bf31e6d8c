# Everything is one command, and needs Python 3.11+ and make: each target makes what it needs in .venv.

# The first Python that is new enough. Another one: make PYTHON=/path/to/python3.12 test
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help demo test sqlite postgres pooled check lint types doctest wheel soak bench fmt clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 10

demo: $(VENV)/.base ## fifty invoices, a crash, a question, a resume
	$(BIN)/stepseven demo

# Everything on SQLite; what drives runs again on PostgreSQL; the workers, and what several processes or many runs do at once,
# a third time through PgBouncer. What takes longest there is left to `make soak`. The servers are the session's own; where
# their programs cannot be installed, the tests that need them are skipped and say so.
PYTEST = $(BIN)/python -m pytest -q -n $(AT_ONCE) --dist worksteal --durations 12
AT_ONCE := auto
# A good part of these waits for leases and time-outs: one more at a time than there are cores.
sqlite: AT_ONCE := $(shell expr `getconf _NPROCESSORS_ONLN` + 1)
# The other files of tests/workers and tests/chaos choose their databases themselves: they run with `make sqlite`.
WORKERS := $(addprefix tests/workers/test_,worker.py takeover.py stop.py stop_in_hand.py deploy.py)
ON_POSTGRES := tests/runs $(WORKERS)
ON_POOLED := $(WORKERS) $(addprefix tests/runs/test_,approve_together.py children.py effects.py effects_death.py \
	effects_end.py effects_keys.py facts.py limits.py map.py memory.py questions.py replay.py undo.py)

test: $(VENV)/.dev ## every test but the soak tests, on SQLite, PostgreSQL, and PostgreSQL behind PgBouncer
	$(BIN)/python -m tests.servers install
	$(BIN)/python -m tests.servers run $(MAKE) --no-print-directory sqlite postgres pooled

sqlite: $(VENV)/.dev ## every test, with the stores of runs in SQLite
	$(PYTEST) -m "not soak"

postgres: $(VENV)/.dev ## the tests of runs and workers, on PostgreSQL
	$(PYTEST) -m "not soak and not slow" --database postgres $(ON_POSTGRES)

pooled: $(VENV)/.dev ## some of them behind PgBouncer: transaction mode, two connections
	$(PYTEST) -m "not soak and not slow" --database pooled $(ON_POOLED)

check: lint types doctest wheel ## style, types, documentation, and the wheel as a user gets it

lint: $(VENV)/.dev ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy strict on src; the user's view of the types with mypy and pyright
	$(BIN)/mypy
	$(BIN)/mypy tests/typing
	@# Some releases of pyright fetch their program at first use: where that fails, say so and go on.
	@if timeout 300 $(BIN)/pyright --version; then $(BIN)/pyright; \
	else echo "SKIPPED: pyright could not set itself up here; the types of tests/typing were checked by mypy only"; fi

doctest: $(VENV)/.dev ## the documentation says what the code does
	$(BIN)/python -m pytest -q tests/docs

wheel: $(VENV)/.dev ## build sdist and wheel, install the wheel alone, run it
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	@set -eu; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(BIN)/python -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip install --quiet dist/*.whl; \
	cd "$$tmp"; \
	venv/bin/python -c 'import pathlib, stepseven; here = pathlib.Path(stepseven.__file__).parent; \
	missing = [name for name in ("py.typed", "examples") if not (here / name).exists()]; \
	assert not missing, f"the wheel lacks {missing}"; print("imported", here)'; \
	venv/bin/stepseven --help >/dev/null; \
	echo "the wheel installs, imports and runs"

soak: $(VENV)/.dev ## the tests that take minutes, and on PostgreSQL and PgBouncer what `make test` leaves out
	$(BIN)/python -m tests.servers install
	$(BIN)/python -m pytest -q -m soak --timeout 3600
	$(PYTEST) -m "soak or slow" --timeout 3600 --database postgres $(ON_POSTGRES)
	$(PYTEST) -m "not soak" --timeout 600 --database pooled $(ON_POSTGRES)

bench: $(VENV)/.dev ## speed against floors measured in the same run
	$(BIN)/python -m benchmarks

fmt: $(VENV)/.dev ## format, and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

clean: ## remove everything that was made, the environment too
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The two stamps say that .venv holds what pyproject.toml asks for.
$(VENV)/.base: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(VENV)/.base $@

# Debian splits venv off: as root it is installed, anybody else is told what to install.
$(BIN)/pip:
	@if [ -z "$(PYTHON)" ]; then echo "stepseven needs Python 3.11 or newer, and found none (Debian 12 and later: apt-get install python3)" >&2; exit 1; fi
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
			echo "installing python3-venv"; \
			apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends python3-venv; \
		else echo "$(PYTHON) cannot make a virtual environment. On Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; fi; \
	fi
	$(PYTHON) -m venv $(VENV)
