package controller_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// The chart lists the kinds of jobs once more, for rights, webhooks and policies.
func TestTheChartKnowsTheKindsOfJobs(t *testing.T) {
	own := "quota.config.jobKinds[0]"
	set := []string{own + ".group=example.com", own + ".version=v1", own + ".kind=Render", own + ".resource=renders", own + ".suspend=spec.paused"}
	table, err := jobs.NewTable(jobs.Kind{
		Group: "example.com", Version: "v1", Kind: "Render", Resource: "renders", Suspend: "spec.paused",
		Sets: []jobs.Template{{Name: "main", Path: "spec.template"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	rights, hooked := map[string][]string{}, map[string]bool{}
	for _, doc := range bytes.Split(apitest.Render(t, []string{"quota-rbac.yaml", "quota-webhook.yaml"}, set...), []byte("\n---\n")) {
		role, hooks := &rbacv1.ClusterRole{}, &admissionregistrationv1.MutatingWebhookConfiguration{}
		if err := yaml.Unmarshal(doc, role); err != nil {
			t.Fatal(err)
		}
		if role.Kind == "ClusterRole" && role.Name == "sluice-quota" {
			for _, r := range role.Rules {
				for _, resource := range r.Resources {
					rights[resource+"."+r.APIGroups[0]] = r.Verbs
				}
			}
		}
		if err := yaml.Unmarshal(doc, hooks); err != nil {
			t.Fatal(err)
		}
		for _, h := range hooks.Webhooks {
			for _, r := range h.Rules {
				for _, v := range r.APIVersions {
					hooked[r.Resources[0]+"."+r.APIGroups[0]+"/"+v] = h.ClientConfig.Service.Path != nil && *h.ClientConfig.Service.Path == "/mutate-job"
				}
			}
		}
	}
	known := map[string]bool{}
	for _, k := range table.All() {
		known[k.CRD()+"/"+k.Version] = true
		verbs := rights[k.CRD()]
		if !slices.Contains(verbs, "watch") || slices.Contains(verbs, "update") != k.CanSuspend() || slices.Contains(verbs, "create") || slices.Contains(verbs, "delete") {
			t.Errorf("%s: the role may %v", k.CRD(), verbs)
		}
		if hooked[k.CRD()+"/"+k.Version] != k.CanSuspend() {
			t.Errorf("%s/%s: suspended at creation: %v", k.CRD(), k.Version, !k.CanSuspend())
		}
	}
	for name, job := range hooked {
		if job && !known[name] {
			t.Errorf("the webhook is called for %s, which is no kind of job", name)
		}
	}
}

const renderCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: renders.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Render, listKind: RenderList, plural: renders, singular: render}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// renderKind describes it to the controller, and renderRights are what the chart
// gives for it.
const (
	renderKind = `jobKinds:
- group: example.com
  version: v1
  kind: Render
  resource: renders
  suspend: spec.runPolicy.suspend
  podSets: [{name: main, path: spec.template}]
`
	renderRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: renders}
rules: [{apiGroups: [example.com], resources: [renders], verbs: [get, list, watch, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: renders}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: renders}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: "` + account + `"}]
`
)

// A kind that is installed while the controller runs is governed at once, and so
// it is when it went and came back.
func TestAKindIsGovernedAsSoonAsTheClusterServesIt(t *testing.T) {
	w := newWorld(t)
	w.Apply(t, []byte(renderRights))
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	crd.SetName("renders.example.com")
	flavor := w.flavor(t, "gpu", nil)
	w.queue(t, "q", flavor, "nvidia.com/gpu=1")
	w.node(t, "n1", 1, "80000Mi", "20000Mi", nil)
	w.startWith(t, renderKind)
	for round := range 2 {
		w.Apply(t, []byte(renderCRD))
		j := w.object(t, `
apiVersion: example.com/v1
kind: Render
metadata: {name: film-`+fmt.Sprint(round)+`, `+queueLabels+`}
spec: {template: `+gpuTemplate("c", "film", 3)+`}
`)
		w.waits(t, j, "")
		w.restoredOnly(t, j)
		if err := client.IgnoreNotFound(w.client.Delete(t.Context(), crd)); err != nil {
			t.Fatal(err)
		}
		apitest.Eventually(t, apitest.Patience, "CRD gone", func(ctx context.Context) error {
			if err := w.client.Get(ctx, client.ObjectKeyFromObject(crd), crd.DeepCopy()); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %w", err)
			}
			return nil
		})
	}
}
