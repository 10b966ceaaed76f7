package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/hook/account"
)

const (
	fromClass = resourceapi.AllocationConfigSourceClass
	fromClaim = resourceapi.AllocationConfigSourceClaim
)

// parameters is an entry of an allocation with a SliceConfig of the JSON
// members.
func parameters(source resourceapi.AllocationConfigSource, members string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{
		Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver:     "gpu.sluice.dev",
			Parameters: runtime.RawExtension{Raw: fmt.Appendf(nil, `{"apiVersion":"gpu.sluice.dev/v1alpha1","kind":"SliceConfig",%s}`, members)},
		}},
	}
}

// configured is a claim whose allocation has parameters.
func (n *node) configured(c *resourceapi.ResourceClaim, entries ...resourceapi.DeviceAllocationConfiguration) *resourceapi.ResourceClaim {
	n.t.Helper()
	c.Status.Allocation.Devices.Config = entries
	if err := n.client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), c, c.Namespace); err != nil {
		n.t.Fatal(err)
	}
	return c
}

// stand is a backend that keeps one file a share.
type stand struct {
	edits   specs.ContainerEdits
	refuse  error
	settled []string
}

func (b *stand) file(s enforce.Share) string { return filepath.Join(s.Dir, "held") }
func (b *stand) Prepare(_ context.Context, s enforce.Share) (enforce.Result, error) {
	if b.refuse != nil {
		return enforce.Result{}, b.refuse
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return enforce.Result{}, err
	}
	return enforce.Result{Edits: b.edits}, os.WriteFile(b.file(s), nil, 0o600)
}
func (b *stand) There(s enforce.Share) bool { _, err := os.Stat(b.file(s)); return err == nil }
func (b *stand) InUse(enforce.Share) bool   { return false }
func (b *stand) Settle(_ context.Context, live []enforce.Share) error {
	b.settled = nil
	for _, s := range live {
		b.settled = append(b.settled, s.Name)
	}
	return nil
}

func TestWhatClaimAndClassSayReachesTheContainer(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	c := n.configured(n.claim("c", share{card: 0, memory: "1Gi", cores: "30"}, share{card: 0, memory: "2Gi", cores: "20"}),
		parameters(fromClass, `"env":[{"name":"TF_A","value":"class"},{"name":"TF_B","value":"class"}]`),
		parameters(fromClaim, `"corePolicy":"hard","env":[{"name":"TF_A","value":"claim"}]`, "r0"))
	d.mustPrepare(c)
	spec := n.spec(c)
	for i, want := range [][]string{{"TF_A=claim", "TF_B=class"}, {"TF_A=class", "TF_B=class"}} {
		if got := spec.Devices[i].ContainerEdits.Env; !slices.Equal(got, want) {
			t.Errorf("share %d: environment %v, want %v", i, got, want)
		}
	}
	for i, want := range []account.CorePolicy{account.CoresHard, account.CoresBurst} {
		if got := limitOf(t, n.path("plugin", "shares", "uid-c", fmt.Sprintf("*share-c-%d", i))); got.CorePolicy != want {
			t.Errorf("share %d: core policy %d, want %d", i, got.CorePolicy, want)
		}
	}
}

func TestTheNodeGroupSaysWhatTheClaimDoesNot(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	n.config = "nodeGroups:\n- {name: a, corePolicy: hard, cores: 10}\n"
	d := n.start()
	silent := n.claim("silent", share{card: 0, memory: "1Gi", cores: "10"})
	loud := n.configured(n.claim("loud", share{card: 0, memory: "1Gi", cores: "10"}), parameters(fromClaim, `"corePolicy":"burst"`))
	d.mustPrepare(silent, loud)
	for name, want := range map[string]account.CorePolicy{"silent": account.CoresHard, "loud": account.CoresBurst} {
		if got := limitOf(t, n.path("plugin", "shares", "uid-"+name, "*-share-*")); got.CorePolicy != want {
			t.Errorf("%s: core policy %d, want %d", name, got.CorePolicy, want)
		}
	}
}

func TestAShareThatMayNeverRunIsRefused(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	d.refused(n.configured(n.claim("c", share{card: 0, memory: "1Gi"}), parameters(fromClaim, `"corePolicy":"hard"`)), "capacity.requests.cores")
}

