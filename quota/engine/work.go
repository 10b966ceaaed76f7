package engine

// work is a workload inside the engine.
type work struct {
	id       WorkloadID
	local    *local
	shape    *shape
	roomKey  string
	priority int32
	gated    bool
	inactive bool
	// told says that a WorkloadChanged was seen, not only an Admitted.
	told      bool
	queuedAt  instant
	notBefore instant
	pause     string
	refused   string

	// class is where it waits, nil if it does not.
	class *class
	// timer is its place among the back-offs, -1 if none.
	timer int
	// inLocal is its place in local.works.
	inLocal int
	// hold is the quota that it has or was promised, nil if none.
	hold *hold
	// said is the last reason given by a Wait.
	said saying
	// roomSince is when it was first refused for want of room alone; inRoomLine
	// says that it is among those that wait for it, keptBy is the queue that
	// has a hole kept for it, of whose keeps it is one, nil if none has.
	roomSince  instant
	inRoomLine bool
	keptBy     *queue
}

// holdState is what kind of hold a workload has on quota.
type holdState uint8

const (
	// promised: in planned only, until the victims are gone.
	promised holdState = iota
	// holding: in held and planned.
	holding
	// leaving: in held only, until it is released.
	leaving
)

// hold is a charge on a queue.
type hold struct {
	queue      *queue
	state      holdState
	reserved   bool
	at         instant
	assignment Assignment
	charges    []charge
	// victims are those evicted for a promise; for is whom a leaving workload
	// makes room for.
	victims []*work
	reason  EvictReason
	forWork WorkloadID
	// placement is where Fit said it can go.
	placement *Placement
}

// charge is an amount of one leaf cell.
type charge struct {
	cell   *cell
	amount Amount
}

// workload makes the caller's view for Fit.
func (w *work) workload() *Workload {
	out := &Workload{
		ID: w.id, Priority: w.priority, QueuedAt: w.queuedAt.time(), RoomKey: w.roomKey,
		Inactive: w.inactive, Hold: w.pause, Refused: w.refused,
		NotBefore: w.notBefore.time(), PreemptionGated: w.gated,
	}
	if w.local != nil {
		out.LocalQueue = w.local.name
	}
	if w.shape != nil {
		out.PodSets = w.shape.sets
	}
	return out
}
