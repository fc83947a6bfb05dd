.PHONY: install demo docs test test-all check peers baselines bench bench-gpu clean
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
READY := .venv/ready
READY_TO_TEST := .venv/ready-to-test
READY_TO_WRITE := .venv/ready-to-write

demo: install
	$(BIN)/fltrust demo

install: $(READY)

$(READY): pyproject.toml constraints.txt
	python3 -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[fast]'
	touch $(READY)

# The tests also want Flower, Ray, a browser and a reverse proxy.
$(READY_TO_TEST): $(READY)
	$(PIP) -e '.[test]'
	command -v chromium || (apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium) || echo "no chromium: its tests are skipped"
	command -v nginx || (apt-get -qq update && apt-get -qq install -y --no-install-recommends nginx-light) || echo "no nginx: its tests are skipped"
	touch $(READY_TO_TEST)

# The site is build/docs/index.html; it works from a disk, without a network.
$(READY_TO_WRITE): $(READY)
	$(PIP) -e '.[docs,flower]'
	touch $(READY_TO_WRITE)

docs: $(READY_TO_WRITE)
	$(BIN)/python -m sphinx -b html -W --keep-going -j 2 -q docs build/docs

# The quick tests share the cores, a file to a process. The others start programs that need the cores themselves.
test: $(READY_TO_TEST)
	$(BIN)/python -m pytest -m "not slow" --numprocesses auto --maxprocesses 4 --dist loadfile

test-all: test
	$(BIN)/python -m pytest -m slow

check: $(READY_TO_TEST)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Peers want older versions of what we use, so they live in an environment of their own; one that cannot be installed is left out.
PEERS ?= build/peers
PEERS_PIP = $(PEERS)/bin/pip install --quiet --disable-pip-version-check -c $(PEERS)/constraints.txt

# These want versions of torch or numpy that ours excludes, or packages that are of no use to their rules: they come alone.
ALONE := byzpy==0.1.4 fedml==0.9.6 flexclash==0.0.3 flexible-fl==0.7.0 openfl==1.9 p2pfl==0.4.4
NEEDED_BY_THEM := cardinality cloudpickle dynaconf gdown multiprocess opendp psutil sultan tensorly tqdm

peers: $(PEERS)/ready

$(PEERS)/ready: pyproject.toml constraints.txt
	python3 -m venv $(PEERS)
	grep -E '^(torch|numpy|numba)==' constraints.txt > $(PEERS)/constraints.txt
	$(PEERS_PIP) torch
	$(PEERS_PIP) -e '.[fast]' pytest hypothesis
	$(PEERS_PIP) -e '.[peers]' || $(PEERS_PIP) byzfl || echo "no peer could be installed"
	$(PEERS_PIP) --no-deps $(ALONE) && $(PEERS_PIP) $(NEEDED_BY_THEM) || echo "some peers could not be installed"
	touch $(PEERS)/ready

baselines: peers
	PYTHONPATH=src:tests $(PEERS)/bin/python -W ignore -m peers --search
	PYTHONPATH=src:tests $(PEERS)/bin/python -m pytest tests/peers

bench: peers
	$(PEERS)/bin/python bench/aggregation.py
	$(PEERS)/bin/python bench/peers.py
	$(PEERS)/bin/python bench/round.py
	$(PEERS)/bin/python bench/scale.py
	$(PEERS)/bin/python bench/sharded.py

bench-gpu: install
	$(BIN)/python bench/gpu_kernels.py

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache
