package controller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// becomes waits until the Workload of an object is as wanted.
func (w *world) becomes(t *testing.T, owner client.Object, what string, check func(*kueue.Workload) bool) *kueue.Workload {
	t.Helper()
	var wl *kueue.Workload
	apitest.Eventually(t, apitest.Patience, owner.GetName()+" "+what, func(ctx context.Context) error {
		var err error
		if wl, err = w.workloadOf(ctx, owner); err != nil {
			return err
		}
		if !check(wl) {
			return fmt.Errorf("%+v", wl.Status)
		}
		return nil
	})
	return wl
}

// quickJob is a job whose pods need no time to end: no kubelet waits for them.
func quickJob(name string) *batchv1.Job {
	j := claimingJob(name, "t", 1)
	j.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
	return j
}

func holdsQuota(wl *kueue.Workload) bool { return wl.Status.Admission != nil }

func condition(wl *kueue.Workload, kind string, status metav1.ConditionStatus, reason string) bool {
	c := meta.FindStatusCondition(wl.Status.Conditions, kind)
	return c != nil && c.Status == status && c.Reason == reason
}

// quotas changes a queue.
func (w *world) patchQueue(t *testing.T, name, spec string) {
	t.Helper()
	q := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := w.client.Patch(t.Context(), q, client.RawPatch("application/merge-patch+json", []byte(`{"spec":`+spec+`}`))); err != nil {
		t.Fatal(err)
	}
}

