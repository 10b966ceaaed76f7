package ticket

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

func TestATicketReadsBackAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfN(rapid.StringMatching(`[a-z][a-z0-9.-]{0,20}`), 0, 5)
		want := Ticket{
			Workload: rapid.StringMatching(`[a-z-]{1,30}`).Draw(t, "workload"),
			Price: pricing.Price{
				Devices: rapid.Int64Min(0).Draw(t, "devices"),
				Memory:  rapid.Int64Min(0).Draw(t, "memory"),
				Cores:   rapid.Int64Min(0).Draw(t, "cores"),
			},
			Pools: names.Draw(t, "pools"),
		}
		for _, n := range names.Draw(t, "exclusive") {
			want.Exclusive = append(want.Exclusive, n+"/gpu-0")
		}
		got, err := Read(want.Annotations())
		if err != nil {
			t.Fatal(err)
		}
		if !got.Equal(want) {
			t.Fatal(cmp.Diff(want, *got))
		}
		if charge, ok := Charge(want.Annotations()); !ok || charge != want.Price {
			t.Fatalf("charged %v %v, want %v", charge, ok, want.Price)
		}
	})
}

func TestATicketInPartOrWithABadNumberAdmitsNothing(t *testing.T) {
	whole := Ticket{Workload: "w", Price: pricing.Price{Devices: 1, Memory: 1, Cores: 1}, Pools: []string{"node-1"}}
	for _, key := range []string{ByWorkload, Devices, Memory, Cores, Pools, Exclusive} {
		part := whole.Annotations()
		delete(part, key)
		if got, err := Read(part); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("without %s: ticket %v, error %v", key, got, err)
		}
	}
	for _, key := range []string{Devices, Memory, Cores} {
		for _, value := range []string{"", "-1", "20Gi", "1e9", "9223372036854775808"} {
			bad := whole.Annotations()
			bad[key] = value
			if got, err := Read(bad); err == nil {
				t.Errorf("%s=%q read as %v", key, value, got)
			}
		}
	}
	if got, err := Read(map[string]string{"other": "x"}); got != nil || err != nil {
		t.Errorf("no ticket read as %v, %v", got, err)
	}
}

func TestStripTakesEveryTicketAnnotationAndNothingElse(t *testing.T) {
	before := Ticket{Workload: "w"}.Annotations()
	before["note"] = "kept"
	before[Prefix+"-of-a-later-version"] = "1"
	after, had := Strip(before)
	if diff := cmp.Diff(map[string]string{"note": "kept"}, after); diff != "" || !had {
		t.Error(diff)
	}
	if len(before) != 8 {
		t.Error("the argument was changed")
	}
}

func TestListsAreBounded(t *testing.T) {
	long := Ticket{Pools: make([]string, 1000), Exclusive: make([]string, 1000)}
	for i := range long.Pools {
		long.Pools[i], long.Exclusive[i] = "p", "p/d"
	}
	got, err := Read(long.Annotations())
	if err != nil || len(got.Pools) != MaxPools || len(got.Exclusive) != MaxExclusive {
		t.Errorf("%v: %d pools, %d devices", err, len(got.Pools), len(got.Exclusive))
	}
}

// share is a result of a shareable device.
func share(pool, device, memory, cores string) resourceapi.DeviceRequestAllocationResult {
	r := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: pricing.DriverName, Pool: pool, Device: device, ShareID: ptr.To(types.UID("s"))}
	r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
	if memory != "" {
		r.ConsumedCapacity["memory"] = resource.MustParse(memory)
	}
	if cores != "" {
		r.ConsumedCapacity["cores"] = resource.MustParse(cores)
	}
	return r
}

func exclusive(pool, device string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: pricing.DriverName, Pool: pool, Device: device}
}

func TestATicketCoversSumsOfKnownSharesInItsPools(t *testing.T) {
	tick := Ticket{Workload: "w", Price: pricing.Price{Devices: 2, Memory: 20 << 30, Cores: 50}, Pools: []string{"node-1", "node-2"}, Exclusive: []string{"node-1/mig-0"}}
	admin := exclusive("node-1", "monitor")
	admin.AdminAccess = ptr.To(true)
	foreign := resourceapi.DeviceRequestAllocationResult{Driver: "nic.example.com", Pool: "node-9", Device: "nic"}
	noShare := share("node-1", "gpu-0", "20Gi", "0")
	noShare.ConsumedCapacity = nil

	for _, tc := range []struct {
		name    string
		admin   bool
		results []resourceapi.DeviceRequestAllocationResult
		lacks   string
	}{
		{"exactly the ticket", false, []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "20Gi", "50")}, ""},
		{"two halves", false, []resourceapi.DeviceRequestAllocationResult{share("node-2", "gpu-0", "10Gi", "25"), share("node-2", "gpu-0", "10Gi", "25")}, ""},
		{"other drivers are not counted", false, []resourceapi.DeviceRequestAllocationResult{foreign, share("node-1", "gpu-0", "1Gi", "0")}, ""},
		{"a byte too much", false, []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "21474836481", "0")}, "the ticket pays for"},
		{"the sum is too much", false, []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "20Gi", "0"), share("node-1", "gpu-1", "20Gi", "0")}, "the ticket pays for"},
		{"one core too much", false, []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "1Gi", "51")}, "the ticket pays for"},
		{"three devices", false, []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "1Gi", "0"), share("node-1", "gpu-0", "1Gi", "0"), share("node-1", "gpu-0", "1Gi", "0")}, "the ticket pays for"},
		{"another pool", false, []resourceapi.DeviceRequestAllocationResult{share("node-3", "gpu-0", "1Gi", "0")}, `pool "node-3"`},
		{"a named exclusive device", false, []resourceapi.DeviceRequestAllocationResult{exclusive("node-1", "mig-0")}, ""},
		{"another exclusive device", false, []resourceapi.DeviceRequestAllocationResult{exclusive("node-1", "mig-1")}, "not named by the ticket"},
		{"no memory said", false, []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "", "0")}, "does not say what it consumes"},
		{"no cores said", false, []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "1Gi", "")}, "does not say what it consumes"},
		{"nothing said", false, []resourceapi.DeviceRequestAllocationResult{noShare}, "does not say what it consumes"},
		{"negative memory", false, []resourceapi.DeviceRequestAllocationResult{share("node-1", "gpu-0", "-1Gi", "0")}, "does not say what it consumes"},
		{"admin access where it is allowed", true, []resourceapi.DeviceRequestAllocationResult{admin}, ""},
		{"admin access elsewhere", false, []resourceapi.DeviceRequestAllocationResult{admin}, "not named by the ticket"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tick.Covers(tc.results, tc.admin)
			if (err == nil) != (tc.lacks == "") || (err != nil && !strings.Contains(err.Error(), tc.lacks)) {
				t.Errorf("error %v, want %q", err, tc.lacks)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add("w", "1", "2", "3", "a,b", "a/b")
	f.Add("", "-1", "9223372036854775808", "", ",", "")
	f.Fuzz(func(t *testing.T, w, d, m, c, p, x string) {
		got, err := Read(map[string]string{ByWorkload: w, Devices: d, Memory: m, Cores: c, Pools: p, Exclusive: x})
		if err == nil && (got.Price.Devices < 0 || got.Price.Memory < 0 || got.Price.Cores < 0) {
			t.Errorf("negative ticket %+v", got)
		}
	})
}
