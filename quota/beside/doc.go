// Package beside is about living in one cluster with a manager of Kueue, whose
// API the quota controller serves too.
//
// Two controllers that both admit the same Workloads would each count only what
// they gave themselves, and open gates on the other's word. So there is at most
// one that admits: this package finds out, from what Kueue's manager leaves in
// the API, whether there is one at work. It changes nothing. Its caller, the
// controller, acts on it.
package beside
