// Package lifecycle decides what becomes of a Workload between its admission
// and its end: whether admission checks let it start, whether its pods are ready
// in time, when its time is up, what an eviction leaves in its status, and when
// it may come back. The meanings are those of the quota API (KEP-993 admission
// checks, KEP-1282 requeuing and back-off, KEP-349 waiting for pods to be
// ready).
//
// It is pure: it reads and changes Workload objects in memory, knows no clock
// but the one it is given, and calls nobody. The controller calls it and writes
// what it says.
package lifecycle
