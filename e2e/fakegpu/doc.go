// Package fakegpu makes nodes with simulated NVIDIA cards: real shared libraries with the real
// ABI, so that everything above them runs unchanged.
//
// Build compiles the C sources beside this file. Install lays a driver installation and the
// state of a node's cards into folders, as a Node describes them. The handle it returns injects
// faults and reads what the cards did. Nothing here runs in the background and nothing decides
// how memory or time is shared: that is done by the libraries themselves, in the processes that
// use them (README.md).
package fakegpu
