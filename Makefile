.PHONY: demo test test-processes test-flower check format paper-quick bench bench-peers clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

CONTESTANTS := hfl,hfl-by-device,hfl-drift,hfl-drift-by-device=hfl-drift(weighting=ByDevice()),hfl-as-printed,fedavg,$\
	fedprox,fedasync,fedbuff,s-sgd

demo: $(INSTALLED)  ## compare HFL with its rivals on synthetic data, and show the result
	rm -rf results/demo
	$(BIN)/hybridfl compare --task synthetic --devices 100 --stragglers 0.9 --max-delay 10 --seconds 200 --seeds 3 \
		--algorithms "$(CONTESTANTS)" --out results/demo

# One thread a worker: two workers with two threads each would only get in each other's way. Tests that start Ray are one
# worker's (loadgroup): a second Ray on the machine would find the first.
test: check  ## lint, types and the tests, with their coverage
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup --cov

test-processes: $(INSTALLED)  ## every command in the docs, Ray, what is killed and stopped, the paper in small; minutes
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup -m processes

test-flower: $(INSTALLED)  ## real SuperLinks and SuperNodes on this machine, killed and cut off; minutes
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m flower

check: $(INSTALLED)  ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)  ## rewrite the code as ruff wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

paper-quick: $(INSTALLED)  ## a tiny run of every figure of the paper (needs all data sets): does everything work?
	$(BIN)/hybridfl reproduce all --quick --out results/paper-quick

bench: $(INSTALLED)  ## device-steps a second against the loop people write (needs Fashion-MNIST and MNIST)
	$(BIN)/python benchmarks/simulator.py

bench-peers: $(INSTALLED)  ## the same against Flower, pfl, FedJAX and FLSim, each in a virtual environment of its own (4.6 GB)
	$(BIN)/python benchmarks/peers.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)

clean:  ## remove the virtual environment, caches and results
	rm -rf $(VENV) .peers results .mypy_cache .pytest_cache .ruff_cache .hypothesis
