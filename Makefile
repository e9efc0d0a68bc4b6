# Everything runs in .venv, which the first target that needs it sets up (for the CPU; on GPUs: pip install -e .[gpu]).
PYTHON ?= python3
BIN := .venv/bin
export TOKENIZERS_PARALLELISM := false
# Compiling the tests takes longer than most of them: Python keeps the compiled files, also where it is told not to.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo real check fast test test-release lowest lint bench audit lock docs clean

help:
	@echo "make demo            train, explore, calibrate and evaluate a small controller (minutes, 2 cores)"
	@echo "make real            every strategy on a real model and real facts (hours; SEEDS=30: one seed)"
	@echo "make audit           known vulnerabilities of the locked packages (asks a public service)"
	@echo "make lock            requirements.lock from the packages in .venv, requirements-gpu.lock from the package index"
	@echo "make check           lint, types and the fast tests (about a minute)"
	@echo "make test            lint, types and tests"
	@echo "make test-release    the longest tests: more processes, more engines, whole how-tos"
	@echo "make lowest          the fast tests with the lowest versions that pyproject.toml allows, in build/lowest"
	@echo "make docs            the documentation in build/docs, with its links checked"
	@echo "make bench           the benchmarks; NAME=training runs one, ARGS='--help' shows its options"

# uv does not read pip's settings: where pip has indexes of its own, uv is given them.
UV = VIRTUAL_ENV=.venv UV_SYSTEM_CERTS=true $(BIN)/uv pip
UV_FROM = --index-strategy unsafe-best-match $(addprefix --index-url ,$(call pip,index-url)) \
	$(addprefix --extra-index-url ,$(call pip,extra-index-url)) $(addprefix --find-links ,$(call pip,find-links))
pip = $(shell $(PYTHON) -m pip config get global.$(1) 2>/dev/null)

# PyTorch's CPU build comes from the configured package index where that has it, else from PyTorch's own.
.venv/.ready: pyproject.toml requirements.lock setup.py
	@echo "== setting up .venv (PyTorch for CPU, vLLM for CPU, and the rest: a few minutes, once) =="
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11; run make PYTHON=python3.11 (or newer)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q uv
	$(UV) install -q $(UV_FROM) "torch==2.13.0+cpu" 2>/dev/null || $(UV) install -q --torch-backend cpu "torch==2.13.0"
	$(UV) install -q $(UV_FROM) -c requirements.lock -e ".[cpu,dev,docs,eval,milvus,ray,real,retrieval,sweep,wandb]"
	@# The index's builds of these three do not match CPU PyTorch, and break importing transformers.
	-$(UV) uninstall -q torchvision torchaudio torchcodec
	@touch $@

demo: .venv/.ready
	$(BIN)/rag-train demo

real: .venv/.ready
	$(BIN)/rag-train demo --recipe recipes/real.yaml --work runs/real --seeds $(or $(SEEDS),30,31,32)

audit: .venv/.ready
	$(BIN)/uv tool run pip-audit --requirement requirements.lock --no-deps --disable-pip

lock: .venv/.ready
	$(BIN)/uv pip freeze -q --python $(BIN)/python --exclude-editable | sed 's/+cpu//' > requirements.lock
	UV_SYSTEM_CERTS=true $(BIN)/uv pip compile -q --universal --python-version 3.11 --no-annotate --no-header \
		--extra gpu --extra retrieval --extra eval --extra sweep --extra wandb pyproject.toml \
		| sed "s/ ; platform_machine == 'x86_64' and sys_platform == 'linux'$$//" > requirements-gpu.lock

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	@# data_synth/ and eval/ are part of the package: the type checker reads them inside it, as an installation has them.
	@rm -rf build/links && mkdir -p build/links/rag_train
	@ln -s $(addprefix $(CURDIR)/,$(wildcard rag_train/*) data_synth eval) build/links/rag_train
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --summary=none

check: .venv/.ready
	@$(MAKE) --no-print-directory --jobs 2 lint fast

# Two workers, each with one core; tests/conftest.py puts the longest files first.
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

fast: .venv/.ready
	$(PYTEST) -m "not slow and not engine and not browser and not release"

test: lint
	$(PYTEST) --durations 10 -m "not release"

test-release: .venv/.ready
	$(PYTEST) --durations 10 -m release

LOWEST = VIRTUAL_ENV=build/lowest UV_SYSTEM_CERTS=true $(BIN)/uv pip install -q
LOWEST_EXTRAS = $(addprefix --extra ,dev eval milvus real retrieval sweep)

lowest: .venv/.ready
	$(PYTHON) -m venv build/lowest
	UV_SYSTEM_CERTS=true $(BIN)/uv pip compile -q $(UV_FROM) --resolution lowest-direct --no-annotate --no-header \
		$(LOWEST_EXTRAS) pyproject.toml | grep -v ^torch== > build/lowest.txt
	$(LOWEST) $(UV_FROM) "torch==2.13.0+cpu" 2>/dev/null || $(LOWEST) --torch-backend cpu "torch==2.13.0"
	$(LOWEST) $(UV_FROM) --requirement build/lowest.txt faiss-cpu
	$(LOWEST) --no-deps --editable .
	build/lowest/bin/python -m pytest -n 2 -m "not slow and not engine and not browser and not release"

bench: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks$(if $(NAME),.$(NAME)) $(ARGS)

docs: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --config-file docs/mkdocs.yml

clean:
	rm -rf .venv runs build *.egg-info
