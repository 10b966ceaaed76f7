package controller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// course is what happens in a namespace over time: every version of every
// Workload and of every claim. Jobs in it have one pod each, which asks for
// memory of a card, and cards are larger than all quota: only quota is scarce.
type course struct {
	*world
	t *testing.T
	// most is the quota of all queues together, in Gi.
	most   int64
	node   string
	queues []string

	mu sync.Mutex
	// story is who came to hold quota ("a in"), was told to give it back ("a told")
	// and has given it back ("a out") or has finished ("a done"), in order.
	story []string
	held  map[types.UID]int64
	told  map[types.UID]bool
	// tickets are those that claims carry.
	tickets map[types.UID]int64
	probes  int
}

// newCourse follows a world with one node whose card has room for everything.
// Queues are made by budget, and the controller is started by the test.
func newCourse(t *testing.T, most int64) *course {
	t.Helper()
	c := &course{world: newWorld(t), t: t, most: most, held: map[types.UID]int64{}, told: map[types.UID]bool{}, tickets: map[types.UID]int64{}}
	c.node = c.world.node(t, "n1", 1, "1000Gi", "", nil)
	c.flavor(t, "gpu", nil)
	c.queue(t, "probe", c.ns+"-gpu", "cpu=1")
	for _, list := range []client.ObjectList{&kueue.WorkloadList{}, &resourceapi.ResourceClaimList{}} {
		events := c.follow(t.Context(), t, list)
		go func() {
			for e := range events {
				c.see(e)
			}
		}()
	}
	return c
}

// see takes in one version of one object. Versions of a kind come in their order,
// so what is summed up here was so at one time.
func (c *course) see(e watch.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o := e.Object.(type) {
	case *kueue.Workload:
		c.workload(o, e.Type == watch.Deleted)
		c.within("quota reserved", c.held)
	case *resourceapi.ResourceClaim:
		delete(c.tickets, o.UID)
		if price, has := ticket.Charge(o.Annotations); has && e.Type != watch.Deleted {
			c.tickets[o.UID] = price.Memory >> 30
		}
		c.within("tickets", c.tickets)
	}
}

func (c *course) within(what string, parts map[types.UID]int64) {
	sum := int64(0)
	for _, n := range parts {
		sum += n
	}
	if sum > c.most {
		c.t.Errorf("%s: %dGi at once, the quota is %dGi; after %v", what, sum, c.most, c.story)
	}
}

func (c *course) workload(wl *kueue.Workload, deleted bool) {
	name := wl.Name
	if len(wl.OwnerReferences) > 0 {
		name = wl.OwnerReferences[0].Name
	}
	now, holds := int64(0), wl.Status.Admission != nil && !deleted
	if holds {
		for _, s := range wl.Status.Admission.PodSetAssignments {
			q := s.ResourceUsage["nvidia.com/gpu-memory"]
			now += q.Value() >> 30
		}
	}
	before, held := c.held[wl.UID]
	finished := meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadFinished)
	told := meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadEvicted)
	switch {
	case holds && finished && held:
		c.story = append(c.story, name+" done")
	case holds && !finished && !held:
		c.story = append(c.story, name+" in")
	case !holds && held:
		c.story = append(c.story, name+" out")
	}
	if told && !c.told[wl.UID] {
		c.story = append(c.story, name+" told")
	}
	c.told[wl.UID] = told
	if delete(c.held, wl.UID); holds && !finished {
		c.held[wl.UID] = max(now, before)
	}
}

