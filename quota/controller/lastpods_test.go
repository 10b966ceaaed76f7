package controller

import (
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/pricing"
	"github.com/sluice-gpu/sluice/quota/ticket"
	"github.com/sluice-gpu/sluice/quota/translate"
)

const gi = 1 << 30

// crew is a core with a Job of two pods that were admitted with 9Gi each. They run
// and have shares of 5Gi and 8Gi, under tickets for 9Gi.
func crew(t *testing.T) (*core, *kueue.Workload) {
	t.Helper()
	c, wl := equipped(t)
	wl = wl.DeepCopy()
	wl.ResourceVersion = "700"
	wl.Status.Admission = translate.Admission(engine.Assignment{Queue: "q", PodSets: []engine.PodSetAssignment{{
		Name: mainSet, Count: 2,
		Flavors: map[engine.Resource]engine.FlavorName{pricing.ResourceDevices: "gpu", pricing.ResourceMemory: "gpu"},
		Usage:   engine.Amounts{pricing.ResourceDevices: 2, pricing.ResourceMemory: 18 * gi},
	}}})
	c.saw(wl)
	c.crewPod(wl, "a", "5Gi")
	c.crewPod(wl, "b", "8Gi")
	return c, wl
}

// crewPod is a running pod of the Job and its claim, with a share of so much memory.
func (c *core) crewPod(wl *kueue.Workload, name, memory string) {
	id, uid := workloadID(wl.Namespace, wl.Name), types.UID(name)
	p := runningMember(uid, corev1.PodRunning)
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("t")}}
	c.placePodFact(p)
	// The Job is not known here: its pods are put under the Workload by hand.
	f := c.pods[uid]
	f.workload, f.set, f.owner = id, mainSet, wl.OwnerReferences[0].UID
	if c.podsOf[id] == nil {
		c.podsOf[id] = map[types.UID]*podFact{}
	}
	c.podsOf[id][uid] = f
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "of-" + name, UID: "of-" + uid, ResourceVersion: "801"}}
	claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: uid, Controller: ptr.To(true)}}
	paid := ticket.Ticket{Workload: wl.Name, Price: pricing.Price{Devices: 1, Memory: 9 * gi}, Pools: []string{"n1"}}
	claim.Annotations = paid.Annotations()
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
		Request: "gpu", Driver: pricing.DriverName, Pool: "n1", Device: "gpu-0",
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)},
	}}}}
	c.saw(claim)
}

// notes tells of the Job as it is now.
func (c *core) notes(t *testing.T, wl *kueue.Workload, change func(*batchv1.Job)) {
	t.Helper()
	j := &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](2), Completions: ptr.To[int32](2), BackoffLimit: ptr.To[int32](0)}}
	change(j)
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(j)
	if err != nil {
		t.Fatal(err)
	}
	c.noteLast(wl, c.kinds.Find("batch/v1", "Job"), &unstructured.Unstructured{Object: o})
}

// TestAJobIsCorrectedOnceNoOtherPodCanCome: not before, because a pod that comes
// later may be given the dearest.
func TestAJobIsCorrectedOnceNoOtherPodCanCome(t *testing.T) {
	for name, tc := range map[string]struct {
		job   func(*batchv1.Job)
		facts func(*core, *kueue.Workload)
		// want is what both pods are charged, in Gi.
		want int64
	}{
		"the next failure ends it": {want: 16},
		"one that fails is replaced": {want: 18,
			job: func(j *batchv1.Job) { j.Spec.BackoffLimit = ptr.To[int32](1) }},
		"others come after them": {want: 18,
			job: func(j *batchv1.Job) { j.Spec.Completions = ptr.To[int32](3) }},
		"others come no more": {want: 16,
			job: func(j *batchv1.Job) { j.Spec.Completions, j.Status.Succeeded = ptr.To[int32](3), 1 }},
		"one is not there yet": {want: 18,
			facts: func(c *core, _ *kueue.Workload) { c.lost(c.pods["b"].object); c.lost(c.claims[inTeam("of-b")]) }},
		"one is on its way out": {want: 18,
			facts: func(c *core, _ *kueue.Workload) { c.pods["b"].deleting = true }},
		"one has no devices yet": {want: 18, facts: func(c *core, _ *kueue.Workload) {
			claim := c.claims[inTeam("of-b")].DeepCopy()
			claim.ResourceVersion, claim.Status.Allocation = "802", nil
			c.saw(claim)
		}},
		"a ticket is on its way": {want: 18, facts: func(c *core, wl *kueue.Workload) {
			c.spending(workloadID(wl.Namespace, wl.Name), asks("of-c", "c", 1), pricing.Price{Devices: 1, Memory: 9 * gi})
		}},
		"a ticket is that of a pod that has gone": {want: 18, facts: func(c *core, wl *kueue.Workload) {
			c.crewPod(wl, "c", "5Gi")
			c.lost(c.pods["c"].object)
		}},
		"one has done its work": {want: 10,
			job: func(j *batchv1.Job) { j.Status.Succeeded = 1 },
			facts: func(c *core, wl *kueue.Workload) {
				c.lost(c.pods["b"].object)
				c.lost(c.claims[inTeam("of-b")])
				wl = wl.DeepCopy()
				wl.ResourceVersion, wl.Status.ReclaimablePods = "900", []kueue.ReclaimablePod{{Name: mainSet, Count: 1}}
				c.saw(wl)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			c, wl := crew(t)
			if cor := c.correction("team/w"); cor != nil {
				t.Fatal("corrected although nothing is known of the Job")
			}
			if tc.job == nil {
				tc.job = func(*batchv1.Job) {}
			}
			c.notes(t, wl, tc.job)
			if tc.facts != nil {
				tc.facts(c, wl)
			}
			got := translate.Amount(pricing.ResourceMemory, wl.Status.Admission.PodSetAssignments[0].ResourceUsage[pricing.ResourceMemory])
			if cor := c.correction("team/w"); cor != nil {
				got = translate.Amount(pricing.ResourceMemory, cor.admission.PodSetAssignments[0].ResourceUsage[pricing.ResourceMemory])
			}
			if int64(got) != tc.want*gi {
				t.Errorf("charged %s, want %dGi", engine.FormatAmount(pricing.ResourceMemory, got), tc.want)
			}
		})
	}
}

