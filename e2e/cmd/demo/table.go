package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table prints rows in columns under a header.
type table struct {
	header []string
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(w io.Writer) {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.header}, t.rows...) {
		fmt.Fprintf(columns, "  %s\n", strings.Join(row, "\t"))
	}
	columns.Flush()
	fmt.Fprintln(w)
}
