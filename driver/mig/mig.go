// Package mig makes the GPU instances that claims were given and destroys them
// afterwards. It is also the enforcement of MIG devices: the hardware holds
// them to their size, so there is nothing else to do.
//
// An instance outlives the process that made it, so each has a record on disk
// that is written before anything is done to the card and removed after all is
// undone:
//
//	making ──> made ──> ending ──> empty ──> (no record)
//	 GPU        compute   compute   GPU
//	 instance   instance  instance  instance
//	 is made    is made   is ended  is ended
//
// The record names the step that is about to be taken, or was. A process that
// dies at any point leaves a record from which the next one goes on. It never
// touches an instance that somebody else made: before its compute instance is
// gone ours keeps its place, and a GPU instance is destroyed only while it has
// no compute instance, which the card itself sees to. (An empty one, made by
// hand in the very place and of the profile that a dead process was about to
// use, would be taken for ours. Nothing can run in it.)
//
// It decides nothing about who gets what. Its caller, the kubelet plugin, holds
// the checkpoint's lock in every call.
package mig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/state"
)

// Cards changes the instances of the node's cards; gpu.Scanner does.
type Cards interface {
	// Instances are those of a card, by its UUID.
	Instances(card string) ([]gpu.Instance, error)
	// MakeInstance makes an empty GPU instance and returns its id. The error
	// matches gpu.ErrTaken where another one is in the way.
	MakeInstance(card string, profile int, at gpu.Place) (int, error)
	// MakeCompute makes the compute instance that is all of it and returns the
	// device's UUID.
	MakeCompute(card string, id int) (string, error)
	// EndCompute and EndInstance undo them. The error matches gpu.ErrBusy
	// while programs run there, and for EndInstance while there is a compute
	// instance. What is not there is no error.
	EndCompute(card string, id int) error
	EndInstance(card string, id int) error
	// HasDevice tells whether there is a device with the UUID.
	HasDevice(uuid string) (bool, error)
}

// Instances makes and destroys GPU instances.
type Instances struct {
	// Dir holds the records; it is made if missing.
	Dir string
	// Boot returns the kernel's boot id: no instance outlives a reboot.
	Boot  func() (string, error)
	Cards Cards
}

// Owner is the claim that an instance is made for.
type Owner struct {
	UID             types.UID
	Namespace, Name string
}

func (o Owner) String() string { return o.Namespace + "/" + o.Name }

type stage string

const (
	making stage = "making"
	made   stage = "made"
	ending stage = "ending"
	empty  stage = "empty"
)

