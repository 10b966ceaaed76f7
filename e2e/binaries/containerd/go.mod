module github.com/sluice-gpu/sluice/e2e/binaries/containerd

go 1.26
