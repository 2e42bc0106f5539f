# tablekeeper: every task of the project, from a clean checkout with Python 3.11+, Java 17+ and make.
#
# Environments are made from the hashed lock files in requirements/ and remembered by a stamp inside them,
# so that a target reinstalls only after a lock file or pyproject.toml has changed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
VENV_INTEROP := .venv-interop
STAMP := $(VENV)/.installed
VENV_FLINK := .venv-flink
STAMP_FLINK := $(VENV_FLINK)/.installed
STAMP_INTEROP := $(VENV_INTEROP)/.installed
BIN := $(VENV)/bin
BIN_INTEROP := $(VENV_INTEROP)/bin

HUDI_VERSION := 1.2.0
HUDI_ARTIFACT := hudi-spark3.5-bundle_2.12
HUDI_BUNDLE := $(HOME)/.m2/repository/org/apache/hudi/$(HUDI_ARTIFACT)/$(HUDI_VERSION)/$(HUDI_ARTIFACT)-$(HUDI_VERSION).jar

# Extra arguments for pytest: make test PYTEST_ARGS="-k timeline -x", or "-n 0 --pdb" to stay in one process
PYTEST_ARGS ?=
# Processes that share the tests. Those that need Spark go to one of them in `make test` (see tests/conftest.py);
# in `make interop` all do, so that each process has a JVM and takes over what another has left.
WORKERS ?= 2
# Rows of the benchmark; empty means the full size.
ROWS ?=
# More for the benchmark: make bench BENCH_ARGS="--reuse-java --only java,ours_spark"
BENCH_ARGS ?=

# For the load on the management service. Without any: 20,000 tables, 200,000 finished operations, 300 submits a second.
LOAD_ARGS ?=

# For the planning benchmark: partitions of its tables. Without any: 640,000 in memory, 64,000 on disk.
PLANNING_ARGS ?=

# For the chaos run. Without any: about three minutes; at full size: CHAOS_ARGS="--tables 200 --operations 2000".
CHAOS_ARGS ?= --tables 20 --operations 80 --most-seconds 120 --settle-seconds 150

# For the simulator. Without any: what a quiet core plays in three minutes, and the same histories on a faster one.
# For longer: SIM_ARGS="--seeds 100000 --first 1 --guided".
SIM_ARGS ?= --seeds 1200 --seconds 180 --guided

# For the stress run: seconds, writers, store (local or s3), seed. Without any: both stores, the full length.
STRESS_ARGS ?=

# The first of the names given that is a Python 3.11 or newer; a message and failure if there is none.
define find_python
for name in $(PYTHON) $(1); do \
  if command -v "$$name" >/dev/null 2>&1 && "$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
    found="$$name"; break; \
  fi; \
done; \
if [ -z "$${found:-}" ]; then \
  echo "tablekeeper needs Python 3.11 or newer with venv; tried: $(PYTHON) $(1). Install one, or name yours: make env PYTHON=/path/to/python3" >&2; exit 1; \
fi
endef

# Spark's own launcher takes JAVA_HOME before the PATH, so the check does the same.
define need_java
java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
if ! command -v "$$java" >/dev/null 2>&1; then \
  echo "Spark needs Java 17 or newer, and '$$java' is not there. Install a JDK or JRE, or set JAVA_HOME." >&2; exit 1; \
fi; \
major="$$("$$java" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1)"; \
if [ "$${major:-0}" -lt 17 ]; then \
  echo "Spark needs Java 17 or newer, and '$$java' is version $${major:-unknown}. Install a newer one, or set JAVA_HOME." >&2; exit 1; \
fi
endef

define install
if [ ! -x $(1)/bin/python ]; then $(call find_python,$(3)); "$$found" -m venv $(1); fi; \
$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(4) --require-hashes -r $(2); \
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .; \
touch $(1)/.installed
endef

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS=$$'\t' read -r target text; do printf '  make %-14s %s\n' "$$target" "$$text"; done

.PHONY: env
env: $(STAMP) ## Make .venv: newest PySpark 4.x, tests and tools

$(STAMP): requirements/dev.lock pyproject.toml
	@echo "installing $(VENV) from $<"
	@$(call install,$(VENV),$<,python3 python3.13 python3.12 python3.11 python3.14)

