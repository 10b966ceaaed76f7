// Package controller puts the parts of the budget together around the API: it
// turns what the API shows into facts for the engine and for fit, writes the
// engine's decisions, and opens gates.
//
// # One way in
//
// Every object that is watched reaches [core] through the functions of feed.go,
// called by informer handlers, and nowhere else. They only take facts in. A
// single loop (decide.go) prices what has changed and asks the engine for
// decisions; reconcilers then write them. What a reconciler writes comes back as
// a fact like any other, so a restart, or another replica, needs nothing but the
// API to continue: the quota that is held is what Workload statuses, tickets and
// allocations say.
//
// # One order
//
// Quota is reserved in a Workload's status first, then tickets are written, then
// the gate opens. In the other direction tickets are taken back first, by
// updates that fail if the claim was allocated meanwhile, then the status is
// released, then the engine is told. At every point in between the API shows at
// least what is in use.
package controller
