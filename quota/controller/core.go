package controller

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/fit"
	"github.com/sluice-gpu/sluice/quota/jobs"
	"github.com/sluice-gpu/sluice/quota/lifecycle"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// core is what is known: the engine, the cards, and the objects that both are
// derived from. feed.go takes facts in, decide.go takes decisions out,
// everything else asks it questions. All of it is behind one lock, and nothing
// under the lock waits for the API.
type core struct {
	mu     sync.Mutex
	now    func() time.Time
	engine *engine.Engine
	fit    *fit.State
	// dimensions are what budgets count beside devices, memory and cores;
	// flavorOrder is the one that flavors are ordered by.
	dimensions  *pricing.Dimensions
	flavorOrder string

	// rules are those for workloads that are admitted, fair says that shares are
	// what queues are compared by.
	rules lifecycle.Rules
	fair  bool

	works     map[engine.WorkloadID]*work
	counts    counts
	checks    map[string]*kueue.AdmissionCheck
	queues    map[string]*kueue.ClusterQueue
	locals    map[types.NamespacedName]*kueue.LocalQueue
	flavors   map[string]*kueue.ResourceFlavor
	nodes     map[string]*corev1.Node
	slices    map[string]*resourceapi.ResourceSlice
	templates map[types.NamespacedName]*resourceapi.ResourceClaimTemplate
	claims    map[types.NamespacedName]*resourceapi.ResourceClaim
	charges   map[engine.WorkloadID]map[types.UID]types.NamespacedName
	// synced says that all claims which were there at the start are known.
	synced bool
	// writing are tickets that charges does not show yet.
	writing map[engine.WorkloadID]map[types.UID]spend
	// claimsOf are the claims that were made for a pod alone.
	claimsOf map[types.UID]map[types.NamespacedName]*resourceapi.ResourceClaim
	pods     map[types.UID]*podFact
	// kinds are the kinds of jobs that are governed, owners the jobs of them,
	// under what each of them controls, departed those that are gone but have
	// members; see owners.go.
	kinds    *jobs.Table
	owners   map[types.UID]*ownerFact
	jobs     map[jobRequest]types.UID
	under    map[types.UID]map[types.UID]struct{}
	departed map[types.UID]struct{}
	// promised are birth tickets by their pods, promises the pods by the workload
	// that pays.
	promised map[types.UID]promise
	promises map[engine.WorkloadID]map[types.UID]struct{}
	unnamed  unnamed
	podsOf   map[engine.WorkloadID]map[types.UID]*podFact

	// fleets and prices are derived, and dropped when what they are derived from
	// changes.
	fleets map[string]*pricing.Fleet
	prices map[string]priced
	// sizes are the memory sizes of the cards.
	sizes []int64
	// published are the devices, by pool and name.
	published map[[2]string]*pricing.Device
	// poolNames are the pools of each flavor.
	poolNames map[string]*flavorPools
	// scores order the flavors; orderDue says that they may have changed.
	scores   map[engine.FlavorName]int64
	orderDue bool

	dirty map[engine.WorkloadID]struct{}
	// unplaced are workloads that hold quota and may lack a place for some pod.
	unplaced map[engine.WorkloadID]struct{}
	// retell says that reasons to wait may be others although nothing was tried:
	// a queue was stopped, a namespace has other labels. generations are those of
	// the queues' specs.
	retell      bool
	generations map[types.UID]int64
	news        news
	room        bool
	kick        chan struct{}
	// stale says that statuses of queues may have to be written.
	stale bool
	// caughtUp says that everything is known which an earlier leader has written.
	caughtUp bool
	// beside says that a manager of Kueue admits; see kueuemode.go.
	beside bool
	rooms  questions
	// halted says why nothing may be admitted at the moment; see halt.go.
	halted string
	// decides says that from now on every admission in the API was decided here.
	decides bool
	// gone are objects that were removed a moment ago, echoes versions that were
	// written here.
	gone   tombstones
	echoes echoes
	// tell asks for a Workload to be looked at, tellJob and tellPod for a job and a
	// pod.
	tell    func(engine.WorkloadID)
	tellJob func(jobRequest)
	tellPod func(types.NamespacedName)
	// roomless are pods that found no room when their gate was to open, awaiting
	// those that wait for others of their workload.
	roomless map[types.NamespacedName]struct{}
	awaiting map[engine.WorkloadID]map[types.NamespacedName]struct{}
	// comingDue says that pods on their way to a place are to be looked at again,
	// comingAt when that was done last.
	comingDue bool
	comingAt  time.Time
}

