package cluster

import (
	"fmt"
	"net/netip"
)

// The address plan. Every cluster uses the same addresses: its bridge is in a network namespace of
// its own, so clusters do not meet each other nor the outer machine.
//
//	10.77.0.0/24    machines: 10.77.0.2 the control plane, 10.77.0.10 + i the i-th node
//	10.88.i.0/24    pods of the i-th node
//	10.96.0.0/16    services; 10.96.0.1 is an address of the control plane itself, and the API
//	                server listens on the port that the kubernetes service has, so that pods reach
//	                it although no kube-proxy runs
const (
	controlPlaneIP = "10.77.0.2"
	machineBits    = 24
	serviceCIDR    = "10.96.0.0/16"
	apiServiceIP   = "10.96.0.1"
	apiPort        = 443
)

// apiServer is the address at which every component finds the API server.
func apiServer() string { return fmt.Sprintf("https://%s:%d", controlPlaneIP, apiPort) }

// nodeIP is the address of the i-th node; the first is 1.
func nodeIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(10 + i)}) }

// podCIDR is the range of the i-th node's pods.
func podCIDR(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 88, byte(i), 0}), 24)
}
