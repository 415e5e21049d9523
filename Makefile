.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-9s %s\n", $$1, $$2}'

.venv/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup
setup: .venv/.installed ## create .venv and install everything into it

.PHONY: demo
demo: setup ## capture and replicate a shop on an embedded PostgreSQL, live
	@$(BIN)/tailrace demo

.PHONY: test
test: setup ## run all tests, on real servers from wheels
	@$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: lint
lint: setup ## run ruff and mypy
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

.spark-4.3: tests/spark/spark-4.3.txt | setup
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target $@ -r $<
	@touch $@

.PHONY: spark-4.3
spark-4.3: .spark-4.3 ## install a newer Spark beside ours, for the test that needs it

.query-clients/%: tests/query/clients/%.txt | setup
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes --target $@ -r $<
	@touch $@

.PHONY: query-clients
query-clients: .query-clients/sqlalchemy-1.4 .query-clients/dbt ## install older clients of the query server, for the tests that need them

.PHONY: chaos
chaos: setup spark-4.3 query-clients ## kill -9 capture thousands of times under load (KILLS=2000), then deliveries and destinations
	@KILLS=$(or $(KILLS),2000) $(BIN)/pytest -q -s tests/faults/test_kill.py
	@KILLS=$(or $(KILLS),2000) $(BIN)/pytest -q -s tests/recovery/test_archive.py -k killed
	@FUZZ=5000 FAULTS=10000 $(BIN)/pytest -q -s tests/fuzz tests/pgoutput/test_malformed.py tests/faults/test_random_store_faults.py
	@$(BIN)/pytest -q -s -m soak
	@$(BIN)/pytest -q -s tests/spark/test_other_spark.py

.PHONY: soak
soak: setup ## run everything for MINUTES=60 while it is killed; prints what grows
	@MINUTES=$(or $(MINUTES),60) $(BIN)/pytest -q -s -m soak tests/faults/test_endurance.py

.PHONY: bench
bench: setup ## measure rates, latency and memory, with baselines in the same run; `make bench recovery` one part
	@$(BIN)/python -m bench $(BENCHES)

ifeq (bench,$(firstword $(MAKECMDGOALS)))
# What follows `bench` names benchmarks, which are not targets.
BENCHES := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
.PHONY: $(BENCHES)
$(BENCHES): ; @:
endif

.PHONY: docs
docs: setup ## build the documentation as a site, in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo site/index.html

.PHONY: lock
lock: setup ## update requirements.lock from pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
		--extra embedded --extra kafka --extra mysql --extra nats --extra query --extra rabbitmq --extra slatedb --extra spark --extra valkey --extra webhook --group dev --custom-compile-command 'make lock' -o requirements.lock pyproject.toml