func (w *world) inactive(t *testing.T, queue, reason, says string) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, queue+" inactive because "+says, func(ctx context.Context) error {
		q := &kueue.ClusterQueue{}
		if err := w.client.Get(ctx, client.ObjectKey{Name: queue}, q); err != nil {
			return err
		}
		c := meta.FindStatusCondition(q.Status.Conditions, kueue.ClusterQueueActive)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason || !strings.Contains(c.Message, says) {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

func TestPodsThatAreNeverReadyComeBackAfterAPauseAndInTheEndNotAtAll(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=50Gi")
	w.template(t, "t", "20Gi", "")
	w.startWith(t, `{waitForPodsReady: {timeout: 5s, requeuingStrategy: {backoffBaseSeconds: 4, backoffLimitCount: 1}}}`)
	states := w.states(t)
	j := quickJob("train")
	w.create(t, j)
	wl := w.becomes(t, j, "is deactivated and holds nothing", func(wl *kueue.Workload) bool {
		return !ptr.Deref(wl.Spec.Active, true) && !holdsQuota(wl)
	})
	// Each state lasts as long as the configuration says, which is too short to wait for it.
	want := []string{"holds quota, came back 0 times", "holds nothing, came back 1 times", "holds quota, came back 1 times", "holds nothing, deactivated"}
	apitest.Eventually(t, apitest.Patience, "its states", func(context.Context) error {
		// Who follows may be behind.
		if got := states(); !inOrder(got, want) {
			return fmt.Errorf("it was\n%s\nwant in this order\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
	if !strings.Contains(fmt.Sprint(wl.Status.Conditions), "has come back 1 times already") {
		t.Errorf("conditions %v", wl.Status.Conditions)
	}
	w.usage(t, queue, "nvidia.com/gpu-memory=0")
	// Somebody who may activates it again.
	if err := w.client.Patch(t.Context(), wl, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"active":true}}`))); err != nil {
		t.Fatal(err)
	}
	w.becomes(t, j, "runs again with a clean record", func(wl *kueue.Workload) bool { return holdsQuota(wl) && wl.Status.RequeueState == nil })
}

// states follows the only workload of the namespace from now on. The result is what it was so
// far, in order.
func (w *world) states(t *testing.T) func() []string {
	t.Helper()
	var mu sync.Mutex
	var all []string
	events := w.follow(t.Context(), t, &kueue.WorkloadList{})
	go func() {
		for e := range events {
			wl, ok := e.Object.(*kueue.Workload)
			if !ok {
				continue
			}
			now := "holds nothing"
			if holdsQuota(wl) {
				now = "holds quota"
			}
			switch {
			case !ptr.Deref(wl.Spec.Active, true):
				now += ", deactivated"
			case wl.Status.RequeueState != nil:
				now += fmt.Sprintf(", came back %d times", ptr.Deref(wl.Status.RequeueState.Count, 0))
			default:
				now += ", came back 0 times"
			}
			mu.Lock()
			if len(all) == 0 || all[len(all)-1] != now {
				all = append(all, now)
			}
			mu.Unlock()
		}
	}()
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// inOrder tells whether all contains what is wanted, in that order.
func inOrder(all, want []string) bool {
	for _, s := range all {
		if len(want) > 0 && s == want[0] {
			want = want[1:]
		}
	}
	return len(want) == 0
}

// check sets the state of an admission check as its controller would.
func (w *world) check(t *testing.T, owner client.Object, name string, change func(*kueue.AdmissionCheckState)) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, "check "+name, func(ctx context.Context) error {
		wl, err := w.workloadOf(ctx, owner)
		if err != nil {
			return err
		}
		for i := range wl.Status.AdmissionChecks {
			if s := &wl.Status.AdmissionChecks[i]; string(s.Name) == name {
				s.LastTransitionTime = metav1.Now()
				change(s)
				return w.client.Status().Update(ctx, wl)
			}
		}
		return fmt.Errorf("checks %v", wl.Status.AdmissionChecks)
	})
}

func TestAdmissionChecksOfOthersAreAwaited(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", map[string]string{"zone": "a"})
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=50Gi")
	w.template(t, "t", "20Gi", "")
	name := w.ns + "-check"
	w.patchQueue(t, queue, `{"admissionChecksStrategy":{"admissionChecks":[{"name":"`+name+`"}]}}`)
	w.start(t)
	w.inactive(t, queue, "AdmissionCheckNotFound", name)
	check := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kueue.AdmissionCheckSpec{ControllerName: "example.com/checker"}}
	if err := w.client.Create(t.Context(), check); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.client.Delete(context.Background(), check) })
	w.inactive(t, queue, "AdmissionCheckInactive", "example.com/checker")
	check.Status.Conditions = []metav1.Condition{{Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue, Reason: "Active", LastTransitionTime: metav1.Now()}}
	if err := w.client.Status().Update(t.Context(), check); err != nil {
		t.Fatal(err)
	}

	j := quickJob("train")
	w.create(t, j)
	waiting := func(wl *kueue.Workload) bool {
		return holdsQuota(wl) && condition(wl, kueue.WorkloadAdmitted, metav1.ConditionFalse, "UnsatisfiedAdmissionChecks")
	}
	w.becomes(t, j, "holds quota and is not admitted", waiting)
	w.usage(t, queue, "nvidia.com/gpu-memory=20Gi")
	holds(t, time.Second, "before the check is ready", func(ctx context.Context) error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(j), j); err != nil {
			return err
		}
		if !*j.Spec.Suspend {
			return fmt.Errorf("the job runs")
		}
		return nil
	})
	// Retry gives the quota back; its answer has to come anew.
	w.check(t, j, name, func(s *kueue.AdmissionCheckState) {
		s.State, s.Message, s.RequeueAfterSeconds = kueue.CheckStateRetry, "not now", ptr.To[int32](4)
	})
	w.becomes(t, j, "was released", func(wl *kueue.Workload) bool { return !holdsQuota(wl) && len(wl.Status.AdmissionChecks) == 1 })
	w.becomes(t, j, "waits for the check again", func(wl *kueue.Workload) bool {
		return waiting(wl) && wl.Status.AdmissionChecks[0].State == kueue.CheckStatePending && ptr.Deref(wl.Status.AdmissionChecks[0].RetryCount, 0) == 1
	})
	w.check(t, j, name, func(s *kueue.AdmissionCheckState) {
		s.State, s.Message = kueue.CheckStateReady, "go"
		s.PodSetUpdates = []kueue.PodSetUpdate{{Name: "main", Labels: map[string]string{"checked": "yes"}, Annotations: map[string]string{"by": "checker"}, NodeSelector: map[string]string{"zone": "a"}}}
	})
	p := w.allBound(t, "train", 1)[0]
	if p.Labels["checked"] != "yes" || p.Annotations["by"] != "checker" || p.Spec.NodeSelector["zone"] != "a" {
		t.Errorf("the pod has labels %v, annotations %v, selector %v", p.Labels, p.Annotations, p.Spec.NodeSelector)
	}

	// A check that rejects, and one that contradicts the pods, end it.
	second := quickJob("rejected")
	w.create(t, second)
	w.becomes(t, second, "holds quota", waiting)
	w.check(t, second, name, func(s *kueue.AdmissionCheckState) { s.State, s.Message = kueue.CheckStateRejected, "never" })
	w.becomes(t, second, "is deactivated", func(wl *kueue.Workload) bool { return !ptr.Deref(wl.Spec.Active, true) && !holdsQuota(wl) })
	third := quickJob("contradicted")
	third.Spec.Template.Spec.NodeSelector = map[string]string{"zone": "a"}
	w.create(t, third)
	w.becomes(t, third, "holds quota", waiting)
	w.check(t, third, name, func(s *kueue.AdmissionCheckState) {
		s.State, s.Message = kueue.CheckStateReady, "go"
		s.PodSetUpdates = []kueue.PodSetUpdate{{Name: "main", NodeSelector: map[string]string{"zone": "b"}}}
	})
	w.becomes(t, third, "is deactivated", func(wl *kueue.Workload) bool { return !ptr.Deref(wl.Spec.Active, true) && !holdsQuota(wl) })
	w.usage(t, queue, "nvidia.com/gpu-memory=20Gi")
}

// pending waits until a ClusterQueue says how many wait in it.
func (w *world) pending(t *testing.T, queue string, want int32) {
	t.Helper()
	apitest.Eventually(t, apitest.Patience, "waiting workloads in the status of "+queue, func(ctx context.Context) error {
		q := &kueue.ClusterQueue{}
		if err := w.client.Get(ctx, client.ObjectKey{Name: queue}, q); err != nil {
			return err
		}
		if q.Status.PendingWorkloads != want {
			return fmt.Errorf("%d, want %d", q.Status.PendingWorkloads, want)
		}
		return nil
	})
}

func TestStopPoliciesAndNamespaceLabelsHoldWithoutARestart(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=60Gi")
	w.template(t, "t", "20Gi", "")
	w.start(t)
	first := quickJob("first")
	w.create(t, first)
	w.allBound(t, "first", 1)
	w.patchQueue(t, queue, `{"stopPolicy":"Hold"}`)
	w.inactive(t, queue, "Stopped", "")
	second := quickJob("second")
	w.create(t, second)
	w.waits(t, second, "stop")
	w.pending(t, queue, 1)                          // who waits in a stopped queue waits all the same
	w.usage(t, queue, "nvidia.com/gpu-memory=20Gi") // what runs goes on
	w.patchQueue(t, queue, `{"stopPolicy":"HoldAndDrain"}`)
	w.becomes(t, first, "is drained", func(wl *kueue.Workload) bool { return !holdsQuota(wl) })
	w.usage(t, queue, "nvidia.com/gpu-memory=0")
	w.patchQueue(t, queue, `{"stopPolicy":"None","namespaceSelector":{"matchLabels":{"admits":"`+w.ns+`"}}}`)
	w.waits(t, second, "namespace")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}
	if err := w.client.Patch(t.Context(), ns, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"admits":"`+w.ns+`"}}}`))); err != nil {
		t.Fatal(err)
	}
	w.allBound(t, "first", 1)
	w.allBound(t, "second", 1)
	w.usage(t, queue, "nvidia.com/gpu-memory=40Gi")
}

func TestWhatIsInUseStaysAndSaysForWhom(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	w.template(t, "t", "20Gi", "")
	w.start(t)
	// The job comes before its queue.
	j := quickJob("train")
	w.create(t, j)
	w.waits(t, j, "queue-q")
	flavor := w.flavor(t, "gpu", nil)
	queue := w.queue(t, "q", flavor, "nvidia.com/gpu-memory=60Gi")
	w.allBound(t, "train", 1)
	q, f := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: queue}}, &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: flavor}}
	lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "queue-q"}}
	apitest.Eventually(t, apitest.Patience, "finalizers", func(ctx context.Context) error {
		for _, o := range []client.Object{q, f, lq} {
			if err := w.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
			if len(o.GetFinalizers()) != 1 {
				return fmt.Errorf("%s has finalizers %v", o.GetName(), o.GetFinalizers())
			}
		}
		return nil
	})
	for _, o := range []client.Object{q, f, lq} {
		if err := w.client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	w.inactive(t, queue, "Terminating", "Workload "+w.ns+"/job-train-")
	// Events of what has no namespace are in the default one.
	(&world{client: w.client, ns: metav1.NamespaceDefault}).told(t, flavor, "InUse", "ClusterQueue "+queue)
	for _, o := range []client.Object{q, f, lq} {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatalf("it is in use, and gone: %v", err)
		}
	}
	if err := w.client.Delete(t.Context(), j, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, apitest.Patience, "all of it gone", func(ctx context.Context) error {
		for _, o := range []client.Object{lq, q, f} {
			if err := client.IgnoreNotFound(w.client.Get(ctx, client.ObjectKeyFromObject(o), o)); err != nil {
				return err
			} else if err := w.client.Get(ctx, client.ObjectKeyFromObject(o), o); err == nil {
				return fmt.Errorf("%s is there", o.GetName())
			}
		}
		return nil
	})
}

