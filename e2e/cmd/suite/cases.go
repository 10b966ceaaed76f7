package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-gpu/sluice/e2e/gotest"
)

func casesCommand() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "cases",
		Short: "Run every test named in docs/dev/cases.md and print id, result and seconds",
		Args:  cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			file, err := os.Open(filepath.Join(root, "docs/dev/cases.md"))
			if err != nil {
				return err
			}
			defer file.Close()
			cases, err := parseCases(file)
			if err != nil {
				return err
			}
			return runCases(root, cases)
		},
	}
	cmd.Flags().StringVar(&root, "root", ".", "the project's root folder")
	return cmd
}

// testCase is one row of docs/dev/cases.md: a fault that must not happen and the test that shows it.
type testCase struct {
	id, pkg, test string
}

var caseRow = regexp.MustCompile("^\\|\\s*([DQL][0-9]+[a-z]?)\\s*\\|\\s*`?([^|`]+?)`?\\s*\\|\\s*`?((?:Test|Fuzz)[^\\s|`]+)`?\\s*\\|\\s*(.+?)\\s*\\|$")

// parseCases reads the table's rows. A row that starts like a case but does not have its four
// columns is an error: it would otherwise be left out unseen.
func parseCases(r io.Reader) ([]testCase, error) {
	var cases []testCase
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		m := caseRow.FindStringSubmatch(line)
		switch {
		case m != nil:
			cases = append(cases, testCase{id: m[1], pkg: m[2], test: m[3]})
		case regexp.MustCompile(`^\|\s*[DQL][0-9]`).MatchString(line):
			return nil, fmt.Errorf("docs/dev/cases.md:%d: a row needs | id | package | test | change |, got %q", n, line)
		}
	}
	if len(cases) == 0 {
		return nil, errors.New("docs/dev/cases.md lists no case")
	}
	return cases, lines.Err()
}

// runCases runs each package once with the union of its tests, so that shared set-up is paid once.
func runCases(root string, cases []testCase) error {
	outcomes := map[string]gotest.Outcome{}
	var broken error
	for _, pkg := range packagesOf(cases) {
		dir, target := moduleOf(root, pkg)
		err := gotest.Run(dir, nil, os.Stderr, func(o gotest.Outcome) {
			outcomes[pkg+" "+o.Test] = o
		}, "-count=1", "-timeout", "45m", "-run", pattern(cases, pkg), target)
		broken = errors.Join(broken, err)
	}
	passed, failed := 0, 0
	for _, c := range cases {
		o, ran := outcomes[c.pkg+" "+c.test]
		result := "pass"
		switch {
		case !ran:
			result = "RAN NOTHING"
		case o.Failed():
			result = strings.ToUpper(o.Action)
		}
		if result == "pass" {
			passed++
		} else {
			failed++
		}
		fmt.Printf("%-5s %-12s %7.2f  %s %s\n", c.id, result, o.Elapsed.Seconds(), c.pkg, c.test)
		if ran && o.Failed() {
			fmt.Print(o.Output)
		}
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if broken == nil && failed > 0 {
		broken = fmt.Errorf("%d of %d cases do not hold", failed, len(cases))
	}
	return broken
}

func packagesOf(cases []testCase) []string {
	seen := map[string]bool{}
	var list []string
	for _, c := range cases {
		if !seen[c.pkg] {
			seen[c.pkg] = true
			list = append(list, c.pkg)
		}
	}
	sort.Strings(list)
	return list
}

// moduleOf tells in which module's folder a package is tested and under which name.
func moduleOf(root, pkg string) (dir, target string) {
	if rest, ok := strings.CutPrefix(pkg, "e2e/"); ok {
		return filepath.Join(root, "e2e"), "./" + rest
	}
	return root, "./" + pkg
}

// pattern matches exactly the named tests; a subtest is run with its parent, so its first part is
// what -run has to select.
func pattern(cases []testCase, pkg string) string {
	seen := map[string]bool{}
	var names []string
	for _, c := range cases {
		top, _, _ := strings.Cut(c.test, "/")
		if c.pkg == pkg && !seen[top] {
			seen[top] = true
			names = append(names, regexp.QuoteMeta(top))
		}
	}
	return "^(" + strings.Join(names, "|") + ")$"
}
