package controller_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// witness follows every version of every Workload and pod of a namespace.
type witness struct {
	mu sync.Mutex
	// answers are how often our check became ready, and reservations how often
	// quota was reserved, by Workload.
	answers, reservations map[types.UID]int
	ready, reserved       map[types.UID]bool
	// admitted is the version at which a Workload was admitted, 0 while it is not.
	admitted map[string]uint64
	// opened is the version at which a pod's gate opened, by pod.
	opened map[string]uint64
	seen   int
}

func watchBeside(t *testing.T, ctx context.Context, w *world) *witness {
	t.Helper()
	s := &witness{answers: map[types.UID]int{}, reservations: map[types.UID]int{}, ready: map[types.UID]bool{}, reserved: map[types.UID]bool{},
		admitted: map[string]uint64{}, opened: map[string]uint64{}}
	go func() {
		for e := range w.follow(ctx, t, &kueue.WorkloadList{}) {
			if wl, ok := e.Object.(*kueue.Workload); ok {
				s.workload(wl)
			}
		}
	}()
	go func() {
		for e := range w.follow(ctx, t, &corev1.PodList{}) {
			if p, ok := e.Object.(*corev1.Pod); ok {
				s.pod(p)
			}
		}
	}()
	return s
}

func versionOf(o client.Object) uint64 {
	n, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return n
}

func (s *witness) workload(wl *kueue.Workload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen++
	reserved := wl.Status.Admission != nil && !meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadEvicted)
	if reserved && !s.reserved[wl.UID] {
		s.reservations[wl.UID]++
	}
	s.reserved[wl.UID] = reserved
	ready := len(wl.Status.AdmissionChecks) > 0 && wl.Status.AdmissionChecks[0].State == kueue.CheckStateReady
	if ready && !s.ready[wl.UID] {
		s.answers[wl.UID]++
	}
	s.ready[wl.UID] = ready
	if meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted) && wl.Status.Admission != nil {
		if s.admitted[wl.Name] == 0 {
			s.admitted[wl.Name] = versionOf(wl)
		}
	} else {
		s.admitted[wl.Name] = 0
	}
}

func (s *witness) pod(p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !controller.HasGate(p) && s.opened[p.Name] == 0 {
		s.opened[p.Name] = versionOf(p)
	}
}

func (s *witness) versions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// usedBeside waits until Kueue says that so much is used by what is admitted.
func (w *world) usedBeside(t *testing.T, queue, resource, want string) {
	t.Helper()
	apitest.Eventually(t, patience, "use of "+queue, func(ctx context.Context) error {
		cq := &kueue.ClusterQueue{}
		if err := w.client.Get(ctx, client.ObjectKey{Name: queue}, cq); err != nil {
			return err
		}
		for _, f := range cq.Status.FlavorsUsage {
			for _, u := range f.Resources {
				if string(u.Name) == resource && u.Total.String() == want {
					return nil
				}
			}
		}
		return fmt.Errorf("%v", cq.Status.FlavorsUsage)
	})
}

// boundCount waits until exactly so many pods are on nodes.
func (w *world) boundCount(t *testing.T, want int) {
	t.Helper()
	apitest.Eventually(t, patience, fmt.Sprintf("%d pods bound", want), func(ctx context.Context) error {
		var pods corev1.PodList
		if err := w.client.List(ctx, &pods, client.InNamespace(w.ns)); err != nil {
			return err
		}
		n := 0
		for i := range pods.Items {
			if pods.Items[i].Spec.NodeName != "" {
				n++
			}
		}
		if n != want {
			return fmt.Errorf("%d are bound", n)
		}
		return nil
	})
}