func TestAJobMayRunForSoLongAndNoLonger(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=60Gi")
	w.template(t, "t", "20Gi", "")
	w.start(t)
	j := quickJob("train")
	j.Labels["kueue.x-k8s.io/max-exec-time-seconds"] = "2"
	w.create(t, j)
	w.allBound(t, "train", 1)
	alone := gated(withTemplate(pod("alone", "queue-q"), "t"))
	alone.Labels["kueue.x-k8s.io/max-exec-time-seconds"] = "2"
	w.create(t, alone)
	w.bound(t, "alone")
	w.becomes(t, j, "is over", func(wl *kueue.Workload) bool {
		return !ptr.Deref(wl.Spec.Active, true) && !holdsQuota(wl) && condition(wl, kueue.WorkloadRequeued, metav1.ConditionFalse, "Deactivated")
	})
	// Both know the limit and what comes next, which is not the same for both.
	const limit = "may run for 2s in all"
	w.hearsAny(t, "Job", "train", "MaximumExecutionTimeExceeded", limit)
	w.hearsAny(t, "Job", "train", "MaximumExecutionTimeExceeded", "until spec.active of Workload")
	w.hearsAny(t, "Pod", "alone", "MaximumExecutionTimeExceeded", limit)
	w.hearsAny(t, "Pod", "alone", "MaximumExecutionTimeExceeded", "make new ones")
	apitest.Eventually(t, apitest.Patience, "the pod is told to go", func(ctx context.Context) error {
		err := w.client.Get(ctx, client.ObjectKeyFromObject(alone), alone)
		if err == nil && alone.DeletionTimestamp == nil {
			err = errors.New("it goes on")
		}
		return client.IgnoreNotFound(err)
	})
	if err := client.IgnoreNotFound(w.client.Delete(t.Context(), alone, client.GracePeriodSeconds(0))); err != nil {
		t.Fatal(err)
	}
	w.usage(t, queue, "nvidia.com/gpu-memory=0")
}

