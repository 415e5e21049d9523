.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help
help: ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-8s %s\n", $$1, $$2}'

.venv/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup
setup: .venv/.installed ## make .venv and install everything into it

.PHONY: demo
demo: setup ## a shop on an embedded PostgreSQL, captured and replicated live
	@$(BIN)/tailrace demo

.PHONY: test
test: setup ## all tests, on real servers from wheels
	@$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: lint
lint: setup ## ruff and mypy
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

.PHONY: chaos
chaos: setup ## thousands of kill -9 under load (KILLS=2000), then of deliveries and destinations
	@KILLS=$(or $(KILLS),2000) $(BIN)/pytest -q -s tests/faults/test_kill.py
	@$(BIN)/pytest -q -s -m soak

.PHONY: bench
bench: setup ## rates, latency and memory, against baselines of the same run
	@$(BIN)/python -m bench

.PHONY: lock
lock: setup ## renew requirements.lock from pyproject.toml
	@$(PYTHON) -m venv .venv/uv && .venv/uv/bin/pip install --quiet uv
	@.venv/uv/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
		--extra embedded --extra nats --extra query --extra spark --group dev --custom-compile-command 'make lock' -o requirements.lock pyproject.toml
