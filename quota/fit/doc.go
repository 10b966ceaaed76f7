// Package fit says whether pods have room on real cards, and where.
//
// A budget is not room: a team may own 80Gi that lie in four cards with 20Gi
// free each. So before a workload is admitted, and again before each of its
// gates opens, all its pods are placed for a trial: on nodes that the scheduler
// would accept (labels, required node affinity, taints, cordon, CPU, memory and
// every other resource, number of pods), by the scheduler's own allocator for
// devices, given the candidate node's slices and shares alone.
//
// Candidate nodes come from an index (index.go) that is kept in order as events
// come, so that a decision looks at few nodes, however many there are. What the
// index says is cheap and errs to one side only: a node that it leaves out has
// no room.
//
// [State] is told what the API shows (nodes, slices, taint rules, claims, pods)
// and what was promised (reservations of admitted workloads whose claims are not
// allocated yet); both count as taken. It implements the engine's Fit. It decides
// nothing about budgets and talks to nobody; its one caller, the controller,
// serializes.
package fit
