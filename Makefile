# Every target sets up what it needs; `make help` lists them.

PYTHON := .venv/bin/python
SETUP_PYTHON := $(shell for each in "$$PYTHON" python3.11 python3 python3.12 python3.13; do \
	"$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$each"; break; }; done)
export NUMBA_CACHE_DIR := $(CURDIR)/.venv/numba-cache
ARGUMENTS ?=
# Test processes, each with a Spark session of its own and up to 5 GB of memory; a file is run by one of them. As many as
# there are processors and room for, but two at least.
WORKERS ?= $(shell awk -v most="$$(getconf _NPROCESSORS_ONLN 2>/dev/null)" '/^MemAvailable:/ { room = int($$2 / 5e6) } \
	END { count = room < most ? room : most; print (count > 2 ? count : 2) }' /proc/meminfo 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help setup check test test-spark test-system test-broker golden-clusters test-damage test-endpoint test-strangers clients test-cluster \
	test-airflow mutants lint types format \
	reference docs notebook bench wheel image test-install test-image constraints clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install packages and jars where they are missing
	@$(or $(SETUP_PYTHON),$(error Python 3.11 or newer is needed, but was not found; set PYTHON or PATH)) environment.py development

PYTEST := $(PYTHON) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Pure tests write many small files: into memory if there is room.
MEMORY := $(shell awk '/^MemAvailable:/ && $$2 > 12e6 { print "/dev/shm" }' /proc/meminfo 2>/dev/null)
ROOM := $(shell df -Pk "$(or $(MEMORY),/none)" 2>/dev/null | awk 'NR == 2 && $$4 > 8e6 { print "$(MEMORY)" }')
PURE_PYTEST := $(if $(ROOM),PYTEST_DEBUG_TEMPROOT=$(ROOM)) $(PYTEST) tests/unit tests/sweep

check: lint types ## lint, types, and the pure tests with fewer examples: what to run after every change
	$(PURE_PYTEST) --sampled $(ARGUMENTS)

# The pure tests by themselves: a process that Spark is in could not say that they do without.
test: setup ## run every test but those that start programs or servers of their own (ARGUMENTS="-k name" narrows)
ifeq ($(strip $(ARGUMENTS)),)
	$(PURE_PYTEST)
	$(PYTEST) tests/spark tests/s3
else
	$(PYTEST) $(ARGUMENTS)
endif

test-system: setup ## run the tests that start programs: jobs as commands, runs that are killed, the notebook
	$(PYTEST) tests/system $(ARGUMENTS)

# The version of Spark that test-spark takes: 4.0 or 4.1. `make test` has the newest.
SPARK ?= 4.1
test-spark: setup ## run the tests of Spark with an older one (SPARK=4.0 chooses; ARGUMENTS narrows)
	@$(SETUP_PYTHON) environment.py spark-$(SPARK)
	build/spark-$(SPARK)/venv/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		$(if $(strip $(ARGUMENTS)),$(ARGUMENTS),tests/spark)

# The version of Kafka that test-broker starts; without it the newest (tests/broker/tiered_broker.py).
KAFKA ?=
# Chooses what test-damage damages, and what strangers send in test-strangers.
SEED ?= 1
# How many files of a warehouse test-damage damages for each way of asking.
TRIALS ?= 200
# How many requests strangers send in test-strangers.
REQUESTS ?= 100000
# How often a segment is archived meanwhile; 0: never.
SEGMENT_EVERY_S ?= 0
# Versions whose golden archives golden-clusters makes anew.
VERSIONS ?= 3.6.2 3.7.2 3.8.1 3.9.0 4.0.0 4.2.1 4.3.1 4.4.0 3.9.0-to-4.3.1

test-broker: export KAFKA := $(KAFKA)
test-broker: setup ## run the tests that start a Kafka broker of their own (KAFKA=3.9.0 chooses its version)
	$(PYTHON) -m pytest tests/broker $(ARGUMENTS)

golden-clusters: export PYTHONPATH := lib:tests/support:tests:.
golden-clusters: setup ## make the archives of tests/golden/clusters anew, by real clusters (VERSIONS="3.9.0 4.3.1")
	$(PYTHON) -m broker.cluster_archive tests/golden/clusters $(VERSIONS)

test-damage: export SEED := $(SEED)
test-damage: export TRIALS := $(TRIALS)
test-damage: setup ## damage the sample's logs, then files of its warehouse, and ask everything (SEED=7 chooses which)
	$(PYTHON) -m pytest -s tests/spark/lookups/test_damaged_sample.py tests/spark/tables/test_damage_campaign.py \
		tests/s3/tables/test_damage_on_s3.py $(ARGUMENTS)

test-endpoint: setup ## read the sample through coldlog serve with Kafka clients
	$(PYTHON) -m pytest tests/endpoint $(ARGUMENTS)

test-strangers: export SEED := $(SEED)
test-strangers: export REQUESTS := $(REQUESTS)
test-strangers: export HANG_S := 60
test-strangers: export SEGMENT_EVERY_S := $(SEGMENT_EVERY_S)
test-strangers: setup ## send coldlog serve what no sound client sends (SEED=7 REQUESTS=1000000)
	$(PYTHON) -m pytest -s tests/endpoint/security/test_stranger_campaign.py $(ARGUMENTS)

clients: export CLIENTS := all
clients: setup ## read the sample with every Kafka client, and write the table of docs/reference/clients.md
	$(PYTHON) -m pytest tests/endpoint -m shows $(ARGUMENTS)

test-cluster: setup ## run the tests that start a Spark cluster and an S3 server of their own
	@$(SETUP_PYTHON) environment.py cluster
	$(PYTHON) -m pytest tests/cluster $(ARGUMENTS)

test-airflow: setup ## run the DAGs on an Airflow of their own
	@$(SETUP_PYTHON) environment.py airflow
	$(PYTHON) -m pytest tests/airflow $(ARGUMENTS)

mutants: setup ## make small mistakes in the library and see that tests notice (ARGUMENTS=--by-hand, --seeded narrow)
	PYTHONPATH=tests/support:tests $(PYTHON) -m mutants $(ARGUMENTS)

lint: setup ## check style, format, who imports whom, and the documents' links
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports --no-cache
	$(PYTHON) docs/links.py

types: setup ## check types
	$(PYTHON) -m mypy

format: setup ## put the code into its format
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

reference: setup ## write the generated pages of docs/reference
	$(PYTHON) docs/reference.py

docs: setup ## build the site of docs/ into build/site
	@$(SETUP_PYTHON) environment.py documents
	.venv/bin/zensical build --clean --strict --config-file mkdocs.yml

notebook: setup ## run the notebook over ./warehouse and keep its outputs (ARGUMENTS=DIR takes another warehouse)
	$(PYTHON) notebooks/execute.py $(ARGUMENTS)

bench: setup ## measure, side by side with the peers
	$(PYTHON) benchmarks/run.py $(ARGUMENTS)

DIST ?= dist
# Without build/lib: setuptools would pack what was removed from the library since the last build.
wheel: setup ## build the package into dist
	rm -rf build/lib build/bdist.*
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(PYTHON) -m pip --quiet --disable-pip-version-check wheel --no-deps --wheel-dir $(DIST) .

# What builds the image, and what it is called; ARGUMENTS go to the builder.
BUILDER ?= docker
IMAGE ?= coldlog
image: ## build an image that runs coldlog and its jobs (BUILDER=podman; ARGUMENTS="--build-arg UID=1000")
	rm -f dist/coldlog-*.whl
	@$(MAKE) --no-print-directory wheel DIST=dist
	$(BUILDER) build --tag $(IMAGE) $(ARGUMENTS) .

test-image: export BUILDER := $(BUILDER)
test-image: export IMAGE := $(IMAGE)
test-image: image ## build the image, and run every job and the endpoint in it (BUILDER=podman)
	$(PYTHON) -m pytest tests/image

# The versions of Python that test-install installs the package on; WAREHOUSE=DIR asks these tables, and starts no Spark.
PYTHONS ?= 3.11 3.12 3.13

test-install: export PYTHONS := $(PYTHONS)
test-install: setup ## install the package far from the checkout, and ask it (PYTHONS="3.12" chooses)
	$(PYTHON) -m pytest tests/install $(ARGUMENTS)

constraints: setup ## pin again what setup.cfg's packages need (UPGRADE=--upgrade takes the newest)
	$(PYTHON) -m uv pip compile setup.cfg --universal --python-version 3.11 --all-extras --quiet $(UPGRADE) \
		--no-header --no-annotate --no-emit-index-url --output-file constraints.txt
	$(PYTHON) -m uv pip compile conf/airflow/requirements.txt --universal --python-version 3.11 --quiet $(UPGRADE) \
		--no-header --no-annotate --no-emit-index-url --output-file conf/airflow/constraints.txt

clean: ## remove what runs and tests leave behind; packages and jars stay
	rm -rf warehouse coldlog-demo spark-warehouse metastore_db derby.log build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache .venv/numba-cache .venv/java-classes/*

distclean: clean ## remove packages and jars too
	rm -rf .venv .venv-airflow .tools .executors .jars .jars.partial .setup.lock lib/coldlog.egg-info
