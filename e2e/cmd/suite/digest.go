package main

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/sluice-gpu/sluice/e2e/gotest"
)

// A reader of a long run often has its last lines alone, and those cut. The digest tells there, of
// each failure, where it was noticed and what was said first: what follows, such as what a cluster
// held, was printed above.
const (
	digestLines = 80  // of all failures together
	firstLines  = 6   // of a failure's first message
	nextLines   = 2   // of each further message
	lineHead    = 220 // of a long line its beginning is kept,
	lineTail    = 140 // and its end
)

// messageStart is the first line of what a test said, or of its end by a panic.
var messageStart = regexp.MustCompile(`^( {4,}\S+\.go:\d+: |panic: |fatal error: )`)

// digest tells of each failure what is needed to know where to look, in few lines. A test that failed
// only because tests within it did is left out, and a package whose tests tell why.
func digest(failures []gotest.Outcome) string {
	var told []gotest.Outcome
	for _, f := range failures {
		if !explained(f, failures) {
			told = append(told, f)
		}
	}
	if len(told) == 0 {
		return ""
	}
	each := max(2, digestLines/len(told))
	var b strings.Builder
	for _, f := range told {
		fmt.Fprintf(&b, "%s  %s %s (%s)\n", f.Action, path.Base(f.Package), f.Test, f.Elapsed.Round(100*time.Millisecond))
		for _, line := range essence(f.Output, each-1) {
			fmt.Fprintln(&b, shorten(line))
		}
	}
	return b.String()
}

// explained says whether other failures tell why this one is one.
func explained(f gotest.Outcome, failures []gotest.Outcome) bool {
	for _, o := range failures {
		if o.Package != f.Package || o.Test == f.Test {
			continue
		}
		if f.Test == "" || strings.HasPrefix(o.Test, f.Test+"/") && len(messages(f.Output)) == 0 {
			return true
		}
	}
	return false
}

// essence is the beginning of each message of an output, so many lines of all at most; where there
// is none, the end of the output.
func essence(output string, lines int) []string {
	all := messages(output)
	if len(all) == 0 {
		end := strings.Split(strings.TrimRight(output, "\n"), "\n")
		return end[max(0, len(end)-lines):]
	}
	var out []string
	for i, m := range all {
		most := nextLines
		if i == 0 {
			most = firstLines
		}
		out = append(out, m[:min(most, len(m), lines-len(out))]...)
	}
	return out
}

// messages splits an output into what the test said, without go test's own lines.
func messages(output string) [][]string {
	var all [][]string
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		switch {
		case messageStart.MatchString(line):
			all = append(all, []string{line})
		case strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") || strings.TrimSpace(line) == "":
		case len(all) > 0:
			all[len(all)-1] = append(all[len(all)-1], line)
		}
	}
	return all
}

func shorten(line string) string {
	r := []rune(line)
	if len(r) <= lineHead+lineTail {
		return line
	}
	return string(r[:lineHead]) + " […] " + string(r[len(r)-lineTail:])
}
