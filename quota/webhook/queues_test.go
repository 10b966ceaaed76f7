package webhook

import (
	"context"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"
)

// write asks for an object of the budget, or for a change of one.
func write(t *testing.T, kind, before, now string) admission.Response {
	t.Helper()
	req := admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Kind: metav1.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta2", Kind: kind},
	}
	raw := func(text string) runtime.RawExtension {
		b, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return runtime.RawExtension{Raw: b}
	}
	req.Object = raw(now)
	if before != "" {
		req.Operation, req.OldObject = admissionv1.Update, raw(before)
	}
	return validate(oneQueue{})(context.Background(), admission.Request{AdmissionRequest: req})
}

func queueOf(groups ...string) string {
	return "{metadata: {name: q}, spec: {namespaceSelector: {}, cohortName: c, resourceGroups: [" + strings.Join(groups, ", ") + "]}}"
}

const (
	gpus  = "{coveredResources: [nvidia.com/gpu], flavors: [{name: a, resources: [{name: nvidia.com/gpu, nominalQuota: 4}]}]}"
	again = "{coveredResources: [nvidia.com/gpu], flavors: [{name: b, resources: [{name: nvidia.com/gpu, nominalQuota: 4}]}]}"
	more  = "{coveredResources: [cpu], flavors: [{name: a, resources: [{name: cpu, nominalQuota: 4}]}]}"
)

func limits(text string) string {
	return "[{coveredResources: [nvidia.com/gpu], flavors: [{name: a, resources: [{name: nvidia.com/gpu, nominalQuota: 4, " + text + "}]}]}]"
}

func TestMistakesInBudgetsAreNamedWhileTheyAreWritten(t *testing.T) {
	for name, tc := range map[string]struct{ kind, object, says, warns string }{
		"a queue as it should be": {"ClusterQueue", queueOf(gpus), "", ""},
		"a resource in two groups": {"ClusterQueue", queueOf(gpus, again),
			"spec.resourceGroups[1].coveredResources[0]: Invalid value: \"nvidia.com/gpu\": nvidia.com/gpu is covered by resourceGroups[0] already", ""},
		"a flavor in two groups": {"ClusterQueue", queueOf(gpus, more), "flavor a is in resourceGroups[0] already", ""},
		"a resource listed twice": {"ClusterQueue", queueOf("{coveredResources: [cpu, cpu], flavors: [{name: a, resources: [{name: cpu, nominalQuota: 1}, {name: memory, nominalQuota: 1Gi}]}]}"),
			"cpu is listed twice", ""},
		"a flavor with other resources than the group": {"ClusterQueue", queueOf("{coveredResources: [cpu], flavors: [{name: a, resources: [{name: memory, nominalQuota: 1Gi}]}]}"),
			`flavor a has no quota of [cpu]`, ""},
		"a quota below zero":           {"ClusterQueue", queueOf("{coveredResources: [cpu], flavors: [{name: a, resources: [{name: cpu, nominalQuota: -1}]}]}"), "nominalQuota: Invalid value: \"-1\": a quota cannot be below zero", ""},
		"a limit below zero":           {"ClusterQueue", "{metadata: {name: q}, spec: {namespaceSelector: {}, cohortName: c, resourceGroups: " + limits("borrowingLimit: -2") + "}}", "borrowingLimit: Invalid value: \"-2\"", ""},
		"more lent than there is":      {"ClusterQueue", "{metadata: {name: q}, spec: {namespaceSelector: {}, cohortName: c, resourceGroups: " + limits("lendingLimit: 5") + "}}", "more than the nominalQuota of 4 cannot be lent", ""},
		"lending without a cohort":     {"ClusterQueue", "{metadata: {name: q}, spec: {namespaceSelector: {}, resourceGroups: " + limits("lendingLimit: 1") + "}}", "set spec.cohortName", ""},
		"borrowing without a parent":   {"Cohort", "{metadata: {name: root}, spec: {resourceGroups: " + limits("borrowingLimit: 1") + "}}", "set spec.parentName", ""},
		"a check for no flavor of its": {"ClusterQueue", "{metadata: {name: q}, spec: {namespaceSelector: {}, resourceGroups: " + limits("name: nvidia.com/gpu") + ", admissionChecksStrategy: {admissionChecks: [{name: k, onFlavors: [z]}]}}}", "this ClusterQueue has no quota of flavor z", ""},
		"a selector that selects by no operator": {"ClusterQueue", "{metadata: {name: q}, spec: {namespaceSelector: {matchExpressions: [{key: a, operator: Like}]}}}",
			"spec.namespaceSelector.matchExpressions[0].operator", ""},
		"a weight below zero":           {"LocalQueue", "{metadata: {name: l}, spec: {clusterQueue: q, fairSharing: {weight: -1}}}", "spec.fairSharing.weight", ""},
		"a placement that there is not": {"LocalQueue", "{metadata: {name: l, annotations: {quota.sluice.dev/placement: dense}}, spec: {clusterQueue: q}}", "use binpack, spread, nvlink or none", ""},
		"a cohort that is its own":      {"Cohort", "{metadata: {name: a}, spec: {parentName: a}}", "its own parent", ""},
		"labels that no node can have":  {"ResourceFlavor", "{metadata: {name: f}, spec: {nodeLabels: {\"a b\": c}}}", "spec.nodeLabels", ""},
		"an elastic flavor's card":      {"ResourceFlavor", "{metadata: {name: f, annotations: {quota.sluice.dev/elastic: \"true\", quota.sluice.dev/elastic-card-memory: big}}}", "as in 80Gi", ""},
		"an elastic flavor, somehow":    {"ResourceFlavor", "{metadata: {name: f, annotations: {quota.sluice.dev/elastic: yes please}}}", "write \\\"true\\\" or", ""},

		"a circle of cohorts":                   {"Cohort", "{metadata: {name: a}, spec: {parentName: b}}", "", "circle (a > b > c > a)"},
		"a flavor that is not there":            {"ClusterQueue", queueOf(strings.ReplaceAll(gpus, "name: a,", "name: absent,")), "", "ResourceFlavor absent does not exist"},
		"a queue that is not there":             {"LocalQueue", "{metadata: {name: l}, spec: {clusterQueue: absent}}", "", "ClusterQueue absent does not exist"},
		"a queue for no namespace":              {"ClusterQueue", "{metadata: {name: q}, spec: {}}", "", "no namespace may use"},
		"bytes without a unit":                  {"ClusterQueue", queueOf("{coveredResources: [nvidia.com/gpu-memory], flavors: [{name: a, resources: [{name: nvidia.com/gpu-memory, nominalQuota: 80}]}]}"), "", "is 80 bytes; write a unit, as in 80Gi"},
		"a resource that pods for HAMi ask for": {"ClusterQueue", queueOf("{coveredResources: [nvidia.com/gpumem], flavors: [{name: a, resources: [{name: nvidia.com/gpumem, nominalQuota: 6000}]}]}"), "", "cost nothing by the name of nvidia.com/gpumem"},
		"topology":                              {"ResourceFlavor", "{metadata: {name: f}, spec: {topologyName: t, nodeLabels: {a: b}}}", "", "spec.topologyName is not supported"},
		"checks of other clusters":              {"AdmissionCheck", "{metadata: {name: k}, spec: {controllerName: kueue.x-k8s.io/multikueue}}", "", "MultiKueue are not supported"},
		"several admissions at a time":          {"ClusterQueue", "{metadata: {name: q}, spec: {namespaceSelector: {}, concurrentAdmissionPolicy: {}}}", "", "concurrentAdmissionPolicy is not supported"},
		"a card of a flavor that stays":         {"ResourceFlavor", "{metadata: {name: f, annotations: {quota.sluice.dev/elastic-card-memory: 80Gi}}}", "", "counts only with"},
	} {
		t.Run(name, func(t *testing.T) {
			r := write(t, tc.kind, "", tc.object)
			got := ""
			if r.Result != nil {
				got = r.Result.Message
			}
			if r.Allowed != (tc.says == "") || !strings.Contains(got, strings.ReplaceAll(tc.says, `\"`, `"`)) {
				t.Errorf("allowed %v: %s\nwant %s", r.Allowed, got, tc.says)
			}
			warnings := strings.Join(r.Warnings, "\n")
			if !strings.Contains(warnings, tc.warns) || tc.warns == "" && tc.says == "" && warnings != "" {
				t.Errorf("warnings %q, want %q", warnings, tc.warns)
			}
		})
	}
}