# PySpark 3.5 is happiest on the Pythons of its time, so those come first here.
$(STAMP_INTEROP): requirements/interop.lock pyproject.toml
	@echo "installing $(VENV_INTEROP) from $<"
	@$(call install,$(VENV_INTEROP),$<,python3.11 python3.12 python3 python3.13)

# Flink's own requirements contradict each other where requirements/flink-overrides.txt says; the lock file is whole.
$(STAMP_FLINK): requirements/flink.lock pyproject.toml
	@echo "installing $(VENV_FLINK) from $<"
	@$(call install,$(VENV_FLINK),$<,python3.11 python3.12,--no-deps)

.PHONY: flink
flink: $(STAMP_FLINK) ## Make .venv-flink: Flink with its distribution, about 700 MB

$(HUDI_BUNDLE):
	@command -v mvn >/dev/null 2>&1 || { echo "Comparing with Java Hudi needs Maven (mvn) to fetch $(HUDI_ARTIFACT) $(HUDI_VERSION). Install Maven." >&2; exit 1; }
	@echo "fetching $(HUDI_ARTIFACT) $(HUDI_VERSION) with Maven"
	@mvn -B -q org.apache.maven.plugins:maven-dependency-plugin:3.6.1:get \
	  -Dartifact=org.apache.hudi:$(HUDI_ARTIFACT):$(HUDI_VERSION) -Dtransitive=false
	@test -s "$@" || { echo "Maven reported success, but $@ is not there. Is another local repository configured?" >&2; exit 1; }

.PHONY: java
java:
	@$(need_java)

.PHONY: demo
demo: java $(STAMP) ## A guided tour: a table on local Spark, then a lake and the service that keeps it
	@$(BIN)/python -m tablekeeper.examples.demo

.PHONY: test
test: java $(STAMP) ## All tests that need PyPI only (no Java Hudi, no browser)
	$(BIN)/python -m pytest --ignore=tests/interop --ignore=tests/browser --ignore=tests/clusters --ignore=tests/fuzz \
	  -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --durations=10 $(PYTEST_ARGS)

.PHONY: interop
interop: java $(STAMP_INTEROP) $(HUDI_BUNDLE) ## Java Hudi 1.2.0 and hudi-rs against us, on PySpark 3.5.8
	HUDI_BUNDLE="$(HUDI_BUNDLE)" $(BIN_INTEROP)/python -m pytest tests/interop \
	  -n $(WORKERS) --dist worksteal --durations=10 $(PYTEST_ARGS)

.PHONY: databases
databases: $(STAMP) ## The service's store on PostgreSQL and MariaDB of the operating system (Debian packages)
	@command -v mariadbd >/dev/null 2>&1 || { echo "The store is tested on MariaDB too. Install it: apt-get install mariadb-server" >&2; exit 1; }
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { echo "The store is tested on PostgreSQL too. Install it: apt-get install postgresql" >&2; exit 1; }
	TABLEKEEPER_DEBIAN_DATABASES=1 $(BIN)/python -m pytest tests/server/test_job_store.py tests/server/test_migrations.py \
	  tests/server/test_first_requests.py tests/server/test_limits.py tests/server/test_waiting_work.py \
	  tests/server/test_freshness_targets.py -n 0 $(PYTEST_ARGS)

.PHONY: browser
browser: $(STAMP) ## The pages of the service in a real Chromium (Debian's); renews the pictures in docs/images
	@test -x /usr/bin/chromium || { echo "The pages are tested in Debian's Chromium, and /usr/bin/chromium is not there. Install it: apt-get install chromium" >&2; exit 1; }
	$(BIN)/python -m pytest tests/browser -n 0 $(PYTEST_ARGS)

.PHONY: fuzz
fuzz: $(STAMP) ## The service called at random over REST and gRPC, about a minute; FUZZ_EXAMPLES=500 for longer
	FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),10) $(BIN)/python -m pytest tests/fuzz -n 0 $(PYTEST_ARGS)

.PHONY: clusters
clusters: java $(STAMP) $(STAMP_FLINK) ## The engines of the service on real clusters of Spark and Flink
	$(BIN)/python -m pytest tests/clusters -n 0 --durations=10 $(PYTEST_ARGS)

