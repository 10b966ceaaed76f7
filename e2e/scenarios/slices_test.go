package scenarios

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// runPod creates the pod and returns what it was given once it runs.
func runPod(t *testing.T, ctx context.Context, namespace string, pod *corev1.Pod) []testbed.Share {
	t.Helper()
	if err := bed.Create(ctx, namespace, pod); err != nil {
		t.Fatal(err)
	}
	if _, err := bed.WaitPhase(patient(t, ctx), namespace, pod.Name, corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
	shares, err := bed.Shares(ctx, namespace, pod.Name)
	if err != nil {
		t.Fatal(err)
	}
	return shares
}

// only returns the single share of a pod that has one claim for one device.
func only(t *testing.T, shares []testbed.Share) testbed.Share {
	t.Helper()
	if len(shares) != 1 {
		t.Fatalf("want one share, got %+v", shares)
	}
	return shares[0]
}

func create(t *testing.T, ctx context.Context, namespace string, objects ...any) {
	t.Helper()
	for _, object := range objects {
		if err := bed.Create(ctx, namespace, object); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSlicesPackOnOneCardAndAWholeCardGoesElsewhere(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns,
		testbed.Template("part", testbed.Capacity{Memory: "20Gi"}),
		testbed.Template("part-half", testbed.Capacity{Memory: "20Gi", Cores: "50"}),
		testbed.Template("small", testbed.Capacity{Memory: "5Gi"}),
		testbed.Template("whole", testbed.Capacity{}))

	hold := []string{"hold"}
	a := only(t, runPod(t, ctx, ns, testbed.Pod("a", hold, testbed.OnNode(dynamicNode), testbed.WithTemplate("part"))))
	b := only(t, runPod(t, ctx, ns, testbed.Pod("b", hold, testbed.OnNode(dynamicNode), testbed.WithTemplate("part-half"))))
	c := only(t, runPod(t, ctx, ns, testbed.Pod("c", hold, testbed.OnNode(dynamicNode), testbed.WithTemplate("small"))))
	if a.Device != b.Device || b.Device != c.Device {
		t.Errorf("three slices that fit one card are on %s, %s and %s", a.Device, b.Device, c.Device)
	}
	if a.Memory != "20Gi" || a.Cores != "0" || b.Cores != "50" || c.Memory != "5Gi" {
		t.Errorf("consumed: %+v %+v %+v", a, b, c)
	}
	if a.ShareID == "" || a.ShareID == b.ShareID {
		t.Errorf("each slice has an id of its own, got %q and %q", a.ShareID, b.ShareID)
	}

	taken := map[string]bool{a.Device: true}
	for _, name := range []string{"w1", "w2", "w3"} {
		w := only(t, runPod(t, ctx, ns, testbed.Pod(name, hold, testbed.OnNode(dynamicNode), testbed.WithTemplate("whole"))))
		if taken[w.Device] {
			t.Errorf("%s was given %s, which is in use", name, w.Device)
		}
		taken[w.Device] = true
	}
	create(t, ctx, ns, testbed.Pod("w4", hold, testbed.OnNode(dynamicNode), testbed.WithTemplate("whole")))
	if _, err := bed.WaitUnschedulable(patient(t, ctx), ns, "w4"); err != nil {
		t.Error(err)
	}
}

func TestPlainLimitIsAWholeCardOnADynamicNodeAndOneSliceOnAFixedNode(t *testing.T) {
	ctx, ns := scenario(t)
	whole := only(t, runPod(t, ctx, ns, testbed.Pod("dynamic", []string{"hold"},
		testbed.OnNode(dynamicNode), testbed.WithLimit("nvidia.com/gpu", "1"))))
	if whole.Memory == "" || whole.Memory == "20000Mi" {
		t.Errorf("a plain limit on a dynamic node takes the card's memory, got %q", whole.Memory)
	}
	slice := only(t, runPod(t, ctx, ns, testbed.Pod("fixed", []string{"hold"},
		testbed.OnNode(fixedNode), testbed.WithLimit("nvidia.com/gpu", "1"))))
	if slice.Memory != "20000Mi" {
		t.Errorf("a plain limit on a node of 20000Mi slices is one slice, got %q", slice.Memory)
	}
}

// What no card can meet is refused while it is made, with what could be asked; what only the cards of
// one node cannot meet is not allocated there.
func TestRequestsThatNoCardCanMeetAreNotAllocated(t *testing.T) {
	ctx, ns := scenario(t)
	for _, c := range []struct {
		name  string
		ask   testbed.Capacity
		words []string
	}{
		{"more-memory-than-a-card", testbed.Capacity{Memory: "90Gi"}, []string{"90Gi", "allowed is up to", dynamicNode}},
		{"more-cores-than-a-card", testbed.Capacity{Memory: "1Gi", Cores: "101"}, []string{"101", "100"}},
		{"unknown-capacity", testbed.Capacity{Memory: "1Gi"}, []string{"bandwidth", "memory", "cores"}},
	} {
		template := testbed.Template(c.name, c.ask)
		if c.name == "unknown-capacity" {
			requests := template.Spec.Spec.Devices.Requests[0].Exactly.Capacity.Requests
			requests["bandwidth"] = requests["memory"]
		}
		_, err := bed.Client.ResourceV1().ResourceClaimTemplates(ns).Create(ctx, template, metav1.CreateOptions{})
		if err == nil {
			t.Errorf("%s was accepted", c.name)
			continue
		}
		for _, word := range c.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s is refused without a word of %s: %v", c.name, word, err)
			}
		}
	}
	const name = "not-the-fixed-size"
	create(t, ctx, ns, testbed.Template(name, testbed.Capacity{Memory: "20Gi"}),
		testbed.Pod(name, []string{"hold"}, testbed.OnNode(fixedNode), testbed.WithTemplate(name)))
	message, err := bed.WaitUnschedulable(patient(t, ctx), ns, name)
	if err != nil {
		t.Error(err)
	} else if !strings.Contains(message, "cannot allocate all claims") {
		t.Errorf("the scheduler said %q", message)
	}
}

func TestAClaimSharedByTwoPodsIsOneShare(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns, testbed.Claim("shared", testbed.Capacity{Memory: "10Gi"}))
	a := only(t, runPod(t, ctx, ns, testbed.Pod("a", []string{"hold"}, testbed.OnNode(dynamicNode), testbed.WithClaim("shared"))))
	b := only(t, runPod(t, ctx, ns, testbed.Pod("b", []string{"hold"}, testbed.WithClaim("shared"))))
	if a != b {
		t.Errorf("both pods use the claim's only share, got %+v and %+v", a, b)
	}
	claims, err := bed.Client.ResourceV1().ResourceClaims(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(claims.Items) != 1 || len(claims.Items[0].Status.ReservedFor) != 2 {
		t.Errorf("want one claim that is reserved for both pods, got %+v", claims.Items)
	}
}

func TestTwoClaimsOfAPodAreTwoShares(t *testing.T) {
	ctx, ns := scenario(t)
	create(t, ctx, ns,
		testbed.Template("one", testbed.Capacity{Memory: "10Gi"}),
		testbed.Template("two", testbed.Capacity{Memory: "30Gi"}))
	shares := runPod(t, ctx, ns, testbed.Pod("p", []string{"hold"}, testbed.OnNode(dynamicNode),
		testbed.WithTemplate("one"), testbed.WithTemplate("two")))
	if len(shares) != 2 || shares[0].ShareID == shares[1].ShareID {
		t.Errorf("want two shares of their own, got %+v", shares)
	}
}