func inTeam(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "team", Name: name}
}

// TestAPodThatACorrectedChargeDoesNotPayForGetsNoTicket: the limit of the
// Job was raised after all, and a pod comes that asks for a whole card of 10Gi.
func TestAPodThatACorrectedChargeDoesNotPayForGetsNoTicket(t *testing.T) {
	c, wl := crew(t)
	c.notes(t, wl, func(*batchv1.Job) {})
	cor := c.correction("team/w")
	if cor == nil || len(cor.claims) != 2 {
		t.Fatalf("not corrected: %+v", cor)
	}
	c.works["team/w"].lowered = cor.admission
	c.lost(c.pods["a"].object)
	c.lost(c.claims[inTeam("of-a")])
	lowered := c.claims[inTeam("of-b")].DeepCopy()
	lowered.ResourceVersion = "802"
	paid := ticket.Ticket{Workload: wl.Name, Price: pricing.Price{Devices: 1, Memory: 8 * gi}, Pools: []string{"n1"}}
	lowered.Annotations = paid.Annotations()
	c.saw(lowered)

	// The request is the admitted one. What the caller has seen of the Workload is
	// older than the correction: what is charged bounds the ticket.
	ask := asks("of-c", "c", 1)
	c.works["team/w"].asked = map[string][]resourceapi.DeviceClaim{mainSet: {ask.devices}}
	tick, err := c.ticketFor(ask, wl, wl.Status.Admission, mainSet, "n1")
	if err != nil || tick == nil || tick.Memory != 8*gi {
		t.Errorf("ticket %+v, %v; want one for 8Gi", tick, err)
	}
	c.written("team/w", ask)
	// Once it shows, the workload is to wait for what the pod may need.
	wl = wl.DeepCopy()
	wl.Status.Admission = cor.admission
	c.corrected(wl, cor.sets, "", time.Unix(0, 0))
	tick, err = c.ticketFor(ask, wl, wl.Status.Admission, mainSet, "n1")
	if want := new(outgrownError); tick != nil || !errors.As(err, &want) || !strings.Contains(want.text, "8Gi nvidia.com/gpu-memory for each pod") {
		t.Errorf("ticket %+v, %v; want none", tick, err)
	}
}

// TestASetThatIsNotCorrectedYetKeepsItsJobRunning: larger cards have come since the
// Job was admitted, and the first pod of its second set might be given one. It may
// have what it was admitted for; nobody is sent back into the queue for it, as would
// be for another pod of the set that was corrected.
func TestASetThatIsNotCorrectedYetKeepsItsJobRunning(t *testing.T) {
	c, wl := crew(t)
	wl = wl.DeepCopy()
	wl.ResourceVersion = "750"
	late := *wl.Status.Admission.PodSetAssignments[0].DeepCopy()
	late.Name = "late"
	wl.Status.Admission.PodSetAssignments = append(wl.Status.Admission.PodSetAssignments, late)
	c.saw(wl)
	c.notes(t, wl, func(*batchv1.Job) {})
	cor := c.correction("team/w")
	if cor == nil || len(cor.sets) != 1 || cor.sets[0] != 0 {
		t.Fatalf("not corrected: %+v", cor)
	}
	wl = wl.DeepCopy()
	wl.ResourceVersion, wl.Status.Admission = "760", cor.admission
	c.corrected(wl, cor.sets, "", time.Unix(0, 0))
	c.saw(wl)

	ask := asks("of-c", "c", 1)
	c.works["team/w"].asked = map[string][]resourceapi.DeviceClaim{mainSet: {ask.devices}, "late": {ask.devices}}
	tick, err := c.ticketFor(ask, wl, wl.Status.Admission, "late", "n1")
	if err != nil || tick == nil || tick.Memory != 9*gi {
		t.Errorf("ticket %+v, %v; want one for the 9Gi that it was admitted for", tick, err)
	}
	c.written("team/w", ask)
	if _, err := c.ticketFor(ask, wl, wl.Status.Admission, mainSet, "n1"); !errors.As(err, new(*outgrownError)) {
		t.Errorf("%v; want that the set which was corrected does not pay for it", err)
	}
	// The other set is corrected as well.
	c.corrected(wl, []int{1}, "", time.Unix(0, 0))
	if _, err := c.ticketFor(ask, wl, wl.Status.Admission, "late", "n1"); !errors.As(err, new(*outgrownError)) {
		t.Errorf("%v; want that neither set pays for it", err)
	}
}
