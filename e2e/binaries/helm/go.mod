module github.com/sluice-gpu/sluice/e2e/binaries/helm

go 1.26
