package gpu

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// linked is what one card says about its NVLink neighbours.
type linked struct {
	peers    []string // PCI addresses of cards linked directly
	onSwitch bool     // linked to an NVSwitch, which joins all cards on it
}

// links reads the active NVLinks of a card. Cards and drivers without NVLink
// answer "not supported" and have none.
func (r *reader) links(g GPU, dev nvml.Device) linked {
	var l linked
	if !r.has("nvmlDeviceGetNvLinkState") || !r.has("nvmlDeviceGetNvLinkRemotePciInfo_v2") {
		return l
	}
	typed := r.has("nvmlDeviceGetNvLinkRemoteDeviceType")
	for i := range nvml.NVLINK_MAX_LINKS {
		state, ret := dev.GetNvLinkState(i)
		if ret != nvml.SUCCESS {
			break // links are numbered without gaps
		}
		if state != nvml.FEATURE_ENABLED {
			continue
		}
		if typed {
			if kind, ret := dev.GetNvLinkRemoteDeviceType(i); ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
				l.onSwitch = true
				continue
			}
		}
		if p, ret := dev.GetNvLinkRemotePciInfo(i); ret == nvml.SUCCESS {
			l.peers = append(l.peers, busID(p))
		}
	}
	return l
}

// setNVLinkDomains gives cards that reach one another the same domain: the
// connected parts of the link graph, all NVSwitches of a node being one
// fabric. A domain is named after the smallest card id in it, so that the
// name does not depend on the order of enumeration.
func setNVLinkDomains(gpus []GPU, links []linked) {
	parent := make([]int, len(gpus))
	byBus := map[string]int{}
	for i, g := range gpus {
		parent[i] = i
		byBus[g.PCIBusID] = i
	}
	find := func(i int) int {
		for parent[i] != i {
			i = parent[i]
		}
		return i
	}
	firstOnSwitch := -1
	for i, l := range links {
		for _, p := range l.peers {
			if j, ok := byBus[p]; ok {
				parent[find(i)] = find(j)
			}
		}
		if l.onSwitch {
			if firstOnSwitch < 0 {
				firstOnSwitch = i
			}
			parent[find(i)] = find(firstOnSwitch)
		}
	}
	least := map[int]string{}
	for i, g := range gpus {
		root := find(i)
		if id := g.HexID()[:8]; least[root] == "" || id < least[root] {
			least[root] = id
		}
	}
	for i := range gpus {
		gpus[i].NVLinkDomain = "nvlink-" + least[find(i)]
	}
}
