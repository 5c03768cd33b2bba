# Everything sets itself up: a clone, python3 >= 3.11, pip and make are enough.
# Set-up is re-done only when pyproject.toml or constraints.txt changed; uv is used when present (.ci/setup.py).
# What tests need of the machine is a table in tests/support/needs.py: installed by root with apt-get, else skipped.
PYTHON ?= python3
# Where the environment forbids it, every start of a command would compile all of its modules anew.
export PYTHONDONTWRITEBYTECODE :=
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.dev-stamp
BENCH  := $(VENV)/.bench-stamp

# Tests of real hubs and servers wait a third of their time, so there are more workers than the two cores they are for.
WORKERS ?= 7
# A test that hangs, for whatever reason, fails under its name, with the stacks of all threads.
HUNG   := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

.DEFAULT_GOAL := help
.PHONY: help setup run test soak check format bench web pictures clean

help:            ## what can be made here
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 12

setup: $(STAMP)  ## only the set-up, in .venv

define install
	@$(PYTHON) .ci/setup.py $(VENV) $(1)
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,dev)
	@touch $@

$(BENCH): $(STAMP)
	$(call install,dev$(comma)bench)
	@touch $@

comma := ,

run: $(STAMP)    ## start the hub with demo agents on loopback
	@$(BIN)/dragoman dev $(if $(filter --no-demo,$(ARGS)),,--demo) $(ARGS)

test: $(STAMP)   ## the whole test suite
	@$(BIN)/python -m tests.support.needs
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not soak" $(HUNG) $(ARGS)

soak: $(STAMP)   ## the long runs
	$(call install,dev$(comma)fuzz)
	@$(BIN)/python -m tests.support.needs
	@HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -n 2 --dist worksteal -m "soak or made_up" $(ARGS)

check: $(STAMP)  ## format, lint, types, import contracts, unreachable code, the built dashboard
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports
	@$(BIN)/python .ci/unreachable.py
	@$(BIN)/python .ci/web_fresh.py

format: $(STAMP) ## put the code in shape
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(BENCH)  ## measure, beside a peer and the raw limit
	@$(BIN)/python -m bench $(ARGS)

web: $(STAMP)    ## build the dashboard from web/ into the package (needs node)
	@cd web && npm ci --no-fund --no-audit && PYTHON=$(abspath $(BIN))/python npm run types && npm run check && npm test && npm run build
	@$(BIN)/python .ci/web_fresh.py --write

pictures: $(STAMP) ## take the pictures of the documents from a demo that ran for ten minutes (needs chromium)
	@$(BIN)/python -m tests.support.needs
	@$(BIN)/python -m tests.browser.pictures $(ARGS)

clean:           ## forget the environment and the caches
	@rm -rf $(VENV) .venv-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
