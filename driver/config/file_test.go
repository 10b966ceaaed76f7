package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A configuration with comments and blank lines, so that lines are not places.
const lined = `# the cluster's cards
apiVersion: gpu.sluice.dev/v1alpha1
kind: DriverConfiguration

nodeGroups:
- name: t4
  nodeSelector:
    # a label with dots
    example.com/card.kind: t4
  mode: fixed
  slices: 2

  memory: 8000Mi
- {name: rest, mode: dynamic}
`

func TestEveryRefusalNamesTheLine(t *testing.T) {
	for name, tc := range map[string]struct{ old, new, want string }{
		"a value":          {"memory: 8000Mi", "memory: 80Mi", `line 13 (memory: 80Mi): nodeGroups[0].memory: Invalid value: "80Mi"`},
		"a missing field":  {"  slices: 2\n", "", `line 6 (- name: t4): nodeGroups[0].slices: Invalid value: 0`},
		"an unknown field": {"slices: 2", "slice: 2", `line 11 (slice: 2): unknown field "nodeGroups[0].slice"`},
		"a wrong type":     {"slices: 2", "slices: two", `line 11 (slices: two): nodeGroups.slices: is a string, must be of type int64`},
		"a label":          {"card.kind: t4", "card.kind: t 4", `line 9 (example.com/card.kind: t 4): nodeGroups[0].nodeSelector[example.com/card.kind]`},
		"a repeated field": {"  slices: 2\n", "  slices: 2\n  slices: 3\n", `line 12: key "slices" already set`},
		"no YAML":          {"nodeGroups:", "nodeGroups: :", "line 5"},
		"a second group":   {"mode: dynamic}", "mode: half}", `line 14 (- {name: rest, mode: half}): nodeGroups[1].mode`},
		"an expression": {"  mode: fixed\n", "  mode: fixed\n  deviceSelector:\n    cel: device.driver == 1\n",
			`line 12 (cel: device.driver == 1): nodeGroups[0].deviceSelector.cel: Invalid value: "device.driver == 1": is no selector of devices`},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(lined, tc.old) {
				t.Fatalf("%q is not in the configuration", tc.old)
			}
			_, err := Decode([]byte(strings.Replace(lined, tc.old, tc.new, 1)))
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is\n%v\nwant it to contain\n%s", err, tc.want)
			}
		})
	}
}

func TestWhatTheCardsRefuteNamesFileAndLine(t *testing.T) {
	name := filepath.Join(t.TempDir(), "driver.yaml")
	write(t, name, lined)
	c, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	reason := errors.New("too large")
	err = c.Wrong("t4", "memory", reason)
	if want := "driver configuration " + name + ": line 13 (memory: 8000Mi): too large"; err.Error() != want || !errors.Is(err, reason) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if err := Default().Wrong("default", "memory", reason); err.Error() != "driver configuration: too large" {
		t.Errorf("without a file: %v", err)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAFileIsReadAnewWhenItWasWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "driver.yaml")
	write(t, name, lined)
	f, c, err := Open(name)
	if err != nil || len(c.NodeGroups) != 2 {
		t.Fatalf("%+v %v", c, err)
	}
	if c, err := f.Changed(); c != nil || err != nil {
		t.Errorf("unchanged: %+v %v", c, err)
	}
	write(t, name, head)
	if c, err := f.Changed(); err != nil || c == nil || len(c.NodeGroups) != 1 {
		t.Errorf("changed: %+v %v", c, err)
	}
	write(t, name, head+"nodes: []\n")
	for range 2 {
		if c, err := f.Changed(); c != nil || err == nil || !strings.Contains(err.Error(), name+": line 3") {
			t.Errorf("wrong: %+v %v", c, err)
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if c, err := f.Changed(); c != nil || err == nil {
		t.Errorf("gone: %+v %v", c, err)
	}
	write(t, name, head)
	if c, err := f.Changed(); c == nil || err != nil {
		t.Errorf("back: %+v %v", c, err)
	}
	if err := os.Rename(name, name+".away"); err != nil {
		t.Fatal(err)
	}
	if c, err := f.Changed(); c != nil || err == nil {
		t.Errorf("gone: %+v %v", c, err)
	}
	if err := os.Rename(name+".away", name); err != nil {
		t.Fatal(err)
	}
	if c, err := f.Changed(); c == nil || err != nil {
		t.Errorf("back as it was: %+v %v; whoever was told that it is gone does not hear of it", c, err)
	}
}

func TestWithoutAFileNothingChanges(t *testing.T) {
	f, c, err := Open("")
	if err != nil || c == nil {
		t.Fatalf("%+v %v", c, err)
	}
	if c, err := f.Changed(); c != nil || err != nil {
		t.Errorf("%+v %v", c, err)
	}
}
