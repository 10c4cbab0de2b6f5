# `make demo` and `make test` do everything on a fresh machine: a local .venv, the package, then the job.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-slow test-thorough test-ray page-test page-test-slow page-shots smoke docs lint types clean

demo: $(STAMP)
	$(BIN)/ttdg demo --out demo-out

test: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not browser"

test-slow: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal -m "slow and not browser"

# Every test at full strength: the methods' own numbers of steps, and as many examples as a property is worth.
test-thorough: $(STAMP)
	TTDG_TESTS=thorough $(BIN)/pytest -n 2 --dist worksteal -m "not browser"

# The page in headless Chromium; skipped, with the reason, where Chromium is not installed. Shapes are not checked here.
page-test: $(STAMP)
	$(BIN)/pytest -o addopts="-ra --import-mode=importlib" -m "browser and not slow" tests/page/browser

# Tests in a browser that take longest: a killed server, and the tables of a run that goes on.
page-test-slow: $(STAMP)
	$(BIN)/pytest -o addopts="-ra --import-mode=importlib" -m "browser and slow" tests/page/browser

# The same, and the screenshots of the documentation are taken again.
page-shots: $(STAMP)
	TTDG_SCREENSHOTS=docs/figures $(BIN)/pytest -o addopts="-ra --import-mode=importlib" -m browser tests/page/browser

# Ray is 80 MB of wheel, so only its own test installs it.
test-ray: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[cluster]"
	$(BIN)/pytest -m slow -k ray tests/bench/test_executors.py tests/newsite/test_shards.py

# The whole engine on drawn hospitals: every method, protocol and stream at tiny size.
smoke: $(STAMP)
	$(BIN)/ttdg bench experiments/smoke.yaml --out runs/smoke
	$(BIN)/ttdg report runs/smoke
	$(BIN)/ttdg verify runs/smoke --rows 5

# The documentation as a site in site/; warnings are errors.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# --no-compile: pip would compile 15,000 files; Python compiles those that are imported.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[dev,docs,track]"
	touch $@

clean:
	rm -rf $(VENV) demo-out site .pytest_cache .mypy_cache .ruff_cache .hypothesis
