# Everything runs in .venv; the two commands a newcomer needs are `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests start many processes: without kept byte code each of them would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all check docs format clean

demo: $(STAMP)        ## a whole federation on real patients, ending in a report
	$(BIN)/confrere demo

test: $(STAMP)        ## all quick tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-all: $(STAMP)    ## the quick tests, then the slow and statistical ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m slow

check: $(STAMP)       ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_architecture.py

docs: $(VENV)/.docs  ## the documentation site, in build/docs; broken links and unlisted pages fail
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build  # not --quiet: it would hide the warnings that strict mode counts
	@echo "Open build/docs/index.html in a browser."

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Confrère needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	touch $(STAMP)

$(VENV)/.docs: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $(VENV)/.docs

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
