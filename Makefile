# Everything a newcomer needs: `make demo` and `make test`. Both do their own set-up.

SHELL := /bin/bash
export CGO_ENABLED := 0
# Without paths of this machine and the commit in what is compiled, all checkouts share what Go has built and tested. The version
# and the commit are stamped below.
export GOFLAGS := $(GOFLAGS) -trimpath -buildvcs=false
TOOL := go tool -modfile=go.tools.mod

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo v0.0.0)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -s -w -X orrery.dev/orrery/internal/cli.version=$(VERSION) -X orrery.dev/orrery/internal/cli.commit=$(COMMIT)

.PHONY: help
help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: need
need:
	@command -v go >/dev/null || { echo "Go is missing: install Go 1.26 or newer (go.dev/dl) and put it on PATH" >&2; exit 1; }
	@command -v git >/dev/null || { echo "git is missing: install it with your system's package manager" >&2; exit 1; }

.PHONY: kube
kube: need ## Build the Kubernetes components (once, then cached)
	@kube/build.sh bin/orrery-kube

.PHONY: orrery
orrery: need
	@go build -ldflags='$(LDFLAGS)' -o bin/orrery ./cmd/orrery

# What hosts and clusters get. Of the version only the release is stamped into it: within one, where its code is the same, so is the
# file, and hosts keep the one they have.
RELEASE := $(shell git describe --tags --abbrev=0 2>/dev/null || echo v0.0.0)
AGENT := go build -trimpath -buildvcs=false -ldflags='-s -w -X main.version=$(RELEASE)'

.PHONY: agent
agent: need
	@GOOS=linux $(AGENT) -o bin/orrery-agent-linux-$(shell go env GOARCH) ./cmd/orrery-agent

.PHONY: agents
agents: need ## Build the agents for hosts of all architectures
	@for arch in amd64 arm64; do GOOS=linux GOARCH=$$arch $(AGENT) -o bin/orrery-agent-linux-$$arch ./cmd/orrery-agent || exit; done

.PHONY: web
web: ## Build the console's page, which bin/orrery then contains; without Node it is left out
	@web/build.sh

.PHONY: build
build: kube web ## Build bin/orrery, bin/orrery-kube and the agent for hosts of this architecture
	@$(MAKE) --no-print-directory orrery agent

.PHONY: demo
demo: build ## Run a hub, three clusters and a sample; Ctrl-C stops all of it
	@exec bin/orrery demo up

.PHONY: lab
lab: build ## Build and install what lab hosts need: release files, images, Debian packages
	@hack/lab-packages.sh
	@hack/lab-artifacts.sh bin/lab

# What an ordinary user's `make test` leaves out.
.PHONY: lab-test
lab-test: lab ## Build clusters on hosts that are namespaces of this machine (as root)
	go test -count 1 -timeout 30m -p 2 -parallel 2 ./test/lab/... ./internal/lab/... ./internal/lifecycle/host ./internal/lifecycle/node ./internal/lifecycle/unit

# What tests need; as root, packages of the system are installed.
SET_UP := build $(if $(filter 0,$(shell id -u)),lab databases browser)

.PHONY: test
test: $(SET_UP) ## Run every test, against real API servers, databases, hosts and a browser (which root gets installed)
	@hack/tree.sh hack/test.sh

.PHONY: browser
browser: ## Install the browser in which the console is tested (as root)
	@hack/browser-packages.sh

.PHONY: console-test
console-test: build ## Test the console in a browser, against a demo
	@hack/console.sh

.PHONY: screenshots
screenshots: build ## Write pictures of every page of the console to web/screenshots
	@SCREENSHOTS=1 hack/console.sh

.PHONY: databases
databases: ## Install the database servers that the store's tests start (as root)
	@hack/database-packages.sh

.PHONY: soak
soak: $(SET_UP) ## Run all cases of the tests of which `make test` runs a part; continues where it was stopped
	@hack/soak.sh all

.PHONY: soak-tests
soak-tests: $(SET_UP) ## Run every test ROUNDS times in random order beside three busy processes; continues where it was stopped
	@hack/soak.sh tests

.PHONY: quick
quick: build ## Check what changed in at most two minutes: lint, unit tests, changed packages, a standing fleet
	@hack/quick.sh

.PHONY: fleet
fleet: build ## Keep a demo running for `make quick`, with the hub of this tree
	@hack/fleet.sh up

.PHONY: fleet-down
fleet-down: ## Stop that demo and delete its data
	@hack/fleet.sh down

.PHONY: verify
verify: need ## Say whether HEAD passes .ci/run in a clean clone, with the time of each part
	@hack/verify.sh

# A hub under the detector, attacked, finds what tests of single rooms do not.
.PHONY: race
race: build ## Run the tests of all rooms, and a fleet under attack, with Go's race detector (needs a C compiler)
	CGO_ENABLED=1 go test -race -timeout 60m -p 2 ./test/spine/... ./internal/...

.PHONY: bench
bench: build lab browser ## Measure the figures of docs/benchmarks.md
	go test -timeout 240m -tags bench -run '^$$' -bench . -benchtime 1x ./test/bench ./internal/lifecycle ./test/lab
	go test -run '^$$' -bench 'Decide|EvictionDecisions' ./internal/placement
	go test -run '^$$' -bench FreeCapacity ./internal/mirror
	go test -run '^$$' -bench ClusterAccesses ./internal/access ./internal/fleet
	OBJECTS=100000 go test -timeout 30m -run '^$$' -bench Write -benchtime 1x ./internal/store
	@store=$$(mktemp -d) && trap 'rm -rf "$$store"' EXIT && export STORE="$$store" && \
	OBJECTS=100000 STEADY=60 go test -timeout 60m -run '^$$' -bench Million -benchtime 1x ./internal/store && \
	go test -timeout 30m -run '^$$' -bench 'Fleet|Watches|CEL|List' -benchtime 1x ./internal/search
	go test -run '^$$' -bench 'Graph$$' -benchtime 40x ./internal/search
	go test -timeout 30m -run '^$$' -bench Bounds -benchtime 1x ./internal/search
	go test -timeout 30m -run '^$$' -bench Deep -benchtime 1x ./internal/store
	go test -timeout 30m -run '^$$' -bench Windows -benchtime 1x ./internal/live
	BENCH=1 hack/console.sh
	go test -run '^$$' -bench 'Dial|Echo|Spares' -benchtime 20x ./internal/tunnel/gateway
	go test -run '^$$' -bench Revocation -benchtime 20x ./internal/enrollment

.PHONY: generate
generate: need ## Regenerate deep copies, CRDs and the API reference
	$(TOOL) controller-gen object crd paths=./api/... output:crd:dir=./config/crd
	hack/reference.sh

.PHONY: check
check: need ## Formatting, generated files, words and widths, lint, vet, tidy
	hack/check.sh

.PHONY: words
words: need ## Record that fewer words and lines are against docs/style.md, and write its tables
	@go run ./test/style -write

.PHONY: fmt
fmt: need ## Format the code
	$(TOOL) golangci-lint fmt ./...

.PHONY: clean
clean: ## Remove what was built here (the cache of Kubernetes components stays)
	rm -rf bin web/dist web/node_modules
	find internal/console/dist -mindepth 1 ! -name .gitkeep -delete
