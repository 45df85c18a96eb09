# Everything runs in .venv, which is made when it is first needed and again when its list of packages changes.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2

# Packages of onnxruntime-training 1.19.2, the reference that golden data comes from; it needs Python 3.11 or older.
REFERENCE := build/reference
REFERENCE_PACKAGES := 'numpy<2' onnx==1.16.2 'protobuf<6' flatbuffers packaging sympy cerberus h5py torch==2.13.0

.PHONY: help venv demo test check docs golden bench zoo gpu pretend sanitize operators clean

help:
	@echo "make demo    train a small CNN on handwritten digits; results in demo-out/"
	@echo "make test    run the whole test suite"
	@echo "make check   lint, format, types, layers, hygiene, public API, documentation: before every commit"
	@echo "make docs    build the documentation into build/site"
	@echo "make bench   print what steps cost, against torch"
	@echo "make gpu     run the tests that need a GPU, in several processes"
	@echo "make pretend  run tests that need a GPU on one that is pretended; ARGS names them"
	@echo "make sanitize  look for wrong accesses and races in the GPU kernels with compute-sanitizer"
	@echo "make zoo     train ONNX files from public packages, which are downloaded to build/zoo"
	@echo "make operators  write docs/operators.md again"
	@echo "make golden  make the golden data again with the reference runtime"
	@echo "make venv    only set up .venv"
	@echo "make clean   remove .venv and what was built"

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV), which takes a minute or more"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python -m onnxtrain.demo

# One thread a worker: more would only take turns on the same cores. Processes that tests start
# find our modules compiled by the first one, also where bytecode is not to be written.
test: $(READY)
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $(WORKERS) $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_hygiene.py tests/test_public_api.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

bench: $(READY)
	$(BIN)/python benchmarks/overhead.py $(ARGS)
	$(BIN)/python benchmarks/steps.py $(ARGS)
	$(BIN)/python benchmarks/forward.py $(ARGS)
	$(BIN)/python benchmarks/memory.py $(ARGS)

zoo: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/zoo.py $(ARGS)

gpu: $(READY)
	$(BIN)/python tests/gpu.py $(ARGS)

pretend: $(READY)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m pytest -q -p pretended.plugin -m gpu $(ARGS)

sanitize: $(READY)
	$(BIN)/python tests/gpu.py --sanitize after $(wildcard tests/kernels/test_fast*.py) $(ARGS)

operators: $(READY)
	$(BIN)/python -m onnxtrain.testing.operators

golden: $(READY) $(REFERENCE)/.ready
	$(REFERENCE)/bin/python tests/golden/make_checkpoints.py
	$(BIN)/python -c "from onnxtrain.formats import odtc; \
	  data = odtc.read_checkpoint('tests/golden/checkpoints/artifacts.ckpt'); \
	  odtc.write_checkpoint('build/split.ckpt', data, external_threshold=0)"
	$(REFERENCE)/bin/python tests/golden/make_checkpoints.py build/split.ckpt
	$(REFERENCE)/bin/python tests/golden/make_unsummed.py
	$(BIN)/python tests/golden/make_training.py $(REFERENCE)/bin/python
	$(BIN)/python tests/golden/make_models.py $(REFERENCE)/bin/python
	$(BIN)/python tests/golden/make_operators.py $(REFERENCE)/bin/python

$(REFERENCE)/.ready:
	$(PYTHON) -m venv $(REFERENCE)
	$(REFERENCE)/bin/python -m pip install --quiet --no-deps onnxruntime-training-cpu==1.19.2
	$(REFERENCE)/bin/python -m pip install --quiet $(REFERENCE_PACKAGES)
	@touch $@

clean:
	rm -rf $(VENV) build demo-out