// record is what is known of one instance.
type record struct {
	Boot      string    `json:"boot"`
	Claim     types.UID `json:"claim"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Device    string    `json:"device"` // as published
	Card      string    `json:"card"`   // UUID
	Profile   int       `json:"profile"`
	Start     int       `json:"start"`
	Size      int       `json:"size"`
	Stage     stage     `json:"stage"`
	ID        int       `json:"id"` // of the GPU instance, from made on
}

func (r record) place() gpu.Place { return gpu.Place{Start: r.Start, Size: r.Size} }
func (r record) owner() Owner     { return Owner{r.Claim, r.Namespace, r.Name} }

// Make makes the instance of a device for a claim and returns the UUID of what
// its programs use. On an error nothing of it is left, or a record from which
// Settle goes on.
func (m *Instances) Make(owner Owner, device, card string, at state.MIG) (string, error) {
	boot, err := m.Boot()
	if err != nil {
		return "", err
	}
	all, err := m.records()
	if err != nil {
		return "", err
	}
	want := record{
		Boot: boot, Claim: owner.UID, Namespace: owner.Namespace, Name: owner.Name,
		Device: device, Card: card, Profile: at.Profile, Start: at.Start, Size: at.Size, Stage: making,
	}
	for _, r := range all {
		if r.Boot == boot && r.Card == card && r.place().Overlaps(want.place()) {
			return "", fmt.Errorf("its place on the card still has the instance %s of claim %s, whatever the API says of it; trying again until it is destroyed", r.Device, r.owner())
		}
	}
	there, err := m.Cards.Instances(card)
	if err != nil {
		return "", err
	}
	for _, i := range there {
		if i.Overlaps(want.place()) {
			return "", fmt.Errorf("memory slices %d to %d of card %s have an instance that Sluice did not make: destroy it, or keep the place out of profiles", i.Start, i.Start+i.Size-1, card)
		}
	}
	if err := m.write(want); err != nil {
		return "", err
	}
	if want.ID, err = m.Cards.MakeInstance(card, at.Profile, want.place()); err != nil {
		return "", errors.Join(err, m.end(want, boot))
	}
	want.Stage = made
	if err := m.write(want); err != nil {
		return "", errors.Join(err, m.end(want, boot))
	}
	uuid, err := m.Cards.MakeCompute(card, want.ID)
	if err != nil {
		return "", errors.Join(err, m.end(want, boot))
	}
	return uuid, nil
}

// end undoes what a record tells, from wherever it stands. An error leaves the
// record.
func (m *Instances) end(r record, boot string) error {
	if r.Boot != boot {
		return m.remove(r) // gone with its boot
	}
	id, there, err := m.find(r)
	if err != nil {
		return err
	}
	if !there {
		return m.remove(r)
	}
	if r.Stage == made || r.Stage == ending {
		r.ID, r.Stage = id, ending
		if err := m.write(r); err != nil {
			return err
		}
		if err := m.Cards.EndCompute(r.Card, id); err != nil {
			return err
		}
		r.Stage = empty
		if err := m.write(r); err != nil {
			return err
		}
	}
	// Whoever put a compute instance into it since, or made one like it in
	// its place, is somebody else.
	if err := m.Cards.EndInstance(r.Card, id); err != nil && !errors.Is(err, gpu.ErrBusy) {
		return err
	}
	return m.remove(r)
}

// find looks for the instance of a record: by its id once that is known, and
// always by profile and place.
func (m *Instances) find(r record) (id int, there bool, err error) {
	all, err := m.Cards.Instances(r.Card)
	if err != nil {
		return 0, false, err
	}
	i := slices.IndexFunc(all, func(i gpu.Instance) bool {
		return i.ProfileID == r.Profile && i.Place == r.place() && (r.Stage == making || i.ID == r.ID)
	})
	if i < 0 {
		return 0, false, nil
	}
	return all[i].ID, true, nil
}

// Ours are the places of instances that have a record.
type Ours map[place]mine

type place struct {
	card    string
	profile int
	gpu.Place
}

type mine struct {
	device string
	claim  types.UID
	made   bool // and not about to end
}

// Ours reads the records. What cannot be read is nobody's.
func (m *Instances) Ours() Ours {
	out := Ours{}
	all, _ := m.records()
	for _, r := range all {
		out[place{r.Card, r.Profile, r.place()}] = mine{r.Device, r.Claim, r.Stage == made}
	}
	return out
}

// Ill is a device that something is wrong with.
type Ill struct {
	// Device is its published name, Key one word for what it is, Reason a
	// sentence for people.
	Device, Key, Reason string
}

// Without takes out of cards the instances that are ours, so that what is left
// was made by others. before are the records from before the cards were looked
// at: an instance has one for longer than it is there. It returns those of ours
// that are ill, or that somebody destroyed.
func (m *Instances) Without(gpus []gpu.GPU, before Ours) []Ill {
	after := m.Ours()
	var ill []Ill
	for _, g := range gpus {
		if g.Partition == nil {
			continue
		}
		there := map[place]bool{}
		g.Partition.Instances = slices.DeleteFunc(g.Partition.Instances, func(i gpu.Instance) bool {
			key := place{g.UUID, i.ProfileID, i.Place}
			was, a := before[key]
			_, b := after[key]
			there[key] = true
			for _, d := range i.Devices {
				if d.Fault != "" && a {
					ill = append(ill, Ill{was.device, "faulty", d.Fault})
				}
			}
			return a || b
		})
		for key, was := range before {
			if key.card == g.UUID && was.made && after[key] == was && !there[key] {
				ill = append(ill, Ill{was.device, "mig-gone", "the MIG instance was destroyed, and not by Sluice"})
			}
		}
	}
	slices.SortFunc(ill, func(a, b Ill) int { return strings.Compare(a.Device, b.Device) })
	return ill
}

const suffix = ".json"

func (m *Instances) path(device string) string { return filepath.Join(m.Dir, device+suffix) }

func (m *Instances) write(r record) error {
	if err := os.MkdirAll(m.Dir, 0o750); err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return state.WriteFile(m.path(r.Device), b, 0o600)
}

func (m *Instances) remove(r record) error {
	err := os.Remove(m.path(r.Device))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// records are all there are, by device. One that is no record is an error: it
// may be of an instance that is there.
func (m *Instances) records() ([]record, error) {
	list, err := os.ReadDir(m.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []record
	for _, e := range list {
		device, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || strings.HasPrefix(device, ".") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(m.Dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && len(bytes.Trim(b, "\x00")) == 0 {
			// No process leaves that: the machine stopped before the disk had
			// the content, and its instances with it.
			continue
		}
		var r record
		if err == nil {
			err = json.Unmarshal(b, &r)
		}
		if err == nil && r.Device != device {
			err = fmt.Errorf("it is of device %q", r.Device)
		}
		if err != nil {
			return out, fmt.Errorf("the record %s of a MIG instance cannot be used: %w; destroy the instance and remove the file", e.Name(), err)
		}
		out = append(out, r)
	}
	return out, nil
}
