package webhook

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// cluster has every kind of job that is known, without anybody who runs them, and
// one that the operator described.
type cluster struct {
	client.Client
	kinds []*jobs.Kind
}

const described = `quota.config.jobKinds[0].group=example.com,quota.config.jobKinds[0].version=v1,quota.config.jobKinds[0].resource=trainings,quota.config.jobKinds[0].kind=Training,quota.config.jobKinds[0].suspend=spec.paused,quota.config.jobKinds[0].podSets[0].name=main,quota.config.jobKinds[0].podSets[0].path=spec.worker.template`

func newCluster(t *testing.T) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensions.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(apitest.Shared(t).Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	table, err := jobs.NewTable(jobs.Kind{
		Group: "example.com", Version: "v1", Kind: "Training", Resource: "trainings", Suspend: "spec.paused",
		Sets: []jobs.Template{{Name: "main", Path: "spec.worker.template"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string][]apiextensions.CustomResourceDefinitionVersion{}
	all := map[string]*jobs.Kind{}
	for _, k := range table.All() {
		all[k.CRD()+"/"+k.Version] = k
		versions[k.CRD()] = append(versions[k.CRD()], apiextensions.CustomResourceDefinitionVersion{
			Name: k.Version, Served: true, Storage: len(versions[k.CRD()]) == 0,
			Schema: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}},
		})
	}
	for _, k := range table.All() {
		if k.Group == "batch" || all[k.CRD()+"/"+k.Version] != k {
			continue
		}
		crd := &apiextensions.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: k.CRD(), Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved, for a test"}}}
		crd.Spec = apiextensions.CustomResourceDefinitionSpec{
			Group: k.Group, Scope: apiextensions.NamespaceScoped, Versions: versions[k.CRD()],
			Names: apiextensions.CustomResourceDefinitionNames{Plural: k.Resource, Singular: strings.ToLower(k.Kind), Kind: k.Kind, ListKind: k.Kind + "List"},
		}
		if err := c.Create(t.Context(), crd); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	kinds := slices.SortedFunc(maps.Values(all), func(a, b *jobs.Kind) int { return strings.Compare(a.CRD()+a.Version, b.CRD()+b.Version) })
	return &cluster{Client: c, kinds: kinds}
}

// namespace makes one.
func (c *cluster) namespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-", Labels: labels}}
	if err := c.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// unreachable puts the chart's webhook in force where nobody serves it, so that
// all that would pass through it is refused.
func (c *cluster) unreachable(t *testing.T, set ...string) {
	t.Helper()
	cfg := &admissionregv1.MutatingWebhookConfiguration{}
	if err := yaml.Unmarshal(bytes.TrimPrefix(apitest.Render(t, []string{"quota-webhook.yaml"}, set...), []byte("---\n")), cfg); err != nil {
		t.Fatal(err)
	}
	for i := range cfg.Webhooks {
		h := &cfg.Webhooks[i]
		if *h.FailurePolicy != admissionregv1.Ignore {
			t.Errorf("%s has failure policy %s: a cluster must not depend on it", h.Name, *h.FailurePolicy)
		}
		h.FailurePolicy = ptr.To(admissionregv1.Fail)
		h.TimeoutSeconds = ptr.To(int32(1))
		h.ClientConfig = admissionregv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1" + *h.ClientConfig.Service.Path)}
	}
	if err := c.Create(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(context.Background(), cfg) })
}

// job is a job of a kind with a template in every set. The label is put on the
// job or on its last template.
func job(k *jobs.Kind, namespace, name string, onJob, onTemplate bool) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(k.GroupVersionKind())
	u.SetNamespace(namespace)
	u.SetName(name)
	if onJob {
		u.SetLabels(map[string]string{controller.QueueLabel: "q"})
	}
	for i, set := range k.Sets {
		template := map[string]any{"spec": map[string]any{"restartPolicy": "Never", "containers": []any{map[string]any{"name": "c", "image": "i"}}}}
		if onTemplate && i == len(k.Sets)-1 {
			template["metadata"] = map[string]any{"labels": map[string]any{controller.QueueLabel: "q"}}
		}
		if set.Each == "" {
			_ = unstructured.SetNestedMap(u.Object, template, strings.Split(set.Path, ".")...)
			continue
		}
		element := map[string]any{}
		_ = unstructured.SetNestedMap(element, template, strings.Split(set.Path, ".")...)
		if set.Name == "" {
			_ = unstructured.SetNestedMap(u.Object, map[string]any{"Worker": element}, strings.Split(set.Each, ".")...)
			continue
		}
		element[set.Name] = "worker"
		_ = unstructured.SetNestedSlice(u.Object, []any{element}, strings.Split(set.Each, ".")...)
	}
	return u
}

// passes says whether a job would have to go through the webhook.
func (c *cluster) passes(ctx context.Context, o client.Object) (bool, error) {
	err := c.Create(ctx, o, client.DryRunAll)
	if err != nil && strings.Contains(err.Error(), "failed calling webhook") {
		return true, nil
	}
	return false, err
}

const patience = 90 * time.Second

// Where the webhook cannot be reached, jobs that it has nothing to do with are made
// as if it were not there; jobs that name a queue anywhere still have to pass.
func TestJobsOfOthersDoNotPassThroughTheWebhook(t *testing.T) {
	c := newCluster(t)
	c.unreachable(t, described)
	c.compare(t, c.namespace(t, nil), map[string]bool{"unlabelled": false, "labelled": true, "labelled template": true})
}

// Where jobs without a queue are governed too, they pass in the namespaces that
// are chosen, and in no others.
func TestUnnamedJobsPassWhereTheyAreGoverned(t *testing.T) {
	for _, setting := range []string{"manageJobsWithoutQueueName", "localQueueDefaulting"} {
		t.Run(setting, func(t *testing.T) {
			c := newCluster(t)
			c.unreachable(t, described, "quota.config."+setting+"=true", "quota.config.managedJobsNamespaceSelector.matchLabels.governed=yes")
			all := map[string]bool{"unlabelled": true, "labelled": true, "labelled template": true}
			c.compare(t, c.namespace(t, map[string]string{"governed": "yes"}), all)
			all["unlabelled"] = false
			c.compare(t, c.namespace(t, nil), all)
		})
	}
}

func (c *cluster) compare(t *testing.T, ns string, want map[string]bool) {
	t.Helper()
	for _, k := range c.kinds {
		if !k.CanSuspend() {
			continue // gated through its pods
		}
		// Those that pass come first: by then the webhook is in force.
		for _, name := range []string{"labelled", "labelled template", "unlabelled"} {
			if name == "labelled template" && len(k.Sets) == 0 {
				continue // its templates are another object's
			}
			passes := want[name]
			apitest.Eventually(t, patience, fmt.Sprintf("%s %s", name, k.Kind), func(ctx context.Context) error {
				got, err := c.passes(ctx, job(k, ns, "j", name == "labelled", name == "labelled template"))
				if err == nil && got != passes {
					err = fmt.Errorf("passes through the webhook: %v, want %v", got, passes)
				}
				return err
			})
		}
	}
}
