# Two commands for newcomers: `make demo` and `make test`. Both set up .venv by themselves, once.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH := .bench-venv
export OMP_NUM_THREADS ?= 1

.PHONY: demo test docs docs-test crawl wheel-test lint types tests bench-samplers bench-rbm bench-objectives bench-anomalies bench-readme clean

demo: $(STAMP)
	$(BIN)/gibbsian train digits-rbm

test: lint types tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

tests: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

# The site, to docs/_build/html; a warning is an error. Chapters run once and again only when they change.
docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -q -j 2 -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

docs-test: docs
	GIBBSIAN_SITE=docs/_build/html $(BIN)/python -m pytest -q tests/test_site.py tests/test_site_code.py

# A wheel and an sdist in dist/, and the demo from the wheel in an environment that has nothing else.
wheel-test: $(STAMP)
	rm -rf dist out/wheel-env out/wheel-runs
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv out/wheel-env
	out/wheel-env/bin/python -m pip install --quiet "torch>=2.6,<2.14"
	out/wheel-env/bin/python -m pip install --quiet dist/*.whl
	cd out && wheel-env/bin/gibbsian train digits-rbm --run wheel-runs/digits
	cd out && wheel-env/bin/gibbsian lab --out wheel-runs/lab.html && wheel-env/bin/gibbsian list recipes

# Reports, live view and lab in a browser, on a desktop, on a phone and in the dark, with a picture of each in out/crawl.
crawl: $(STAMP)
	$(BIN)/python tests/crawl.py out/crawl

# The stamp makes the second call offline: pip runs only when pyproject.toml is newer. torch is asked for first and
# by range, so that an index that offers a CPU build is taken at its word.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "torch>=2.6,<2.14"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

# Peers live in an environment of their own.
$(BENCH)/.installed: pyproject.toml
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --upgrade pip
	$(BENCH)/bin/python -m pip install --quiet "torch>=2.6,<2.14"
	$(BENCH)/bin/python -m pip install --quiet --editable ".[all]"
	$(BENCH)/bin/python -m pip install --quiet blackjax jax torchebm ebmkit scikit-learn learnergy rbms pyod
	touch $@

bench-samplers: $(BENCH)/.installed
	cd benchmarks && ../$(BENCH)/bin/python samplers.py --save results/samplers.json && ../$(BENCH)/bin/python nuts.py --save results/nuts.json

bench-rbm: $(BENCH)/.installed
	cd benchmarks && ../$(BENCH)/bin/python rbm.py --save results/rbm.json

bench-objectives: $(BENCH)/.installed
	cd benchmarks && ../$(BENCH)/bin/python objectives.py --save results/objectives.json

bench-anomalies: $(BENCH)/.installed
	cd benchmarks && ../$(BENCH)/bin/python anomalies.py --save results/anomalies.json

# The page is written from the saved results; a section a benchmark, in benchmarks/sections.
bench-readme: $(STAMP)
	$(BIN)/python benchmarks/write_readme.py

clean:
	rm -rf $(VENV) $(BENCH) out runs docs/_build docs/_extra .mypy_cache .ruff_cache .pytest_cache .hypothesis