// What was let pass once does not keep its owner from changing something else.
func TestAnUpdateIsRefusedOnlyForMistakesThatItMakes(t *testing.T) {
	old := queueOf(gpus, again)
	if r := write(t, "ClusterQueue", old, strings.Replace(old, "nominalQuota: 4", "nominalQuota: 8", 1)); !r.Allowed {
		t.Errorf("an old mistake: %s", r.Result.Message)
	}
	if r := write(t, "ClusterQueue", old, queueOf(more, strings.ReplaceAll(gpus, "name: a,", "name: c,"), again)); !r.Allowed {
		t.Errorf("an old mistake at another place: %s", r.Result.Message)
	}
	if r := write(t, "ClusterQueue", old, queueOf(gpus, again, more)); r.Allowed || !strings.Contains(r.Result.Message, "flavor a is in") || strings.Contains(r.Result.Message, "covered by") {
		t.Errorf("a new mistake beside an old one: %+v", r.Result)
	}
	if r := write(t, "ClusterQueue", queueOf(gpus), old); r.Allowed {
		t.Error("a new mistake passes")
	}
}

func TestAChangedPriorityClassSaysForWhomItHolds(t *testing.T) {
	r := write(t, "WorkloadPriorityClass", "{metadata: {name: high}, value: 10}", "{metadata: {name: high}, value: 20}")
	if got := strings.Join(r.Warnings, "\n"); !r.Allowed || !strings.Contains(got, "those that exist keep 10") {
		t.Errorf("allowed %v, %q", r.Allowed, got)
	}
	if r := write(t, "WorkloadPriorityClass", "{metadata: {name: high}, value: 10}", "{metadata: {name: high}, value: 10, description: x}"); len(r.Warnings) > 0 {
		t.Errorf("%q", r.Warnings)
	}
}
