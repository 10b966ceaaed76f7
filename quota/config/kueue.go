package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	kueuev1beta1 "sigs.k8s.io/kueue/apis/config/v1beta1"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/config/v1beta2"
	"sigs.k8s.io/yaml"
)

// kueueKind is the kind of Kueue's configuration file.
const kueueKind = "Configuration"

// kueueFiles are the versions of Kueue's configuration that are read, each with
// the type that it must agree with in every field.
var kueueFiles = map[string]func() any{
	kueuev1beta1.SchemeGroupVersion.String(): func() any { return &kueuev1beta1.Configuration{} },
	kueuev1beta2.SchemeGroupVersion.String(): func() any { return &kueuev1beta2.Configuration{} },
}

// kueueFile is what is honoured of a Kueue configuration. The versions differ
// in the two fields named enable, which only v1beta1 has.
type kueueFile struct {
	ManageJobsWithoutQueueName   bool                  `json:"manageJobsWithoutQueueName"`
	ManagedJobsNamespaceSelector *metav1.LabelSelector `json:"managedJobsNamespaceSelector"`
	WaitForPodsReady             *struct {
		Enable           bool `json:"enable"`
		WaitForPodsReady `json:",inline"`
	} `json:"waitForPodsReady"`
	FairSharing *struct {
		Enable      bool `json:"enable"`
		FairSharing `json:",inline"`
	} `json:"fairSharing"`
	Resources *struct {
		QuotaCheckStrategy string `json:"quotaCheckStrategy"`
	} `json:"resources"`
}

// honoured are the fields of a Kueue configuration that are, by their path.
var honoured = []string{
	"apiVersion", "kind",
	"manageJobsWithoutQueueName", "managedJobsNamespaceSelector",
	"waitForPodsReady.enable", "waitForPodsReady.timeout", "waitForPodsReady.recoveryTimeout", "waitForPodsReady.requeuingStrategy",
	"fairSharing.enable", "fairSharing.preemptionStrategies",
	"resources.quotaCheckStrategy",
}

// instead says what there is in place of a field that is not honoured, or why
// there is nothing.
var instead = map[string]string{
	"namespace":                         "the chart's release has a namespace of its own",
	"webhook":                           "flags and chart values set it",
	"leaderElection":                    "flags and chart values set it",
	"metrics":                           "flags and chart values set it",
	"health":                            "flags and chart values set it",
	"pprofBindAddress":                  "nothing is profiled over the network",
	"tls":                               "the webhook takes TLS 1.3 and newer",
	"internalCertManagement":            "certificates are always made and renewed by the controller",
	"controller":                        "concurrency of a QuotaConfiguration is for all kinds",
	"clientConnection":                  "the flags kube-api-qps and kube-api-burst set it",
	"integrations.frameworks":           "every kind of jobs that the cluster serves is governed",
	"integrations.externalFrameworks":   "jobKinds of a QuotaConfiguration describe further kinds",
	"integrations.podOptions":           "managedJobsNamespaceSelector is for pods too",
	"waitForPodsReady.blockAdmission":   "one workload that starts never holds up all others",
	"resources.excludeResourcePrefixes": "quotaCheckStrategy IgnoreUndeclared holds no uncovered resource against a job",
	"resources.transformations":         "dimensions of a QuotaConfiguration make budgets of other units",
	"resources.deviceClassMappings":     "claims of this driver are priced without",
	"multiKueue":                        "jobs are not sent to other clusters",
	"admissionFairSharing":              "usage of the past does not count",
	"objectRetentionPolicies":           "a Workload goes with its job",
	"featureGates":                      "there are none",
}

// isKueue says whether a file is a Kueue configuration.
func isKueue(t metav1.TypeMeta) bool { return t.Kind == kueueKind && kueueFiles[t.APIVersion] != nil }

// decodeKueue reads a Kueue configuration, with the meaning and the defaults
// that it has there. What it sets and is not honoured is in [QuotaConfiguration.Unheeded].
func decodeKueue(version string, b []byte) (*QuotaConfiguration, error) {
	if err := yaml.UnmarshalStrict(b, kueueFiles[version]()); err != nil {
		return nil, fmt.Errorf("%s of %s: %w", kueueKind, version, err)
	}
	var fields map[string]any
	if err := yaml.Unmarshal(b, &fields); err != nil {
		return nil, err
	}
	f := &kueueFile{}
	if err := yaml.Unmarshal(b, f); err != nil {
		return nil, err
	}
	first := version == kueuev1beta1.SchemeGroupVersion.String()
	c := &QuotaConfiguration{
		ManageJobsWithoutQueueName:   f.ManageJobsWithoutQueueName,
		ManagedJobsNamespaceSelector: f.ManagedJobsNamespaceSelector,
		LocalQueueDefaulting:         true,
		QuotaCheckStrategy:           "BlockUndeclared",
		unheeded:                     unheeded("", fields),
	}
	if r := f.Resources; r != nil && r.QuotaCheckStrategy != "" {
		c.QuotaCheckStrategy = r.QuotaCheckStrategy
	}
	if s := f.FairSharing; s != nil && (s.Enable || !first) {
		c.FairSharing = &s.FairSharing
	}
	switch w := f.WaitForPodsReady; {
	case w != nil && (w.Enable || !first):
		c.WaitForPodsReady = &w.WaitForPodsReady
	case w == nil && !first:
		c.WaitForPodsReady = &WaitForPodsReady{}
	}
	if w := c.WaitForPodsReady; w != nil && w.Timeout.Duration == 0 {
		w.Timeout.Duration = kueueTimeout(first)
	}
	if w := f.WaitForPodsReady; first && w != nil && w.Enable && !isSet(fields, "waitForPodsReady", "blockAdmission") {
		c.unheeded = append(c.unheeded, "waitForPodsReady.blockAdmission, true where not set: "+instead["waitForPodsReady.blockAdmission"])
	}
	return c, nil
}

func isSet(fields map[string]any, path ...string) bool {
	_, set, _ := unstructured.NestedFieldNoCopy(fields, path...)
	return set
}

// kueueTimeout is how long pods may take to be ready where the file does not say.
func kueueTimeout(first bool) time.Duration {
	if first {
		c := &kueuev1beta1.Configuration{WaitForPodsReady: &kueuev1beta1.WaitForPodsReady{Enable: true}}
		kueuev1beta1.SetDefaults_Configuration(c)
		return ptr.Deref(c.WaitForPodsReady.Timeout, metav1.Duration{}).Duration
	}
	return kueuev1beta2.DefaultWaitForPodsReadyTimeout
}

// unheeded lists the fields under a path that are set and not honoured, with
// what there is instead.
func unheeded(path string, fields map[string]any) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		at := strings.TrimPrefix(path+"."+name, ".")
		if slices.Contains(honoured, at) || harmless(at, fields[name]) {
			continue
		}
		below, isObject := fields[name].(map[string]any)
		if isObject && slices.ContainsFunc(slices.Concat(honoured, slices.Collect(maps.Keys(instead))), func(h string) bool { return strings.HasPrefix(h, at+".") }) {
			list = append(list, unheeded(at, below)...)
			continue
		}
		if why := instead[at]; why != "" {
			at += ": " + why
		}
		list = append(list, at)
	}
	return list
}

// harmless says whether a field asks only for what is so anyway.
func harmless(path string, value any) bool {
	return value == nil || path == "waitForPodsReady.blockAdmission" && value == false
}