// The controller is killed and started again at many instants, and a leader is
// followed by another replica: Kueue is answered once for each reservation, no gate
// opens before Kueue has admitted, and tickets and usage are those of what runs.
func TestBesideKueueNothingIsAnsweredTwiceHoweverOftenTheControllerIsKilled(t *testing.T) {
	const room, all = 6, 10
	w, _ := besideKueue(t)
	w.node(t, "n1", 2, "60Gi", "", nil)
	queue := w.checked(t, "q", w.flavor(t, "gpu", nil), fmt.Sprintf("nvidia.com/gpu=%d", all), "nvidia.com/gpu-memory=1000Gi")
	w.template(t, "t", "20Gi", "")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	seen := watchBeside(t, ctx, w)

	// Later and later in what there is to do.
	now := startReplica(t, w.Server, false, "engine: kueue")
	for i := range all {
		w.create(t, ours(withTemplate(pod(fmt.Sprintf("p-%d", i), "queue-q"), "t")))
	}
	for _, versions := range []int{4, 14, 30} {
		apitest.Eventually(t, patience, fmt.Sprintf("%d versions of Workloads", versions), func(context.Context) error {
			if n := seen.versions(); n < versions {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
		now.kill()
		now = startReplica(t, w.Server, false, "engine: kueue")
	}
	w.boundCount(t, room)
	now.kill()

	// Two replicas, of which the leader is killed as it opens what has become free.
	leader := startReplica(t, w.Server, true, "engine: kueue")
	apitest.Eventually(t, patience, "a leader", func(ctx context.Context) error {
		lease, err := w.Clients.CoordinationV1().Leases("sluice-system").Get(ctx, "sluice-quota", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			return fmt.Errorf("nobody leads")
		}
		return nil
	})
	startReplica(t, w.Server, true, "engine: kueue")
	var pods corev1.PodList
	if err := w.client.List(t.Context(), &pods, client.InNamespace(w.ns)); err != nil {
		t.Fatal(err)
	}
	ended := 0
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Spec.NodeName != "" && ended < 2 {
			w.end(t, p)
			ended++
		}
	}
	before := seen.versions()
	apitest.Eventually(t, patience, "the leader is at work", func(context.Context) error {
		if n := seen.versions(); n <= before {
			return fmt.Errorf("no Workload has changed")
		}
		return nil
	})
	leader.kill()
	w.boundCount(t, room+ended)
	w.usedBeside(t, queue, "nvidia.com/gpu", fmt.Sprint(room))

	var claims resourceapi.ResourceClaimList
	if err := w.client.List(t.Context(), &claims, client.InNamespace(w.ns)); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, patience, "all that was seen is in order", func(context.Context) error {
		// The witness may be behind.
		return seen.judge(claims.Items, room+ended)
	})
}

// judge says what was not in order.
func (s *witness) judge(claims []resourceapi.ResourceClaim, most int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, n := range s.answers {
		if n > s.reservations[uid] {
			return fmt.Errorf("Workload %s: quota was reserved %d times, and the check became ready %d times", uid, s.reservations[uid], n)
		}
	}
	tickets := 0
	for i := range claims {
		t, err := ticket.Read(claims[i].Annotations)
		if err != nil {
			return err
		}
		if t == nil {
			continue
		}
		tickets++
		pod := metav1.GetControllerOf(&claims[i]).Name
		if !strings.HasPrefix(t.Workload, "pod-"+pod+"-") || s.admitted[t.Workload] == 0 {
			return fmt.Errorf("claim of pod %s has a ticket of Workload %s, admitted at version %d", pod, t.Workload, s.admitted[t.Workload])
		}
	}
	if tickets > most {
		return fmt.Errorf("%d tickets, room was for %d", tickets, most)
	}
	for name, at := range s.opened {
		admitted := uint64(0)
		for wl, version := range s.admitted {
			if strings.HasPrefix(wl, "pod-"+name+"-") {
				admitted = version
			}
		}
		if admitted == 0 || admitted >= at {
			return fmt.Errorf("the gate of pod %s opened at version %d, Kueue admitted it at %d", name, at, admitted)
		}
	}
	return nil
}

// The budget allows it, all cards are in use: a job of lower priority of the same
// queue leaves them, by Kueue's own eviction, and comes back when there is room.
func TestBesideKueueALowerPriorityLeavesItsCardAndComesBack(t *testing.T) {
	w, _ := besideKueue(t)
	w.node(t, "a", 1, "80Gi", "", nil)
	queue := w.checked(t, "q", w.flavor(t, "f", nil), "nvidia.com/gpu=4", "nvidia.com/gpu-memory=400Gi")
	w.template(t, "half", "50Gi", "")
	urgent := &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "urgent"}, Value: 1000}
	if err := w.client.Create(t.Context(), urgent); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	w.startWith(t, "engine: kueue")
	low := w.besideJob("low", "queue-q", "half")
	delete(low.Labels, controller.PriorityLabel)
	w.create(t, low)
	w.jobRuns(t, "low")
	high := w.besideJob("high", "queue-q", "half")
	w.create(t, high)
	wl := w.workload(t, low, "evicted by its check", func(wl *kueue.Workload) bool {
		c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted)
		return c != nil && c.Reason == kueue.WorkloadEvictedByAdmissionCheck && strings.Contains(c.Message, "Preempted to make room on cards for Workload "+w.ns+"/job-high-")
	})
	w.queueSays(t, "low", "Preempted", "to make room on cards")
	if wl.Status.Admission == nil && w.besidePods(t, "low") > 0 {
		t.Error("its quota was given back while its pod was there")
	}
	w.vanishJob(t, "low")
	w.jobRuns(t, "high")
	w.usedBeside(t, queue, "nvidia.com/gpu", "1")
	// The other one waits for room, and gets nothing meanwhile.
	w.workload(t, low, "waits for room", func(wl *kueue.Workload) bool {
		return !meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted)
	})
	var pods corev1.PodList
	if err := w.client.List(t.Context(), &pods, client.InNamespace(w.ns), client.MatchingLabels{"batch.kubernetes.io/job-name": "high"}); err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	w.end(t, &pods.Items[0])
	w.jobRuns(t, "low")
}

func (w *world) besidePods(t *testing.T, job string) int {
	t.Helper()
	var pods corev1.PodList
	if err := w.client.List(t.Context(), &pods, client.InNamespace(w.ns), client.MatchingLabels{"batch.kubernetes.io/job-name": job}); err != nil {
		t.Fatal(err)
	}
	return len(pods.Items)
}

// vanishJob ends the pods of a job that were told to go, as a kubelet would.
func (w *world) vanishJob(t *testing.T, job string) {
	t.Helper()
	apitest.Eventually(t, patience, "pods of job "+job+" told to go", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := w.client.List(ctx, &pods, client.InNamespace(w.ns), client.MatchingLabels{"batch.kubernetes.io/job-name": job}); err != nil {
			return err
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; p.DeletionTimestamp == nil {
				return fmt.Errorf("pod %s is there", p.Name)
			}
			if err := client.IgnoreNotFound(w.client.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0))); err != nil {
				return err
			}
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		return nil
	})
}
