# Two commands do everything, their own set-up included:
#   make notebooks   run every notebook on the CPU, leave executed copies and HTML under build/
#   make test        ruff, mypy, pytest, nbval, and JupyterLab in a browser where there is one
# On a Linux machine without a GPU, TORCH_INDEX=https://download.pytorch.org/whl/cpu takes the small build of torch.

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
BIN := $(VENV)/bin
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: help notebooks test lab lint unit nbval browser bench clean

help:
	@echo "make notebooks  run every notebook on the CPU; executed copies and HTML go to build/notebooks"
	@echo "make test       ruff, mypy, pytest, nbval; JupyterLab in Chromium, where it is installed"
	@echo "make lab        open JupyterLab on the notebooks"
	@echo "make bench      check and time the feed-forward kernels on this CPU"
	@echo "make clean      remove build/ and the virtual environment"
	@echo "Options: PYTHON=python3.12  VENV=.venv  TORCH_INDEX=https://download.pytorch.org/whl/cpu"

# One stamp for the environment: made again when the requirements change.
$(BIN)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "twellviz needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV) (about two minutes, 2.5 GB; more where pip takes a CUDA build of torch)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet $(INDEX) -c constraints.txt -e ".[all]" --group dev
	@touch $@

notebooks: $(BIN)/.installed
	$(BIN)/python -m twellviz notebooks --out build/notebooks

test: lint unit nbval browser

lint: $(BIN)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(BIN)/.installed
	$(BIN)/python -m pytest --doctest-modules kernels/twell twellviz
	$(BIN)/python -m pytest tests --ignore=tests/browser

nbval: $(BIN)/.installed
	$(BIN)/python -m pytest --nbval --nbval-current-env --nbval-sanitize-with notebooks/sanitize.cfg notebooks

browser: $(BIN)/.installed
	$(BIN)/python -m pytest tests/browser

lab: $(BIN)/.installed
	$(BIN)/jupyter lab --notebook-dir=notebooks

bench: $(BIN)/.installed
	$(BIN)/python -m twellviz bench ffn --device cpu

clean:
	rm -rf build $(VENV)
