package controller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/ticket"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// opens lets the queues that serve only open namespaces serve this one, all at the
// same moment.
func (c *course) opens() {
	c.t.Helper()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"open":"yes"}}}`))
	if err := c.client.Patch(c.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.ns}}, patch); err != nil {
		c.t.Fatal(err)
	}
}

func whenOpen(q *kueue.ClusterQueueSpec) {
	q.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"open": "yes"}}
}

// Either of two borrowers would do for either of two owners that come at once, and
// not for both. What the first leaves is for one of them.
func TestTwoThatReclaimAtOnceAreNotBothAdmittedForOneEviction(t *testing.T) {
	c := newCourse(t, 40)
	reclaims := preempts(kueue.PreemptionPolicyNever, kueue.PreemptionPolicyAny)
	c.budget("a", "all", 20, reclaims, whenOpen)
	c.budget("b", "all", 20, reclaims, whenOpen)
	c.budget("borrower", "all", 0)
	c.start(t)
	c.comes("v1", "borrower", 20, 1)
	c.comes("v2", "borrower", 20, 1)
	c.allBound(t, "v1", 1)
	c.allBound(t, "v2", 1)
	c.comes("a1", "a", 20, 1)
	c.comes("b1", "b", 20, 1)
	c.goes("v1 in, v2 in")

	c.opens()
	// Their pods take their time.
	c.goes("v1 in, v2 in", "v1 told, v2 told")
	c.leaves("v1")
	c.saw("v1 out")
	first, second := "a1", "b1"
	c.saw("a1 in", "b1 in")
	if slices.Contains(c.so(), "b1 in") {
		first, second = second, first
	}
	c.goes("v1 in, v2 in", "v1 told, v2 told", "v1 out", first+" in")
	c.leaves("v2")
	c.goes("v1 in, v2 in", "v1 told, v2 told", "v1 out", first+" in", "v2 out", second+" in")
}

// The quota is a cohort's that is nearer to who comes than to who borrows it, and
// neither's own queue has any.
func TestQuotaOfAnUpperCohortIsReclaimedByThoseBelowIt(t *testing.T) {
	c := newCourse(t, 40)
	c.cohort("org", "", 0)
	c.cohort("mine", "org", 40)
	c.cohort("theirs", "org", 0)
	c.budget("a", "mine", 0, preempts(kueue.PreemptionPolicyNever, kueue.PreemptionPolicyAny))
	c.budget("b", "theirs", 0, preempts(kueue.PreemptionPolicyNever, kueue.PreemptionPolicyAny))
	c.start(t)
	c.comes("borrows", "b", 40, 50)
	c.allBound(t, "borrows", 1)
	c.goes("borrows in")
	c.comes("due", "a", 40, 1)
	c.goes("borrows in", "borrows told")
	c.leaves("borrows")
	// It does not take it back: it is not due to it.
	c.goes("borrows in", "borrows told", "borrows out", "due in")
}

// A queue of weight 0 goes first where it borrows, and is left alone within its
// quota, which it can have back.
func TestAQueueOfWeightZeroKeepsItsOwnQuotaAndNoMore(t *testing.T) {
	c := newCourse(t, 60)
	reclaims := preempts(kueue.PreemptionPolicyNever, kueue.PreemptionPolicyAny)
	c.budget("zero", "all", 20, reclaims, weighs("0"))
	c.budget("one", "all", 20, reclaims)
	c.budget("two", "all", 20, reclaims)
	c.startWith(t, "fairSharing: {}")
	// Of the same queue the less important would go first.
	c.comesAndGoesAtOnce("z-own", "zero", 20, 2)
	c.allBound(t, "z-own", 1)
	c.comesAndGoesAtOnce("z-more", "zero", 5, 1)
	c.allBound(t, "z-more", 1)
	c.comesAndGoesAtOnce("one-own", "one", 20, 2)
	c.allBound(t, "one-own", 1)
	c.comesAndGoesAtOnce("one-more", "one", 15, 1)
	c.allBound(t, "one-more", 1)
	so := []string{"z-own in", "z-more in", "one-own in", "one-more in"}
	c.goes(so...)

	// One borrows three times as much, and yet zero goes first.
	c.comesAndGoesAtOnce("two-first", "two", 5, 2)
	so = append(so, "z-more told", "z-more out", "two-first in")
	c.goes(so...)
	// Then one, and never what zero has of its own.
	c.comesAndGoesAtOnce("two-rest", "two", 15, 2)
	so = append(so, "one-more told", "one-more out", "two-rest in")
	c.goes(so...)
	c.comesAndGoesAtOnce("vip", "two", 20, 100)
	c.goes(so...)
	c.cancels("vip")

	// What others borrow of it while it is away comes back.
	c.cancels("z-more")
	c.cancels("one-more")
	c.ends("z-own")
	c.comesAndGoesAtOnce("two-more", "two", 20, 1)
	so = append(so, "z-own done", "two-more in")
	c.goes(so...)
	c.comesAndGoesAtOnce("z-again", "zero", 20, 1)
	so = append(so, "two-more told", "two-more out", "z-again in")
	c.goes(so...)
}

// The head asks for all, a part is in use by one of its priority, and small ones
// are behind it.
func TestAStrictQueueKeepsItsOrderAndEvictsOnceForItsHead(t *testing.T) {
	c := newCourse(t, 40)
	c.budget("q", "", 40, strict, preempts(kueue.PreemptionPolicyLowerPriority, kueue.PreemptionPolicyNever))
	c.start(t)
	// Times have seconds: those of one second are in the order of their names.
	c.comes("a-low", "q", 10, 5)
	c.allBound(t, "a-low", 1)
	c.comes("b-head", "q", 40, 5)
	c.comes("c-small", "q", 10, 5)
	so := []string{"a-low in"}
	c.goes(so...)

	// One of higher priority is the head from now on; who goes for it goes once.
	c.comes("vip", "q", 40, 10)
	so = append(so, "a-low told")
	c.goes(so...)
	c.leaves("a-low")
	so = append(so, "a-low out", "vip in")
	c.goes(so...)
	c.ends("vip")
	so = append(so, "vip done", "a-low in")
	c.goes(so...)
	c.ends("a-low")
	so = append(so, "a-low done", "b-head in")
	c.goes(so...)
	c.ends("b-head")
	so = append(so, "b-head done", "c-small in")
	c.goes(so...)
}

// What a head that cannot go leaves idle may be borrowed, until it can go.
func TestAStuckHeadKeepsNoQuotaFromOthersAndGetsItBack(t *testing.T) {
	c := newCourse(t, 80)
	c.budget("strict", "all", 80, strict, preempts(kueue.PreemptionPolicyNever, kueue.PreemptionPolicyAny))
	c.budget("other", "all", 0)
	c.start(t)
	c.comes("first", "strict", 40, 1)
	c.allBound(t, "first", 1)
	c.comes("head", "strict", 80, 1)
	c.goes("first in")
	c.comes("borrows", "other", 40, 50)
	c.allBound(t, "borrows", 1)
	so := []string{"first in", "borrows in"}
	c.goes(so...)
	c.ends("first")
	so = append(so, "first done", "borrows told")
	c.goes(so...)
	c.leaves("borrows")
	so = append(so, "borrows out", "head in")
	c.goes(so...)
}

// Three orders, which together go round: prior goes before due by priority, due
// before share by what is its own, share before prior by shares. None of them goes
// on for ever; and a and b do not take turns.
func TestWhoCouldEvictEachOtherInACircleComeToRest(t *testing.T) {
	c := newCourse(t, 10)
	c.budget("a", "all", 6, weighs("0"), preempts(kueue.PreemptionPolicyLowerPriority, kueue.PreemptionPolicyAny), whenOpen)
	c.budget("b", "all", 4, preempts(kueue.PreemptionPolicyNever, kueue.PreemptionPolicyAny))
	c.startWith(t, "fairSharing: {}")
	c.comesAndGoesAtOnce("share", "b", 7, 2)
	c.allBound(t, "share", 1)
	c.comesAndGoesAtOnce("due", "a", 4, 1)
	c.comesAndGoesAtOnce("prior", "a", 9, 3)
	c.goes("share in")
	c.opens()
	c.goes("share in", "share told", "share out", "prior in")
}

func (c *course) cohort(name, parent string, gi int64) {
	c.t.Helper()
	o := &kueue.Cohort{ObjectMeta: metav1.ObjectMeta{Name: c.ns + "-" + name, Labels: map[string]string{"team": c.ns}}}
	if parent != "" {
		o.Spec.ParentName = kueue.CohortReference(c.ns + "-" + parent)
	}
	if gi > 0 {
		o.Spec.ResourceGroups = []kueue.ResourceGroup{{
			CoveredResources: []corev1.ResourceName{"nvidia.com/gpu-memory"},
			Flavors: []kueue.FlavorQuotas{{Name: kueue.ResourceFlavorReference(c.ns + "-gpu"), Resources: []kueue.ResourceQuota{{
				Name: "nvidia.com/gpu-memory", NominalQuota: *resource.NewQuantity(gi<<30, resource.BinarySI),
			}}}},
		}}
	}
	if err := c.client.Create(c.t.Context(), o); err != nil {
		c.t.Fatal(err)
	}
}

// cancels deletes a job that waits.
func (c *course) cancels(name string) {
	c.t.Helper()
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: name}}
	if err := c.client.Delete(c.t.Context(), j, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		c.t.Fatal(err)
	}
	apitest.Eventually(c.t, apitest.Patience, name+" gone", func(ctx context.Context) error {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(j), j)
		if client.IgnoreNotFound(err) == nil && err != nil {
			return nil
		}
		return fmt.Errorf("it is there, %v", err)
	})
}

// A job, or a group of pods, of which three of four have room: not one gets any.
func TestNoPodOfAGangIsAdmittedBeforeAllHaveRoom(t *testing.T) {
	w := newWorld(t)
	w.node(t, "n1", 3, "40Gi", "", nil)
	queue := w.queue(t, "q", w.flavor(t, "gpu", nil), "nvidia.com/gpu=8")
	w.template(t, "t", "40Gi", "")
	w.start(t)
	var mu sync.Mutex
	reserved, tickets := []string{}, []string{}
	note := func(to *[]string, what string) {
		mu.Lock()
		defer mu.Unlock()
		*to = append(*to, what)
	}
	workloads, claims := w.follow(t.Context(), t, &kueue.WorkloadList{}), w.follow(t.Context(), t, &resourceapi.ResourceClaimList{})
	go func() {
		for e := range workloads {
			if wl, ok := e.Object.(*kueue.Workload); ok && wl.Status.Admission != nil {
				note(&reserved, wl.Name)
			}
		}
	}()
	go func() {
		for e := range claims {
			if o, ok := e.Object.(*resourceapi.ResourceClaim); ok && (ticket.Has(o.Annotations) || o.Status.Allocation != nil) {
				note(&tickets, o.Name)
			}
		}
	}()
	gang := claimingJob("gang", "t", 4)
	w.create(t, gang)
	w.waits(t, gang, "3 of 4")
	// Those behind it go on meanwhile, and take nothing that it was given.
	w.create(t, claimingJob("small", "t", 3))
	w.allBound(t, "small", 3)
	w.usage(t, queue, "nvidia.com/gpu=3")
	mu.Lock()
	if len(slices.Compact(reserved)) != 1 || len(tickets) == 0 || slices.ContainsFunc(tickets, func(s string) bool { return !strings.HasPrefix(s, "small-") }) {
		t.Errorf("quota was reserved by %v, tickets were given to %v", reserved, tickets)
	}
	mu.Unlock()

	w.node(t, "n2", 1, "40Gi", "", nil)
	w.node(t, "n3", 3, "40Gi", "", nil)
	w.allBound(t, "gang", 4)
	w.usage(t, queue, "nvidia.com/gpu=7")
}
