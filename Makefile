# make train     set up, then the whole road: plan, dry run, training, "who are you?"
# make dry-run   the gate alone: two real optimizer steps on the costliest rows
# make plan      print the plan; nothing happens
# make test      set up, then all tests      make lint   ruff and mypy      make check   what CI runs
#
# Variables: DATASET=rows.jsonl MODEL=id-or-folder RECIPE=recipe.yaml ARGS='any flag of autoswift or swift sft'

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BOTH := --numprocesses 2 --dist loadscope
FLAGS = $(if $(DATASET),--dataset '$(DATASET)') $(if $(MODEL),--model '$(MODEL)') $(if $(RECIPE),--recipe '$(RECIPE)') $(ARGS)

.PHONY: setup train plan dry-run test lint check clean
.DEFAULT_GOAL := setup

setup: $(READY)

# torch goes first: with torch absent, another package's open range would take a multi-gigabyte CUDA build on a
# machine that has no GPU. On a GPU machine the same pin is the CUDA build.
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'set-up 1/2: torch' >&2
	@$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)" setuptools wheel
	@echo 'set-up 2/2: ms-swift, deepspeed and the rest (about two minutes)' >&2
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

train: $(READY)
	$(BIN)/autoswift sft $(FLAGS)

plan: $(READY)
	$(BIN)/autoswift plan $(FLAGS)

dry-run: $(READY)
	$(BIN)/autoswift dry-run $(FLAGS)

test: $(READY)
	$(BIN)/python -m pytest -m 'not engine' $(BOTH)
	$(BIN)/python -m pytest -m engine $(BOTH)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

clean:
	rm -rf $(VENV) output build *.egg-info
