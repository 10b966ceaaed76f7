package view

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"
)

// objects are read from the manifests of a story.
type objects struct {
	slices []resourceapi.ResourceSlice
	claims []resourceapi.ResourceClaim
	queues []kueue.ClusterQueue
	locals []kueue.LocalQueue
	pods   []corev1.Pod
	work   []kueue.Workload
}

func (o *objects) read(t *testing.T, text string) {
	t.Helper()
	for _, document := range strings.Split(text, "\n---\n") {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatal(err)
		}
		var err error
		switch kind.Kind {
		case "ResourceSlice":
			o.slices, err = one(o.slices, document)
		case "ResourceClaim":
			o.claims, err = one(o.claims, document)
		case "ClusterQueue":
			o.queues, err = one(o.queues, document)
		case "LocalQueue":
			o.locals, err = one(o.locals, document)
		case "Pod":
			o.pods, err = one(o.pods, document)
		case "Workload":
			o.work, err = one(o.work, document)
		default:
			t.Fatalf("no story has a %q", kind.Kind)
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
	}
}

func one[T any](list []T, document string) ([]T, error) {
	var object T
	err := yaml.UnmarshalStrict([]byte(document), &object)
	return append(list, object), err
}

// TestStories: objects in, what a reader sees out. Commands: objects (manifests),
// cards, queues, why (the first of each kind; name=... queue=...).
func TestStories(t *testing.T) {
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		o := &objects{}
		datadriven.RunTest(t, filepath.Join("testdata", f.Name()), func(t *testing.T, d *datadriven.TestData) string {
			var out bytes.Buffer
			var table Table
			switch d.Cmd {
			case "objects":
				*o = objects{}
				o.read(t, d.Input)
				return ""
			case "cards":
				var node string
				d.MaybeScanArgs(t, "node", &node)
				table = Cards(o.slices, o.claims, node)
			case "queues":
				table = Queues(o.queues)
			case "why":
				s := Subject{Name: "x", Pods: o.pods, Claims: o.claims, Beside: o.work}
				d.MaybeScanArgs(t, "queue", &s.Queue)
				s.Workload, s.Local, s.Cluster = first(o.work), first(o.locals), first(o.queues)
				return strings.Join(Why(s), "\n") + "\n"
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			if err := table.Print(&out); err != nil {
				t.Fatal(err)
			}
			// Trailing spaces are lost on the way through an editor.
			var lines []string
			for line := range strings.Lines(out.String()) {
				lines = append(lines, strings.TrimRight(line, " \n"))
			}
			return strings.Join(lines, "\n") + "\n"
		})
	}
}

func first[T any](list []T) *T {
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}
