package sanity_test

import (
	"os"
	"strings"
	"testing"

	"github.com/sluice-gpu/sluice/e2e/sanity"
)

func TestTheDocumentationListsTheChecks(t *testing.T) {
	const page = "../../docs/dev/sanity.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), sanity.Table()) {
		t.Errorf("the table in %s is not that of the checks: replace it by what `cd e2e && go run ./cmd/sanity --list` prints", page)
	}
}

func TestCheckNamesAreUniqueAndGrouped(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range sanity.Checks() {
		group, name, ok := strings.Cut(c.Name, "/")
		if seen[c.Name] || !ok || group == "" || name == "" || c.Contract == "" || c.Source == "" {
			t.Errorf("check %q: a name is group/behaviour, used once, with a contract and its source", c.Name)
		}
		seen[c.Name] = true
	}
}
