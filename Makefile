# Two commands: `make demo` shows what bidwise does, `make test` proves that it works.
.PHONY: demo test test-long test-kernels test-ray lint types browser bench docs dist clean
.DEFAULT_GOAL := demo
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# pip reads PIP_CONSTRAINT for the build environment too, so every version is a pinned one.
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check
RESULTS := docs/results/plotted docs/results/readings docs/results/misspecified docs/results/misspecified_rare docs/results/regimes docs/results/regimes_lam300 \
	docs/results/recipes docs/results/criteo_10m_deepfm docs/results/criteo_10m_converged docs/results/criteo_full

demo: $(INSTALLED)
	$(BIN)/python -m paper synthetic --reading plotted --protocol both --repeats 5 --epochs 100 --seed 0 \
		--patience 12 --validation-auctions 500 --out runs/demo
	$(BIN)/python -m paper page runs/demo $(RESULTS) --out runs/demo/page.html

# Two halves that take about as long run beside each other, the second, types first, in silence until the end. One
# thread each: on busy cores several wait for each other.
APART := tests/test_distributed.py tests/paper/test_criteo_experiment.py \
	tests/paper/test_experiments.py tests/paper/test_tasks.py tests/test_serving.py tests/test_estimator.py tests/test_train.py \
	tests/test_refresh.py tests/test_determinism.py tests/test_kills.py tests/test_bags.py tests/test_predict.py tests/test_fit.py
test: export OMP_NUM_THREADS := 1
test: lint browser
	@{ $(BIN)/mypy && $(BIN)/python -m pytest $(APART); } > .pytest_apart.log 2>&1 & apart=$$!; \
	$(BIN)/python -m pytest --ignore-glob='tests/test_ray_*' $(addprefix --ignore=,$(APART)); rest=$$?; \
	wait $$apart; apart=$$?; cat .pytest_apart.log; exit $$((rest + apart))

# What takes longer or needs more: Lightning, the site, the wheel in an empty environment, auctions
# of a million ads with every loss, longer simulations, long tables, more kills and failing disks.
LONG := tests/test_lightning.py tests/test_site.py tests/test_distribution.py tests/test_documents.py tests/test_extremes.py \
	tests/test_honest.py tests/test_keep_best.py tests/test_supply_chain.py tests/test_ingest.py tests/test_predict.py \
	tests/paper/test_experiments.py tests/paper/test_theory_mutants.py tests/test_kills.py tests/test_soak.py
test-long: $(INSTALLED) browser
	$(INSTALL) -e '.[lightning,docs,dist]'
	BIDWISE_LONG=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -vv -rs $(LONG)

# The site, to be opened from the disk: runs/site/index.html.
docs: $(INSTALLED)
	$(INSTALL) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(INSTALLED)
	$(INSTALL) -e '.[dist]'
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --outdir dist

# The GPU kernels without a GPU: Triton's interpreter runs them on the CPU. Triton is large, and this takes a quarter of
# an hour. About a thousand tests need a GPU, where the same files run whole: they are skipped, and the end says so.
test-kernels: $(INSTALLED)
	$(INSTALL) -e '.[kernels]'
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(BIN)/python -m pytest -rs tests/test_kernels.py tests/test_panel_kernels.py \
		tests/test_training_kernels.py

# What needs Ray, on a cluster of this machine's cores: Ray Train.
test-ray: $(INSTALLED)
	$(INSTALL) -e '.[ray]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -vv tests/test_ray_*.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# Pages are tested in a real browser, Debian's; where it cannot be installed those tests are skipped and say so.
browser:
	@command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } > /dev/null 2>&1 \
		|| echo "Chromium is missing and could not be installed (apt-get install chromium): tests of pages are skipped."

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.losses
	$(BIN)/python -m benchmarks.auctions
	$(BIN)/python -m benchmarks.evaluation
	$(BIN)/python -m benchmarks.coverage
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.categories
	$(BIN)/python -m benchmarks.ranks
	$(BIN)/python -m benchmarks.precision
	$(BIN)/python -m benchmarks.ingest

# HASHES=1, of CI: every file is the one whose hash is written down, and the project itself brings nothing along.
$(INSTALLED): pyproject.toml constraints.txt requirements-ci.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
ifdef HASHES
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-ci.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
else
	$(INSTALL) -e '.[dev]'
endif
	touch $@

clean:
	rm -rf .venv dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
