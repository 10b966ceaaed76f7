package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/beside"
	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
	"github.com/sluice-gpu/sluice/quota/translate"
)

// This file is the controller where a manager of Kueue admits. The engine is told
// of everything as ever, and asked nothing. Workloads are priced when they are
// made; Kueue reserves their quota; an AdmissionCheck of ours is Ready when their
// pods have room; Kueue admits and evicts, and what that means is carried out as
// ever.

// CheckController is the controllerName of the AdmissionChecks that are answered
// here.
const CheckController = "quota.sluice.dev/fit"

// outcome is how a user's object has ended.
type outcome struct {
	succeeded bool
	message   string
}

// queueLabel is the label by which an object names its LocalQueue. Where Kueue
// admits, Kueue's own label belongs to Kueue's integrations: an object with it
// would be governed twice.
func (c *core) queueLabel() string {
	if c.beside {
		return BesideQueueLabel
	}
	return QueueLabel
}

// errDoubly says why an object is left to Kueue.
var errDoubly = fmt.Errorf("it names a queue of Kueue's integrations by label %s and one here by %s, and only one can start it: make it again with one of the labels", QueueLabel, BesideQueueLabel)

// doubly says whether an object is to be governed by Kueue's integrations, too. The
// webhook takes their label off, so it was not asked.
func (c *core) doubly(o client.Object) bool {
	return c.beside && o.GetLabels()[QueueLabel] != "" && o.GetLabels()[BesideQueueLabel] != ""
}

// chargesFor prices a Workload in what its ClusterQueue counts, by pod set. Of
// several flavors that could serve it the dearest decides: which one Kueue will
// choose is not known.
func (c *core) chargesFor(wl *kueue.Workload) (map[string]beside.Charge, error) {
	covered, flavors := c.coveredBy(wl)
	charges := map[string]beside.Charge{}
	for i := range wl.Spec.PodSets {
		set := &wl.Spec.PodSets[i]
		needs, _, err := c.podSet(wl, set)
		if err != nil {
			return nil, err
		}
		charge := beside.Charge{Amounts: corev1.ResourceList{}, Instead: c.standIns(wl, &set.Template)}
		_, asks := needs.Requests[engine.Resource(devices[0])]
		most, served := engine.Amounts{}, false
		for flavor, amounts := range needs.ByFlavor {
			if flavors != nil && !flavors[flavor] {
				continue
			}
			served = true
			for r, n := range amounts {
				most[r] = max(most[r], n)
			}
		}
		switch {
		case asks && !served && len(needs.Unfit) > 0:
			return nil, fmt.Errorf("no flavor can serve it: %s", reasonsOf(needs.Unfit, flavors))
		case asks && !served:
			most = needs.Requests
		}
		if asks {
			for _, r := range c.priced() {
				if n, ok := most[r]; ok && (covered == nil || covered[r]) {
					charge.Amounts[corev1.ResourceName(r)] = translate.Quantity(r, n)
				}
			}
		}
		charges[string(set.Name)] = charge
	}
	return charges, nil
}

// priced are all resources that devices cost.
func (c *core) priced() []engine.Resource {
	all := slices.Clone(devices)
	for _, name := range c.dimensions.Names() {
		all = append(all, engine.Resource(name))
	}
	return all
}

// coveredBy are the priced resources that a Workload's ClusterQueue covers, and the
// flavors that it covers them with; nil if none or not known. Where none is
// covered, all are charged: Kueue, which has no quota for them, admits nothing.
func (c *core) coveredBy(wl *kueue.Workload) (map[engine.Resource]bool, map[engine.FlavorName]bool) {
	local := c.locals[types.NamespacedName{Namespace: wl.Namespace, Name: string(wl.Spec.QueueName)}]
	if local == nil {
		return nil, nil
	}
	queue := c.queues[string(local.Spec.ClusterQueue)]
	if queue == nil {
		return nil, nil
	}
	covered, flavors := map[engine.Resource]bool{}, map[engine.FlavorName]bool{}
	for _, g := range queue.Spec.ResourceGroups {
		for _, r := range c.priced() {
			if slices.Contains(g.CoveredResources, corev1.ResourceName(r)) {
				covered[r] = true
				for _, f := range g.Flavors {
					flavors[engine.FlavorName(f.Name)] = true
				}
			}
		}
	}
	if !slices.ContainsFunc(devices, func(r engine.Resource) bool { return covered[r] }) {
		return nil, nil
	}
	return covered, flavors
}

