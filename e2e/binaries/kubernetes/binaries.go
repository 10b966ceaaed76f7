//go:build binaries

// Package kubernetes pins the Kubernetes that the local cluster runs. Nothing imports it: the
// blank imports below keep the commands' dependencies in this module's go.mod and go.sum.
package kubernetes

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
