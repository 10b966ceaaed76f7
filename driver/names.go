// Package driver holds the names under which Sluice's DRA driver is known to
// the cluster. Everything it does lives in the packages below it: gpu finds
// cards, config says how to offer them, slicing turns both into devices,
// state remembers what is prepared, and plugin talks to the kubelet.
package driver

// Name is the DRA driver's name and the domain of its attributes, capacities
// and device classes.
const Name = "gpu.sluice.dev"

// MonitorDevice is the device of a node that stands for all its cards, for
// monitoring with admin access. It takes nothing from anybody.
const MonitorDevice = "monitor"

// Values of the attribute "type".
const (
	TypeGPU     = "gpu"
	TypeMIG     = "mig"
	TypeMonitor = "monitor"
)

// Capacities of a shareable card and of a MIG device.
const (
	CapacityMemory = "memory" // bytes, whole Mi
	CapacityCores  = "cores"  // percent of the card's SM time
)

// AllCores is the value of the cores capacity of every card.
const AllCores = 100
