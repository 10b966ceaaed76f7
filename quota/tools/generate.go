package tools

//go:generate go tool controller-gen crd:maxDescLen=0 paths=sigs.k8s.io/kueue/apis/kueue/v1beta2 output:crd:dir=../../deployments/helm/sluice/crds
//go:generate sh -c "cd ../../deployments/helm/sluice/crds && rm kueue.x-k8s.io_multikueue*.yaml kueue.x-k8s.io_provisioningrequestconfigs.yaml kueue.x-k8s.io_topologies.yaml"
