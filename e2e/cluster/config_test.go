package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNodeFileIsReadStrictly(t *testing.T) {
	tests := map[string]struct {
		file string
		want Config
		err  string // part of the error; empty when the file is good
	}{
		"all fields": {
			file: `
nodes:
- name: node-1
  labels: {gpu-type: a100}
  taints: ["nvidia.com/gpu=true:NoSchedule"]
  gpus: [{model: A100-SXM4-80GB, count: 4}]
featureGates: {SomeGate: true}
`,
			want: Config{
				Nodes: []Node{{
					Name: "node-1", Labels: map[string]string{"gpu-type": "a100"}, Taints: []string{"nvidia.com/gpu=true:NoSchedule"},
					GPUs: []GPU{{Model: "A100-SXM4-80GB", Count: 4}},
				}},
				FeatureGates: map[string]bool{"SomeGate": true},
			},
		},
		"misspelt field":       {file: "nodes: [{name: a, lables: {}}]", err: `unknown field "lables"`},
		"no nodes":             {file: "nodes: []", err: "0 nodes: want 1 to 200"},
		"name twice":           {file: "nodes: [{name: a}, {name: a}]", err: `nodes[1]: name "a" is taken`},
		"name of the control":  {file: "nodes: [{name: control-plane}]", err: `name "control-plane" is taken`},
		"name of the bridge":   {file: "nodes: [{name: net}]", err: `name "net" is taken`},
		"name with a dot":      {file: "nodes: [{name: a.b}]", err: `name "a.b": want 1 to 40 lower-case`},
		"taint without effect": {file: "nodes: [{name: a, taints: [k=v]}]", err: `taint "k=v": want key=value:effect`},
		"unknown effect":       {file: "nodes: [{name: a, taints: ['k=v:Never']}]", err: `effect "Never": want NoSchedule`},
		"GPU without count":    {file: "nodes: [{name: a, gpus: [{model: T4}]}]", err: `0 GPUs of model "T4": want a model and a count`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "nodes.yaml")
			if err := os.WriteFile(file, []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := ReadConfig(file)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLabelsOfKubernetesDomainsAreNotTheKubelets(t *testing.T) {
	own, administrators := splitLabels(map[string]string{
		"gpu-type": "t4", "example.com/a": "1", "notkubernetes.io/a": "2",
		"kubernetes.io/role": "x", "topology.kubernetes.io/zone": "z", "node.k8s.io/y": "y",
	})
	if diff := cmp.Diff(map[string]string{"gpu-type": "t4", "example.com/a": "1", "notkubernetes.io/a": "2"}, own); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"kubernetes.io/role": "x", "topology.kubernetes.io/zone": "z", "node.k8s.io/y": "y"}, administrators); diff != "" {
		t.Error(diff)
	}
}
