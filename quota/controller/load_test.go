package controller_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// Two loads on a real API server, with the controller in a process of its own.
// As tests they are small and watch that no budget is exceeded at any instant;
// as benchmarks they are large and tell what an admission costs.

// load is one server with the chart's policies and roles, for one load.
type load struct {
	*apitest.Server
	client client.WithWatch
}

func newLoad(t testing.TB) *load {
	t.Helper()
	s, err := apitest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	s.InstallCRDs(t)
	s.Apply(t, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: sluice-system}\n"))
	s.Apply(t, apitest.Render(t, []string{"quota-policies.yaml", "quota-rbac.yaml", "deviceclasses.yaml"}, "quota.enforce=all"))
	cfg := rest.CopyConfig(s.Admin)
	cfg.QPS, cfg.Burst = -1, 0
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: controller.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return &load{Server: s, client: c}
}

// replica runs the controller, or a floor, by a token of its service account: to be
// somebody else costs both sides something at each request.
func (l *load) replica(t testing.TB, floor string) *replica {
	t.Helper()
	name := strings.TrimPrefix(account, "system:serviceaccount:")
	namespace, name, _ := strings.Cut(name, ":")
	given, err := l.Clients.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return startReplicaWith(t, l.Server, replicaOrders{Floor: floor, Token: given.Status.Token})
}

func (l *load) make(t testing.TB, o client.Object) {
	t.Helper()
	if err := l.client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// watch watches objects of the namespace default, from a version on. It is
// patient: a server under load refuses, or says that its cache is behind.
func (l *load) watch(t testing.TB, list client.ObjectList, from string) watch.Interface {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		w, err := l.client.Watch(t.Context(), list, client.InNamespace("default"), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: from}})
		if err == nil {
			return w
		}
		if time.Now().After(deadline) || apierrors.IsResourceExpired(err) {
			t.Fatal(err)
		}
	}
}

// parallel calls f for 0..n-1 from 50 workers.
func parallel(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	next := make(chan int)
	for range 50 {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// cost is what a load took.
type cost struct {
	took                time.Duration
	cpu, writes, events float64
	// others is the processor time of the server's programs.
	others map[string]time.Duration
}

const (
	loadQueues  = 30
	loadCohorts = 5
	loadNominal = 20
)

// workloadsAlone makes workloads of three sizes in 30 queues of 5 cohorts, then
// starts the controller; 50 workers mark each finished as soon as it is
// admitted. It fails if a cohort is ever above its quota, unless by a floor, which
// knows of none.
func workloadsAlone(t testing.TB, n int, floor string) cost {
	l := newLoad(t)
	ctx := t.Context()
	l.make(t, &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	cohort := func(q int) int { return q % loadCohorts }
	// Room is not what this is about.
	parallel(t, 4, func(i int) error { return l.node(ctx, fmt.Sprintf("node-%d", i), "10000") })
	for q := range loadQueues {
		cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("queue-%d", q)}}
		cq.Spec.CohortName = kueue.CohortReference(fmt.Sprintf("cohort-%d", cohort(q)))
		cq.Spec.NamespaceSelector = &metav1.LabelSelector{}
		cq.Spec.ResourceGroups = []kueue.ResourceGroup{{
			CoveredResources: []corev1.ResourceName{"cpu"},
			Flavors: []kueue.FlavorQuotas{{Name: "default", Resources: []kueue.ResourceQuota{{
				Name: "cpu", NominalQuota: *resource.NewQuantity(loadNominal, resource.DecimalSI), BorrowingLimit: ptr.To(resource.MustParse("100")),
			}}}},
		}}
		l.make(t, cq)
		lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("queue-%d", q)}}
		lq.Spec.ClusterQueue = kueue.ClusterQueueReference(cq.Name)
		l.make(t, lq)
	}
	parallel(t, n, func(i int) error {
		// Of 500: 350 small, 100 medium, 50 large ones.
		cpu, priority := "1", int32(50)
		switch k := i / loadQueues % 10; {
		case k == 9:
			cpu, priority = "20", 200
		case k >= 7:
			cpu, priority = "5", 100
		}
		wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("w-%d", i)}}
		wl.Spec.QueueName = kueue.LocalQueueName(fmt.Sprintf("queue-%d", i%loadQueues))
		wl.Spec.Priority = &priority
		wl.Spec.PodSets = []kueue.PodSet{{Name: "main", Count: 1, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}}},
		}}}}
		return l.client.Create(ctx, wl)
	})

	following, stop := context.WithCancel(ctx)
	defer stop()
	news := follow(following, t, l.client, &kueue.WorkloadList{}, "")
	before := l.others(t)
	began := time.Now()
	r := l.replica(t, floor)
	done := r.profiled(t, cmp.Or(floor, "workloads"))

	used := map[int]int64{}
	held := map[types.UID]int64{}
	admitted := map[types.UID]bool{}
	finish := make(chan *kueue.Workload, n)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for wl := range finish {
				if err := l.finish(ctx, wl); err != nil {
					t.Error(err)
				}
			}
		})
	}
	patience := time.After(10 * time.Minute)
	for len(admitted) < n {
		select {
		case <-patience:
			t.Fatalf("%d of %d admitted", len(admitted), n)
		case e, ok := <-news:
			if !ok {
				t.Fatal("the watch ended")
			}
			wl, ok := e.Object.(*kueue.Workload)
			if !ok {
				t.Fatalf("watch: %v", e.Object)
			}
			var i int
			if _, err := fmt.Sscanf(wl.Name, "w-%d", &i); err != nil {
				t.Fatal(err)
			}
			now := int64(0)
			if a := wl.Status.Admission; a != nil && !meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadFinished) {
				q := a.PodSetAssignments[0].ResourceUsage["cpu"]
				now = q.Value()
			}
			c := cohort(i % loadQueues)
			used[c] += now - held[wl.UID]
			held[wl.UID] = now
			if most := int64(loadNominal * loadQueues / loadCohorts); used[c] > most && floor == "" {
				t.Fatalf("cohort %d uses %d of %d", c, used[c], most)
			}
			if now > 0 && !admitted[wl.UID] && meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted) {
				admitted[wl.UID] = true
				finish <- wl
			}
		}
	}
	took := time.Since(began)
	close(finish)
	wg.Wait()
	done()
	others := l.others(t)
	for name := range others {
		others[name] -= before[name]
	}
	events := l.events(t)
	return cost{took: took, cpu: r.cpu(t), writes: r.writes(t) - events, events: events, others: others}
}