func TestAPreemptedJobHasTheTimeThatItAskedFor(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 1, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=30Gi")
	w.patchQueue(t, queue, `{"preemption":{"withinClusterQueue":"LowerPriority"}}`)
	w.template(t, "t", "20Gi", "")
	w.startWith(t, `{maxPreemptionNotice: 8s}`)
	low := quickJob("low")
	low.Annotations = map[string]string{"quota.sluice.dev/preemption-notice": "1h"}
	w.create(t, low)
	w.allBound(t, "low", 1)
	class := &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-high"}, Value: 100}
	if err := w.client.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.client.Delete(context.Background(), class) })
	high := quickJob("high")
	high.Labels["kueue.x-k8s.io/priority-class"] = class.Name
	w.create(t, high)
	victim := w.becomes(t, low, "is preempted", func(wl *kueue.Workload) bool {
		return condition(wl, kueue.WorkloadPreempted, metav1.ConditionTrue, "InClusterQueue")
	})
	at := meta.FindStatusCondition(victim.Status.Conditions, kueue.WorkloadPreempted).LastTransitionTime
	apitest.Eventually(t, apitest.Patience, "the pod knows when", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := w.client.List(ctx, &pods, client.InNamespace(w.ns), client.MatchingLabels{batchv1.JobNameLabel: "low"}); err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Annotations["quota.sluice.dev/preempted-at"] != at.Add(8*time.Second).UTC().Format(time.RFC3339) {
			return fmt.Errorf("%d pods, preempted at %v", len(pods.Items), at)
		}
		return nil
	})
	// Until then it keeps its device, and nobody else has its quota.
	w.usage(t, queue, "nvidia.com/gpu-memory=20Gi")
	w.allBound(t, "high", 1)
	w.told(t, "low", "Preempted", "")
	w.usage(t, queue, "nvidia.com/gpu-memory=20Gi")
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(low), low); err != nil || !*low.Spec.Suspend {
		t.Errorf("the victim is not suspended: %v", err)
	}
}

