// Package tools pins what generates the CustomResourceDefinitions of the quota
// API, in a module of its own so that none of it enters the product's. The
// files in deployments/helm/sluice/crds are generated: change the pinned
// versions here and run `make generate`.
package tools

import _ "sigs.k8s.io/kueue/apis/kueue/v1beta2"
