package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/sluice-gpu/sluice/driver/state"
)

// BenignXIDs are error events that programs cause and that say nothing about
// the card: faults of their own code (13, 31, 45, 68), resets of what they had
// running (43), time-outs that the driver recovered from (109), an error that
// was contained to the program that hit it (94), and rows that were set aside
// for bad ones (63). See NVIDIA's "XID Errors".
func BenignXIDs() []uint64 { return []uint64{13, 31, 43, 45, 63, 68, 94, 109} }

// fatalXIDs are those after which, by the same document, programs cannot go on
// and the card works again only when it was reset.
var fatalXIDs = map[uint64]string{
	48:  "a memory error that cannot be corrected",
	62:  "a halt of its internal controller",
	64:  "a failure to set bad memory rows aside",
	74:  "an error of NVLink",
	79:  "it fell off the bus",
	95:  "a memory error that was not contained",
	110: "a fault of its security processor",
	119: "its system processor does not answer",
	120: "an error of its system processor",
	140: "memory errors that cannot be corrected",
	143: "a failure to initialise",
}

// QuietPeriod is for how long a card must report no error after one that it may
// recover from by itself, unless it is told otherwise.
const QuietPeriod = 10 * time.Minute

// fault is the error of a card that counts.
type fault struct {
	XID uint64    `json:"xid"`
	At  time.Time `json:"at"`
	// Energy is what the card had used when it happened, in millijoules since it
	// was started; 0 if unknown. A card that has used less was reset since.
	Energy uint64 `json:"energy,omitempty"`
}

func (f fault) fatal() bool { _, ok := fatalXIDs[f.XID]; return ok }

// xids remembers the error events of cards. After a fatal one the card is under
// suspicion until it was reset, which a restart of this program is not; after
// another one until it has been quiet for a while.
type xids struct {
	set        nvml.EventSet
	registered []string
	handles    map[nvml.Device]string // the cards' UUIDs: one that fell off the bus does not tell its own
	faults     map[string]fault       // by UUID: a fatal one, or the last
	loaded     bool
}

// kept is the file in which faults outlive this program.
type kept struct {
	BootID string           `json:"bootID"`
	Faults map[string]fault `json:"faults"`
}

// load reads what another process of this boot has kept.
func (x *xids) load(name, boot string) {
	if x.loaded || name == "" {
		return
	}
	x.loaded = true
	b, err := os.ReadFile(name)
	var k kept
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	if err == nil && k.BootID == boot {
		x.faults = k.Faults
	}
}

