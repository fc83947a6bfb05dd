.PHONY: install demo test check bench clean
BIN := .venv/bin
READY := .venv/ready

demo: install
	$(BIN)/fltrust demo

install: $(READY)

$(READY): pyproject.toml constraints.txt
	python3 -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fast,test]'
	touch $(READY)

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache
