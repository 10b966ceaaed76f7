package sanity_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gpu/sluice/e2e/sanity"
)

// fault is one way to break the contract.
type fault string

const (
	none                            fault = ""
	registersAsDevicePlugin         fault = "registers as device plugin"
	announcesMoreThanItServes       fault = "announces more than it serves"
	closesRegistration              fault = "closes the registration socket"
	publishesHalfAPool              fault = "publishes half a pool"
	publishesForTwoNodes            fault = "publishes a pool for two nodes"
	publishesANameTwice             fault = "publishes a name twice"
	doesNotOwnSlices                fault = "does not own slices"
	rewritesAtRest                  fault = "rewrites at rest"
	marksDevicesInUse               fault = "marks devices in use"
	publishesOnce                   fault = "publishes once"
	skipsAClaim                     fault = "skips a claim"
	tellsAnotherShare               fault = "tells another share"
	tellsNoDevices                  fault = "tells no devices"
	makesNewIDsEachTime             fault = "makes new IDs each time"
	tellsAllRequests                fault = "tells all requests"
	refusesASecondLife              fault = "refuses a second life"
	readsParametersOfOthers         fault = "reads parameters of others"
	writesCDILate                   fault = "writes CDI late"
	mountsWhatIsNotThere            fault = "mounts what is not there"
	makesIDsByDevice                fault = "makes IDs by device"
	makesOneIDForAll                fault = "makes one ID for all"
	makesIDsByClaim                 fault = "makes IDs by claim"
	endsAllShares                   fault = "ends all shares"
	unpreparesWithoutAnswer         fault = "unprepares without an answer"
	unpreparesOnlyWhatItKnows       fault = "unprepares only what it knows"
	unpreparesByReading             fault = "unprepares by reading the claim"
	unpreparesAllOrNothing          fault = "unprepares all or nothing"
	leavesCDI                       fault = "leaves CDI"
	refusesASecondCall              fault = "refuses a second call"
	refusesWhileBusy                fault = "refuses while busy"
	takesUnallocatedClaims          fault = "takes unallocated claims"
	takesReplacedClaims             fault = "takes replaced claims"
	takesAbsentClaims               fault = "takes absent claims"
	takesOtherPools                 fault = "takes other pools"
	takesMissingDevices             fault = "takes missing devices"
	ignoresParameters               fault = "ignores parameters"
	failsTheWholeCall               fault = "fails the whole call"
	failsTheWholeCallIfNotAllocated fault = "fails the whole call if a claim is not allocated"
	givesHeldDevices                fault = "gives held devices"
	reportsNotAllHealth             fault = "reports not all health"
	reportsHealthOnce               fault = "reports health once"
	cleansAtStop                    fault = "cleans at stop"
	forgetsAtStart                  fault = "forgets at start"
	keepsStateInMemory              fault = "keeps state in memory"
	leavesALockWhenKilled           fault = "leaves a lock when killed"
	namesDevicesByProcess           fault = "names devices by process"
	rewritesAtStart                 fault = "rewrites at start"
	hasOneSocketForAllInstances     fault = "has one socket for all instances"
	trustsItsState                  fault = "trusts its state"
	knowsNoAdminAccess              fault = "knows no admin access"
	neverReconciles                 fault = "never reconciles"
)

// reference is the reference driver with a fault, on a node of its own.
func reference(t *testing.T, f fault) sanity.Driver {
	t.Helper()
	dir := shortDir(t)
	name := "d" + strings.TrimPrefix(filepath.Base(dir), "sanity") + ".example.com"
	for _, d := range []string{"reg", "cdi"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := &struct {
		Name, Node, Kubeconfig, Dir string
		Fault                       fault
	}{name, strings.TrimSuffix(name, ".example.com"), apiServer(t).Kubeconfig(), dir, f}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return sanity.Driver{
		Name: name, NodeName: d.Node, API: apiServer(t).Config(),
		RegistryDir: filepath.Join(dir, "reg"), CDIDirs: []string{filepath.Join(dir, "cdi")},
		Command: []string{self}, Env: []string{referenceEnv + "=" + string(text)}, Output: os.Stderr,
		Quiet: time.Second, Reconcile: 2 * time.Second, Overlap: true,
	}
}

func TestADriverThatKeepsTheContractPassesEveryCheck(t *testing.T) {
	t.Parallel()
	results := sanity.Run(t, reference(t, none))
	for _, r := range results {
		if r.Outcome != sanity.Passed {
			t.Errorf("%s", r)
		}
	}
	if len(results) != len(sanity.Checks()) {
		t.Errorf("%d results of %d checks", len(results), len(sanity.Checks()))
	}
}

// Every check is broken by a driver, and says what that driver did.
func TestEachFaultIsFoundByItsCheck(t *testing.T) {
	t.Parallel()
	cases := []struct {
		fault fault
		check string
		says  string
	}{
		{registersAsDevicePlugin, "registration/announces-a-dra-plugin", `type "DevicePlugin"`},
		{announcesMoreThanItServes, "registration/serves-every-announced-version", "unknown service"},
		{closesRegistration, "registration/keeps-its-sockets", "no such file"},
		{publishesHalfAPool, "slices/complete", "1 slices of 2"},
		{publishesForTwoNodes, "slices/one-node-a-pool", "all nodes true"},
		{publishesANameTwice, "slices/unique-names", "device one is in slice"},
		{doesNotOwnSlices, "slices/owned-by-the-node", "want node"},
		{rewritesAtRest, "slices/no-writes-at-rest", "resourceVersion"},
		{marksDevicesInUse, "slices/untouched-by-claims", "resourceVersion"},
		{publishesOnce, "slices/back-after-deletion", "no ResourceSlice"},
		{skipsAClaim, "prepare/answers-every-claim", "nothing about claim"},
		{tellsAnotherShare, "prepare/names-what-was-allocated", "share another"},
		{tellsNoDevices, "prepare/names-all-that-was-allocated", "no devices"},
		{makesNewIDsEachTime, "prepare/again-gives-the-same", "first:"},
		{tellsAllRequests, "prepare/one-claim-many-requests", "for 2 requests"},
		{refusesASecondLife, "prepare/works-after-unprepare", "was unprepared"},
		{readsParametersOfOthers, "prepare/ignores-parameters-for-others", "unknown parameters"},
		{writesCDILate, "cdi/ids-resolve", "not found"},
		{mountsWhatIsNotThere, "cdi/injection-is-valid", "not-there"},
		{makesIDsByDevice, "cdi/claims-of-a-pod-together", "conflicting"},
		{makesOneIDForAll, "cdi/each-claim-has-ids-of-its-own", "all IDs of the first"},
		{makesIDsByDevice, "cdi/ids-are-not-used-again", "come back"},
		{makesOneIDForAll, "shares/two-claims-on-one-device", "all IDs of the first"},
		{makesIDsByClaim, "shares/two-requests-of-one-claim", "the same IDs"},
		{endsAllShares, "shares/end-one-by-one", "not found"},
		{unpreparesWithoutAnswer, "unprepare/answers-every-claim", "no entries"},
		{unpreparesOnlyWhatItKnows, "unprepare/again", "not prepared"},
		{unpreparesOnlyWhatItKnows, "unprepare/unknown-claim", "not prepared"},
		{unpreparesByReading, "unprepare/claim-gone-from-the-api", "not found"},
		{unpreparesAllOrNothing, "unprepare/known-and-unknown-together", "whole call failed"},
		{leavesCDI, "unprepare/leaves-nothing-in-cdi", "still there"},
		{refusesASecondCall, "parallel/same-claim", "another call"},
		{refusesWhileBusy, "parallel/different-claims", "another call"},
		{takesUnallocatedClaims, "refuses/claim-without-allocation", "prepared:"},
		{takesReplacedClaims, "refuses/claim-of-another-uid", "prepared:"},
		{takesAbsentClaims, "refuses/claim-that-is-gone", "prepared:"},
		{takesOtherPools, "refuses/devices-of-another-node", "pool-of-another-node"},
		{takesMissingDevices, "refuses/device-that-is-not-there", "no-such-device"},
		{ignoresParameters, "refuses/parameters-it-does-not-know", "prepared:"},
		{failsTheWholeCall, "refuses/only-the-claim-that-is-wrong", "whole call failed"},
		{failsTheWholeCallIfNotAllocated, "refuses/only-the-claim-that-is-not-allocated", "whole call failed"},
		{givesHeldDevices, "refuses/device-that-another-claim-still-holds", "prepared:"},
		{reportsNotAllHealth, "health/reports-each-device", "nothing about"},
		{reportsHealthOnce, "health/renews-within-its-timeout", "nothing about"},
		{cleansAtStop, "restart/keeps-what-is-prepared", "not found"},
		{forgetsAtStart, "restart/keeps-what-is-prepared-after-a-crash", "not found"},
		{keepsStateInMemory, "restart/unprepares-what-an-earlier-instance-prepared", "still there"},
		{leavesALockWhenKilled, "restart/killed-during-prepare", "being prepared"},
		{namesDevicesByProcess, "restart/publishes-the-same-devices", "before:"},
		{rewritesAtStart, "restart/does-not-rewrite-slices", "generation 2"},
		{unpreparesByReading, "restart/claim-gone-while-it-was-down", "not found"},
		{knowsNoAdminAccess, "prepare/admin-access-beside-the-holder", "not supported"},
		{trustsItsState, "restart/makes-lost-cdi-specs-anew", "not found"},
		{hasOneSocketForAllInstances, "restart/two-instances-overlap", "still"},
		{neverReconciles, "restart/cleans-up-by-itself", "still there"},
	}
	broken := map[string]bool{}
	for _, c := range cases {
		broken[c.check] = true
		t.Run(fmt.Sprintf("%s/%s", c.check, c.fault), func(t *testing.T) {
			t.Parallel()
			d := reference(t, c.fault)
			d.Only = []string{c.check}
			if c.fault == publishesHalfAPool || c.fault == publishesOnce || c.fault == hasOneSocketForAllInstances {
				d.Patience = 3 * time.Second // all of it is waited for
			}
			var got []sanity.Result
			if err := d.Check(t.Context(), func(r sanity.Result) { got = append(got, r) }); err != nil {
				t.Fatal(err)
			}
			if len(got) != 1 {
				t.Fatalf("%d results, want that of %s", len(got), c.check)
			}
			want := sanity.Failed
			if got[0].Check.Level == sanity.Should {
				want = sanity.Advised
			}
			if text := got[0].String(); got[0].Outcome != want || !strings.Contains(text, c.says) || !strings.Contains(text, "asked:") {
				t.Errorf("want %s with an answer in which %q is, got\n%s", want, c.says, text)
			}
		})
	}
	for _, c := range sanity.Checks() {
		if !broken[c.Name] {
			t.Errorf("no fault shows that %s can fail", c.Name)
		}
	}
}
