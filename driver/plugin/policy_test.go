package plugin

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// slicesPolicy reads the policy from the chart. What Helm fills in is none of
// the policy's rules, so that leaving it out is enough.
func slicesPolicy(t *testing.T) *admissionregistrationv1.ValidatingAdmissionPolicy {
	t.Helper()
	b, err := os.ReadFile("../../deployments/helm/sluice/templates/driver-slices-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b = regexp.MustCompile(`(?m)^ *\{\{.*\}\}\n`).ReplaceAll(b, nil)
	b = regexp.MustCompile(`\{\{.*?\}\}`).ReplaceAll(b, []byte("x"))
	p := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	if err := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096).Decode(p); err != nil {
		t.Fatal(err)
	}
	if len(p.Spec.Variables) == 0 || len(p.Spec.Validations) == 0 {
		t.Fatalf("no rules in %+v", p.Spec)
	}
	return p
}

// TestAStolenTokenWritesOnlyItsOwnNodesPool evaluates the chart's policy as
// the API server does.
func TestAStolenTokenWritesOnlyItsOwnNodesPool(t *testing.T) {
	policy := slicesPolicy(t)
	env, err := cel.NewEnv(cel.OptionalTypes(), ext.Strings(), cel.Variable("request", cel.DynType), cel.Variable("object", cel.DynType),
		cel.Variable("oldObject", cel.DynType), cel.Variable("variables", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	eval := func(expression string, in map[string]any) any {
		t.Helper()
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", expression, issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := program.Eval(in)
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		return out.Value()
	}
	slice := func(node, pool, driver string) map[string]any {
		return map[string]any{"spec": map[string]any{"nodeName": node, "driver": driver, "pool": map[string]any{"name": pool}}}
	}
	allNodes := slice("", "n1", "gpu.sluice.dev")
	delete(allNodes["spec"].(map[string]any), "nodeName")
	for name, tc := range map[string]struct {
		token string // the node in it
		slice map[string]any
		want  bool
	}{
		"its own":              {"n1", slice("n1", "n1", "gpu.sluice.dev"), true},
		"another node's":       {"n1", slice("n2", "n2", "gpu.sluice.dev"), false},
		"another node's pool":  {"n1", slice("n1", "n2", "gpu.sluice.dev"), false},
		"into its pool":        {"n1", slice("n2", "n1", "gpu.sluice.dev"), false},
		"for all nodes":        {"n1", allNodes, false},
		"another driver's":     {"n1", slice("n1", "n1", "gpu.nvidia.com"), false},
		"a token without node": {"", slice("", "", "gpu.sluice.dev"), false},
	} {
		for _, operation := range []string{"CREATE", "UPDATE", "DELETE"} {
			t.Run(fmt.Sprint(name, " ", operation), func(t *testing.T) {
				extra := map[string]any{}
				if tc.token != "" {
					extra["authentication.kubernetes.io/node-name"] = []string{tc.token}
				}
				in := map[string]any{
					"request": map[string]any{"operation": operation, "userInfo": map[string]any{"extra": extra}},
					"object":  tc.slice, "oldObject": tc.slice,
				}
				switch operation {
				case "CREATE":
					in["oldObject"] = nil
				case "DELETE":
					in["object"] = nil
				}
				variables := map[string]any{}
				in["variables"] = variables
				for _, v := range policy.Spec.Variables {
					variables[v.Name] = eval(v.Expression, in)
				}
				got := true
				for _, v := range policy.Spec.Validations {
					got = eval(v.Expression, in).(bool) && got
				}
				if got != tc.want {
					t.Errorf("allowed: %v, want %v", got, tc.want)
				}
			})
		}
	}
}
