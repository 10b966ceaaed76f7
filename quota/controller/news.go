package controller

import (
	"reflect"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// news is what the engine was told last of each queue, cohort and namespace.
//
// The objects change all the time, because their statuses are written here, and
// that must be no news to the engine. What is new in a tree of queues has it tried
// anew from the start, and lets those evict each other once more who came to rest:
// an eviction that is followed by a status which is followed by an eviction goes on
// for ever.
type news map[any]engine.Event

// namespaceName is the key of a namespace; the others are the engine's names.
type namespaceName string

// tellNews tells the engine of an object unless it knows it so.
func (c *core) tellNews(name any, now engine.Event) {
	if reflect.DeepEqual(c.news[name], now) {
		return
	}
	c.news[name] = now
	c.engine.Apply(now)
}

// tellGone tells the engine that an object is gone.
func (c *core) tellGone(name any, gone engine.Event) {
	delete(c.news, name)
	c.engine.Apply(gone)
}
