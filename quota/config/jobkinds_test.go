package config

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestAKindOfJobIsDescribedWithItsRetries: as docs/user/jobs.md has it, and refused
// where something of it would be ignored.
func TestAKindOfJobIsDescribedWithItsRetries(t *testing.T) {
	const described = `apiVersion: config.quota.sluice.dev/v1alpha1
kind: QuotaConfiguration
jobKinds:
- group: example.com
  version: v1
  kind: Render
  resource: renders
  suspend: spec.paused
  podSets:
  - {name: main, path: spec.template, least: [spec.frames], retries: {policy: spec.onFailure, never: [Stop, ""]}}
  retries: {limit: spec.retries, failed: status.failed, missing: 0}
`
	c, err := Decode([]byte(described))
	if err != nil {
		t.Fatal(err)
	}
	job := &unstructured.Unstructured{}
	if err := job.UnmarshalJSON([]byte(`{"apiVersion":"example.com/v1","kind":"Render","spec":{"retries":1,"template":{}},"status":{"failed":1}}`)); err != nil {
		t.Fatal(err)
	}
	if last := c.Jobs().Find("example.com/v1", "Render").Last(job); !last["main"] {
		t.Errorf("%v", last)
	}
	for correct, wrong := range map[string]string{"limit: spec.retries, ": "", "  retries: {limit": "  retires: {limit"} {
		_, err := Decode([]byte(strings.Replace(described, correct, wrong, 1)))
		if err == nil || !strings.Contains(err.Error(), "retries names neither") && !strings.Contains(err.Error(), "retires") {
			t.Errorf("%q instead of %q: %v", wrong, correct, err)
		}
	}
}