func TestAShareIsHeldByTheBackendThatItAsksFor(t *testing.T) {
	n := newNode(t, a100)
	c := n.instanceConfig()
	mps := &stand{edits: specs.ContainerEdits{Env: []string{"HELD=1"}}}
	c.Backends = map[config.Enforcement]enforce.Backend{config.MPS: mps}
	d := n.startWith(c)
	claim := n.configured(n.claim("c", share{card: 0, memory: "1Gi"}),
		parameters(fromClaim, `"enforcement":"mps","env":[{"name":"TF_A","value":"x"}]`))
	d.mustPrepare(claim)
	if got, want := n.spec(claim).Devices[0].ContainerEdits.Env, []string{"HELD=1", "TF_A=x"}; !slices.Equal(got, want) {
		t.Errorf("environment %v, want %v", got, want)
	}
	if mounted(n.spec(claim), "/run/sluice/shares") {
		t.Error("the limiter's files are mounted")
	}

	name := "uid-c-" + device(0) + "-share-c-0"
	lost := n.path("plugin", "shares", "uid-c", name, "held")
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	d.mustPrepare(claim)
	if _, err := os.Stat(lost); err != nil {
		t.Error("what the backend lost is not made again:", err)
	}

	other := n.configured(n.claim("other", share{card: 0, memory: "1Gi"}), parameters(fromClass, `"enforcement":"mps"`))
	d.mustPrepare(other)
	d.unprepare(other)
	if want := []string{name}; !slices.Equal(mps.settled, want) {
		t.Errorf("after an unprepare the backend keeps %v, want %v", mps.settled, want)
	}
	d.unprepare(claim)
	if len(mps.settled) > 0 || len(n.leftovers()) > 0 {
		t.Errorf("kept: %v %v", mps.settled, n.leftovers())
	}
}

func TestABackendThatRefusesLeavesNothing(t *testing.T) {
	n := newNode(t, a100)
	c := n.instanceConfig()
	c.Backends = map[config.Enforcement]enforce.Backend{config.MPS: &stand{refuse: errors.New("no daemon")}}
	d := n.startWith(c)
	d.refused(n.configured(n.claim("c", share{card: 0, memory: "1Gi"}), parameters(fromClaim, `"enforcement":"mps"`)), device(0), "no daemon")
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAnEnforcementThatTheNodeDoesNotHaveIsRefused(t *testing.T) {
	n := newNode(t, a100)
	d := n.start()
	for _, e := range []string{"limiter", "mps", "mig"} {
		d.refused(n.configured(n.claim("c-"+e, share{card: 0, memory: "1Gi"}), parameters(fromClaim, fmt.Sprintf(`"enforcement":%q`, e))), "enforcement "+e)
	}
}

func TestAClassMayHaveSharesThatNothingHolds(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	d := n.start()
	free := n.configured(n.claim("free", share{card: 0, memory: "1Gi"}), parameters(fromClass, `"enforcement":"none"`))
	d.mustPrepare(free)
	if mounted(n.spec(free), "/run/sluice") {
		t.Error("a share that nothing holds has the limiter")
	}
	d.mustPrepare(free) // and stays so when the kubelet asks again
	if mounted(n.spec(free), "/run/sluice") {
		t.Error("asked again, the share has the limiter")
	}
	d.refused(n.configured(n.claim("tenant", share{card: 0, memory: "1Gi"}), parameters(fromClaim, `"enforcement":"none"`)),
		"status.allocation.devices.config[0].opaque.parameters.enforcement", "cannot lift its own limit")
}

// D28
func TestSharesOfAnOversubscribedCardAreLimitedHoweverLarge(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	n.config = "nodeGroups:\n- {name: a, oversubscription: 2}\n"
	d := n.start()
	a, b := n.claim("a", whole(0)), n.claim("b", whole(0))
	d.mustPrepare(a, b)
	for _, name := range []string{"a", "b"} {
		if l := limitOf(t, n.path("plugin", "shares", "uid-"+name, "*-share-*")); l.Whole || l.Memory != a100Mi<<20 {
			t.Errorf("%s: limit %+v, want %dMi", name, l, a100Mi)
		}
	}
	d.refused(n.claim("third", share{card: 0, memory: "1Gi"}), "still held")
	d.unprepare(a, b)
	d.refused(n.claim("large", share{card: 0, memory: fmt.Sprintf("%dMi", a100Mi+1)}), fmt.Sprintf("the card has %dMi", a100Mi))
	d.refused(n.configured(n.claim("safe", share{card: 0, memory: "1Gi"}), parameters(fromClaim, `"oversubscribe":false`)), "promised more than once")
}

func TestAShareOfAllThatIsOfferedLeavesTheReserve(t *testing.T) {
	n := newNode(t, a100)
	n.enforce = true
	n.config = "nodeGroups:\n- {name: a, reserve: 1Gi}\n"
	d := n.start()
	all := n.claim("all", share{card: 0, memory: fmt.Sprintf("%dMi", a100Mi-1024)})
	d.mustPrepare(all)
	if l := limitOf(t, n.path("plugin", "shares", "uid-all", "*-share-*")); l.Whole || l.Memory != (a100Mi-1024)<<20 {
		t.Errorf("limit %+v, want %dMi", l, a100Mi-1024)
	}
}
