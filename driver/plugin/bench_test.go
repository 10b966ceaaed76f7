package plugin

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/sluice-gpu/sluice/driver/slicing"
)

// BenchmarkPrepareAndUnprepare takes the time of one claim on two cards while
// other shares are prepared. The kubelet waits 45 s at most for a pod's
// claims, and pods of a node start one after another.
//
// Nearly all of it is making and removing some ten files in new folders, a
// transaction of the file system's journal for each step. The longest calls are
// those that wait for the journal, or for a processor, with others: beside them
// stands the processor time of this process, which is the same on a busy machine.
func BenchmarkPrepareAndUnprepare(b *testing.B) {
	for _, live := range []int{1, 8, 64, 500} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			n := newNode(b, gpus.Multiple(8, a100)...)
			n.enforce = true
			n.mkdir("plugin")
			d := New(n.instanceConfig())
			inv, err := n.source.Scan()
			if err != nil {
				b.Fatal(err)
			}
			plan, err := slicing.Make(inv.GPUs, nil, d.cfg.Configuration)
			if err != nil {
				b.Fatal(err)
			}
			d.current.Store(plan)
			prepare := func(c *resourceapi.ResourceClaim) {
				r, err := d.PrepareResourceClaims(b.Context(), []*resourceapi.ResourceClaim{c})
				if err != nil || r[c.UID].Err != nil {
					b.Fatal(err, r[c.UID].Err)
				}
			}
			for i := range live {
				prepare(n.claim(fmt.Sprint("live", i), share{card: i % 8, memory: "256Mi"}))
			}
			claim := n.claim("measured", share{card: 0, memory: "1Gi"}, share{card: 1, memory: "1Gi"})
			var took []time.Duration
			before := processorTime(b)
			for b.Loop() {
				start := time.Now()
				prepare(claim)
				gone := kubeletplugin.NamespacedObject{UID: claim.UID}
				if _, err := d.UnprepareResourceClaims(b.Context(), []kubeletplugin.NamespacedObject{gone}); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/1000/float64(len(took)), "cpu-ms")
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
