# Each target sets up its own virtual environment on a fresh machine: Python 3.11, make and a C compiler are enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
DOCS_READY := $(VENV)/docs-ready

.PHONY: demo test check verify docs bench quality measures format clean

demo: $(READY)  ## compare SGD, PCSGD and DiceSGD: a table, a figure, a page in clipsilon-demo/
	$(BIN)/clipsilon demo

test: $(READY)  ## the test suite
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

check: $(READY)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

verify: $(DOCS_READY)  ## the heavier statistical checks, and the documentation's build
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m verify

bench: $(READY)  ## peers side by side, as ratios, on docs/peers.md; twenty minutes (PARTS="engine audit": these only)
	$(BIN)/python benchmarks/table.py $(PARTS)

quality: $(READY)  ## the estimators' defaults against tuned peers; half an hour
	$(BIN)/python benchmarks/quality.py

measures:  ## size, interface and documentation of the source in figures (ARGS="--list" names the places)
	$(PYTHON) tools/measures.py $(ARGS)

docs: $(DOCS_READY)  ## the documentation, with every name and the gallery's pictures, in docs/_build/html
	$(BIN)/python -m sphinx -E -a -W --keep-going -q -d docs/_build/doctrees docs docs/_build/html
	@echo "Open docs/_build/html/index.html in a browser; it needs no server and no internet."

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,docs]'
	touch $@

clean:
	rm -rf $(VENV) clipsilon-demo docs/_build docs/gallery_pages