// standIns are the requests of a template that stand for devices.
func (c *core) standIns(wl *kueue.Workload, template *corev1.PodTemplateSpec) []corev1.ResourceName {
	asks, err := c.asks(wl, template)
	if err != nil {
		return nil
	}
	rest := podRequests(asks.spec)
	var names []corev1.ResourceName
	for _, name := range slices.Sorted(maps.Keys(podRequests(&template.Spec))) {
		if _, stays := rest[name]; !stays || slices.Contains(asks.names, name) {
			names = append(names, name)
		}
	}
	return names
}

func reasonsOf(unfit map[engine.FlavorName]string, flavors map[engine.FlavorName]bool) string {
	var all []string
	for _, f := range slices.Sorted(maps.Keys(unfit)) {
		if flavors == nil || flavors[f] {
			all = append(all, fmt.Sprintf("%s: %s", f, unfit[f]))
		}
	}
	return strings.Join(all, "; ")
}

// charge notes on a Workload that is about to be written what it costs. An error
// is one that passes: the object is to be looked at again.
func (s *sources) charge(owner client.Object, wl *kueue.Workload) error {
	if !s.beside {
		return nil
	}
	s.mu.Lock()
	charges, err := s.chargesFor(wl)
	s.mu.Unlock()
	if err != nil {
		s.event(owner, corev1.EventTypeWarning, "NotQueued", "Not queued: %s", err)
		return apierrors.NewConflict(kueue.Resource("workloads"), wl.Name, err)
	}
	beside.SetCharges(wl, charges)
	return nil
}

// recharge brings the price of a Workload that waits up to date.
func (r *workloads) recharge(ctx context.Context, wl *kueue.Workload) error {
	have := beside.Charges(wl)
	if have == nil {
		return nil
	}
	r.mu.Lock()
	now, err := r.chargesFor(wl)
	r.mu.Unlock()
	if err != nil || maps.EqualFunc(now, have, beside.Charge.Equal) {
		// Without a price it keeps the last one, and finds no room.
		return nil
	}
	wl = wl.DeepCopy()
	beside.SetCharges(wl, now)
	if err := r.client.Update(ctx, wl, client.FieldOwner(FieldOwner)); err != nil {
		return client.IgnoreNotFound(ignoreConflict(err))
	}
	r.saw(wl.DeepCopy())
	return nil
}

// ourChecks are the states of checks in a Workload's status that are answered
// here.
func (c *core) ourChecks(wl *kueue.Workload) []*kueue.AdmissionCheckState {
	var ours []*kueue.AdmissionCheckState
	for i := range wl.Status.AdmissionChecks {
		s := &wl.Status.AdmissionChecks[i]
		if check := c.checks[string(s.Name)]; check != nil && check.Spec.ControllerName == CheckController {
			ours = append(ours, s)
		}
	}
	return ours
}

// follow does for one Workload what Kueue's decisions ask for.
func (r *workloads) follow(ctx context.Context, wl *kueue.Workload, id engine.WorkloadID, v view) (ctrl.Result, error) {
	reserved := wl.Status.Admission != nil
	switch {
	case conditionTrue(wl, kueue.WorkloadFinished):
		return r.finish(ctx, wl, id, v)
	case v.ended != nil:
		return r.finished(ctx, wl, v)
	case reserved && conditionTrue(wl, kueue.WorkloadEvicted):
		return r.handBack(ctx, wl, id)
	case reserved && wl.DeletionTimestamp != nil:
		return r.depart(ctx, wl, v)
	case reserved && v.yields != "":
		return r.makeRoom(ctx, wl, id)
	case reserved && !conditionTrue(wl, kueue.WorkloadAdmitted):
		return r.answer(ctx, wl, v)
	case reserved && !v.stalled.since.IsZero() && v.checked:
		return r.stalls(ctx, wl, v)
	case reserved:
		return ctrl.Result{}, r.report(ctx, wl, v)
	case v.lost != nil:
		return r.regain(ctx, wl, id, v)
	case wl.DeletionTimestamp != nil:
		return ctrl.Result{}, r.unprotect(ctx, wl)
	}
	return ctrl.Result{}, r.recharge(ctx, wl)
}

