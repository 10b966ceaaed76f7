package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/mps"
)

// daemons stands for the MPS backend: it remembers which cards have one.
type daemons struct {
	mu      sync.Mutex
	cards   map[string]bool
	settled []string
	fails   error
	// slow are what claims have to wait for, until it is closed. Nil: nothing.
	slow chan struct{}
	// dead is why what they wait for never comes.
	dead    error
	waiting chan struct{} // closed when one waits
}

func (d *daemons) Prepare(_ context.Context, s enforce.Share) (enforce.Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails != nil {
		return enforce.Result{}, d.fails
	}
	d.cards[s.Cards[0]] = true
	if slow := d.slow; slow != nil {
		return enforce.Result{}, fmt.Errorf("the daemon: %w", &enforce.NotReady{What: "it", Wait: func(context.Context) error {
			close(d.waiting)
			select {
			case <-slow:
			case <-time.After(90 * time.Second):
				return errors.New("nobody else went on meanwhile")
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			d.slow = nil
			return d.dead
		}})
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return enforce.Result{}, err
	}
	return enforce.Result{Edits: specs.ContainerEdits{Env: []string{"HELD_BY=mps"}}}, os.WriteFile(filepath.Join(s.Dir, mps.ShareFile), nil, 0o644)
}

func (d *daemons) There(enforce.Share) bool { return true }
func (d *daemons) InUse(enforce.Share) bool { return false }
func (d *daemons) Settle(_ context.Context, live []enforce.Share) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	d.cards = map[string]bool{}
	for _, s := range live {
		d.cards[s.Cards[0]] = true
		names = append(names, s.Device)
	}
	d.settled = append(d.settled, fmt.Sprint(names))
	return nil
}

func (d *daemons) running() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.cards)
}

// byMPS asks for enforcement mps.
func (n *node) byMPS(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver:     driver.Name,
			Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"gpu.sluice.dev/v1alpha1","kind":"SliceConfig","enforcement":"mps"}`)},
		}},
	}}
	n.update(c)
	return c
}

func (n *node) withMPS() (*instance, *daemons) {
	n.enforce = true
	backend := &daemons{cards: map[string]bool{}}
	c := n.instanceConfig()
	c.Backends[config.MPS] = backend
	return n.startWith(c), backend
}

func TestACardIsHeldByMPSOrBySomethingElse(t *testing.T) {
	n := newNode(t, a100, a100)
	d, _ := n.withMPS()
	limited := n.claim("limited", share{card: 0, memory: "1Gi"})
	served := n.byMPS(n.claim("served", share{card: 1, memory: "1Gi"}))
	d.mustPrepare(limited, served)
	d.refused(n.byMPS(n.claim("a", share{card: 0, memory: "1Gi"})), "held by mps", "team/limited", "held by limiter", "trying again")
	d.refused(n.claim("b", share{card: 1, memory: "1Gi"}), "held by limiter", "team/served", "held by mps")
	d.mustPrepare(n.byMPS(n.claim("c", share{card: 1, memory: "1Gi"})), n.claim("d", share{card: 0, memory: "1Gi"}))
	d.unprepare(limited)
	d.mustPrepare(n.claim("monitor", share{device: driver.MonitorDevice, admin: true})) // holds nothing
}

func TestAShareByMPSIsTheOnlyOneOfItsClaim(t *testing.T) {
	n := newNode(t, a100, a100)
	d, backend := n.withMPS()
	d.refused(n.byMPS(n.claim("two", share{card: 0, memory: "1Gi"}, share{card: 1, memory: "1Gi"})), "only one of its claim")
	if backend.running() != 0 {
		t.Error("a daemon was started for a claim that was refused")
	}
}

func TestADaemonIsTendedAsLongAsItHasShares(t *testing.T) {
	n := newNode(t, a100)
	d, backend := n.withMPS()
	c := n.byMPS(n.claim("c", share{card: 0, memory: "1Gi"}))
	d.mustPrepare(c)
	if s := n.spec(c); !strings.Contains(strings.Join(s.Devices[0].ContainerEdits.Env, " "), "HELD_BY=mps") {
		t.Errorf("containers get %v", s.Devices[0].ContainerEdits.Env)
	}
	backend.mu.Lock()
	backend.cards = map[string]bool{} // it died
	backend.mu.Unlock()
	eventually(t, "the daemon's return", func() bool { return backend.running() == 1 })
	d.unprepare(c)
	if backend.running() != 0 {
		t.Error("the daemon runs without shares")
	}
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The rest of the node goes on while a daemon starts.
func TestNoOtherClaimWaitsForADaemonThatStarts(t *testing.T) {
	for name, dead := range map[string]error{"that comes": nil, "that does not": errors.New("it said: no such card")} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, a100, a100)
			d, backend := n.withMPS()
			backend.slow, backend.waiting, backend.dead = make(chan struct{}), make(chan struct{}), dead
			served := n.byMPS(n.claim("served", share{card: 0, memory: "1Gi"}))
			answer := make(chan string, 1)
			go func() {
				defer close(answer)
				answer <- d.prepare(served)[0].Error
			}()
			select {
			case <-backend.waiting:
			case got := <-answer:
				t.Fatalf("answered with %q, and nobody waited", got)
			}
			other := n.claim("other", share{card: 1, memory: "1Gi"})
			d.mustPrepare(other)
			d.unprepare(other)
			close(backend.slow)
			got := <-answer
			if dead == nil {
				if got != "" || n.spec(served) == nil {
					t.Errorf("refused: %q", got)
				}
				return
			}
			if !strings.Contains(got, "no such card") || backend.running() != 0 {
				t.Errorf("refused with %q; %d daemons run", got, backend.running())
			}
			if left := n.leftovers(); len(left) > 0 || d.checkpoint().Len() != 0 {
				t.Errorf("left: %v, %d claims", left, d.checkpoint().Len())
			}
		})
	}
}

func TestAShareWhoseDaemonDoesNotStartLeavesNothing(t *testing.T) {
	n := newNode(t, a100)
	d, backend := n.withMPS()
	backend.fails = errors.New("no nvidia-cuda-mps-control")
	d.refused(n.byMPS(n.claim("c", share{card: 0, memory: "1Gi"})), device(0), "no nvidia-cuda-mps-control")
	if left := n.leftovers(); len(left) > 0 || d.checkpoint().Len() != 0 {
		t.Errorf("left: %v, %d claims", left, d.checkpoint().Len())
	}
}