// goes waits until the course was as wanted, and then that nothing more follows
// from it: the controller decides anew, because a node changes, something comes
// that is no concern of the others, and queues change in what is no news of them,
// as when their statuses are written. The course is still the same.
func (c *course) goes(want ...string) {
	c.t.Helper()
	c.was(want)
	for range 3 {
		c.mu.Lock()
		c.probes++
		name := fmt.Sprintf("probe-%d", c.probes)
		c.mu.Unlock()
		patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{"probe":%q}}}`, name))
		stirred := []client.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node}}}
		for _, q := range c.queues {
			stirred = append(stirred, &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: q}})
		}
		for _, o := range stirred {
			if err := c.client.Patch(c.t.Context(), o, patch); err != nil {
				c.t.Fatal(err)
			}
		}
		probe := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Name: name}}
		probe.Spec.QueueName = "queue-probe"
		probe.Spec.PodSets = []kueue.PodSet{{Name: "main", Count: 1, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}},
		}}}}
		c.create(c.t, probe)
		c.saw(name + " in")
		if err := c.client.Delete(c.t.Context(), probe); err != nil {
			c.t.Fatal(err)
		}
		c.saw(name + " out")
	}
	c.was(want)
}

// was waits until the course was as wanted, without the probes. What is written
// into one string, with commas, is decided together and may come in any order.
func (c *course) was(want []string) {
	c.t.Helper()
	apitest.Eventually(c.t, apitest.Patience, strings.Join(want, ", "), func(context.Context) error {
		got := c.so()
		left := got
		for _, together := range want {
			parts := strings.Split(together, ", ")
			if len(left) < len(parts) {
				return fmt.Errorf("it was %v", got)
			}
			came := slices.Sorted(slices.Values(left[:len(parts)]))
			if slices.Sort(parts); !slices.Equal(came, parts) {
				c.t.Fatalf("it was\n%v\nwant\n%v", got, want)
			}
			left = left[len(parts):]
		}
		if len(left) > 0 {
			c.t.Fatalf("it was\n%v\nwant\n%v", got, want)
		}
		return nil
	})
}

// so is the course so far, without the probes.
func (c *course) so() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.story), func(s string) bool { return strings.HasPrefix(s, "probe-") })
}

// saw waits until one of these has happened.
func (c *course) saw(any ...string) {
	c.t.Helper()
	apitest.Eventually(c.t, apitest.Patience, strings.Join(any, " or "), func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !slices.ContainsFunc(c.story, func(s string) bool { return slices.Contains(any, s) }) {
			return fmt.Errorf("it was %v", c.story)
		}
		return nil
	})
}

// budget makes a ClusterQueue of so many Gi of memory, in a cohort.
func (c *course) budget(name, cohort string, gi int64, changes ...func(*kueue.ClusterQueueSpec)) {
	c.t.Helper()
	full := c.queue(c.t, name, c.ns+"-gpu", fmt.Sprintf("nvidia.com/gpu-memory=%dGi", gi))
	c.queues = append(c.queues, full)
	q := &kueue.ClusterQueue{}
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Name: full}, q); err != nil {
		c.t.Fatal(err)
	}
	if cohort != "" {
		q.Spec.CohortName = kueue.CohortReference(c.ns + "-" + cohort)
	}
	for _, change := range changes {
		change(&q.Spec)
	}
	if err := c.client.Update(c.t.Context(), q); err != nil {
		c.t.Fatal(err)
	}
}

func strict(q *kueue.ClusterQueueSpec) { q.QueueingStrategy = kueue.StrictFIFO }

func preempts(within, reclaim kueue.PreemptionPolicy) func(*kueue.ClusterQueueSpec) {
	return func(q *kueue.ClusterQueueSpec) {
		q.Preemption = &kueue.ClusterQueuePreemption{WithinClusterQueue: within, ReclaimWithinCohort: reclaim}
	}
}

func weighs(weight string) func(*kueue.ClusterQueueSpec) {
	return func(q *kueue.ClusterQueueSpec) {
		q.FairSharing = &kueue.FairSharing{Weight: ptr.To(resource.MustParse(weight))}
	}
}

// comes makes a job of one pod that asks for so many Gi.
func (c *course) comes(name, queue string, gi int64, priority int32) {
	c.t.Helper()
	c.make(name, queue, gi, priority, nil)
}

// comesAndGoesAtOnce is comes for a job whose pods need no time to end.
func (c *course) comesAndGoesAtOnce(name, queue string, gi int64, priority int32) {
	c.t.Helper()
	c.make(name, queue, gi, priority, ptr.To[int64](0))
}

func (c *course) make(name, queue string, gi int64, priority int32, grace *int64) {
	c.t.Helper()
	class := &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", c.ns, priority), Labels: map[string]string{"team": c.ns}}, Value: priority}
	c.ensure(class)
	size := fmt.Sprintf("%dGi", gi)
	x := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "asks-" + strings.ToLower(size)}}
	x.Spec.Spec = claimSpec(size, "")
	c.ensure(x)
	j := claimingJob(name, x.Name, 1)
	j.Labels[controller.QueueLabel] = "queue-" + queue
	j.Labels[controller.PriorityLabel] = class.Name
	j.Spec.Template.Spec.TerminationGracePeriodSeconds = grace
	c.create(c.t, j)
	// Those that come later are queued behind it.
	apitest.Eventually(c.t, apitest.Patience, name+" queued", func(ctx context.Context) error {
		_, err := c.workloadOf(ctx, j)
		return err
	})
}

func (c *course) ensure(o client.Object) {
	c.t.Helper()
	if err := c.client.Create(c.t.Context(), o); client.IgnoreAlreadyExists(err) != nil {
		c.t.Fatal(err)
	}
}

// leaves lets the pod of a job that was told to go be gone, as a kubelet does when
// its time is up.
func (c *course) leaves(name string) {
	c.t.Helper()
	apitest.Eventually(c.t, apitest.Patience, "pod of "+name+" on its way out", func(ctx context.Context) error {
		for _, p := range c.podsOf(c.t, ctx, name) {
			if p.DeletionTimestamp == nil {
				return fmt.Errorf("pod %s is to stay", p.Name)
			}
			if err := client.IgnoreNotFound(c.client.Delete(ctx, &p, client.GracePeriodSeconds(0))); err != nil {
				return err
			}
		}
		return nil
	})
}

// ends lets the pod of a job succeed.
func (c *course) ends(name string) {
	c.t.Helper()
	pods := c.allBound(c.t, name, 1)
	c.end(c.t, &pods[0])
	apitest.Eventually(c.t, apitest.Patience, "job "+name+" complete", func(ctx context.Context) error {
		j := &batchv1.Job{}
		if err := c.client.Get(ctx, client.ObjectKey{Namespace: c.ns, Name: name}, j); err != nil {
			return err
		}
		if j.Status.CompletionTime == nil {
			return fmt.Errorf("%+v", j.Status)
		}
		return nil
	})
}
