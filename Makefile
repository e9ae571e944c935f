# Builds, tests and measures hubrelay. `make help` lists the targets.
# Needs Go (the version in go.mod). `make test` installs the rest from the packages of the system and lists it.

SHELL := bash

# Tools are pinned here and built once into .bin/, with their version in the file name.
GOLANGCI_LINT_VERSION := v2.15.0
GOTESTSUM_VERSION     := v1.13.0
GOVULNCHECK_VERSION   := v1.8.0
PROTOC_GO_VERSION     := v1.36.12
PROTOC_GRPC_VERSION   := v1.6.2

BIN           := $(CURDIR)/.bin
GOLANGCI_LINT := $(BIN)/golangci-lint-$(GOLANGCI_LINT_VERSION)
GOTESTSUM     := $(BIN)/gotestsum-$(GOTESTSUM_VERSION)
GOVULNCHECK   := $(BIN)/govulncheck-$(GOVULNCHECK_VERSION)
PROTOC_GO     := $(BIN)/protoc-gen-go-$(PROTOC_GO_VERSION)
PROTOC_GRPC   := $(BIN)/protoc-gen-go-grpc-$(PROTOC_GRPC_VERSION)
MODULES       := . relay/bench
VERSION       := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
CONSOLE       := relay/internal/console/web
BENCH_FLAGS   ?=
PACKAGES      ?= ./...
COUNT         ?= 20

# $(call each,COMMAND) runs COMMAND in the directory of every module and stops at the first failure.
each = for module in $(MODULES); do (cd $$module && echo "-- $$module: $(1)" && $(1)) || exit 1; done

