package fakegpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MIGFamily says how cards of a model can be partitioned (src/mig.h).
type MIGFamily int

const (
	migNone       MIGFamily = iota
	migNoProfiles           // the card knows the mode, which cannot be switched on here
	migA100x40
	migA100x80
	migH100x80
)

// MIG is the mode of a card in which it is partitioned into instances.
type MIG struct {
	// Instances are made when the node boots, as an administrator's tool does: profiles such as
	// "3g.40gb", each at the first place that is free, or at memory slice N with "3g.40gb@N".
	Instances []string `json:"instances,omitempty"`
}

// Instance is a GPU instance of a card.
type Instance struct {
	ID      int    `json:"id"`
	Profile string `json:"profile"`
	Start   int    `json:"start"` // first memory slice
	Size    int    `json:"size"`
	Compute []struct {
		ID      int    `json:"id"`
		Profile string `json:"profile"`
		UUID    string `json:"uuid"`
	} `json:"compute"`
}

// Instances are the card's GPU instances, in the order of their ids; on tells whether the card is
// in MIG mode.
func (in *Installed) Instances(card int) (instances []Instance, on bool, err error) {
	return in.mig(card)
}

// MIGMode switches a card's MIG mode. The card must be idle and have no instances. The mode
// outlives a Reset, as an A100 keeps it over a power cycle; instances do not.
func (in *Installed) MIGMode(card int, on bool) error {
	if _, _, err := in.mig(card, map[bool]string{true: "on", false: "off"}[on]); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(in.keptMode(card)), 0o755); err != nil {
		return err
	}
	if on {
		return os.WriteFile(in.keptMode(card), nil, 0o644)
	}
	if err := os.Remove(in.keptMode(card)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// keptMode is a file that is there while the card is in MIG mode: its own memory.
func (in *Installed) keptMode(card int) string {
	return filepath.Join(in.DriverRoot, "var/lib/fakegpu", fmt.Sprintf("mig-%d", card))
}

// MakeInstance makes a GPU instance, with one compute instance that is all of it, as an
// administrator does; at is a profile and, if need be, its place (MIG.Instances).
func (in *Installed) MakeInstance(card int, at string) error {
	profile, start, placed := strings.Cut(at, "@")
	args := []string{"make", profile}
	if placed {
		args = append(args, start)
	}
	_, _, err := in.mig(card, args...)
	return err
}

// DestroyInstance ends a GPU instance and what is in it. No program may use it.
func (in *Installed) DestroyInstance(card, id int) error {
	_, _, err := in.mig(card, "destroy", strconv.Itoa(id))
	return err
}

func (in *Installed) mig(card int, args ...string) ([]Instance, bool, error) {
	out, err := in.control(append([]string{"mig", strconv.Itoa(card)}, args...)...)
	if err != nil {
		return nil, false, err
	}
	var answer struct {
		On        bool       `json:"on"`
		Instances []Instance `json:"instances"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, false, fmt.Errorf("cannot read the instances of card %d: %w", card, err)
	}
	return answer.Instances, answer.On, nil
}

// partition puts cards into MIG mode as the node's description says.
func (in *Installed) partition() error {
	cards, err := in.Node.cards()
	if err != nil {
		return err
	}
	for i, c := range cards {
		if _, err := os.Stat(in.keptMode(i)); err != nil && c.Mode == nil {
			continue
		}
		if err := in.MIGMode(i, true); err != nil {
			return err
		}
		if c.Mode == nil {
			continue
		}
		for _, at := range c.Mode.Instances {
			if err := in.MakeInstance(i, at); err != nil {
				return fmt.Errorf("card %d: instance %s: %w", i, at, err)
			}
		}
	}
	return nil
}

// Ids of instances that a card can have, and the minor numbers of their capabilities: FG_GIS,
// FG_CIS and fg_mig_minor of the libraries, which are the kernel module's.
const (
	gpuInstances     = 15
	computeInstances = 8
	firstCapability  = 3
)

// capability is a right that a process has if it can open a device node.
type capability struct {
	name  string // below /proc/driver/nvidia/capabilities, as mig-minors spells it
	minor int
}

func capabilities(cards []CardInfo) []capability {
	all := []capability{{"config", 1}, {"monitor", 2}}
	for _, c := range cards {
		if c.MIG <= migNoProfiles {
			continue
		}
		minor := firstCapability + c.Minor*gpuInstances*(1+computeInstances)
		for gi := range gpuInstances {
			all = append(all, capability{fmt.Sprintf("gpu%d/gi%d/access", c.Minor, gi), minor})
			minor++
			for ci := range computeInstances {
				all = append(all, capability{fmt.Sprintf("gpu%d/gi%d/ci%d/access", c.Minor, gi, ci), minor})
				minor++
			}
		}
	}
	return all
}

// installCapabilities makes the device nodes by which processes are let at MIG instances, and the
// kernel module's list of them, below the driver's root.
func (in *Installed) installCapabilities(cards []CardInfo) error {
	all := capabilities(cards)
	if len(all) == 2 {
		return nil // no card knows MIG
	}
	if err := os.MkdirAll(filepath.Join(in.DevDir(), "nvidia-caps"), 0o755); err != nil {
		return err
	}
	var minors strings.Builder
	for _, c := range all {
		fmt.Fprintf(&minors, "%s %d\n", c.name, c.minor)
		if err := in.makeDevice(fmt.Sprintf("nvidia-caps/nvidia-cap%d", c.minor)); err != nil {
			return err
		}
	}
	list := filepath.Join(in.DriverRoot, "proc/driver/nvidia-caps/mig-minors")
	if err := os.MkdirAll(filepath.Dir(list), 0o755); err != nil {
		return err
	}
	return replaceFile(list, []byte(minors.String()))
}