func TestQuotaOfVictimsIsNotGivenAwayWhileTheyTerminate(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 2, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=30Gi")
	w.template(t, "t", "20Gi", "")
	w.start(t)
	old := gated(withTemplate(pod("old", "queue-q"), "t"))
	// What keeps it is the test's, in place of a kubelet that waits for containers.
	old.Finalizers = []string{"example.com/terminating"}
	w.create(t, old)
	w.bound(t, "old")
	if err := w.client.Delete(t.Context(), old, client.GracePeriodSeconds(30)); err != nil {
		t.Fatal(err)
	}
	next := gated(withTemplate(pod("next", "queue-q"), "t"))
	w.create(t, next)
	w.waits(t, next, "20Gi")
	holds(t, 2*time.Second, "while it terminates", w.unbound("next"))
	w.usage(t, queue, "nvidia.com/gpu-memory=20Gi")
	if err := w.client.Patch(t.Context(), old, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		t.Fatal(err)
	}
	if err := client.IgnoreNotFound(w.client.Delete(t.Context(), old, client.GracePeriodSeconds(0))); err != nil {
		t.Fatal(err)
	}
	w.bound(t, "next")
	w.usage(t, queue, "nvidia.com/gpu-memory=20Gi")
}

// A victim has its devices for as long as its containers take to end, and the quota with them.
func TestWhoEvictsAnotherWaitsUntilThatOneIsGone(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 2, "80Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu-memory=30Gi")
	w.patchQueue(t, queue, `{"preemption":{"withinClusterQueue":"LowerPriority"}}`)
	w.template(t, "t", "20Gi", "")
	w.start(t)
	class := &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-high"}, Value: 100}
	if err := w.client.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.client.Delete(context.Background(), class) })
	// A pod that is its own workload is deleted; the node that waits for its containers is the test.
	low := gated(withTemplate(pod("low", "queue-q"), "t"))
	low.Finalizers = []string{"example.com/terminating"}
	w.create(t, low)
	w.bound(t, "low")
	high := gated(withTemplate(pod("high", "queue-q"), "t"))
	high.Labels["kueue.x-k8s.io/priority-class"] = class.Name
	w.create(t, high)
	w.becomes(t, low, "is evicted", func(wl *kueue.Workload) bool { return conditionIs(wl, kueue.WorkloadEvicted) })
	apitest.Eventually(t, apitest.Patience, "the victim is told to end", func(ctx context.Context) error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(low), low); err != nil {
			return err
		}
		if low.DeletionTimestamp == nil {
			return fmt.Errorf("it is not being deleted")
		}
		return nil
	})
	holds(t, 3*time.Second, "while it ends", func(ctx context.Context) error {
		if err := w.unbound("high")(ctx); err != nil {
			return err
		}
		wl, err := w.workloadOf(ctx, high)
		if err == nil && holdsQuota(wl) {
			err = fmt.Errorf("its quota is given away")
		}
		return err
	})
	w.usage(t, queue, "nvidia.com/gpu-memory=20Gi")
	if err := w.client.Patch(t.Context(), low, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		t.Fatal(err)
	}
	if err := client.IgnoreNotFound(w.client.Delete(t.Context(), low, client.GracePeriodSeconds(0))); err != nil {
		t.Fatal(err)
	}
	w.bound(t, "high")
	w.usage(t, queue, "nvidia.com/gpu-memory=20Gi")
}

func TestOnlyWhatTheLeaderNotedOnAPodIsBornWithATicket(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 2, "80000Mi", "20000Mi", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu=1")
	c := w.start(t)
	w.serveWebhook(t, c)
	w.create(t, withLimit(pod("one", "queue-q"), "1"))
	one := w.bound(t, "one")
	if one.Annotations[controller.BirthAnnotation] == "" {
		t.Fatal("the pod says nothing of its claim's ticket")
	}
	// A second pod that is not admitted: whoever else serves the webhook, and
	// whatever its caches show, gives its claim nothing.
	two := withLimit(pod("two", "queue-q"), "1")
	w.create(t, two)
	w.waits(t, two, "nvidia.com/gpu")
	for name, text := range map[string]string{"changed": `"{}"`, "removed": `null`} {
		err := w.client.Patch(t.Context(), one, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"`+controller.BirthAnnotation+`":`+text+`}}}`)))
		if err == nil || !strings.Contains(err.Error(), "written by the quota controller") {
			t.Errorf("%s by somebody else: %v", name, err)
		}
	}
	forged := withLimit(pod("forged", "queue-q"), "1")
	forged.Annotations = map[string]string{controller.BirthAnnotation: one.Annotations[controller.BirthAnnotation]}
	forged.Namespace = w.ns
	if err := w.client.Create(t.Context(), forged); err == nil || !strings.Contains(err.Error(), "written by the quota controller") {
		t.Errorf("forged: %v", err)
	}
	w.usage(t, queue, "nvidia.com/gpu=1")
	holds(t, time.Second, "the second waits", w.unbound("two"))
}
