package fit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// unlike is a claim of n requests, the last two of which are to be on one card
// that cannot hold both.
func unlike(n int) resourceapi.ResourceClaimSpec {
	one := spec(1).Devices.Requests[0]
	var c resourceapi.ResourceClaimSpec
	for i := range n {
		one.Name = fmt.Sprintf("r%d", i)
		c.Devices.Requests = append(c.Devices.Requests, one)
	}
	c.Devices.Requests[n-1] = spec(80).Devices.Requests[0]
	c.Devices.Constraints = []resourceapi.DeviceConstraint{{Requests: []string{fmt.Sprintf("r%d", n-2), "gpu"}, MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("gpu.sluice.dev/uuid"))}}
	return c
}

func hardWorld(nodes int) *State {
	s := world(BinPack)
	for n := range nodes {
		name := fmt.Sprintf("n%d", n)
		addNode(s, name, nil, 80, 80, 80, 80, 80, 80, 80, 80)
		for i := range s.slices[name].Spec.Devices {
			s.slices[name].Spec.Devices[i].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: ptr.To(fmt.Sprint(name, i))}}
		}
	}
	return s
}

func placeHard(s *State, id engine.WorkloadID, claim resourceapi.ResourceClaimSpec) (string, time.Duration) {
	w, a := ask(s, id, 1, -1, nil)
	s.workloads[id].sets[0].Claims = []resourceapi.ResourceClaimSpec{claim}
	began := time.Now()
	_, no := s.Place(w, a, nil)
	if no == nil {
		return "", time.Since(began)
	}
	return no.Reason, time.Since(began)
}

func many(n int, gi int64) resourceapi.ResourceClaimSpec {
	var c resourceapi.ResourceClaimSpec
	for i := range n {
		one := spec(gi).Devices.Requests[0]
		one.Name = fmt.Sprintf("r%d", i)
		c.Devices.Requests = append(c.Devices.Requests, one)
	}
	return c
}

func TestASearchWithTooManyCombinationsIsGivenUp(t *testing.T) {
	for name, claim := range map[string]resourceapi.ResourceClaimSpec{
		"a constraint that cannot be met":   unlike(12),
		"one request more than cards allow": many(17, 30),
	} {
		s := hardWorld(3)
		why, took := placeHard(s, "team/w", claim)
		if !strings.Contains(why, "too many combinations") || !strings.Contains(why, "3 of 3 nodes") {
			t.Errorf("%s: %q", name, why)
		}
		if took > time.Minute {
			t.Errorf("%s: took %s", name, took)
		}
	}
	// What only looks large is served.
	s := hardWorld(1)
	if why, _ := placeHard(s, "team/w", many(16, 30)); why != "" {
		t.Error(why)
	}
}

func TestSearchesOfOneNamespaceAreRationedTogether(t *testing.T) {
	s := hardWorld(1)
	now := time.Unix(1000, 0)
	s.searching.now = func() time.Time { return now }
	spent := func() int { return commonSteps - s.searching.common.left }
	for i := range 50 {
		// Another claim each time, so that no memory of claims would help.
		if why, _ := placeHard(s, engine.WorkloadID(fmt.Sprintf("team/w%d", i)), unlike(9+i%8)); !strings.Contains(why, "too many") {
			t.Fatalf("%d: %q", i, why)
		}
	}
	if n := spent(); n != tenantSteps {
		t.Errorf("50 hard claims of a namespace took %d steps, want %d", n, tenantSteps)
	}
	// Plain claims are served all the same, also in that namespace.
	if why, _ := placeHard(s, "team/plain", many(16, 30)); why != "" {
		t.Error(why)
	}
	// Others are not rationed for it.
	if why, _ := placeHard(s, "other/w", unlike(9)); !strings.Contains(why, "too many") || spent() != tenantSteps+searchSteps {
		t.Errorf("another namespace was let search %d steps", spent()-tenantSteps)
	}
	// With time the namespace may search again.
	now = now.Add(10 * time.Second)
	s.searching.extra("")
	before := spent()
	placeHard(s, "team/w", unlike(9))
	if n := spent() - before; n != 10*tenantStepsASecond {
		t.Errorf("after 10 s it took %d steps", n)
	}
	now = now.Add(time.Hour)
	s.searching.extra("team")
	s.searching.extra("other")
	if len(s.searching.tenants) != 0 {
		t.Errorf("%d allowances are kept that are full", len(s.searching.tenants))
	}
}