// work is one Workload.
type work struct {
	id     engine.WorkloadID
	object *kueue.Workload
	// told says that the engine knows it, placed that room was looked for, lost
	// that the API has removed it.
	// foreign that quota was reserved for it by somebody else.
	told, placed, lost, foreign bool
	// late says that its admission was not decided here; see late.go.
	late bool
	// roomless is why there is no room for it, ended how its owner has ended;
	// both only where a manager of Kueue admits.
	roomless string
	ended    *outcome
	// awaits are those that leave their places for it, yields is why it has to leave
	// its own, for yieldsTo, stalled that it could not begin; these too.
	awaits   []engine.WorkloadID
	yields   string
	yieldsTo engine.WorkloadID
	stalled  stall
	// asked is what one pod of each set asks for, as it was admitted.
	asked map[string][]resourceapi.DeviceClaim
	// generation is that of the spec which the engine was told, decided that of
	// the one which admit is about.
	generation, decided int64
	// admit and evict are decisions that are not written yet.
	admit *engine.Admit
	evict *engine.Evict
	// giving is how many pods of each set it does without, which its status may not
	// show yet.
	giving map[string]int32
	// last has the sets of its job in which no pod is made in place of one that
	// fails, and how many pods each of them can still need, 0 where that is not known.
	last map[string]int32
	// lowered is what it is about to be charged, for what was allocated; see
	// correct.go. Its status may not show it yet.
	lowered *kueue.Admission
	// beyond are pods whose users know that they are more than were admitted,
	// beyondTold says that the job's user knows of such.
	beyond     map[types.UID]struct{}
	beyondTold bool
	// reasonAt is when the numbers in its reason to wait were last refreshed.
	reasonAt time.Time
}

// podFact is what is remembered of a pod.
type podFact struct {
	name     types.NamespacedName
	uid      types.UID
	workload engine.WorkloadID
	set      string
	owner    types.UID
	// parent is the job that controls it, "" if none does.
	parent  types.UID
	object  *corev1.Pod
	created time.Time
	gated   bool
	ended   bool
	ready   bool
	// told says that it knows of its preemption.
	told     bool
	bound    string
	deleting bool
	version  uint64
}

func newCore(c *config.QuotaConfiguration) *core {
	counted := slices.Clone(devices)
	for _, name := range c.Pricing().Names() {
		counted = append(counted, engine.Resource(name))
	}
	return &core{
		now:        time.Now,
		engine:     engine.New(c.EngineOptions(counted...)...),
		dimensions: c.Pricing(), flavorOrder: c.FlavorOrder,
		fit:         fit.New(fit.Policy(c.Placement)),
		rules:       c.Lifecycle(),
		beside:      c.BesideKueue(),
		rooms:       newQuestions(),
		fair:        c.FairSharing != nil,
		works:       map[engine.WorkloadID]*work{},
		counts:      newCounts(),
		checks:      map[string]*kueue.AdmissionCheck{},
		queues:      map[string]*kueue.ClusterQueue{},
		flavors:     map[string]*kueue.ResourceFlavor{},
		nodes:       map[string]*corev1.Node{},
		slices:      map[string]*resourceapi.ResourceSlice{},
		templates:   map[types.NamespacedName]*resourceapi.ResourceClaimTemplate{},
		claims:      map[types.NamespacedName]*resourceapi.ResourceClaim{},
		charges:     map[engine.WorkloadID]map[types.UID]types.NamespacedName{},
		writing:     map[engine.WorkloadID]map[types.UID]spend{},
		claimsOf:    map[types.UID]map[types.NamespacedName]*resourceapi.ResourceClaim{},
		pods:        map[types.UID]*podFact{},
		podsOf:      map[engine.WorkloadID]map[types.UID]*podFact{},
		prices:      map[string]priced{},
		dirty:       map[engine.WorkloadID]struct{}{},
		unplaced:    map[engine.WorkloadID]struct{}{},
		kick:        make(chan struct{}, 1),
		kinds:       c.Jobs(),
		owners:      map[types.UID]*ownerFact{},
		jobs:        map[jobRequest]types.UID{},
		under:       map[types.UID]map[types.UID]struct{}{},
		departed:    map[types.UID]struct{}{},
		unnamed:     newUnnamed(c),
		tell:        func(engine.WorkloadID) {},
		tellJob:     func(jobRequest) {},
		tellPod:     func(types.NamespacedName) {},
		promised:    map[types.UID]promise{},
		promises:    map[engine.WorkloadID]map[types.UID]struct{}{},
		generations: map[types.UID]int64{},
		news:        news{},
		roomless:    map[types.NamespacedName]struct{}{},
		awaiting:    map[engine.WorkloadID]map[types.NamespacedName]struct{}{},
		locals:      map[types.NamespacedName]*kueue.LocalQueue{},
	}
}

