package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// BenignXIDs are error events that programs cause and that say nothing about
// the card: faults of their own code (13, 31, 45, 68), resets of what they had
// running (43), time-outs that the driver recovered from (109). See NVIDIA's
// "XID Errors".
func BenignXIDs() []uint64 { return []uint64{13, 31, 43, 45, 68, 109} }

// xids remembers the error events of cards since the library was opened. A
// card that had one stays under suspicion until the driver is loaded anew.
type xids struct {
	set        nvml.EventSet
	registered []string
	faults     map[string]uint64 // by UUID: the first
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
	_ = dev.RegisterEvents(nvml.EventTypeXidCriticalError, x.set)
}

// read takes what has happened and does not wait for more.
func (x *xids) read(benign []uint64) {
	if x.set == nil {
		return
	}
	for {
		e, ret := x.set.Wait(0)
		if ret != nvml.SUCCESS {
			return
		}
		if e.EventType != nvml.EventTypeXidCriticalError || slices.Contains(benign, e.EventData) {
			continue
		}
		hit := x.registered // an event without a card is about all of them
		if e.Device != nil {
			if uuid, ret := e.Device.GetUUID(); ret == nvml.SUCCESS {
				hit = []string{uuid}
			}
			if on := onInstance(e); len(on) > 0 {
				hit = on // the others on the card do not feel it
			}
		}
		for _, uuid := range hit {
			if x.faults == nil {
				x.faults = map[string]uint64{}
			}
			if _, had := x.faults[uuid]; !had {
				x.faults[uuid] = e.EventData
			}
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
func (x *xids) forget(gpus []GPU) {
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
		if strings.HasPrefix(uuid, "MIG-") && !there[uuid] {
			delete(x.faults, uuid)
		}
	}
}

// fault says in words what happened to a card; empty if nothing did.
func (x *xids) fault(uuid string) string {
	code, ok := x.faults[uuid]
	if !ok {
		return ""
	}
	return fmt.Sprintf("the %s reported XID %d", what(uuid), code)
}

func what(uuid string) string {
	if strings.HasPrefix(uuid, "MIG-") {
		return "MIG instance"
	}
	return "card"
}

func (x *xids) close() {
	if x.set != nil {
		_ = x.set.Free()
	}
	*x = xids{}
}