// finished marks a Workload finished whose owner has ended, once nothing is in
// use: Kueue frees the quota at once.
func (r *workloads) finished(ctx context.Context, wl *kueue.Workload, v view) (ctrl.Result, error) {
	if v.holds {
		return ctrl.Result{RequeueAfter: recheck}, nil
	}
	if charged, err := r.ledger.charged(ctx, wl); err != nil || charged {
		return ctrl.Result{RequeueAfter: recheck}, err
	}
	return ctrl.Result{}, ignoreConflict(r.markFinished(ctx, wl, *v.ended))
}

// report tells Kueue whether the pods of an admitted workload are ready, which
// its waitForPodsReady asks.
func (r *workloads) report(ctx context.Context, wl *kueue.Workload, v view) error {
	wl = wl.DeepCopy()
	if !lifecycle.Ready(wl, v.ready, r.now()) {
		return nil
	}
	if !v.checked && !v.ready {
		r.event(wl, corev1.EventTypeWarning, "NotChecked", fmt.Sprintf("ClusterQueue %s admitted it without asking whether cards have room: name an AdmissionCheck of %s in its admissionChecksStrategy", wl.Status.Admission.ClusterQueue, CheckController))
	}
	return client.IgnoreNotFound(ignoreConflict(r.write(ctx, wl)))
}

// handBack gives the quota of a workload that Kueue has evicted back, once
// nothing is in use. Kueue puts it into its queue again.
func (r *workloads) handBack(ctx context.Context, wl *kueue.Workload, id engine.WorkloadID) (ctrl.Result, error) {
	r.mu.Lock()
	again := r.mayComeAgain(wl)
	r.mu.Unlock()
	if free, result, err := r.cleared(ctx, wl, id); !free || err != nil {
		return result, err
	}
	wl = wl.DeepCopy()
	lifecycle.HandBack(wl, again, r.now())
	return ctrl.Result{}, client.IgnoreNotFound(ignoreConflict(r.write(ctx, wl)))
}

// mayComeAgain says whether there is anything to admit again: a pod that had left
// its gate is deleted when it is evicted.
func (c *core) mayComeAgain(wl *kueue.Workload) bool {
	owner := metav1.GetControllerOf(wl)
	if owner == nil || owner.Kind != "Pod" {
		return true
	}
	p := c.pods[owner.UID]
	return p != nil && p.gated && !p.deleting
}

// checkReconciler says of AdmissionChecks that they are answered here.
type checkReconciler struct{ client client.Client }

// Reconcile implements reconcile.Reconciler.
func (r *checkReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	check := &kueue.AdmissionCheck{}
	if err := r.client.Get(ctx, req.NamespacedName, check); err != nil || check.Spec.ControllerName != CheckController {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	changed := check.DeepCopy()
	if !meta.SetStatusCondition(&changed.Status.Conditions, metav1.Condition{
		Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue, Reason: "Active", Message: "Sluice answers it", ObservedGeneration: check.Generation,
	}) {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(ignoreConflict(r.client.Status().Update(ctx, changed, client.FieldOwner(FieldOwner))))
}

// addAdmission adds what answers Kueue, or what writes the statuses of queues,
// which Kueue does itself.
func addAdmission(mgr ctrl.Manager, c *core, api client.Client, m *metrics, recorder events.EventRecorder) error {
	if !c.beside {
		return mgr.Add(newStatuses(c, api, m, recorder))
	}
	return ctrl.NewControllerManagedBy(mgr).Named("check").For(&kueue.AdmissionCheck{}).Complete(&checkReconciler{client: api})
}

// openWorkload opens Workloads as they come into the cache.
func openWorkload(o any) (any, error) {
	o, err := cache.TransformStripManagedFields()(o)
	if wl, ok := o.(*kueue.Workload); ok && err == nil {
		// One that cannot be opened asks for what is in it, and gets no more.
		_ = beside.Open(wl)
	}
	return o, err
}
