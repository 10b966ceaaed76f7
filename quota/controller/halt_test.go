package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/beside"
	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// patience is how long a test waits for what must happen.
const patience = 2 * time.Minute

// managerLease makes the Lease of a manager of Kueue, held as of now. It is gone
// after the test.
func (w *world) managerLease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: beside.LeaseName}}
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: ptr.To("kueue-0"), LeaseDurationSeconds: ptr.To(int32(15)), RenewTime: ptr.To(metav1.NowMicro())}
	if err := w.client.Create(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.client.Delete(context.Background(), l) })
	return l
}

// setup sets the controller up without running it, with the chart's rights.
func (w *world) setup(t *testing.T, configuration string) error {
	t.Helper()
	mgr, err := ctrl.NewManager(w.As(account, "system:serviceaccounts", "system:serviceaccounts:sluice-system"), ctrl.Options{
		Scheme: controller.Scheme(), NewCache: controller.NewCache, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: crconfig.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Decode([]byte(configuration))
	if err != nil {
		t.Fatal(err)
	}
	_, err = controller.Setup(t.Context(), mgr, cfg, prometheus.NewRegistry())
	return err
}

func TestItDoesNotStartBesideAManagerOfKueue(t *testing.T) {
	w := newWorld(t)
	refused := func(found string) {
		t.Helper()
		err := w.setup(t, "")
		if err == nil || !strings.Contains(err.Error(), found) || !strings.Contains(err.Error(), beside.Advice) {
			t.Errorf("it starts with %v, want a refusal that names %s and what to do", err, found)
		}
	}
	lease := w.managerLease(t)
	refused("Lease " + w.ns + "/" + beside.LeaseName + " is held by kueue-0")

	// Given up by a manager that was told to stop, or left by one that is gone.
	for _, left := range []func(){
		func() { lease.Spec.HolderIdentity = ptr.To("") },
		func() {
			lease.Spec.HolderIdentity, lease.Spec.RenewTime = ptr.To("kueue-0"), ptr.To(metav1.NewMicroTime(time.Now().Add(-time.Hour)))
		},
	} {
		left()
		if err := w.client.Update(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
		if err := w.setup(t, ""); err != nil {
			t.Errorf("it does not start where the Lease is nobody's: %v", err)
		}
	}

	// One without leader election, or switched off but not uninstalled.
	hooks := &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-mutating-webhook-configuration"},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "mworkload.kb.io", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionv1.SideEffectClassNone), FailurePolicy: ptr.To(admissionv1.Ignore),
			ClientConfig:   admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/mutate")},
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"none": "such"}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{"kueue.x-k8s.io"}, APIVersions: []string{"v1beta2"}, Resources: []string{"workloads", "workloads/status"}},
			}},
		}},
	}
	if err := w.client.Create(t.Context(), hooks); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.client.Delete(context.Background(), hooks) })
	refused("webhook mworkload.kb.io of MutatingWebhookConfiguration " + hooks.Name)
	hooks.Webhooks[0].Name = "workloads.policies.example.com"
	if err := w.client.Update(t.Context(), hooks); err != nil {
		t.Fatal(err)
	}
	if err := w.setup(t, ""); err != nil {
		t.Errorf("it does not start beside somebody else's webhook: %v", err)
	}
}

func TestItAdmitsNothingWhileAManagerOfKueueIsAtWork(t *testing.T) {
	w := newWorld(t)
	w.node(t, "a", 2, "80Gi", "", nil)
	cq := w.queue(t, "q", w.flavor(t, "f", nil), "nvidia.com/gpu=2", "nvidia.com/gpu-memory=160Gi")
	w.template(t, "whole", "80Gi", "")
	w.start(t)
	w.create(t, gated(withTemplate(pod("before", "queue-q"), "whole")))
	before := w.bound(t, "before")

	lease := w.managerLease(t)
	w.queueSays(t, cq, "Halted", "Lease "+w.ns+"/"+beside.LeaseName+" is held by kueue-0")
	w.create(t, gated(withTemplate(pod("meanwhile", "queue-q"), "whole")))
	waiting := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "meanwhile"}}
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(waiting), waiting); err != nil {
		t.Fatal(err)
	}
	// The other manager knows nothing of devices, and says that it may run.
	var wl *kueue.Workload
	apitest.Eventually(t, patience, "the other manager admits it", func(ctx context.Context) (err error) {
		if wl, err = w.workloadOf(ctx, waiting); err != nil {
			return err
		}
		now := metav1.Now()
		wl.Status.Admission = &kueue.Admission{ClusterQueue: kueue.ClusterQueueReference(cq), PodSetAssignments: []kueue.PodSetAssignment{{Name: "main", Count: ptr.To(int32(1))}}}
		for _, kind := range []string{kueue.WorkloadQuotaReserved, kueue.WorkloadAdmitted} {
			meta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: kind, Message: "by the other", LastTransitionTime: now})
		}
		return w.client.Status().Update(ctx, wl)
	})
	// What runs goes on, and what ends is released.
	w.end(t, before)
	apitest.Eventually(t, patience, "the first is released", func(ctx context.Context) error {
		done, err := w.workloadOf(ctx, before)
		if err != nil {
			return err
		}
		if len(done.Finalizers) > 0 {
			return fmt.Errorf("finalizers %v", done.Finalizers)
		}
		return nil
	})
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(waiting), waiting); err != nil {
		t.Fatal(err)
	}
	if !controller.HasGate(waiting) {
		t.Error("a gate was opened while a manager of Kueue was at work")
	}

	lease.Spec.HolderIdentity = ptr.To("")
	if err := w.client.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	w.queueSays(t, cq, "Resumed", "admits workloads again")
	w.bound(t, "meanwhile")
	// Its devices are counted: the other's word was not taken.
	w.usage(t, cq, "nvidia.com/gpu=1", "nvidia.com/gpu-memory=80Gi")
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(wl), wl); err != nil {
		t.Fatal(err)
	}
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted); c == nil {
		t.Errorf("the other's admission was taken over: %v", wl.Status.Conditions)
	}
}