func (l *load) finish(ctx context.Context, wl *kueue.Workload) error {
	for {
		meta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue, Reason: kueue.WorkloadFinishedReasonSucceeded, Message: "done"})
		err := l.client.Status().Update(ctx, wl)
		if err == nil {
			return nil
		}
		if err := l.client.Get(ctx, client.ObjectKeyFromObject(wl), wl); err != nil {
			return err
		}
	}
}

// others is the processor time that the server's programs have taken.
func (l *load) others(t testing.TB) map[string]time.Duration {
	t.Helper()
	all, err := l.CPU()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// events counts the writes of the controller's events.
func (l *load) events(t testing.TB) float64 {
	t.Helper()
	list, err := l.Clients.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0.0
	for i := range list.Items {
		if list.Items[i].ReportingController == "sluice-quota" {
			n++
		}
	}
	return n
}

// podsWithClaims makes pods with a slice each on bare nodes that have room for
// all of them, at the pace given (0 is all at once), and waits until every gate
// is open. It returns how long each took from its creation.
func podsWithClaims(t testing.TB, l *load, name string, n int, pace time.Duration) []time.Duration {
	ctx := t.Context()
	watch := l.watch(t, &corev1.PodList{}, "")
	defer func() { watch.Stop() }()
	var mu sync.Mutex
	made := map[string]time.Time{}
	one := func(i int) error {
		p := gated(withTemplate(pod(fmt.Sprintf("%s-%d", name, i), "queue"), "slice"))
		p.Namespace = "default"
		mu.Lock()
		made[p.Name] = time.Now()
		mu.Unlock()
		return l.client.Create(ctx, p)
	}
	go func() {
		if pace == 0 {
			parallel(t, n, one)
			return
		}
		for i := range n {
			if err := one(i); err != nil {
				t.Error(err)
			}
			time.Sleep(pace)
		}
	}()
	var waited []time.Duration
	open := map[types.UID]bool{}
	patience := time.After(10 * time.Minute)
	for len(open) < n {
		select {
		case <-patience:
			t.Fatalf("%d of %d gates are open", len(open), n)
		case e, ok := <-watch.ResultChan():
			p, is := e.Object.(*corev1.Pod)
			if !ok || !is {
				// The server ends watches that fall behind; a new one begins with
				// what there is.
				watch.Stop()
				watch = l.watch(t, &corev1.PodList{}, "")
				continue
			}
			mu.Lock()
			at, mine := made[p.Name]
			mu.Unlock()
			if !mine || controller.HasGate(p) || open[p.UID] {
				continue
			}
			open[p.UID] = true
			waited = append(waited, time.Since(at))
		}
	}
	slices.Sort(waited)
	return waited
}

// node makes a bare node that is ready.
func (l *load) node(ctx context.Context, name, cpu string) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}}
	if err := l.client.Create(ctx, n); err != nil {
		return err
	}
	n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("512Gi"), "pods": resource.MustParse("10k")}
	n.Status.Capacity = n.Status.Allocatable
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := l.client.Status().Update(ctx, n); err != nil {
		return err
	}
	return l.client.Patch(ctx, n, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":null}}`)))
}

