package scenarios

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// userDocs is where the documentation whose commands are run lives.
const userDocs = "../../docs/user"

var shBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// TestCommandsInTheUserDocumentationWork runs the sh blocks of every page, in order, in one shell
// and in a namespace of its own: what a reader would paste.
func TestCommandsInTheUserDocumentationWork(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(userDocs, "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages in %s: %v", userDocs, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var script bytes.Buffer
		for _, block := range shBlock.FindAllSubmatch(text, -1) {
			fmt.Fprintf(&script, "%s\n", block[1])
		}
		if script.Len() == 0 {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			if strings.Contains(script.String(), "mig.gpu.sluice.dev") {
				partitioned(t) // what the page tells an administrator to do first
			}
			ctx, ns := scenario(t)
			path, err := bed.CommandPath(t.TempDir(), ns)
			if err != nil {
				t.Fatal(err)
			}
			shell := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script.String())
			shell.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"))
			if out, err := shell.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", page, err, out)
			}
		})
	}
}