// queueSays waits for an event on a queue, or on another object of a name.
func (w *world) queueSays(t *testing.T, name, reason, says string) {
	t.Helper()
	apitest.Eventually(t, patience, "event "+reason+" on "+name, func(ctx context.Context) error {
		var all corev1.EventList
		if err := w.client.List(ctx, &all); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		for i := range all.Items {
			if e := &all.Items[i]; e.InvolvedObject.Name == name && e.Reason == reason && strings.Contains(e.Message, says) {
				return nil
			}
		}
		return fmt.Errorf("no such event")
	})
}

// Kueue admitted a Workload while this controller did not run, and its Lease is
// gone: what Kueue wrote is known by who wrote it, also after a restart.
func TestAnAdmissionOfKueuesIsKnownAfterARestart(t *testing.T) {
	w := newWorld(t)
	w.node(t, "a", 2, "80Gi", "", nil)
	cq := w.queue(t, "q", w.flavor(t, "f", nil), "nvidia.com/gpu=1", "nvidia.com/gpu-memory=160Gi")
	w.template(t, "whole", "80Gi", "")
	w.start(t)
	w.create(t, gated(withTemplate(pod("mine", "queue-q"), "whole")))
	mine := w.bound(t, "mine")
	theirs := gated(withTemplate(pod("theirs", "queue-q"), "whole"))
	w.create(t, theirs)
	w.waits(t, theirs, "nvidia.com/gpu")
	w.halt()
	// As Kueue does: all of what it knows, applied by force.
	for _, p := range []*corev1.Pod{mine, theirs} {
		wl, err := w.workloadOf(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		apply := &kueue.Workload{TypeMeta: metav1.TypeMeta{APIVersion: kueue.SchemeGroupVersion.String(), Kind: "Workload"}, ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: wl.Name, UID: wl.UID}}
		apply.Status.Admission = wl.Status.Admission
		if apply.Status.Admission == nil {
			apply.Status.Admission = &kueue.Admission{ClusterQueue: kueue.ClusterQueueReference(cq), PodSetAssignments: []kueue.PodSetAssignment{{Name: "main", Count: ptr.To(int32(1))}}}
		}
		for _, kind := range []string{kueue.WorkloadQuotaReserved, kueue.WorkloadAdmitted} {
			apply.Status.Conditions = append(apply.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: kind, Message: "by Kueue", LastTransitionTime: metav1.Now()})
		}
		body, err := json.Marshal(apply)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.client.Status().Patch(t.Context(), apply, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner("kueue-admission"), client.ForceOwnership); err != nil {
			t.Fatal(err)
		}
	}
	w.start(t)
	apitest.Eventually(t, patience, "Kueue's admission is given back", func(ctx context.Context) error {
		wl, err := w.workloadOf(ctx, theirs)
		if err != nil {
			return err
		}
		if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted); c == nil || c.Reason != "AdmittedElsewhere" || wl.Status.Admission != nil {
			return fmt.Errorf("conditions %v", wl.Status.Conditions)
		}
		return nil
	})
	w.usage(t, cq, "nvidia.com/gpu=1", "nvidia.com/gpu-memory=80Gi")
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil {
		t.Fatal(err)
	}
	if !controller.HasGate(theirs) {
		t.Error("a gate was opened on Kueue's word")
	}
	wl, err := w.workloadOf(t.Context(), mine)
	if err != nil {
		t.Fatal(err)
	}
	if meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted) != nil {
		t.Errorf("what was admitted here was evicted: %v", wl.Status.Conditions)
	}
}
