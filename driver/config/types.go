// Package config is the node configuration of the driver: which cards are
// offered how. It decodes strictly, fills in defaults, and refuses what does
// not make sense by itself with the path of the field and the reason. What
// only the cards can tell (do the slices fit?) is checked by package
// slicing, which is given both.
//
// The same file goes to every node of a cluster; node groups pick what
// applies to one.
package config

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GroupVersion and Kind of the configuration file.
const (
	GroupVersion = "gpu.sluice.dev/v1alpha1"
	Kind         = "DriverConfiguration"
)

// DriverConfiguration says how the cards of a cluster are offered.
type DriverConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// NodeGroups are tried in order: a card belongs to the first group whose
	// nodeSelector matches its node and whose deviceSelector matches the
	// card. A card that no group wants is not offered. Without any group all
	// cards are offered in mode dynamic.
	NodeGroups []NodeGroup `json:"nodeGroups,omitempty"`

	// Health says which errors of cards count.
	Health Health `json:"health,omitzero"`

	// Violations says what happens to programs that hold more of a card than
	// their share.
	Violations Violations `json:"violations,omitzero"`

	// name and text are the file that it was read from, for messages.
	name string
	text document
}

// Health says which errors of cards count, and for how long.
type Health struct {
	// BenignXIDs are error events that say nothing about a card's health.
	// Default: those that programs cause, see gpu.BenignXIDs. An empty list: none.
	BenignXIDs []uint64 `json:"benignXIDs,omitempty"`

	// Quiet is for how long a card must report no error before it is offered
	// again, after an error that does not need a reset. Default 10 minutes.
	Quiet *metav1.Duration `json:"quiet,omitempty"`
}

// Violations says what happens to programs that hold more of a card than their
// share, which they do only past the limiter.
type Violations struct {
	// Policy is report, the default, or kill.
	Policy ViolationPolicy `json:"policy,omitempty"`

	// After is for how long a share is above its limit before the first of its
	// processes is killed, and the time between two. Default 30 seconds.
	After metav1.Duration `json:"after,omitzero"`
}

// ViolationPolicy is what happens to programs above their share.
type ViolationPolicy string

const (
	// Report tells the pod, the claim and Prometheus.
	Report ViolationPolicy = "report"
	// Kill does so, and then kills the process on the card that holds the most,
	// until the share is within its limit.
	Kill ViolationPolicy = "kill"
)

// NodeGroup offers the cards of some nodes in one way.
type NodeGroup struct {
	// Name identifies the group in messages. Unique, not empty.
	Name string `json:"name"`

	// NodeSelector are labels a node must carry, all of them. Empty: every
	// node.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// DeviceSelector picks among the cards of such a node. Absent: all.
	DeviceSelector *DeviceSelector `json:"deviceSelector,omitempty"`

	// Mode is dynamic, fixed, whole or mig. Default dynamic.
	Mode Mode `json:"mode,omitempty"`

	// Slices is the number of equal parts a card is cut into. Required in
	// mode fixed, refused otherwise.
	Slices int64 `json:"slices,omitempty"`

	// Memory is the size of one slice in mode fixed: a quantity of whole Mi,
	// or "auto" for usable memory / slices. Default auto.
	Memory string `json:"memory,omitempty"`

	// Cores is the percentage of a card's time that is guaranteed to a claim
	// which names none. 0, the default, guarantees nothing and lets a share
	// use whatever is idle.
	Cores int64 `json:"cores,omitempty"`

	// DefaultMemory is what a claim takes in mode dynamic that names no
	// memory, among them those of unchanged pods with "nvidia.com/gpu: 1". A
	// quantity of whole Mi. Absent: all of the card.
	DefaultMemory string `json:"defaultMemory,omitempty"`

	// Reserve is memory of each card that is never given out, a quantity of
	// whole Mi. Default 0.
	Reserve string `json:"reserve,omitempty"`

	// Oversubscription is how many times the memory of a card is given out, 1
	// to 16 in steps of a thousandth. Default 1. No share is larger than the
	// card, and every share is limited, also one as large as the card.
	// Programs fail to allocate when all of them take what they were promised.
	Oversubscription *resource.Quantity `json:"oversubscription,omitempty"`

	// Profiles are the MIG profiles of which instances are made when claims
	// ask for them, as globs over names such as "1g.10gb"; mode mig only.
	// Absent: all that the card has. An empty list makes none: only instances
	// that are there are offered.
	Profiles []string `json:"profiles,omitempty"`

	// Order is which card of a node is filled first, pack or spread; modes
	// dynamic and fixed only. Default pack.
	Order Order `json:"order,omitempty"`

	// CorePolicy is for shares whose claim and class name none. Default burst.
	CorePolicy CorePolicy `json:"corePolicy,omitempty"`

	// Enforcement is for shares whose claim and class name none. Default
	// limiter, and mig in mode mig.
	Enforcement Enforcement `json:"enforcement,omitempty"`
}

// Mode is how the cards of a group are cut.
type Mode string

const (
	// Dynamic cuts a card at allocation into the sizes that claims name; a
	// claim that names none gets the card.
	Dynamic Mode = "dynamic"
	// Fixed cuts every card into equal slices; a claim that names no size
	// gets one slice.
	Fixed Mode = "fixed"
	// Whole gives a card to one claim, whatever size it names.
	Whole Mode = "whole"
	// MIG offers the instances of cards in MIG mode.
	MIG Mode = "mig"
)

// Order is which of a node's cards claims are placed on first.
type Order string

const (
	// Pack fills one card before it opens the next, in PCI order.
	Pack Order = "pack"
	// Spread places claims on the card whose shares hold least memory, as far
	// as that is published: once a minute at most. The node's devices must fit
	// into one ResourceSlice.
	Spread Order = "spread"
)

// Auto is the Memory value that divides a card's usable memory evenly.
const Auto = "auto"

// SliceMi returns the slice size in Mi, 0 for auto. It must be called on a
// validated group.
func (g NodeGroup) SliceMi() int64 {
	if g.Memory == Auto {
		return 0
	}
	return miOf(g.Memory)
}

// DefaultMemoryMi is what a claim takes that names no memory, 0 for all of the
// card. It must be called on a validated group.
func (g NodeGroup) DefaultMemoryMi() int64 { return miOf(g.DefaultMemory) }

// ReserveMi is the memory of each card that is not given out.
func (g NodeGroup) ReserveMi() int64 {
	n, err := parseReserve(g.Reserve)
	if err != nil {
		return 0
	}
	return n
}

// Factor is how many thousandths of a card's memory are given out, 1000 or
// more.
func (g NodeGroup) Factor() int64 {
	if g.Oversubscription == nil {
		return 1000
	}
	return g.Oversubscription.MilliValue()
}

func miOf(s string) int64 {
	n, err := parseMi(s)
	if err != nil {
		return 0
	}
	return n
}
