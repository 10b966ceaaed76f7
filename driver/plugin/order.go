package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-gpu/sluice/driver/slicing"
	"github.com/sluice-gpu/sluice/driver/state"
)

// orderInterval is the least time between two changes of the order in which
// cards are published that are spread. The scheduler tries all pods again that
// wait for any device when a ResourceSlice is written.
const orderInterval = time.Minute

// orderName is a file in the plugin's folder. In it the order outlives the
// driver: a restart writes nothing, and two instances of a rolling update agree.
// Otherwise each would undo what the other publishes.
const orderName = "order.json"

// cardOrder is the file: the order that is published, and since when.
type cardOrder struct {
	Devices []string  `json:"devices"`
	Since   time.Time `json:"since"`
}

// arrange has the plan publish the cards that are spread by what they hold, at
// orderInterval at the soonest after the last change. After an error they stay
// in the order that they have.
func (d *Driver) arrange(plan *slicing.Plan) error {
	if !plan.Spreads() {
		return nil
	}
	name := filepath.Join(d.cfg.PluginDir, orderName)
	present, err := readOrder(name)
	defer func() { plan.Arrange(present.Devices) }()
	if err != nil {
		return err
	}
	cp, err := d.store.Look()
	if err != nil {
		return fmt.Errorf("order of the cards: %w", err)
	}
	next, changed := plan.Spread(holdings(plan, cp), present.Devices)
	now := d.cfg.Now()
	// A clock that was set back must not keep the order for as long.
	if since := now.Sub(present.Since); !changed || since >= 0 && since < orderInterval {
		return nil
	}
	b, err := json.Marshal(cardOrder{next, now})
	if err == nil {
		err = state.WriteFile(name, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("order of the cards: %w", err)
	}
	present.Devices = next
	return nil
}

// readOrder reads the file. One that is not there, or was damaged, is none: it
// is made anew from what the cards hold.
func readOrder(name string) (cardOrder, error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return cardOrder{}, nil
	}
	if err != nil {
		return cardOrder{}, fmt.Errorf("order of the cards: %w", err)
	}
	var o cardOrder
	if json.Unmarshal(b, &o) != nil {
		return cardOrder{}, nil
	}
	return o, nil
}

// holdings are what the prepared shares hold of each card.
func holdings(plan *slicing.Plan, cp *state.Checkpoint) map[string]slicing.Holding {
	out := map[string]slicing.Holding{}
	for _, c := range plan.Cards {
		var h slicing.Holding
		h.MemoryMi, _ = cp.Held(c.Device, "")
		for _, claim := range cp.On(c.Device) {
			for _, s := range claim.Shares {
				if s.Device == c.Device && !s.Admin {
					h.Shares++
				}
			}
		}
		out[c.Device] = h
	}
	return out
}