func (x *xids) save(name, boot string) error {
	if name == "" {
		return nil
	}
	if len(x.faults) == 0 {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	b, err := json.Marshal(kept{BootID: boot, Faults: x.faults})
	if err != nil {
		return err
	}
	return state.WriteFile(name, b, 0o600)
}

// watch begins to listen to a card; a card or a driver that has no events is
// left alone.
func (x *xids) watch(lib nvml.Interface, dev nvml.Device, uuid string) {
	if slices.Contains(x.registered, uuid) {
		return
	}
	if x.set == nil {
		set, ret := lib.EventSetCreate()
		if ret != nvml.SUCCESS {
			return
		}
		x.set = set
	}
	x.registered = append(x.registered, uuid)
	if x.handles == nil {
		x.handles = map[nvml.Device]string{}
	}
	x.handles[dev] = uuid
	_ = dev.RegisterEvents(nvml.EventTypeXidCriticalError, x.set)
}

// read takes what has happened and does not wait for more. It tells whether a
// card has another fault than before.
func (x *xids) read(benign []uint64, now time.Time) (changed bool) {
	if x.set == nil {
		return false
	}
	for {
		e, ret := x.set.Wait(0)
		if ret != nvml.SUCCESS {
			return changed
		}
		if e.EventType != nvml.EventTypeXidCriticalError || slices.Contains(benign, e.EventData) {
			continue
		}
		hit := x.registered // an event without a card is about all of them
		if e.Device != nil {
			hit = nil
			if uuid, ret := e.Device.GetUUID(); ret == nvml.SUCCESS {
				hit = []string{uuid}
			} else if uuid, ok := x.handles[e.Device]; ok {
				hit = []string{uuid}
			}
			if on := onInstance(e); len(on) > 0 {
				hit = on // the others on the card do not feel it
			}
		}
		for _, uuid := range hit {
			if x.faults == nil {
				x.faults = map[string]fault{}
			}
			if x.faults[uuid].fatal() {
				continue
			}
			f := fault{XID: e.EventData, At: now}
			if e.Device != nil {
				f.Energy = energyOf(e.Device)
			}
			x.faults[uuid] = f
			changed = true
		}
	}
}

// noInstance is the GPU instance of an event that is about the whole card.
const noInstance = 0xffffffff

// onInstance are the MIG devices that an event is about.
func onInstance(e nvml.EventData) []string {
	if e.GpuInstanceId == noInstance || !isPartitioned(e.Device) {
		return nil
	}
	var out []string
	for _, mig := range migHandles(e.Device) {
		if gi, ret := mig.GetGpuInstanceId(); ret != nvml.SUCCESS || uint32(gi) != e.GpuInstanceId {
			continue
		}
		if uuid, ret := mig.GetUUID(); ret == nvml.SUCCESS {
			out = append(out, uuid)
		}
	}
	return out
}

// forget drops what was known of MIG devices that are gone: another one may
// get the UUID.
func (x *xids) forget(gpus []GPU) (changed bool) {
	there := map[string]bool{}
	for _, g := range gpus {
		if g.Partition == nil {
			continue
		}
		for _, i := range g.Partition.Instances {
			for _, d := range i.Devices {
				there[d.UUID] = true
			}
		}
	}
	for uuid := range x.faults {
		if isMIG(uuid) && !there[uuid] {
			delete(x.faults, uuid)
			changed = true
		}
	}
	return changed
}

// fault says in words what happened to a MIG device; empty if nothing did, or
// long ago.
func (x *xids) fault(uuid string) string {
	f, ok := x.faults[uuid]
	if !ok {
		return ""
	}
	return fmt.Sprintf("the MIG instance reported XID %d", f.XID)
}

// recover forgets the fault of a card that can be read when that is over, and
// tells whether it did.
func (x *xids) recover(uuid string, energy uint64, quiet time.Duration, now time.Time) bool {
	f, had := x.faults[uuid]
	switch {
	case !had:
		return false
	case f.fatal() && (energy == 0 || f.Energy == 0 || energy >= f.Energy):
		return false
	case !f.fatal() && now.Sub(f.At) < quiet:
		return false
	}
	delete(x.faults, uuid)
	return true

}

// rested forgets the faults of MIG devices that were quiet for long enough.
func (x *xids) rested(quiet time.Duration, now time.Time) (changed bool) {
	for uuid := range x.faults {
		if isMIG(uuid) {
			changed = x.recover(uuid, 0, quiet, now) || changed
		}
	}
	return changed
}

func isMIG(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// returned forgets the fault of a card that could not be read and can again: it
// was reset, or the driver was loaded anew.
func (x *xids) returned(uuid string) bool {
	_, had := x.faults[uuid]
	delete(x.faults, uuid)
	return had
}

// mark says in the card's description what happened to it.
func (x *xids) mark(g *GPU, quiet time.Duration) {
	f, ok := x.faults[g.UUID]
	if !ok {
		return
	}
	g.Fault = fmt.Sprintf("the card reported XID %d", f.XID)
	if what, fatal := fatalXIDs[f.XID]; fatal {
		g.Fault += " (" + what + ")"
		g.Dead = true
		g.Clears = "it is offered again when it was reset, the NVIDIA driver was loaded anew, or the node was rebooted"
		return
	}
	g.Clears = fmt.Sprintf("it is offered again when it has reported no error for %s", quiet)
}

// closed forgets the library, not the faults.
func (x *xids) closed() {
	if x.set != nil {
		_ = x.set.Free()
	}
	x.set, x.registered, x.handles = nil, nil, nil
}

// energyOf is what a card has used since it was started, 0 where it does not
// tell (before Volta).
func energyOf(dev nvml.Device) uint64 {
	mj, ret := dev.GetTotalEnergyConsumption()
	if ret != nvml.SUCCESS {
		return 0
	}
	return mj
}
