package controller_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	workloadwire "github.com/sluice-gpu/sluice/quota/internal/wire"
	"github.com/sluice-gpu/sluice/quota/pricing"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// The floor is what the same traffic costs without any decision: the same
// informers, with nothing done about what they show, and the same writes, by as
// many workers. What the controller takes beyond that is its own; what the floor
// takes is the price of the libraries, and the rate of the floor is what the API
// server can take here.

// A replica's orders may name a floor in place of the controller.
const (
	podsFloor      = "pods-floor"
	workloadsFloor = "workloads-floor"
)

// floorWorkers are as many as the reconcilers of one kind have.
const floorWorkers = 8

// floor answers each object that comes as the controller would, whatever it asks for.
type floor struct {
	client   client.Client
	recorder events.EventRecorder
	work     chan func(context.Context) error

	mu sync.Mutex
	// pools are those that a ticket names.
	pools []string
	// pods are those whose Workload is admitted, claims those that were made for a
	// pod, by the pod.
	pods   map[types.UID]*corev1.Pod
	claims map[types.UID]*resourceapi.ResourceClaim
}

// addFloor has a manager's process be the floor of one load.
func addFloor(ctx context.Context, mgr ctrl.Manager, load string) error {
	direct, err := workloadwire.New(mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetScheme())
	if err != nil {
		return err
	}
	recorder, err := controller.NewRecorder(mgr)
	if err != nil {
		return err
	}
	f := &floor{
		client: direct.Client(mgr.GetClient()), recorder: recorder,
		work: make(chan func(context.Context) error, 1<<20),
		pods: map[types.UID]*corev1.Pod{}, claims: map[types.UID]*resourceapi.ResourceClaim{},
	}
	answers := map[string]func(any){
		podsFloor: f.sawPodOrClaim, workloadsFloor: f.sawWorkload,
	}
	for _, o := range []client.Object{
		&kueue.ResourceFlavor{}, &kueue.Cohort{}, &kueue.ClusterQueue{}, &kueue.LocalQueue{}, &kueue.Workload{}, &kueue.AdmissionCheck{},
		&corev1.Namespace{}, &corev1.Node{}, &corev1.Pod{},
		&resourceapi.DeviceClass{}, &resourceapi.ResourceSlice{}, &resourceapi.ResourceClaim{}, &resourceapi.ResourceClaimTemplate{},
	} {
		informer, err := mgr.GetCache().GetInformer(ctx, o, crcache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: answers[load]}); err != nil {
			return err
		}
	}
	for range floorWorkers {
		if err := mgr.Add(manager.RunnableFunc(f.answer)); err != nil {
			return err
		}
	}
	return nil
}

func (f *floor) answer(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case write := <-f.work:
			if err := write(ctx); err != nil {
				return err
			}
		}
	}
}

func (f *floor) sawPodOrClaim(o any) {
	switch o := o.(type) {
	case *resourceapi.ResourceSlice:
		f.mu.Lock()
		f.pools = append(f.pools, o.Spec.Pool.Name)
		f.mu.Unlock()
	case *corev1.Pod:
		if controller.HasGate(o) {
			f.work <- func(ctx context.Context) error { return f.admit(ctx, o) }
		}
	case *resourceapi.ResourceClaim:
		if owner := metav1.GetControllerOf(o); owner != nil {
			f.open(owner.UID, nil, o)
		}
	}
}

func (f *floor) sawWorkload(o any) {
	if wl, ok := o.(*kueue.Workload); ok && wl.Status.Admission == nil {
		f.work <- func(ctx context.Context) error {
			wl = wl.DeepCopy()
			usage := wl.Spec.PodSets[0].Template.Spec.Containers[0].Resources.Requests
			return f.grant(ctx, wl, strings.TrimPrefix(string(wl.Spec.QueueName), "local-"), "default", usage, wl)
		}
	}
}

// admit makes a pod's Workload, and writes that it is admitted.
func (f *floor) admit(ctx context.Context, pod *corev1.Pod) error {
	spec := *pod.Spec.DeepCopy()
	spec.SchedulingGates = nil
	owner := metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))
	owner.BlockOwnerDeletion = nil
	wl := &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: floorName(pod), Finalizers: []string{controller.Finalizer},
			Labels: map[string]string{"kueue.x-k8s.io/job-uid": string(pod.UID)}, OwnerReferences: []metav1.OwnerReference{*owner},
		},
		Spec: kueue.WorkloadSpec{
			QueueName: "queue", Priority: pod.Spec.Priority,
			PodSets: []kueue.PodSet{{Name: "main", Count: 1, Template: corev1.PodTemplateSpec{Spec: spec}}},
		},
	}
	if err := f.client.Create(ctx, wl, client.FieldOwner(controller.FieldOwner)); err != nil {
		return err
	}
	usage := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), "nvidia.com/gpu-memory": resource.MustParse("10Gi"), "nvidia.com/gpu-core-percent": resource.MustParse("0")}
	user := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	if err := f.grant(ctx, wl, "queue", "gpu", usage, user); err != nil {
		return err
	}
	f.open(pod.UID, pod, nil)
	return nil
}

