# Few targets, each named for what it gives. `make help` lists them.

CACHE  ?= $(or $(SLUICE_CACHE),$(HOME)/.cache/sluice)
BIN    := bin
BUILD  := build
SUITE  := $(BIN)/suite
export SLUICE_CACHE := $(CACHE)

.DEFAULT_GOAL := help
.PHONY: help demo demo-down test unit e2e cases build images lint generate bench-driver bench-engine bench-quota bench-fit bench-limiter gpu-check setup setup-demo clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup-demo build ## Show the product on a real cluster with simulated GPUs (DEMO_BREAK=driver|limiter|ticket shows that it can fail).
	cd e2e && go run ./cmd/demo up $(if $(DEMO_BREAK),--break $(DEMO_BREAK))

demo-down: ## End the demo's cluster and leave nothing of it.
	cd e2e && go run ./cmd/demo down

test: setup build lint $(SUITE) ## Unit tests and end-to-end scenarios; closes with the counts, a skip is a failure.
	$(SUITE) run . e2e

unit: $(SUITE) ## The product's own tests, without a cluster.
	$(SUITE) run .

e2e: setup build $(SUITE) ## The end-to-end scenarios alone.
	$(SUITE) run e2e

cases: setup build $(SUITE) ## Run every test that docs/dev/cases.md names.
	$(SUITE) cases

build: ## The product's binaries and the limiter, into bin/ and build/.
	mkdir -p $(BIN)
	go build $(GOBUILD) -o $(BIN)/ ./cmd/...
	go build $(GOBUILD) -o $(BIN)/ github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook
	./hook/build.sh $(BUILD)/hook

images: ## OCI archives of the product's images in build/images, made without Docker.
	$(MAKE) build GOBUILD="-trimpath -ldflags '-s -w'"
	cd e2e && go run ./cmd/images --out ../$(BUILD)/images

lint: ## gofmt, vet, staticcheck, generated files up to date, no warnings in C.
	./.ci/lint

generate: ## Make the generated files anew.
	go generate ./...

bench-driver: ## Driver: time to prepare and unprepare a claim of two cards beside others, as `name value unit` lines.
	@go test -run '^$$' -bench PrepareAndUnprepare -benchtime 1000x ./driver/plugin/ 2>/dev/null | awk ' \
		/^Benchmark/ { split($$1, n, /[=-]/); for (i = 3; i < NF; i += 2) if (split($$(i+1), u, "-") == 2) print "prepare_unprepare_live" n[2] "_" u[1], $$i, u[2] } \
		/^FAIL/ { bad = 1 } END { exit bad }'

bench-engine: ## Quota engine: the figures of docs/dev/engine.md.
	go test -run '^$$' -bench . -benchtime 20x ./quota/engine/

bench-fit: ## Fit: one decision, one event and one gang among 1,000 nodes, 8,000 cards and 32,000 shares, as `name value unit` lines.
	@go test -run '^$$' -bench . -benchtime 3000x ./quota/fit/ | awk ' \
		/^Benchmark/ { sub(/-[0-9]+$$/, "", $$1); name = tolower(substr($$1, 10)); gsub(/[^a-z0-9]+/, "_", name); \
			for (i = 3; i < NF; i += 2) if (split($$(i+1), u, "-") == 2) print "fit_" name "_" u[1], $$i, u[2] } \
		/^FAIL/ { bad = 1 } END { exit bad }'

bench-quota: setup ## Quota controller on a real API server: admissions of workloads alone, and pods from creation to open gate, each beside what the same traffic costs without a decision, as `name value unit` lines.
	@go test -run '^$$' -bench 'Workloads|Pods' -benchtime 5000x -timeout 60m ./quota/controller/ 2>/dev/null | awk ' \
		/ns\/op/ { name = tolower($$1 ~ /^Benchmark/ ? $$1 : last); sub(/^benchmark/, "", name); sub(/-[0-9]+$$/, "", name); \
			for (i = 1; i < NF; i++) if ($$(i+1) ~ /[a-z]\/|-ms$$/ && $$(i+1) != "ns/op") { u = $$(i+1); gsub(/[-\/]/, "_", u); print name "_" u, $$i, $$(i+1) } } \
		/^Benchmark/ { last = $$1 } /^FAIL/ { bad = 1 } END { exit bad }'

bench-limiter: build ## Limiter: cost of each call, as `name value unit` lines.
	./hook/bench.sh

gpu-check: ## Check the limiter against a real driver and card, with PyTorch and nvcc where they are; writes docs/gpu-results.md.
	python3 hook/gpucheck/check.py --out $(or $(GPU_RESULTS),docs/gpu-results.md)

setup: ## Install what Debian has to give and build the pinned Kubernetes and all that tests run on it into the cache (half an hour the first time).
	./.ci/setup
	cd e2e && go run ./cmd/cluster build --all

setup-demo: ## The part of it that a cluster and the demo need.
	./.ci/setup
	cd e2e && go run ./cmd/cluster build

clean: ## Remove what was built here; the cache stays.
	rm -rf $(BIN) $(BUILD)

$(SUITE): $(wildcard e2e/cmd/suite/*.go e2e/gotest/*.go)
	mkdir -p $(BIN)
	cd e2e && go build -o ../$(SUITE) ./cmd/suite
