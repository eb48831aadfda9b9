# One virtual environment, made once and reused; every recipe here is what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo test lint types unit clean

$(VENV)/base: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -e .
	touch $@

$(VENV)/test: $(VENV)/base pyproject.toml Makefile
	$(PIP) install $(TORCH)
	$(PIP) install -e '.[test]'
	touch $@

demo: $(VENV)/base
	$(BIN)/ndpool demo

test: lint types unit

lint: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test
	$(BIN)/mypy

unit: $(VENV)/test
	$(BIN)/pytest -n 2 --cov --cov-report=term-missing:skip-covered

clean:
	rm -rf $(VENV) demo.html .coverage .pytest_cache .mypy_cache .ruff_cache
