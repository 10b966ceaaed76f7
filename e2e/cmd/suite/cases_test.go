package main

import (
	"strings"
	"testing"
)

func TestCasesAreReadFromTheTable(t *testing.T) {
	cases, err := parseCases(strings.NewReader("# Cases\n| id | package | test | change |\n|---|---|---|---|\n" +
		"| D1 | driver/plugin | `TestA` | drop the check |\n| Q17 | e2e/scenarios | TestB/sub | x |\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) != 2 || cases[0] != (testCase{"D1", "driver/plugin", "TestA"}) || cases[1].test != "TestB/sub" {
		t.Fatalf("cases: %+v", cases)
	}
	if p := pattern(cases, "e2e/scenarios"); p != "^(TestB)$" {
		t.Errorf("pattern %s", p)
	}
	if dir, target := moduleOf("/r", "e2e/scenarios"); dir != "/r/e2e" || target != "./scenarios" {
		t.Errorf("module of e2e/scenarios: %s %s", dir, target)
	}
}

func TestARowWithoutItsColumnsOrAPlainNameIsRefused(t *testing.T) {
	for _, row := range []string{"| D1 | driver/plugin | TestA |\n", "| D1 | driver/plugin | TestA (the third story) | drop the check |\n"} {
		_, err := parseCases(strings.NewReader(row))
		if err == nil || !strings.Contains(err.Error(), "cases.md:1") {
			t.Errorf("row %q: error %v, want one that names line 1", row, err)
		}
	}
}
