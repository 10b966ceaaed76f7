package scenarios

import (
	"fmt"
	"strings"
	"testing"
)

// What the schemas of the quota API let pass is refused as it is written, with what is wrong.
func TestMistakesInBudgetsAreRefusedAsTheyAreWritten(t *testing.T) {
	ctx, ns := scenario(t)
	budget(t, ctx, ns, 1)
	queue := func(name, spec string) string {
		return fmt.Sprintf(`
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: %s}
spec: {namespaceSelector: {}, %s}
`, name, spec)
	}
	group := func(resources string) string {
		return fmt.Sprintf("{coveredResources: [nvidia.com/gpu], flavors: [{name: %s, resources: %s}]}", ns, resources)
	}
	const one = "[{name: nvidia.com/gpu, nominalQuota: 1}]"
	for what, c := range map[string]struct{ manifest, says string }{
		"a resource of two groups":       {queue(ns+"-new", "resourceGroups: ["+group(one)+", "+group(one)+"]"), "is covered by resourceGroups[0] already"},
		"a change to one that was right": {queue(ns, "resourceGroups: ["+group("[{name: nvidia.com/gpu, nominalQuota: -1}]")+"]"), "a quota cannot be below zero"},
	} {
		err := bed.Cluster.Apply(ctx, []byte(c.manifest))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", what, err, c.says)
		}
	}
	// The queue is what it was, and admits.
	create(t, ctx, ns, queued("p"))
	waitHolding(t, ctx, ns, 1)
}
