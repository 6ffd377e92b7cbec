# Two commands: `make demo` runs the main job, `make test` runs every test. Both set up .venv first.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint clean

demo: $(READY)
	@$(BIN)/precflow +recipe=sd_text_encoder

# Bytecode is kept: the tests start a hundred interpreters, each of which would compile every module again.
test: $(READY)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder --durations=25

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

# torch comes from constraints.txt: a CPU build where pip finds one.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,lint]'
	touch $(READY)

clean:
	rm -rf $(VENV) runs dist build
