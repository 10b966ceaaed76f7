package mig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/state"
)

// card is a made-up card of eight memory slices. It knows who made what, which
// no real card does.
type card struct {
	instances map[int]*instance
	uuids     int
	// die is the number of the change at which the process dies; 0: none.
	die     int
	changes int
	wrong   string // what was done that must never be
}

type instance struct {
	gpu.Instance
	ours, busy bool
}

type death struct{}

// step is before and after each change of the card.
func (c *card) step() {
	c.changes++
	if c.changes == c.die {
		panic(death{})
	}
}

func (c *card) Instances(string) ([]gpu.Instance, error) {
	var out []gpu.Instance
	for _, i := range c.instances {
		out = append(out, i.Instance)
	}
	slices.SortFunc(out, func(a, b gpu.Instance) int { return a.Start - b.Start })
	return out, nil
}

func (c *card) make(profile int, at gpu.Place, ours bool) (int, error) {
	for _, i := range c.instances {
		if i.Overlaps(at) {
			return 0, gpu.ErrTaken
		}
	}
	id := 1
	for c.instances[id] != nil {
		id++ // numbers are given again
	}
	c.instances[id] = &instance{Instance: gpu.Instance{ID: id, ProfileID: profile, Place: at}, ours: ours}
	return id, nil
}

func (c *card) compute(id int) string {
	c.uuids++
	uuid := fmt.Sprint("MIG-", c.uuids)
	c.instances[id].Devices = []gpu.MIGDevice{{UUID: uuid}}
	return uuid
}

func (c *card) MakeInstance(_ string, profile int, at gpu.Place) (int, error) {
	c.step()
	id, err := c.make(profile, at, true)
	c.step()
	return id, err
}

func (c *card) MakeCompute(_ string, id int) (string, error) {
	c.step()
	uuid := c.compute(id)
	c.step()
	return uuid, nil
}

func (c *card) EndCompute(_ string, id int) error {
	c.step()
	i := c.instances[id]
	switch {
	case i == nil:
		return nil
	case i.busy:
		return gpu.ErrBusy
	case !i.ours && len(i.Devices) > 0:
		c.wrong = "the compute instance of somebody else was ended"
	}
	i.Devices = nil
	c.step()
	return nil
}

func (c *card) EndInstance(_ string, id int) error {
	c.step()
	i := c.instances[id]
	switch {
	case i == nil:
		return nil
	case len(i.Devices) > 0:
		return gpu.ErrBusy
	case !i.ours:
		c.wrong = "the instance of somebody else was ended"
	}
	delete(c.instances, id)
	c.step()
	return nil
}

func (c *card) HasDevice(uuid string) (bool, error) {
	for _, i := range c.instances {
		for _, d := range i.Devices {
			if d.UUID == uuid {
				return true, nil
			}
		}
	}
	return false, nil
}

// Whatever is asked, whoever else works on the card, and wherever the process
// dies: nothing of somebody else's is ended, claims keep what they have, and
// what no claim has is gone at the end.
func TestNoInstanceIsLostAndNoneIsLeft(t *testing.T) {
	outer := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		dir := filepath.Join(outer, fmt.Sprint(run))
		c := &card{instances: map[int]*instance{}}
		boot := "boot-0"
		m := &Instances{Dir: filepath.Join(dir, "mig"), Boot: func() (string, error) { return boot, nil }, Cards: c}
		b := &Backend{Instances: m, SharesDir: filepath.Join(dir, "shares")}
		live := map[types.UID]enforce.Share{}
		claims, boots := 0, 0
		shares := func() (out []enforce.Share) {
			for _, s := range live {
				out = append(out, s)
			}
			return out
		}
		mayDie := func(do func()) {
			c.changes, c.die = 0, rapid.IntRange(0, 6).Draw(t, "death")
			defer func() {
				c.die = 0
				if r := recover(); r != nil {
					if _, ok := r.(death); !ok {
						panic(r)
					}
				}
			}()
			do()
		}
		place := func() (profile int, at gpu.Place) {
			size := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "size")
			return size, gpu.Place{Start: rapid.IntRange(0, 8/size-1).Draw(t, "at") * size, Size: size}
		}
		t.Repeat(map[string]func(*rapid.T){
			"prepare": func(t *rapid.T) {
				claims++
				uid := types.UID(fmt.Sprint("uid", claims))
				profile, at := place()
				device := fmt.Sprintf("g-%d-%d", profile, at.Start)
				want := state.MIG{Claim: uid, Card: "GPU-1", Profile: profile, Start: at.Start, Size: at.Size}
				mayDie(func() {
					_ = b.Settle(context.Background(), shares())
					uuid, err := m.Make(Owner{UID: uid}, device, "GPU-1", want)
					if err == nil {
						live[uid] = enforce.Share{Share: state.Share{Device: device, Cards: []string{uuid}, MIG: &want}}
					}
				})
			},
			"unprepare": func(t *rapid.T) {
				for uid := range live {
					delete(live, uid)
					break
				}
				mayDie(func() { _ = b.Settle(context.Background(), shares()) })
			},
			"somebody makes": func(t *rapid.T) {
				profile, at := place()
				if id, err := c.make(profile, at, false); err == nil {
					c.compute(id)
				}
			},
			"somebody ends": func(t *rapid.T) {
				for id, i := range c.instances {
					if !i.ours {
						delete(c.instances, id)
						break
					}
				}
			},
			"programs": func(t *rapid.T) {
				for _, i := range c.instances {
					i.busy = rapid.Bool().Draw(t, "busy") && len(i.Devices) > 0
				}
			},
			"reboot": func(t *rapid.T) {
				boots++
				boot = fmt.Sprint("boot-", boots)
				clear(c.instances)
				clear(live)
			},
			"": func(t *rapid.T) {
				if c.wrong != "" {
					t.Fatal(c.wrong)
				}
				for uid, s := range live {
					if there := b.There(s); !there {
						t.Fatalf("claim %s lost its instance %s", uid, s.Device)
					}
				}
			},
		})
		for _, i := range c.instances {
			i.busy = false
		}
		if err := b.Settle(context.Background(), shares()); err != nil {
			t.Fatal(err)
		}
		ours := 0
		for _, i := range c.instances {
			if i.ours {
				ours++
			}
		}
		if records, _ := m.records(); ours != len(live) || len(records) != len(live) || c.wrong != "" {
			t.Fatalf("%d claims, %d instances and %d records of ours; %s", len(live), ours, len(records), c.wrong)
		}
	})
}