# $(call test,NAME,COMMAND) runs the tests of every module, or COMMAND, and then lists the slowest ones.
# GORACE avoids a sleep of one second at the end of each test binary. `make check` runs vet with the linter. Programs
# without debug information link in half the time.
define test
rm -f $(BIN)/test-$(1)-*.json; status=0; for module in $(or $(3),$(MODULES)); do \
	(cd $$module && GORACE=atexit_sleep_ms=0 $(GOTESTSUM) --format-hide-empty-pkg --hide-summary=skipped \
		--jsonfile-timing-events $(BIN)/test-$(1)-$${module//[.\/]/-}.json -- -race -vet=off -ldflags=-w $(2)) || status=1; \
done; bash .ci/slowest $(GOTESTSUM) $(BIN)/test-$(1)-*.json; exit $$status
endef

.PHONY: help build run console requirements test test-long test-console test-docker test-brokers stress check check-console bench fmt generate clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

# grpcnotrace leaves out the request traces of grpc, which nothing shows.
build: ## build ./hubrelay, a static binary, and its plugins ./hubrelay-docker, ./hubrelay-brokers and ./hubrelay-notify
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o . ./cmd/hubrelay ./cmd/hubrelay-docker ./cmd/hubrelay-brokers ./cmd/hubrelay-notify

run: build ## build and run the demo: sample events, a websocket client and a webhook
	./hubrelay demo

# go build embeds dist, so it needs no Node.
console: $(CONSOLE)/node_modules/.package-lock.json ## build the web console from its sources in relay/internal/console/web
	cd $(CONSOLE) && npm run --silent build

requirements: $(GOLANGCI_LINT) $(GOVULNCHECK) examples/node_modules/.package-lock.json $(CONSOLE)/node_modules/.package-lock.json $(GOTESTSUM) ## install what all checks and tests need
	@bash .ci/need nats-server rabbitmq mosquitto postgresql
	@if bash .ci/can-docker >/dev/null; then bash .ci/need docker; fi

# TestLong… tests kill processes, fail over clusters, compile plugins, or drive slow browsers.
test: preflight examples/node_modules/.package-lock.json $(GOTESTSUM) ## install requirements and run all tests except the long ones, with -race
	@$(call test,all,-skip '^TestLong' -timeout 10m ./...)

test-long: preflight examples/node_modules/.package-lock.json $(GOTESTSUM) ## run the long tests with -race
	@$(call test,long,-run '^TestLong' -timeout 12m ./...)

test-console: preflight $(CONSOLE)/node_modules/.package-lock.json ## run the tests of the web console in Chromium
	HUBRELAY_TEST_CONSOLE=1 go test -count=1 -v -run '^TestConsoleInBrowser$$' -timeout 12m ./cmd/hubrelay

test-docker: preflight $(GOTESTSUM) ## install Docker and migrate containers between two temporary dockerd (Linux, root)
	@[ "$$(uname)" = Linux ] && [ "$$(id -u)" = 0 ] || { echo "dockerd needs Linux and root: run this as root, in a virtual machine or a privileged container" >&2; exit 1; }
	@bash .ci/need c-compiler docker
	@export HUBRELAY_TEST_DOCKER=1; $(call test,docker,-count=1 -parallel 8 -timeout 12m ./plugins/docker,.)

test-brokers: preflight $(GOTESTSUM) ## install NATS, RabbitMQ, Mosquitto and PostgreSQL, and publish to them and to Kafka in the test process
	@bash .ci/need c-compiler redis-server redis-cli nats-server rabbitmq mosquitto postgresql
	@export HUBRELAY_TEST_BROKERS=1; $(call test,brokers,-count=1 -timeout 10m ./plugins/brokers ./cmd/hubrelay-brokers,.)

stress: preflight examples/node_modules/.package-lock.json ## run the tests of PACKAGES COUNT times beside two busy loops
	@bash .ci/stress $(COUNT) $(PACKAGES)

check: $(GOLANGCI_LINT) $(GOVULNCHECK) check-console ## check format, lint (with go vet), module files, known vulnerabilities and the console
	@$(call each,$(GOLANGCI_LINT) fmt --diff)
	@$(call each,$(GOLANGCI_LINT) run)
	@$(call each,go mod tidy -diff)
	@$(call each,bash $(CURDIR)/.ci/vulncheck $(GOVULNCHECK))

check-console: $(CONSOLE)/node_modules/.package-lock.json ## check the sources of the console, and that its dist was built from them
	@echo "-- $(CONSOLE): npm run check, and compare dist with a build"
	@cd $(CONSOLE) && npm run --silent check && built=$$(mktemp -d) && trap 'rm -rf "$$built"' EXIT && \
		npm run --silent build -- --logLevel warn --emptyOutDir --outDir "$$built" && \
		diff -rq dist "$$built" || { echo "$(CONSOLE)/dist differs from a build of its sources: run 'make console' and commit it" >&2; exit 1; }

bench: build ## compare the speed with baselines of the same run; table and plot in bench-results/
	@bash .ci/need redis-server
	@if bash .ci/can-docker >/dev/null; then bash .ci/need docker; fi
	cd relay/bench && go run . --daemon $(CURDIR)/hubrelay --out $(CURDIR)/bench-results --no-docker "$$(bash ../../.ci/can-docker)" $(BENCH_FLAGS)

fmt: $(GOLANGCI_LINT) ## format the Go files
	@$(call each,$(GOLANGCI_LINT) fmt)

PROTOS := sink/v1/sink.proto driver/v1/driver.proto
generate: $(PROTOC_GO) $(PROTOC_GRPC) ## generate the code of plugins/proto in Go, and in Python for the example and `plugins new`
	@bash .ci/need protoc grpc-python-plugin
	cd plugins/proto && protoc --plugin=protoc-gen-go=$(PROTOC_GO) --plugin=protoc-gen-go-grpc=$(PROTOC_GRPC) \
		--go_out=paths=source_relative:. --go-grpc_out=paths=source_relative:. $(PROTOS)
	cd examples/plugin-python && protoc -I. -I../../plugins/proto/sink/v1 --plugin=protoc-gen-grpc=$$(command -v grpc_python_plugin) \
		--python_out=. --grpc_out=. health.proto sink.proto
	cp examples/plugin-python/*_pb2*.py cmd/hubrelay/internal/setup/templates/python/

clean: ## remove built files, but not the data of a relay (hubrelay-data)
	rm -rf hubrelay hubrelay-docker hubrelay-brokers hubrelay-notify bench-results $(BIN) examples/node_modules $(CONSOLE)/node_modules

$(GOLANGCI_LINT):
	@echo "building golangci-lint $(GOLANGCI_LINT_VERSION) (once, about two minutes)"
	@mkdir -p $(BIN)
	GOBIN=$(BIN) GOFLAGS= go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@mv $(BIN)/golangci-lint $@

$(GOTESTSUM):
	@mkdir -p $(BIN)
	GOBIN=$(BIN) GOFLAGS= go install gotest.tools/gotestsum@$(GOTESTSUM_VERSION)
	@mv $(BIN)/gotestsum $@

$(GOVULNCHECK):
	@mkdir -p $(BIN)
	GOBIN=$(BIN) GOFLAGS= go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)
	@mv $(BIN)/govulncheck $@

$(PROTOC_GO):
	@mkdir -p $(BIN)
	GOBIN=$(BIN) GOFLAGS= go install google.golang.org/protobuf/cmd/protoc-gen-go@$(PROTOC_GO_VERSION)
	@mv $(BIN)/protoc-gen-go $@

$(PROTOC_GRPC):
	@mkdir -p $(BIN)
	GOBIN=$(BIN) GOFLAGS= go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@$(PROTOC_GRPC_VERSION)
	@mv $(BIN)/protoc-gen-go-grpc $@

# A test run needs about 5 GiB. On a full disk, tests fail with misleading errors.
.PHONY: preflight
preflight:
	@bash .ci/preflight 5

# Packages of the system, which include npm, then the npm packages of the examples.
.PHONY: test-packages
test-packages:
	@bash .ci/need c-compiler redis-server redis-cli nginx systemd curl python-websockets python-grpc python-aiosmtpd node browser

examples/node_modules/.package-lock.json: examples/package-lock.json | test-packages
	@echo "installing the npm packages of examples/package.json"
	@cd examples && npm ci --no-audit --no-fund
	@touch $@

$(CONSOLE)/node_modules/.package-lock.json: $(CONSOLE)/package-lock.json | test-packages
	@echo "installing the npm packages of $(CONSOLE)/package.json"
	@cd $(CONSOLE) && npm ci --no-audit --no-fund
	@touch $@
