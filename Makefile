# Two commands: `make demo` runs the main job, `make test` runs every test; `make quick` leaves out those that are marked slow, which
# run the product from end to end. All set up .venv first, and keep bytecode: they start up to a hundred interpreters, each of which
# would compile every module again.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test quick site lint clean

demo: $(READY)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/precflow +recipe=sd_text_encoder

PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder --durations=25

test: $(READY)
	$(PYTEST) -m ''

quick: $(READY)
	$(PYTEST)

site: $(READY)
	NO_MKDOCS_2_WARNING=1 PATH="$(BIN):$$PATH" mkdocs build

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

# torch comes from constraints.txt: a CPU build where pip finds one, which uv does not look for. Everything else uv installs in a
# quarter of pip's time; without it pip does that too. Modules are compiled on all cores, but for what hardly any test imports:
# tests of packages, models, pipelines. Some packages carry files of other Pythons, which do not compile. Of the last package
# tests use its copy of axe alone, so it comes without the browsers' driver that it wants.
UNUSED := /(tests?|testing|moto|sklearn|mypyc?|fontTools|pygments|narwhals|pydantic|sentence_transformers)/|/diffusers/\w*pipelines/|/transformers/models/(?!auto|bert|clip|llama)
INSTALL := --quiet --constraint constraints.txt
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(INSTALL) --no-compile torch uv
	$(BIN)/uv pip install $(INSTALL) --python $(BIN)/python --editable '.[test,lint]' \
	  || $(BIN)/python -m pip install $(INSTALL) --no-compile --editable '.[test,lint]'
	$(BIN)/python -m pip install $(INSTALL) --no-deps --no-compile axe-playwright-python==0.1.8
	$(BIN)/python -m compileall -qq -j 0 -x '$(UNUSED)' $(VENV)/lib precflow || true
	touch $(READY)

clean:
	rm -rf $(VENV) runs dist build