// podBudget makes nodes with cards of 80Gi and one queue over them.
func (l *load) podBudget(t testing.TB, nodes, cards int) {
	t.Helper()
	ctx := t.Context()
	parallel(t, nodes, func(i int) error {
		name := fmt.Sprintf("node-%d", i)
		if err := l.node(ctx, name, "64"); err != nil {
			return err
		}
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
			Driver: "gpu.sluice.dev", NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
		}}
		for c := range cards {
			s.Spec.Devices = append(s.Spec.Devices, gpuCard(fmt.Sprintf("gpu-%d", c), "80Gi", ""))
		}
		return l.client.Create(ctx, s)
	})
	l.make(t, &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "queue"}}
	cq.Spec.NamespaceSelector = &metav1.LabelSelector{}
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{{
		CoveredResources: []corev1.ResourceName{"nvidia.com/gpu", "nvidia.com/gpu-memory"},
		Flavors: []kueue.FlavorQuotas{{Name: "gpu", Resources: []kueue.ResourceQuota{
			{Name: "nvidia.com/gpu", NominalQuota: resource.MustParse("100k")}, {Name: "nvidia.com/gpu-memory", NominalQuota: resource.MustParse("1Pi")},
		}}},
	}}
	l.make(t, cq)
	lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "queue"}}
	lq.Spec.ClusterQueue = "queue"
	l.make(t, lq)
	x := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "slice"}}
	x.Spec.Spec = claimSpec("10Gi", "")
	l.make(t, x)
}

// BenchmarkWorkloads tells the cost of an admission alone, over as many as
// -benchtime says: 5000x.
func BenchmarkWorkloads(b *testing.B) { benchWorkloads(b, "") }

func benchWorkloads(b *testing.B, floor string) {
	if b.N == 1 {
		return // the benchmark framework's trial
	}
	n := float64(b.N)
	c := workloadsAlone(b, b.N, floor)
	b.ReportMetric(n/c.took.Seconds(), "admissions/s")
	b.ReportMetric(1000*c.cpu/n, "cpu-ms/workload")
	b.ReportMetric(c.writes/n, "writes/workload")
	b.ReportMetric(c.events/n, "events/workload")
	for name, spent := range c.others {
		b.ReportMetric(1000*spent.Seconds()/n, name+"-cpu-ms/workload")
	}
}

// BenchmarkPods tells the cost from a pod to its open gate.
func BenchmarkPods(b *testing.B) { benchPods(b, "") }

func benchPods(b *testing.B, floor string) {
	if b.N == 1 {
		return
	}
	n := float64(b.N)
	l := newLoad(b)
	if err := l.StartControllerManager("resourceclaim-controller"); err != nil {
		b.Fatal(err)
	}
	// Room for all: 64 slices a node, and nobody ends.
	l.podBudget(b, 1+(b.N+300)/50, 8)
	r := l.replica(b, floor)
	// What is measured is a pod that comes to a controller at work, and not how long
	// that takes to start.
	podsWithClaims(b, l, "first", 1, 0)
	alone := podsWithClaims(b, l, "alone", 300, 100*time.Millisecond)
	cpu, writes, events, others := r.cpu(b), r.writes(b), l.events(b), l.others(b)
	done := r.profiled(b, cmp.Or(floor, "pods"))
	began := time.Now()
	podsWithClaims(b, l, "many", b.N, 0)
	took := time.Since(began)
	done()
	for name, spent := range l.others(b) {
		b.ReportMetric(1000*(spent-others[name]).Seconds()/n, name+"-cpu-ms/pod")
	}
	b.ReportMetric(n/took.Seconds(), "gates/s")
	b.ReportMetric(1000*(r.cpu(b)-cpu)/n, "cpu-ms/pod")
	e := l.events(b) - events
	b.ReportMetric((r.writes(b)-writes-e)/n, "writes/pod")
	b.ReportMetric(e/n, "events/pod")
	b.ReportMetric(float64(alone[len(alone)/2].Milliseconds()), "alone-p50-ms")
	b.ReportMetric(float64(alone[len(alone)*99/100].Milliseconds()), "alone-p99-ms")
}
