package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// stage is a core with one node of whole cards, a queue that may use more of them
// than there are, and Workloads of pods that each want one.
type stage struct {
	*core
	version int
}

func newStage(t *testing.T, cards int) *stage {
	t.Helper()
	s := &stage{core: loaded(t)}
	s.synced = true
	now := time.Unix(1000, 0)
	s.now = func() time.Time { now = now.Add(time.Second); return now }
	s.furnish(cards)
	return s
}

// furnish shows the class, the node, the flavor and the queue.
func (s *stage) furnish(cards int) {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.sluice.dev"}}
	class.Spec.ExtendedResourceName = ptr.To("nvidia.com/gpu")
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.sluice.dev"`}}}
	s.saw(class)
	s.node("n1", cards)
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "q"}}
	cq.Spec.NamespaceSelector = &metav1.LabelSelector{}
	cq.Spec.QueueingStrategy = kueue.BestEffortFIFO
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{{CoveredResources: []corev1.ResourceName{"nvidia.com/gpu"}, Flavors: []kueue.FlavorQuotas{{
		Name: "gpu", Resources: []kueue.ResourceQuota{{Name: "nvidia.com/gpu", NominalQuota: resource.MustParse("100")}},
	}}}}
	lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "lq"}}
	lq.Spec.ClusterQueue = "q"
	for _, o := range []any{&kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}, cq, lq, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}} {
		s.saw(o)
	}
}

func (s *stage) node(name string, cards int) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	slice.Spec = resourceapi.ResourceSliceSpec{Driver: "gpu.sluice.dev", NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, ResourceSliceCount: 1}}
	for i := range cards {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", i), AllowMultipleAllocations: ptr.To(true),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("10Gi")}, "cores": {Value: resource.MustParse("100")}},
		})
	}
	s.saw(node)
	s.saw(slice)
}

func (s *stage) next() string {
	s.version++
	return fmt.Sprint(100 + s.version)
}

// workload shows a Workload of some pods; admitted says that the API shows it so.
func (s *stage) workload(name string, pods int32, admitted bool) *kueue.Workload {
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: workloadName("Job", name, types.UID("job-"+name)), UID: types.UID(name), Generation: 1, ResourceVersion: s.next(),
		CreationTimestamp: metav1.NewTime(time.Unix(int64(s.version), 0)),
		OwnerReferences:   []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: types.UID("job-" + name), Controller: ptr.To(true)}},
	}}
	wl.Spec.QueueName = "lq"
	set := kueue.PodSet{Name: mainSet, Count: pods}
	set.Template.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
	wl.Spec.PodSets = []kueue.PodSet{set}
	if admitted {
		wl.Status.Admission = grant("q", int64(pods))
		wl.Status.Admission.PodSetAssignments[0].Count = &pods
		for _, kind := range []string{reserved, admittedCondition} {
			wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue})
		}
	}
	s.saw(wl)
	return wl
}

// pod shows a pod of a Workload: gated, or past its gate, on a node if one is
// named.
func (s *stage) pod(wl *kueue.Workload, name, node string, gated bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: types.UID(name), ResourceVersion: s.next(),
		Labels:          map[string]string{WorkloadLabel: wl.Name, PodSetLabel: mainSet},
		OwnerReferences: wl.OwnerReferences,
	}, Spec: *wl.Spec.PodSets[0].Template.Spec.DeepCopy()}
	p.Spec.NodeName = node
	if gated {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: Gate}}
	}
	s.saw(p)
	return p
}

// given shows the claim of a pod with a card.
func (s *stage) given(wl *kueue.Workload, pod, node, card string) {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: pod, UID: types.UID("claim-" + pod), ResourceVersion: s.next(),
		Annotations:     map[string]string{ticket.ByWorkload: wl.Name},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: ptr.To(true)}},
	}}
	c.Status.Allocation = &resourceapi.AllocationResult{
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}},
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "container-0-request-0", Driver: "gpu.sluice.dev", Pool: node, Device: card, ShareID: ptr.To(types.UID(pod)),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi"), "cores": resource.MustParse("100")},
		}}},
	}
	s.saw(c)
}

