# Every target sets up .venv by itself: the stamp is made anew whenever the requirements change.

BIN       := .venv/bin
STAMP     := .venv/installed
NOTEBOOKS  = $(wildcard notebooks/*.ipynb)

# The first Python that fits, `python3` before the others; `make PYTHON=...` takes another one.
FITS   := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON  = $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python,\
            $(shell $(name) -c '$(FITS)' 2>/dev/null && echo $(name))))

.DEFAULT_GOAL := help
.PHONY: help lessons lab test bench sweeps lock

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

lessons: $(STAMP) ## execute the notebooks and leave them, with build/index.html, under build/
	$(BIN)/python -m lessons.cli run

lab: $(STAMP) ## open the notebooks in JupyterLab
	$(BIN)/python -m jupyterlab notebooks

# Two workers with one thread each. A notebook belongs to one worker, and the notebooks, which take longest, start first.
test: $(STAMP) ## run every test, the notebooks among them
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
		--nbval-lax --nbval-current-env --nbval-cell-timeout=600 --nbval-sanitize-with=tests/nbval_sanitize.cfg \
		$(NOTEBOOKS) tests

bench: $(STAMP) ## run the benchmarks
	@set -e; for benchmark in $(wildcard benchmarks/*.py); do $(BIN)/python $$benchmark; done

sweeps: $(STAMP) ## make the recorded tables under notebooks/data again (a quarter of an hour)
	@set -e; for sweep in $(wildcard sweeps/*.py); do $(BIN)/python $$sweep; done

# Pins that still fit stay; for all the newest, empty requirements.txt first. The GPU libraries are torch's to choose.
lock: ## make requirements.txt from pyproject.toml
	test -x build/uv/bin/uv || { $(PYTHON) -m venv build/uv && build/uv/bin/python -m pip install --quiet uv; }
	cp requirements.txt build/lock.txt
	build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --extra dev \
		--no-header --no-annotate --output-file build/lock.txt pyproject.toml
	{ echo '# Made from pyproject.toml by `make lock`.'; grep -vE '^(nvidia|cuda|triton)' build/lock.txt; } > build/pins.txt
	mv build/pins.txt requirements.txt

$(STAMP): requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "This needs Python 3.11, 3.12 or 3.13 with venv, and found none." \
		"On Debian or Ubuntu: apt install python3.11 python3.11-venv" >&2; exit 1; }
	@echo "Setting up .venv with $(PYTHON), once: a few minutes."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -r requirements.txt
	$(BIN)/python -m pip install --no-deps -e .
	touch $@
