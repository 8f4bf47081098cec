# Headrace: set up, build, run, test.
#
#   make run     set up whatever is missing, then train with run.yaml
#   make test    set up whatever is missing, then run the whole test suite
#   make build   virtual environment and native parts only
#   make bench   measure every part alone and the whole
#   make observe watch a run that is under way with Prometheus, and Grafana where it is installed
#   make check   lint, types, lock file
#   make clean   remove what `make build` made, except the virtual environment
#
# ARGS is passed on:  make run ARGS="run.seed=2 --plain"   make test ARGS="-k lag"   make observe ARGS="runs/first"

PYTHON ?= python3
CC = gcc
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
B := build

CPPFLAGS := -D_GNU_SOURCE -I. -Iringbuf -Iproducers -Isims
CFLAGS := -std=gnu11 -O3 -march=native -fno-math-errno -fPIC -fvisibility=hidden -pthread \
	-Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
LDLIBS := -ldl -lm -pthread

# Sources. The extension module is ringbuf/_ring*.c; the policy is compiled into the producer and, for tests,
# into a library of its own.
EXTENSION_C := $(wildcard ringbuf/_ring*.c)
RINGBUF_C := $(filter-out $(EXTENSION_C),$(wildcard ringbuf/*.c))
POLICY_C := $(wildcard producers/policy*.c)
PRODUCER_C := $(filter-out $(POLICY_C),$(wildcard producers/*.c))
LOSS_C := $(wildcard consumers/loss*.c)
GATHERED_C := $(wildcard consumers/gathered.c producers/policy_multihot.c producers/policy_linear.c)
HOST_C := $(wildcard sims/host.c)
SIM_SO := $(foreach c,$(wildcard sims/*/*.c),$(if $(filter $(notdir $(c:.c=)),$(notdir $(patsubst %/,%,$(dir $c)))),$(c:.c=.so)))

objects = $(patsubst %.c,$(B)/%.o,$(1))
EXTENSION_O := $(call objects,$(EXTENSION_C))

# What can be built from the sources that are here.
NATIVE := $(if $(EXTENSION_C),ringbuf/_ring.abi3.so) $(if $(PRODUCER_C),producers/producer) \
	$(if $(POLICY_C),producers/policy.so) $(if $(LOSS_C),consumers/loss.so) $(if $(GATHERED_C),consumers/gathered.so) \
	$(if $(HOST_C),sims/host.so) $(SIM_SO)

.PHONY: build run test bench observe check clean prerequisites FORCE
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDEXPANSION:

build: prerequisites $(VENV)/.installed $(NATIVE)

run: build
	$(PY) supervisor.py run.yaml $(ARGS)

test: build
	$(PY) -m pytest $(ARGS)

bench: build
	$(PY) bench/run.py $(ARGS)

observe: build
	$(PY) -m monitor.observe $(ARGS)

check: build
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest -q tests/test_lock.py

clean:
	rm -rf $(B) ringbuf/_ring.abi3.so producers/producer producers/policy.so consumers/loss.so consumers/gathered.so sims/host.so sims/*/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# Every missing prerequisite at once, and the line that installs them.
prerequisites:
	@python=$(PYTHON); [ -x $(PY) ] && python=$(PY); missing=; packages=; \
	need() { missing="$$missing$$1; "; packages="$$packages $$2"; }; \
	command -v $(CC) >/dev/null || need "gcc (C compiler)" gcc; \
	command -v g++ >/dev/null || need "g++ (C++ compiler, for torch.compile)" g++; \
	if ! command -v $$python >/dev/null; then \
		need "Python 3.11 or newer ($$python)" "python3 python3-venv python3-dev"; \
	elif ! $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		need "Python 3.11 or newer ($$python is older; a newer one by its name: make PYTHON=python3.12)" \
			"python3 python3-venv python3-dev"; \
	else \
		$$python -c 'import venv, ensurepip' 2>/dev/null || need "venv module of $$python" python3-venv; \
		[ -f "$$($$python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] \
			|| need "C headers of $$python (Python.h)" python3-dev; \
	fi; \
	if [ -n "$$missing" ]; then \
		echo "headrace: missing: $${missing%; }" >&2; \
		echo "headrace: install:  apt-get install -y$$packages" >&2; exit 1; \
	fi

$(VENV)/.installed: requirements.lock | prerequisites
	[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@

# Objects are rebuilt when the flags, the compiler or, under -march=native, the machine is another one: a checkout
# may be carried from one machine to the next, and a foreign instruction set dies with SIGILL.
$(B)/flags: FORCE
	@mkdir -p $(@D); { echo '$(CPPFLAGS) $(CFLAGS)'; $(CC) -dumpfullversion; \
		$(CC) $(CFLAGS) -Q --help=target 2>/dev/null | grep -E '^ +-m(arch|tune|cpu)='; } >$@.new || true; \
	if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

# PEP 384: one build serves every CPython from 3.11 on.
$(EXTENSION_O): private CPPFLAGS += -DPy_LIMITED_API=0x030b0000 -isystem $$($(PY) -c 'import sysconfig; print(sysconfig.get_path("include"))')
$(EXTENSION_O): | $(VENV)/.installed

# Linked beside the target and moved over it: a running producer or learner has the old file mapped.
shared = $(CC) $(CFLAGS) -shared -o $@.new $(filter %.o,$^) $(LDLIBS) && mv -f $@.new $@

ringbuf/_ring.abi3.so: $(EXTENSION_O) $(call objects,$(RINGBUF_C))
	$(shared)

producers/policy.so: $(call objects,$(POLICY_C))
	$(shared)

consumers/loss.so: $(call objects,$(LOSS_C))
	$(shared)

consumers/gathered.so: $(call objects,$(GATHERED_C))
	$(shared)

producers/producer: $(call objects,$(PRODUCER_C) $(POLICY_C) $(RINGBUF_C) $(HOST_C))
	$(CC) $(CFLAGS) -o $@.new $(filter %.o,$^) $(LDLIBS) && mv -f $@.new $@

sims/host.so: $(call objects,$(HOST_C))
	$(shared)

# sims/<name>/<name>.so from every C file of its folder.
$(SIM_SO): $$(call objects,$$(wildcard $$(@D)/*.c))
	$(shared)

-include $(shell [ -d $(B) ] && find $(B) -name '*.d')
