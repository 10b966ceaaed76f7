module github.com/sluice-gpu/sluice/e2e/binaries/etcd

go 1.26
