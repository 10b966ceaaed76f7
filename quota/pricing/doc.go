// Package pricing says what a request for GPUs costs in every budget
// dimension: devices, bytes of GPU memory and percent of a card's cores.
//
// It is pure: claims, device classes and published devices go in, a [Price]
// comes out. It never decides whether a budget or a card has room for it; that
// is for quota/engine and quota/fit. The controller asks it for every pod set
// and every claim.
//
// # Rules
//
// A request is rounded exactly as the scheduler's allocator rounds it, by the
// request policy of each device it could get, because what is charged must be
// what will be consumed. A claim that names no memory gets the policy's default.
// Whoever takes all the memory of a card also pays for all its cores, since
// nobody can use what is left; the allocation itself says cores 0 then.
//
// A price belongs to a [Fleet]: the devices of one flavor. Where they differ
// the dearest that could serve the request decides, so that the charge covers
// whichever the scheduler takes.
//
// What no device of the fleet could ever serve has no price: [Fleet.Claim]
// returns an [*Impossible] that names what was asked and the nearest there is.
package pricing
