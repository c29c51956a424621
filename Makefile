# Each target sets up its own virtual environment on a fresh machine: Python 3.11 to 3.13, make and a C compiler are
# enough. Another Python gets an environment of its own: make test PYTHON=python3.13 VENV=.venv-3.13

PYTHON ?= python3
VENV := .venv
EXTRAS := test,language,trainers
BIN := $(VENV)/bin
READY := $(VENV)/ready
DOCS_READY := $(VENV)/docs-ready

.PHONY: demo test check verify docs bench quality measures format clean

demo: $(READY)  ## compare SGD, PCSGD, DiceSGD and CorrelatedSGD: a table, and a figure and a page in clipsilon-demo/
	$(BIN)/clipsilon demo

test: $(READY)  ## run the test suite
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

check: $(READY)  ## check lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

verify: $(DOCS_READY)  ## run the heavier statistical checks, and build the documentation
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m verify

bench: $(READY)  ## compare with other libraries in docs/peers.md; 45 minutes (PARTS="engine audit" runs these two)
	$(BIN)/python benchmarks/table.py $(PARTS)

quality: $(READY)  ## compare the estimators' defaults with tuned peers; half an hour
	$(BIN)/python benchmarks/quality.py

measures:  ## print size, interface and documentation of the source in figures (ARGS=--list names the places)
	$(PYTHON) tools/measures.py $(ARGS)

docs: $(DOCS_READY)  ## build the documentation, with every public name and a gallery, in docs/_build/html
	$(BIN)/python -m sphinx -E -a -W --keep-going -q -d docs/_build/doctrees docs docs/_build/html
	@echo "Open docs/_build/html/index.html in a browser; it needs no server and no internet."

format: $(READY)  ## fix what the linter and the formatter can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS),docs]'
	touch $@

clean:  ## delete the environment and what the targets wrote
	rm -rf $(VENV) clipsilon-demo docs/_build docs/gallery_pages
