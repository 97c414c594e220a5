# Two commands: `make demo` shows what bidwise does, `make test` proves that it works.
.PHONY: demo test lint types bench clean
.DEFAULT_GOAL := demo
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

demo: $(INSTALLED)
	$(BIN)/python examples/two_models.py

test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest  # one thread: on busy cores several wait for each other

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.losses

# pip reads PIP_CONSTRAINT for the build environment too, so every version is a pinned one.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
