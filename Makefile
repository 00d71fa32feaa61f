# Everything fetched or built lands in .dev/ and bin/; nothing on the system changes.

SHELL         := bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO           ?= go
LINT_VERSION := v2.15.0
LINT         := .dev/bin/golangci-lint-$(LINT_VERSION)
P            ?= 2
PKG          ?= ./...

# Servers first; -race needs a C compiler, and a private one serves if PATH has none.
define ready
@cc="$$($(GO) run ./internal/devstack/fetchcmd -cc)"; export CGO_ENABLED=1 CC="$${cc:-$$($(GO) env CC)}"; set -x;
endef

.PHONY: help
help: ## show this list
	@echo 'make <target>, one of:'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)$$/  \1\t\2/' | expand -t 14
	@echo 'Variables: PKG=./mysqlstore/... (test, race, soak), RUN=TestName, P=2 (packages tested at once)'

.PHONY: demo
demo: build ## private MySQL and Redis, recorded orders through the router in shadow, a report; ends with "demo: ok"
	bin/twinhold demo

.PHONY: build
build: ## bin/twinhold
	$(GO) build -trimpath -o bin/twinhold ./cmd/twinhold

.PHONY: servers
servers: ## fetch MySQL and Redis into .dev/ where PATH has none that fits
	$(GO) run ./internal/devstack/fetchcmd

.PHONY: test
test: ## every test on real servers, race detector on; skips are shown with their reason
	$(ready) $(GO) test -json -race -count=1 -timeout 20m -p $(P) $(if $(RUN),-run '$(RUN)') $(PKG) | $(GO) run ./tools/testreport

.PHONY: race
race: test ## the same as test

.PHONY: soak
soak: ## the long tests too (up to 90 minutes)
	$(ready) TWINHOLD_SOAK=1 $(GO) test -json -race -count=1 -timeout 90m -p 1 $(if $(RUN),-run '$(RUN)') $(PKG) | $(GO) run ./tools/testreport

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME=10s each
	tools/fuzz

.PHONY: lint
lint: $(LINT) ## golangci-lint (pinned, built once), gofumpt and the import direction included
	$(LINT) run $(PKG)

$(LINT):
	@echo 'building golangci-lint $(LINT_VERSION), once (up to 3 minutes)'
	GOBIN='$(CURDIR)/.dev/bin' $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv .dev/bin/golangci-lint $@

.PHONY: fmt
fmt: $(LINT) ## format all Go files as lint wants them
	$(LINT) fmt

.PHONY: generate
generate: ## run all //go:generate lines
	$(GO) generate ./...

.PHONY: verify
verify: ## modules, vet, gofmt, generated code: what is committed is what the sources say
	$(GO) mod verify
	$(GO) mod tidy -diff
	$(GO) vet ./...
	@unformatted="$$(find . -name '*.go' -not -path './.dev/*' -not -path '*/testdata/*' -print0 | xargs -0 gofmt -l)"; \
	if [ -n "$$unformatted" ]; then echo "not gofmt-ed: $$unformatted"; exit 1; fi
	@tools/generated

.PHONY: clean
clean: ## remove bin/ and .dev/ (fetched servers too)
	rm -rf bin .dev
