package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func execute(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	err := cmd.Execute()
	return out.String(), err
}

func TestListNamesTheChecks(t *testing.T) {
	out, err := execute("--list")
	if err != nil || !strings.Contains(out, "| `prepare/again-gives-the-same` | must |") {
		t.Errorf("error %v, output\n%s", err, out)
	}
}

func TestWrongFlagsAreRefusedBeforeAnythingStarts(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no API server":     {[]string{"--driver-name", "x"}, "--kubeconfig"},
		"no driver name":    {[]string{"--start-command", "true"}, "--driver-name"},
		"broken parameters": {[]string{"--driver-name", "x", "--start-command", "true", "--parameters", "{"}, "--parameters"},
		"broken pattern":    {[]string{"--driver-name", "x", "--start-command", "true", "--only", "["}, "pattern"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := execute(c.args...); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one that names %s", err, c.says)
			}
		})
	}
}
