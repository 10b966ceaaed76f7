package fakegpu

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Defaults of a Node.
const (
	DefaultDriverVersion = "580.95.05"
	DefaultCUDAVersion   = 13000
)

// Arbitration is how a card is shared in time between processes.
type Arbitration string

const (
	// FIFO runs the oldest kernel of all processes to its end.
	FIFO Arbitration = "fifo"
	// TimeSlice lets the processes with work take turns.
	TimeSlice Arbitration = "timeslice"
)

// Node describes the cards of a node and how they behave. Its zero value, with cards, is a node
// of today: time-sliced, contexts without cost.
type Node struct {
	// Name makes the cards' UUIDs and serial numbers: the same name gives the same cards.
	Name string `json:"name,omitempty"`
	// DriverVersion as NVML reports it; also the suffix of the libraries' files.
	DriverVersion string `json:"driverVersion,omitempty"`
	// CUDAVersion in the driver's count: 13000 for 13.0.
	CUDAVersion int `json:"cudaVersion,omitempty"`
	// Arbitration; "timeslice" when empty.
	Arbitration Arbitration `json:"arbitration,omitempty"`
	// Slice is the length of a turn; 2 ms when 0.
	Slice Duration `json:"slice,omitempty"`
	// ContextMiB is the card memory that every CUDA context costs.
	ContextMiB uint64 `json:"contextMiB,omitempty"`
	// ModuleKiB is the card memory that every loaded module costs.
	ModuleKiB uint64 `json:"moduleKiB,omitempty"`
	// Cards in PCI bus order.
	Cards []Card `json:"cards"`
}

// Card describes one card, or several equal ones.
type Card struct {
	// Model is a name of ModelNames.
	Model string `json:"model"`
	// Count of equal cards; 1 when 0. With more than one, the fields below must be empty.
	Count int `json:"count,omitempty"`
	// UUID ("GPU-..."); made from the node's name and the card's place when empty.
	UUID string `json:"uuid,omitempty"`
	// PCI bus id ("00000000:17:00.0"); made from the card's place when empty.
	PCI string `json:"pci,omitempty"`
	// NUMA node; the cards are spread over two when nil.
	NUMA *int `json:"numa,omitempty"`
	// NVLink lists, one entry a link, the place of the card at its far end, -1 for a switch. When
	// nil, cards of a model with NVLink are connected through switches.
	NVLink []int `json:"nvlink,omitempty"`
	// MemoryMiB and ReservedMiB override the model's.
	MemoryMiB   uint64  `json:"memoryMiB,omitempty"`
	ReservedMiB *uint64 `json:"reservedMiB,omitempty"`
	// MIG puts the card into MIG mode.
	MIG *MIG `json:"mig,omitempty"`
}

// Duration is a time.Duration that YAML spells "2ms".
type Duration time.Duration

// UnmarshalJSON reads a text that time.ParseDuration accepts.
func (d *Duration) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("a duration is a text such as \"2ms\", not %s", text)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return err
	}
	*d = Duration(v)
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(d).String())
}

// ParseNode reads a node from YAML. Unknown fields are errors.
func ParseNode(text []byte) (Node, error) {
	var n Node
	if err := yaml.UnmarshalStrict(text, &n); err != nil {
		return Node{}, fmt.Errorf("cannot read node: %w", err)
	}
	if _, err := n.cards(); err != nil {
		return Node{}, err
	}
	return n, nil
}

// CardInfo is a card as programs on the node see it.
type CardInfo struct {
	Model
	Minor  int // /dev/nvidia<Minor>; also the card's place
	UUID   string
	Serial string
	PCI    string
	NUMA   int
	Links  []int
	Mode   *MIG // nil: MIG mode is off
}

// CardInfos lists the node's cards in the order of NVML and CUDA.
func (n Node) CardInfos() ([]CardInfo, error) { return n.cards() }

