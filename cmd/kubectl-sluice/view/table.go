// Package view tells, as tables and sentences, what a cluster's objects say of
// cards, queues and of why something waits. It is given objects and asks
// nobody.
package view

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Table has one row a thing, the first of them the names of the columns.
type Table [][]string

// Print writes the table with aligned columns.
func (t Table) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range t {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// gib writes a number of bytes in Gi, with a decimal where it is no whole one.
func gib(bytes int64) string {
	if whole := int64(1) << 30; bytes%whole == 0 {
		return fmt.Sprintf("%dGi", bytes/whole)
	}
	return fmt.Sprintf("%.1fGi", float64(bytes)/(1<<30))
}

// amount writes a quantity of a budget resource: bytes in Gi where the resource
// is memory, else as it stands.
func amount(name string, q resource.Quantity) string {
	if strings.Contains(name, "memory") && q.Value() >= 1<<20 {
		return gib(q.Value())
	}
	return q.String()
}
