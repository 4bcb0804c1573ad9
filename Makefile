# scafo: `make up` starts a whole fleet on this machine, `make test` runs the suite.

SHELL := /bin/bash
.DEFAULT_GOAL := build

# What takes long to build and rarely changes lies outside the tree, by version.
SCAFO_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/scafo
export SCAFO_CACHE

GOLANGCI_VERSION := v2.15.0
GOLANGCI := $(SCAFO_CACHE)/bin/golangci-lint-$(GOLANGCI_VERSION)/golangci-lint
ACTIONLINT_VERSION := v1.7.7
ACTIONLINT := $(SCAFO_CACHE)/bin/actionlint-$(ACTIONLINT_VERSION)/actionlint
PEBBLE_VERSION := v2.10.3
PEBBLE := $(SCAFO_CACHE)/bin/pebble-$(PEBBLE_VERSION)/pebble
TRAEFIK_VERSION := v3.7.13
TRAEFIK := $(SCAFO_CACHE)/bin/traefik-$(TRAEFIK_VERSION)/traefik
PLAYWRIGHT_VERSION := 1.65.1
PLAYWRIGHT := $(SCAFO_CACHE)/bin/playwright-core-$(PLAYWRIGHT_VERSION)/node_modules
export GOLANGCI_LINT_CACHE ?= $(SCAFO_CACHE)/golangci-lint

# Static programs, and one build cache for the programs, the tests and the linter.
export CGO_ENABLED = 0

RUNTIME := node_modules/@cloudflare/.installed
GOTEST ?= go test

.PHONY: up setup build test test-system test-browser sim torture lint bench fuzz generate clean

## up: build, fetch the runtime, start a one-machine fleet in the foreground
up: setup build
	@exec bin/scafo up $(ARGS)

## setup: install the Workers runtime from the lock file
setup: $(RUNTIME)

$(RUNTIME): package.json package-lock.json
	npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

## build: the programs, into bin/
build:
	@mkdir -p bin
	go build -o bin/ ./cmd/...

## test: the quick suite
test: setup
	$(GOTEST) -timeout 10m ./...

## test-system: the real programs, real Workers, a real store, a real ingress
test-system: setup build $(PEBBLE) $(TRAEFIK)
	@failed=0; set -x; \
	$(call test_systems,$(filter-out $(CROWDED),$(SYSTEM))) \
	$(call test_systems,$(filter $(CROWDED),$(SYSTEM)),-p 1) \
	exit $$failed

# test_systems is the command for these packages, if there are any, with these flags.
test_systems = $(if $(1),$(GOTEST) -tags system -timeout 25m -count 1 $(2) -run '$(if $(RUN),$(RUN),.)' $(1) || failed=1;)

# Packages that have system tests; the quick suite covers the rest. Those that run their
# tests beside each other have the machine for themselves.
SYSTEM = $(shell grep -rl --include='*_test.go' --exclude-dir=node_modules '^//go:build system' . | xargs -n1 dirname | sort -u)
CROWDED = $(shell grep -rl --include='*_test.go' --exclude-dir=node_modules 'internal/paralleltest"' . | xargs -n1 dirname | sort -u)

# An ACME authority, and the DNS that it asks; the authority is built last, so that
# it stands for both.
$(PEBBLE):
	@mkdir -p $(dir $@)
	GOBIN=$(dir $@) go install github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv@$(PEBBLE_VERSION)
	GOBIN=$(dir $@) go install github.com/letsencrypt/pebble/v2/cmd/pebble@$(PEBBLE_VERSION)

# The other ingress, without its web UI; minutes, once for each version.
$(TRAEFIK):
	scripts/traefik $(TRAEFIK_VERSION) $@

## test-browser: the chat over HTTPS in Debian's Chromium (apt-get install chromium)
test-browser: setup build $(PLAYWRIGHT)
	$(GOTEST) -tags 'system browser' -timeout 5m -count 1 -run TestABrowser -v ./test/system

$(PLAYWRIGHT):
	npm install --prefix $(dir $@) --ignore-scripts --no-audit --no-fund --no-save playwright-core@$(PLAYWRIGHT_VERSION)

## sim: fleets in virtual time, SEEDS of them, TWICE of them again, and mistakes that they catch
SEEDS ?= 500
TWICE ?= 20
BROKEN_SEEDS ?= 600
sim:
	$(GOTEST) -timeout 0 -count 1 -v ./internal/sim -run 'TestFleet|TestTheSameSeedIsTheSameRun' -seeds $(SEEDS) -twice $(TWICE)
	$(GOTEST) -timeout 0 -count 1 -v -tags broken ./internal/sim -run TestBrokenVariants -broken-seeds $(BROKEN_SEEDS) $(SIMARGS)

## torture: what takes too long for every run: 1,000 histories, 10,000 simulated fleets, 1,000 kills, and whatever machines do
torture: setup build
	$(GOTEST) -timeout 0 -count 1 -v ./internal/registry/history -histories 1000
	$(MAKE) sim SEEDS=10000 BROKEN_SEEDS=10000 SIMARGS=-rare
	SCAFO_TORTURE=1 $(GOTEST) -tags system -timeout 0 -count 1 -v -run Torture ./test/system

## lint: format, vet, linters, import directions
lint: $(GOLANGCI) $(ACTIONLINT)
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt -w on these'; exit 1; }
	$(GOLANGCI) run --allow-parallel-runners ./...
	scripts/actionlint $(ACTIONLINT)

$(GOLANGCI):
	@mkdir -p $(dir $@)
	GOBIN=$(dir $@) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

$(ACTIONLINT):
	@mkdir -p $(dir $@)
	GOBIN=$(dir $@) go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)

## bench: ratios against a baseline in the same run
bench: setup build
	go run ./bench $(ARGS)

## fuzz: every fuzz target for FUZZTIME each
FUZZTIME ?= 10m
fuzz:
	FUZZTIME=$(FUZZTIME) scripts/fuzz

## generate: write the generated references anew
generate:
	go test ./internal/config -run Reference -update
	go test ./cmd/scafo -run Reference -update
	go test ./internal/metrics -run Reference -update

clean:
	rm -rf bin
