// Package ticket is the format of a ticket: the annotations on a ResourceClaim
// by which the quota controller says what the claim may be given.
//
// A ticket is the charge. Quota is held while a claim has a ticket or an
// allocation, and no allocation of the driver's devices is written without a
// ticket that covers it. The API server itself checks that, by the
// ValidatingAdmissionPolicies of the Helm chart; [Ticket.Covers] is the same
// rule in Go, used to explain a refusal before it happens and to test the
// policies against.
//
// The package is pure. It never talks to the API; quota/controller writes
// tickets, quota/webhook puts them on claims that the scheduler makes itself.
package ticket