// workloadID is the engine's name of a Workload.
func workloadID(namespace, name string) engine.WorkloadID {
	return engine.WorkloadID(namespace + "/" + name)
}

// nameOf is the inverse of workloadID.
func nameOf(id engine.WorkloadID) types.NamespacedName {
	for i := range id {
		if id[i] == '/' {
			return types.NamespacedName{Namespace: string(id[:i]), Name: string(id[i+1:])}
		}
	}
	return types.NamespacedName{Name: string(id)}
}

// wake asks for decisions, and for queues' statuses to be written, soon.
func (c *core) wake() {
	c.stale = true
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// holds says whether anything is still in use by a workload: a claim with a
// ticket or an allocation, a pod or claim that is about to get one, or a pod past
// its gate that has not ended. Before all is known, anything may be in use.
func (c *core) holds(id engine.WorkloadID) bool { return !c.caughtUp || c.inUse(id) }

// inUse is holds by what is known.
func (c *core) inUse(id engine.WorkloadID) bool {
	if len(c.charges[id]) > 0 || c.fit.InFlight(id) {
		return true
	}
	w := c.works[id]
	for _, p := range c.podsOf[id] {
		if !p.gated && !p.ended && w != nil && w.object != nil && p.belongs(w.object) {
			return true
		}
	}
	return false
}

// place gives a pod, or a claim, of a workload its node, if the workload may
// run by the newest that is known of it. From here on the workload holds
// something: it is not released before what was placed is settled or takes its
// ticket back.
func (c *core) place(id engine.WorkloadID, set string, uid types.UID) (string, error) {
	w := c.works[id]
	if w == nil || w.late || w.foreign || w.yields != "" || !c.caughtUp || c.halted != "" {
		return "", errWait
	}
	a, run := admitted(w.object)
	if !run {
		return "", errWait
	}
	given := engineSet(a, set)
	if given == nil {
		return "", errWait
	}
	if p := c.pods[uid]; p != nil && c.settled(p) {
		// It counts by itself, and must not have the place of another.
		return c.devicesAt(uid), nil
	}
	node, why := c.fit.Open(id, given, uid)
	if why != nil {
		c.mayStall(w, given)
		return "", &noRoomError{why}
	}
	return node, nil
}

// placeLost ends the place of a pod or claim that will not use it.
func (c *core) placeLost(id engine.WorkloadID, uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fit.Settle(id, uid)
	if c.pods[uid] != nil {
		c.mayLackPlace(id)
	}
	c.tell(id)
	c.wake()
}

// belongs says whether a pod is really a workload's: the label alone does not
// make it so, since anybody can write labels.
func (p *podFact) belongs(wl *kueue.Workload) bool {
	for _, o := range wl.OwnerReferences {
		if o.UID == p.owner || o.UID == p.uid {
			return true
		}
	}
	return false
}

// admitted returns what a workload was given, and whether it may run: quota is
// reserved and it is not evicted or finished. One that was deleted goes on until
// nothing is in use.
func admitted(wl *kueue.Workload) (*kueue.Admission, bool) {
	if wl == nil || wl.Status.Admission == nil || !conditionTrue(wl, kueue.WorkloadAdmitted) {
		return nil, false
	}
	if conditionTrue(wl, kueue.WorkloadEvicted) || conditionTrue(wl, kueue.WorkloadFinished) {
		return nil, false
	}
	return wl.Status.Admission, true
}

func conditionTrue(wl *kueue.Workload, kind string) bool {
	for i := range wl.Status.Conditions {
		if c := &wl.Status.Conditions[i]; c.Type == kind {
			return c.Status == "True"
		}
	}
	return false
}