.PHONY: bench
bench: java $(STAMP_INTEROP) $(HUDI_BUNDLE) ## Speed beside Java Hudi and delta-rs; ROWS=400000 for a quick look
	HUDI_BUNDLE="$(HUDI_BUNDLE)" $(BIN_INTEROP)/python -m bench.run $(if $(ROWS),--rows $(ROWS)) $(BENCH_ARGS)

.PHONY: bench-scale
bench-scale: java $(STAMP_INTEROP) $(HUDI_BUNDLE) ## An upsert into 8, 100 and 700 file groups beside Java; ROWS=400000 for a quick look
	HUDI_BUNDLE="$(HUDI_BUNDLE)" $(BIN_INTEROP)/python -m bench.scale $(if $(ROWS),--rows $(ROWS)) --plot docs/images/scale.png $(BENCH_ARGS)

.PHONY: bench-service
bench-service: $(STAMP) ## Load on the management service over PostgreSQL; LOAD_ARGS="--tables 2000 --rate 50 --seconds 20"
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { echo "The load needs PostgreSQL. Install it: apt-get install postgresql" >&2; exit 1; }
	$(BIN)/python -m bench.service $(LOAD_ARGS)

.PHONY: bench-planning
bench-planning: $(STAMP) ## Scheduling on 640,000 partitions of which ten were touched; PLANNING_ARGS="--memory 64000"
	$(BIN)/python -m bench.planning $(PLANNING_ARGS)

.PHONY: bench-worth
bench-worth: $(STAMP_INTEROP) ## One lake without services, with inline ones, and with the management service; renews its plot
	$(BIN_INTEROP)/python -m bench.worth --plot docs/images/worth.png $(BENCH_ARGS)

.PHONY: stress
stress: $(STAMP) ## Many writers, killed at random, on one table; STRESS_ARGS="--seconds 30 --store s3 --seed 2"
	$(if $(STRESS_ARGS),$(BIN)/python -m bench.stress $(STRESS_ARGS),$(BIN)/python -m bench.stress --store local && $(BIN)/python -m bench.stress --store s3)

.PHONY: chaos
chaos: $(STAMP) ## The management service with instances, workers and database killed at random; CHAOS_ARGS="--operations 2000"
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { echo "Chaos needs PostgreSQL. Install it: apt-get install postgresql" >&2; exit 1; }
	$(BIN)/python -m bench.chaos $(CHAOS_ARGS)

.PHONY: sim
sim: $(STAMP) ## Many processes on one simulated table, from seeds, for three minutes; SIM_ARGS="--seeds 100000" for longer
	$(BIN)/python -m tablekeeper.testing $(SIM_ARGS)

.PHONY: check
check: $(STAMP) ## Style, types, layers and the rules of the code base
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/tidy -q $(PYTEST_ARGS)

.PHONY: docs
docs: $(STAMP) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: ci
ci: ## What CI runs: check, docs, test, sim, databases, browser, fuzz, clusters, chaos, interop
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory docs
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory sim
	@$(MAKE) --no-print-directory databases
	@$(MAKE) --no-print-directory browser
	@$(MAKE) --no-print-directory chaos
	@$(MAKE) --no-print-directory fuzz
	@$(MAKE) --no-print-directory clusters
	@$(MAKE) --no-print-directory interop

.PHONY: lock
lock: $(STAMP) ## Renew the lock files (LOCK_ARGS=--upgrade for newer releases)
	$(BIN)/uv pip compile $(LOCK_FLAGS) --extra dev --extra docs --output-file requirements/dev.lock pyproject.toml
	$(BIN)/uv pip compile $(LOCK_FLAGS) --extra dev --extra interop --extra bench --output-file requirements/interop.lock \
	  pyproject.toml requirements/interop.in
	$(BIN)/uv pip compile $(LOCK_FLAGS) --override requirements/flink-overrides.txt --output-file requirements/flink.lock \
	  pyproject.toml requirements/flink.in

LOCK_FLAGS = --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url $(LOCK_ARGS)
LOCK_ARGS ?=

.PHONY: clean
clean: ## Remove the environments and everything that was built
	rm -rf $(VENV) $(VENV_INTEROP) $(VENV_FLINK) site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
