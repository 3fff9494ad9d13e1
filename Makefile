# Each target does its own set-up on first use: a virtual environment in .venv, packages as pinned in constraints.txt.
# Later uses are instant, until pyproject.toml or constraints.txt change.
#   make train ARGS="env=pendulum agent=sac"     PYTHON=python3.12 make test     make test ARGS="tests/ops -x"

PYTHON  ?= python3
WORKERS ?= 2
ARGS    ?=
VENV    := .venv
BIN     := $(VENV)/bin
# Bytecode is written when a module is first imported: compiling all of it ahead would double the time to install.
# Where it may not be written, as in some containers, each process that a test starts would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE
PIP     := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt
PYTEST  := $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadscope --no-loadscope-reorder
TRAIN   ?= agent=ppo env=cartpole seed=2

.PHONY: help train test test-long check docs bench house clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@echo "make train   set up, then train PPO on CartPole (ARGS= adds or changes options)"
	@echo "make test    set up, then run the tests, warnings as errors (ARGS= for pytest)"
	@echo "make test-long   run the further variants of the tests, listed in tests/lanes.py"
	@echo "make check   format, lint, types, import layers, and that the documentation builds"
	@echo "make docs    build the documentation into site/"
	@echo "make bench   run the speed benchmarks (ARGS= chooses; of learning: python -m benchmarks.learning)"
	@echo "make house   measure the code: what a step enters, imports, repeats, circles"
	@echo "make clean   remove .venv and everything that was built"

train: $(VENV)/.core
	$(BIN)/python scripts/train.py $(TRAIN) $(ARGS)

test: $(VENV)/.test
	$(PYTEST) --lane short $(ARGS)

test-long: $(VENV)/.test
	$(PYTEST) --lane long $(ARGS)

check: $(VENV)/.test $(VENV)/.docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	$(BIN)/python -m pytest -q -n 0 tests/test_architecture.py tests/test_code_sinks.py tests/test_plain_english.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.speed $(ARGS)

house: $(VENV)/.test
	$(BIN)/python -m tests.house

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
	  echo "evorl needs Python 3.11 or later as '$(PYTHON)': install one, or name it: make PYTHON=python3.12 $(MAKECMDGOALS)"; \
	  exit 1; }
	@$(PYTHON) -c "import venv, ensurepip" || { \
	  echo "'$(PYTHON)' cannot make virtual environments: install its venv module (Debian and Ubuntu: python3-venv)"; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing evorl and what it needs into $(VENV): about half a minute"
	$(PIP) -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing evorl with its test and check tools into $(VENV): about a minute"
	$(PIP) -e ".[test,check]"
	@touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[docs]"
	@touch $@ $(VENV)/.core
