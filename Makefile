# The front door: every command a person or CI needs. CMake does the building; see CMakePresets.json.
#
# The preset is `cuda` where nvcc 13 or later is found, else `cpu`; PRESET=cpu overrides it.
.DEFAULT_GOAL := help
.PHONY: help demo test build bench fuzz sanitize format check setup clean
SHELL := /bin/bash

ifndef PRESET
PRESET := $(shell nvcc=$$(command -v nvcc || echo /usr/local/cuda/bin/nvcc); \
  major=$$($$nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p'); \
  if [ "$${major:-0}" -ge 13 ]; then echo cuda; else echo cpu; fi)
endif
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
BUILD := build/$(PRESET)
TESSERA := $(BUILD)/bin/tessera
WITH_TESTS := -DTESSERA_TESTS=ON -DTESSERA_BENCH=ON
# A machine that only runs the demo has no GoogleTest; an existing build folder keeps what it was configured with.
WITHOUT_TESTS = $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DTESSERA_TESTS=OFF -DTESSERA_BENCH=OFF)

export PROMPT ?= What is the capital of France, and what is it known for?
TOKENS ?= 80
FUZZ_SECONDS ?= 60

help:
	@echo "make demo      build the command line tool and let the demo model answer (PROMPT=..., TOKENS=...)"
	@echo "make test      install what is missing, build everything, run all checks and tests"
	@echo "make build     build the library and the command line tool: $(TESSERA)"
	@echo "make bench     build and run the CPU benchmarks"
	@echo "make sanitize  all tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make fuzz      run every fuzzer for FUZZ_SECONDS=$(FUZZ_SECONDS) seconds"
	@echo "make check     only the source checks: layers, words, format, clang-tidy on changed files"
	@echo "make format    let clang-format rewrite the sources"
	@echo "make clean     remove build/ (not .venv, not the model cache)"
	@echo "PRESET=cpu|cuda chooses the build (here: $(PRESET)); JOBS=n the parallelism (here: $(JOBS))"

demo:
	@tools/setup build demo
	@cmake --preset $(PRESET) $(WITHOUT_TESTS) >/dev/null
	@cmake --build $(BUILD) --target tessera_cli -j $(JOBS)
	$(TESSERA) run -m demo --chat -p "$$PROMPT" -n $(TOKENS)

build:
	@tools/setup build
	@cmake --preset $(PRESET) $(WITHOUT_TESTS)
	@cmake --build $(BUILD) --target tessera_cli -j $(JOBS)

# Cheap checks first; ctest last, so that its summary closes the output.
test:
	@tools/setup build demo test
	@python3 tools/check_layers.py
	@python3 tools/check_words.py
	@tools/check_format
	@cmake --preset $(PRESET) $(WITH_TESTS)
	@tools/check_tidy $(BUILD)
	@cmake --build $(BUILD) -j $(JOBS)
	@tools/prepare_demo_model $(TESSERA)
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

check:
	@tools/setup build test
	@python3 tools/check_layers.py
	@python3 tools/check_words.py
	@tools/check_format
	@cmake --preset $(PRESET) $(WITH_TESTS)
	@tools/check_tidy $(BUILD)

bench:
	@tools/setup build test
	@cmake --preset $(PRESET) $(WITH_TESTS)
	@cmake --build $(BUILD) -j $(JOBS)
	@for program in $(BUILD)/bin/bench_*; do echo "== $$program"; $$program || exit 1; done

sanitize:
	@tools/setup build test
	@cmake --preset sanitize
	@cmake --build build/sanitize -j $(JOBS)
	@ctest --test-dir build/sanitize --output-on-failure -j $(JOBS)

fuzz:
	@tools/setup build test fuzz
	@cmake --preset fuzz
	@cmake --build build/fuzz --target fuzzers -j $(JOBS)
	@tools/run_fuzzers build/fuzz/bin $(FUZZ_SECONDS)

format:
	@tools/setup build test
	@tools/check_format --fix

setup:
	@tools/setup build demo test

clean:
	rm -rf build
