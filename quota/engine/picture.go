package engine

import (
	"fmt"
	"sort"
	"strings"
)

// String draws the tree with its usage, and the queues: for each resource of
// each flavor a bar of what is used within quota (#), borrowed (+) and left (.),
// then who holds quota and who waits.
func (e *Engine) String() string {
	e.settle()
	var b strings.Builder
	var tops []*node
	for _, n := range e.cohorts {
		if n.parent == nil || n.cyclic {
			tops = append(tops, n)
		}
	}
	for _, q := range e.queues {
		if q.node.parent == nil && (q.defined || len(q.holders) > 0 || q.pending > 0) {
			tops = append(tops, q.node)
		}
	}
	sort.Slice(tops, func(i, j int) bool { return tops[i].before(tops[j]) })
	for _, n := range tops {
		e.draw(&b, n, 0)
	}
	return b.String()
}

func (e *Engine) draw(b *strings.Builder, n *node, depth int) {
	indent := strings.Repeat("  ", depth)
	if q := n.queue; q != nil {
		e.drawQueue(b, q, indent)
		return
	}
	fmt.Fprintf(b, "%scohort %s", indent, n.name)
	if !n.described {
		b.WriteString(" (implicit)")
	}
	if n.cyclic {
		fmt.Fprintf(b, ": its parents go round in a circle\n")
	} else {
		b.WriteString("\n")
	}
	e.drawCells(b, n, indent)
	for _, c := range n.children {
		if !n.cyclic || c.isQueue() {
			e.draw(b, c, depth+1)
		}
	}
}

func (e *Engine) drawQueue(b *strings.Builder, q *queue, indent string) {
	fmt.Fprintf(b, "%squeue %s", indent, q.name)
	if q.strict() {
		b.WriteString(" (StrictFIFO)")
	}
	if q.code != CodeReady {
		fmt.Fprintf(b, ": %s", q.reason)
	}
	b.WriteString("\n")
	e.drawCells(b, q.node, indent)
	holders := append([]*work(nil), q.holders...)
	sort.Slice(holders, func(i, j int) bool { return holders[i].id < holders[j].id })
	drawWorks(b, indent, "holds", holders, func(w *work) string {
		if w.hold.state == leaving {
			return string(w.id) + " (leaving)"
		}
		return string(w.id)
	})
	promises := append([]*work(nil), q.promises...)
	sort.Slice(promises, func(i, j int) bool { return goesBefore(promises[i], promises[j]) })
	drawWorks(b, indent, "promised", promises, func(w *work) string { return string(w.id) })
	drawWorks(b, indent, "waits", e.waiting(q), func(w *work) string { return string(w.id) })
}

func drawWorks(b *strings.Builder, indent, title string, works []*work, text func(*work) string) {
	if len(works) == 0 {
		return
	}
	const shown = 6
	fmt.Fprintf(b, "%s  %s", indent, title)
	for i, w := range works {
		if i == shown {
			fmt.Fprintf(b, " and %d more", len(works)-shown)
			break
		}
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(" " + text(w))
	}
	b.WriteString("\n")
}

func (e *Engine) drawCells(b *strings.Builder, n *node, indent string) {
	width := 0
	for _, c := range n.order {
		if !c.listed && c.empty() {
			continue
		}
		width = max(width, len(c.Flavor)+1+len(c.Resource))
	}
	for _, c := range n.order {
		if !c.listed && c.empty() {
			continue
		}
		f := func(a Amount) string { return FormatAmount(c.Resource, a) }
		name := string(c.Flavor) + " " + string(c.Resource)
		fmt.Fprintf(b, "%s  %-*s %s %s of %s", indent, width, name, bar(c), f(c.held), f(c.subtree))
		if over := c.borrowed(held); over > 0 {
			fmt.Fprintf(b, ", %s borrowed", f(over))
		}
		if c.planned != c.held {
			fmt.Fprintf(b, ", %s when evictions have ended", f(c.planned))
		}
		b.WriteString("\n")
	}
}

// bar is as long as the quota and what is borrowed beyond it.
func bar(c *cell) string {
	const width = 20
	total := max(c.subtree, c.held, 1)
	part := func(a Amount) int { return int(float64(a) / float64(total) * width) }
	used, borrowed := part(min(c.held, c.subtree)), part(c.borrowed(held))
	if c.held > 0 && used+borrowed == 0 {
		used = 1
	}
	return "[" + strings.Repeat("#", used) + strings.Repeat("+", borrowed) + strings.Repeat(".", max(0, width-used-borrowed)) + "]"
}
