package controller

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// goneFor is how long it is remembered that an object was removed. It has to
// outlast every write that was under way, and the list that a new leader reads.
const goneFor = 5 * time.Minute

// tombstones remember objects that the caches have seen removed. A reconciler
// takes in what it has just written, and a new leader a list that it read before
// it got its turn; both may come after the removal, and nothing would ever remove
// such an object again.
type tombstones struct {
	at    map[types.UID]time.Time
	order []types.UID
}

// add remembers a removal.
func (g *tombstones) add(uid types.UID, now time.Time) {
	for len(g.order) > 0 && now.Sub(g.at[g.order[0]]) > goneFor {
		delete(g.at, g.order[0])
		g.order = g.order[1:]
	}
	if _, known := g.at[uid]; uid == "" || known {
		return
	}
	if g.at == nil {
		g.at = map[types.UID]time.Time{}
	}
	g.at[uid] = now
	g.order = append(g.order, uid)
}

// has says whether an object was removed. UIDs are never used again.
func (g *tombstones) has(uid types.UID) bool {
	_, ok := g.at[uid]
	return ok
}