// admits lists the jobs that the next look admits.
func (s *stage) admits() []string {
	var all []string
	for _, d := range s.decide() {
		if a, ok := d.(engine.Admit); ok {
			all = append(all, s.works[a.ID].object.OwnerReferences[0].Name)
		}
	}
	return all
}

// why is why a job waits.
func (s *stage) why(job string) string {
	why := s.engine.Why(workloadID("team", workloadName("Job", job, types.UID("job-"+job))))
	return why.String()
}

func (s *stage) open(t *testing.T, wl *kueue.Workload, pod string) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	node, err := s.place(workloadID(wl.Namespace, wl.Name), mainSet, types.UID(pod))
	if err != nil {
		t.Fatalf("%s: %v", pod, err)
	}
	return node
}

// A pod that got its card before the restart, and is looked at once more before it
// is on its node, must not use up the place that another pod of the workload needs.
func TestAfterARestartAPodWithItsDevicesTakesNobodysPlace(t *testing.T) {
	s := newStage(t, 2)
	wl := s.workload("runs", 2, true)
	s.pod(wl, "has", "", false)
	s.given(wl, "has", "n1", "gpu-0")
	s.pod(wl, "gated", "", true)
	s.decide()
	if node := s.open(t, wl, "has"); node != "n1" {
		t.Errorf("it is on its way to %q", node)
	}
	s.pod(wl, "has", "n1", false)
	s.workload("late", 1, false)
	if got := s.admits(); len(got) > 0 {
		t.Fatalf("%v admitted although one card is held and one promised", got)
	}
	s.open(t, wl, "gated")
}

// A pod past its gate is allocated while the new controller only watches: the
// place that was kept for it is free again.
func TestAfterARestartAPlaceIsNotKeptForAPodThatNeedsNone(t *testing.T) {
	s := newStage(t, 2)
	wl := s.workload("runs", 1, true)
	s.pod(wl, "opened", "", false)
	s.decide()
	s.given(wl, "opened", "n1", "gpu-1")
	s.pod(wl, "opened", "n1", false)
	s.workload("late", 1, false)
	if got := s.admits(); len(got) != 1 {
		t.Fatalf("admitted %v, want the one that has a card left: %v", got, s.why("late"))
	}
}

// The scheduler puts a pod elsewhere than where its place was. Who waits for that
// place learns of it without any other event.
func TestAPlaceThatIsNotUsedIsFreeForThoseWhoWait(t *testing.T) {
	s := newStage(t, 1)
	wl := s.workload("runs", 1, true)
	s.pod(wl, "opened", "", false)
	s.decide()
	s.open(t, wl, "opened")
	s.workload("late", 1, false)
	if got := s.admits(); len(got) > 0 {
		t.Fatal(got)
	}
	s.node("n2", 1)
	s.decide()
	// n2 was given to late; a third waits now.
	s.workload("third", 1, false)
	if got := s.admits(); len(got) > 0 {
		t.Fatal(got)
	}
	s.node("n3", 1)
	s.given(wl, "opened", "n3", "gpu-0")
	if got := s.admits(); len(got) != 1 || got[0] != "third" {
		t.Fatalf("admitted %v, want third: %v", got, s.why("third"))
	}
}

// Two workloads of one price may differ in what fit looks at.
func TestWhoCanRunIsNotHeldUpByAnEqualPriceThatCannot(t *testing.T) {
	s := newStage(t, 1)
	picky := s.workload("picky", 1, false).DeepCopy()
	picky.ResourceVersion = s.next()
	picky.Generation = 2
	picky.Spec.PodSets[0].Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}}}},
	}}}
	s.saw(picky)
	s.workload("plain", 1, false)
	if got := s.admits(); len(got) != 1 || got[0] != "plain" {
		t.Fatalf("admitted %v, want plain", got)
	}
}
