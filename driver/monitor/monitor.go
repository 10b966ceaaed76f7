// Package monitor looks at what runs on the cards and compares it with what was
// given out.
//
// NVML names processes and what they hold; the kernel says which pod a process
// belongs to; the limiter's accounts say what it was charged. From the three it
// finds what a context takes of a card without asking anybody, and writes that
// into the grants of the shares, so that the limiter charges it. It finds shares
// that hold more than their size, reports them, and ends their processes where
// the operator wants that. It
// decides nothing about who gets what.
//
// The decisions are pure functions: assign, contextOverhead, memory. Monitor is
// the loop around them, and Collect hands its last look to Prometheus.
package monitor

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/hook/account"
)

// Share is one prepared share of one card.
type Share struct {
	// Name is the share's folder in containers; unique on the node.
	Name string
	// Claim is the share's ResourceClaim.
	Claim    types.NamespacedName
	ClaimUID types.UID
	// ShareID tells shares of one device apart; empty for exclusive devices.
	ShareID types.UID
	// Device is the card's published name, Card its UUID.
	Device, Card string
	// Admin marks a share for monitoring: it takes nothing of the card, has no
	// limit, and its processes are at home there.
	Admin bool
	// Limit is what the share may hold of the card, in bytes.
	Limit uint64
	// Cores is its guaranteed percentage of the card's time.
	Cores int64
	// Dir is the folder of its limit, grant and account; empty for a share
	// that no limiter holds.
	Dir string
}

// Pod is a pod that uses a claim.
type Pod struct {
	UID  types.UID
	Name string
}

// Process is a process on a card, and whose it is.
type Process struct {
	PID int
	// Memory is what NVML says that it holds on the card, in bytes.
	Memory uint64
	Owner
}

// group are shares of one card and the processes that use them. It is one
// share, unless a container has several of one card: those add up, and which
// of them a process uses cannot be told apart.
type group struct {
	shares    []Share
	processes []Process
}

func (g group) limit() (sum uint64) {
	for _, s := range g.shares {
		sum += s.Limit
	}
	return sum
}

func (g group) memory() (sum uint64) {
	for _, p := range g.processes {
		sum += p.Memory
	}
	return sum
}

// assign finds the shares that the processes on a card use. users are the pods
// of each claim, as the API has them. Foreign processes are those that use no
// share of the card.
//
// What counts is the pod, which a process cannot change; the files that it has
// mounted only choose among its pod's shares, for containers of one pod may
// have different ones. They are believed alone while the pods of a claim are
// not known.
func assign(shares []Share, users map[types.UID][]Pod, processes []Process) (groups []group, foreign []Process) {
	uses := func(p Process, s Share) (ofPod, mounted bool) {
		ofPod = slices.ContainsFunc(users[s.ClaimUID], func(u Pod) bool { return u.UID == p.Pod && p.Pod != "" })
		return ofPod, slices.Contains(p.Shares, s.Name)
	}
	for _, p := range processes {
		var pods, mounts, both []int
		for i, s := range shares {
			ofPod, mounted := uses(p, s)
			if ofPod {
				pods = append(pods, i)
			}
			if mounted {
				mounts = append(mounts, i)
			}
			if ofPod && mounted {
				both = append(both, i)
			}
		}
		of := both
		if len(of) == 0 {
			of = pods
		}
		if len(of) == 0 {
			of = mounts
		}
		if len(of) == 0 {
			foreign = append(foreign, p)
			continue
		}
		if of = slices.DeleteFunc(of, func(i int) bool { return shares[i].Admin }); len(of) > 0 {
			groups = join(groups, shares, of, p)
		}
	}
	return groups, foreign
}

// join adds a process and the shares it uses, and makes one of all groups that
// have a share among them.
func join(groups []group, shares []Share, of []int, p Process) []group {
	made := group{processes: []Process{p}}
	for _, i := range of {
		made.shares = append(made.shares, shares[i])
	}
	var rest []group
	for _, g := range groups {
		if !slices.ContainsFunc(g.shares, func(s Share) bool {
			return slices.ContainsFunc(made.shares, func(o Share) bool { return o.Name == s.Name })
		}) {
			rest = append(rest, g)
			continue
		}
		made.processes = append(g.processes, made.processes...)
		for _, s := range g.shares {
			if !slices.ContainsFunc(made.shares, func(o Share) bool { return o.Name == s.Name }) {
				made.shares = append(made.shares, s)
			}
		}
	}
	slices.SortFunc(made.shares, func(a, b Share) int { return strings.Compare(a.Name, b.Name) })
	return append(rest, made)
}

// maxOverhead bounds what is believed of a context. What a process takes past
// the limiter looks like overhead, too; more than this is no context.
const maxOverhead = 4 << 30

// contextOverhead is what each context of a group takes: what NVML sees and no
// account has, and what was charged for contexts before, over all contexts.
// Without a context there is no answer.
//
// Whether a process has followed the last grant does not matter: what each of
// its contexts was charged is in the account beside the sum.
func contextOverhead(memory uint64, usages []account.Usage) (overhead uint64, ok bool) {
	missing := int64(memory)
	contexts := int64(0)
	for _, u := range usages {
		missing -= int64(u.Memory)
		for _, p := range u.Processes {
			n := int64(min(p.Contexts, 1<<16)) // a tenant writes it
			contexts += n
			missing += n * int64(min(p.ContextOverhead, maxOverhead))
		}
	}
	if contexts == 0 {
		return 0, false
	}
	each := (missing + contexts - 1) / contexts
	each = (each + account.Unit - 1) / account.Unit * account.Unit
	return uint64(min(max(each, 0), maxOverhead)), true
}

// contexts counts those of a share.
func contexts(u account.Usage) (n uint64) {
	for _, p := range u.Processes {
		n += uint64(p.Contexts)
	}
	return n
}

// split divides what a group holds among its shares by their size.
func split(memory uint64, shares []Share) []uint64 {
	out := make([]uint64, len(shares))
	var sum uint64
	for _, s := range shares {
		sum += s.Limit
	}
	rest := memory
	for i, s := range shares {
		if i == len(shares)-1 || sum == 0 {
			out[i] = rest
			break
		}
		out[i] = uint64(float64(memory) * float64(s.Limit) / float64(sum))
		rest -= out[i]
	}
	return out
}