func floorName(pod *corev1.Pod) string { return "pod-" + pod.Name + "-a1b2c3" }

// grant writes that a Workload is admitted, and tells the user's object.
func (f *floor) grant(ctx context.Context, wl *kueue.Workload, queue, flavor string, usage corev1.ResourceList, user runtime.Object) error {
	given := kueue.PodSetAssignment{Name: "main", Count: ptr.To[int32](1), ResourceUsage: usage, Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{}}
	text := ""
	for r, n := range usage {
		given.Flavors[r] = kueue.ResourceFlavorReference(flavor)
		text += fmt.Sprintf(", %s %s of flavor %s", n.String(), r, flavor)
	}
	wl.Status.Admission = &kueue.Admission{ClusterQueue: kueue.ClusterQueueReference(queue), PodSetAssignments: []kueue.PodSetAssignment{given}}
	text = "Quota reserved in ClusterQueue " + queue + ": " + strings.TrimPrefix(text, ", ")
	for _, c := range []metav1.Condition{
		{Type: kueue.WorkloadQuotaReserved, Reason: "QuotaReserved", Message: "Quota reserved in ClusterQueue " + queue},
		{Type: kueue.WorkloadAdmitted, Reason: "Admitted", Message: "The workload is admitted"},
	} {
		c.Status, c.ObservedGeneration = metav1.ConditionTrue, wl.Generation
		meta.SetStatusCondition(&wl.Status.Conditions, c)
	}
	if err := f.client.Status().Update(ctx, wl, client.FieldOwner(controller.FieldOwner)); err != nil {
		return err
	}
	var related runtime.Object
	if user != wl {
		related = wl
	}
	f.recorder.Eventf(user, related, corev1.EventTypeNormal, "Admitted", "Quota", "%s", text)
	return nil
}

// open opens the gate of a pod once its Workload is admitted and its claim is there.
func (f *floor) open(uid types.UID, pod *corev1.Pod, claim *resourceapi.ResourceClaim) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if pod != nil {
		f.pods[uid] = pod
	}
	if claim != nil {
		f.claims[uid] = claim
	}
	if pod, claim = f.pods[uid], f.claims[uid]; pod != nil && claim != nil {
		f.work <- func(ctx context.Context) error { return f.ticketed(ctx, pod, claim.DeepCopy()) }
	}
}

// ticketed writes the ticket of a pod's claim, the node, and the open gate.
func (f *floor) ticketed(ctx context.Context, pod *corev1.Pod, claim *resourceapi.ResourceClaim) error {
	f.mu.Lock()
	t := ticket.Ticket{Workload: floorName(pod), Price: pricing.Price{Devices: 1, Memory: 10 << 30}, Pools: f.pools}
	f.mu.Unlock()
	claim.Annotations = maps.Clone(claim.Annotations)
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	maps.Copy(claim.Annotations, t.Annotations())
	if err := f.client.Update(ctx, claim, client.FieldOwner(controller.FieldOwner)); err != nil {
		return err
	}
	answer := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
	}
	place := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"nominatedNodeName":"node-0"}}`, pod.UID)
	if err := f.client.Status().Patch(ctx, answer, client.RawPatch(types.MergePatchType, place), client.FieldOwner(controller.FieldOwner)); err != nil {
		return err
	}
	gate := fmt.Appendf(nil, `{"metadata":{"uid":%q},"spec":{"schedulingGates":null}}`, pod.UID)
	return f.client.Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, gate), client.FieldOwner(controller.FieldOwner))
}

// BenchmarkWorkloadsFloor is BenchmarkWorkloads by the floor: whatever comes is
// admitted.
func BenchmarkWorkloadsFloor(b *testing.B) { benchWorkloads(b, workloadsFloor) }

// BenchmarkPodsFloor is BenchmarkPods by the floor: every pod goes to the same
// node.
func BenchmarkPodsFloor(b *testing.B) { benchPods(b, podsFloor) }