// A record that cannot be read may be of an instance: nothing is made over it,
// and others end all the same.
func TestARecordThatCannotBeReadIsToldOf(t *testing.T) {
	c := &card{instances: map[int]*instance{}}
	m := &Instances{Dir: t.TempDir(), Boot: func() (string, error) { return "b", nil }, Cards: c}
	b := &Backend{Instances: m, SharesDir: t.TempDir()}
	at := state.MIG{Claim: "u", Card: "GPU-1", Profile: 1, Start: 0, Size: 1}
	if _, err := m.Make(Owner{UID: "u"}, "g-1", "GPU-1", at); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.path("g-2"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	at.Start = 4
	if _, err := m.Make(Owner{UID: "v"}, "g-3", "GPU-1", at); err == nil {
		t.Error("made, and who knows over what")
	}
	if err := b.Settle(context.Background(), nil); err == nil || len(c.instances) != 0 {
		t.Errorf("%v; left: %v", err, c.instances)
	}
}

// A machine that loses its power can leave the name of a record without its
// content. What it told of is gone.
func TestARecordThatNeverReachedTheDiskIsInNobodysWay(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "zeros": "\x00\x00\x00\x00"} {
		t.Run(name, func(t *testing.T) {
			c := &card{instances: map[int]*instance{}}
			m := &Instances{Dir: t.TempDir(), Boot: func() (string, error) { return "b", nil }, Cards: c}
			if err := os.WriteFile(m.path("g-1"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Make(Owner{UID: "u"}, "g-1", "GPU-1", state.MIG{Claim: "u", Card: "GPU-1", Profile: 1, Size: 1}); err != nil {
				t.Error(err)
			}
			if len(m.Ours()) != 1 {
				t.Errorf("%d records, want that of what was made", len(m.Ours()))
			}
		})
	}
}

// Containers of a claim whose record was lost may still run.
func TestAnInstanceStaysWhileItsClaimHasFiles(t *testing.T) {
	c := &card{instances: map[int]*instance{}}
	m := &Instances{Dir: t.TempDir(), Boot: func() (string, error) { return "b", nil }, Cards: c}
	b := &Backend{Instances: m, SharesDir: t.TempDir()}
	if _, err := m.Make(Owner{UID: "u"}, "g-1", "GPU-1", state.MIG{Claim: "u", Card: "GPU-1", Profile: 1, Size: 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(b.SharesDir, "u"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := b.Settle(context.Background(), nil); err != nil || len(c.instances) != 1 {
		t.Errorf("%v; left: %v", err, c.instances)
	}
	if err := os.Remove(filepath.Join(b.SharesDir, "u")); err != nil {
		t.Fatal(err)
	}
	if err := b.Settle(context.Background(), nil); err != nil || len(c.instances) != 0 {
		t.Errorf("%v; left: %v", err, c.instances)
	}
}