// cards expands counts and fills in what was left out.
func (n Node) cards() ([]CardInfo, error) {
	var out []CardInfo
	for i, c := range n.Cards {
		count := max(c.Count, 1)
		if count > 1 && (c.UUID != "" || c.PCI != "" || c.NUMA != nil || c.NVLink != nil) {
			return nil, fmt.Errorf("cards[%d]: uuid, pci, numa and nvlink are of one card, but count is %d", i, count)
		}
		m, err := LookupModel(c.Model)
		if err != nil {
			return nil, fmt.Errorf("cards[%d]: %w", i, err)
		}
		if c.MemoryMiB != 0 {
			m.MemoryMiB = c.MemoryMiB
		}
		if c.ReservedMiB != nil {
			m.ReservedMiB = *c.ReservedMiB
		}
		if c.MIG != nil && m.MIG <= migNoProfiles {
			return nil, fmt.Errorf("cards[%d]: %s has no MIG here", i, c.Model)
		}
		if m.ReservedMiB >= m.MemoryMiB {
			return nil, fmt.Errorf("cards[%d]: %d MiB reserved of %d MiB leave nothing", i, m.ReservedMiB, m.MemoryMiB)
		}
		for range count {
			out = append(out, n.card(len(out), m, c))
		}
	}
	const most = 16 // FG_MAX_CARDS
	if len(out) > most {
		return nil, fmt.Errorf("%d cards, a node has at most %d", len(out), most)
	}
	for i, c := range out {
		for _, peer := range c.Links {
			if peer >= len(out) || peer == i || peer < -1 {
				return nil, fmt.Errorf("card %d has an NVLink to card %d, of cards 0..%d", i, peer, len(out)-1)
			}
		}
	}
	return out, nil
}

func (n Node) card(place int, m Model, c Card) CardInfo {
	seed := sha256.Sum256(fmt.Appendf(nil, "%s/%d", n.Name, place))
	info := CardInfo{Model: m, Minor: place, UUID: c.UUID, PCI: c.PCI, Links: c.NVLink, NUMA: place / 4 % 2, Mode: c.MIG}
	if info.UUID == "" {
		info.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", seed[0:4], seed[4:6], seed[6:8], seed[8:10], seed[10:16])
	}
	if info.PCI == "" {
		info.PCI = fmt.Sprintf("00000000:%02X:00.0", 0x07+place*0x0a)
	}
	if c.NUMA != nil {
		info.NUMA = *c.NUMA
	}
	if info.Links == nil {
		for range m.NVLinks {
			info.Links = append(info.Links, -1)
		}
	}
	info.Serial = fmt.Sprintf("16%011d", uint64(seed[16])<<32|uint64(seed[17])<<24|uint64(seed[18])<<16|uint64(seed[19])<<8|uint64(seed[20]))
	return info
}

// text is the node file that the libraries read (src/node.h).
func (n Node) text() (string, error) {
	cards, err := n.cards()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	line := func(key string, value any) { fmt.Fprintf(&b, "%s %v\n", key, value) }
	fmt.Fprintf(&b, "# node %s\n", n.Name)
	line("driver", n.driverVersion())
	line("cuda", valueOr(n.CUDAVersion, DefaultCUDAVersion))
	line("arbitration", valueOr(n.Arbitration, TimeSlice))
	line("slice_ns", time.Duration(valueOr(n.Slice, Duration(2*time.Millisecond))).Nanoseconds())
	line("context_bytes", n.ContextMiB*mib)
	line("module_bytes", n.ModuleKiB<<10)
	for i, c := range cards {
		line("card", i)
		line("minor", c.Minor)
		line("name", c.Name)
		line("uuid", c.UUID)
		line("serial", c.Serial)
		line("board", c.BoardPart)
		line("pci", c.PCI)
		line("pci_device", c.PCIDevice)
		line("pci_subsys", c.PCISubsystem)
		line("memory", c.MemoryMiB*mib)
		line("reserved", c.ReservedMiB*mib)
		line("sms", c.SMs)
		line("cores", c.CUDACores)
		line("cc_major", c.ComputeCapability[0])
		line("cc_minor", c.ComputeCapability[1])
		line("architecture", c.Architecture)
		line("brand", brandNVIDIA)
		line("numa", c.NUMA)
		line("bus_width", c.BusWidth)
		line("sm_clock", c.SMClock)
		line("mem_clock", c.MemClock)
		line("power_limit", c.PowerLimitW*1000)
		line("mig", int(c.MIG))
		line("pcie_gen", c.PCIeGen)
		line("pcie_width", 16)
		if len(c.Links) > 0 {
			line("peers", strings.Trim(fmt.Sprint(c.Links), "[]"))
		}
	}
	return b.String(), nil
}

func (n Node) driverVersion() string { return valueOr(n.DriverVersion, DefaultDriverVersion) }

func valueOr[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
