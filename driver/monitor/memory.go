package monitor

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/sluice-gpu/sluice/driver/state"
)

const (
	// kept is how many shares of a model are remembered.
	kept = 9
	// maxStart bounds what a share is charged before anything was seen of it,
	// and so what a program that takes memory past the limiter does to others.
	maxStart = 1 << 30
)

// memory remembers what contexts took on each card model, so that the first
// process of a new share is charged what it will probably take. The middle of
// the last few shares is the answer: neither a share that takes memory past
// the limiter nor one that is charged more than it takes moves it far.
type memory struct {
	// Models are the values by model, oldest first, one a share.
	Models map[string][]seen `json:"models"`
	// Cards are the models of cards by UUID.
	Cards map[string]string `json:"cards"`
}

type seen struct {
	Share    string `json:"share"`
	Overhead uint64 `json:"overhead"`
}

// start is what a context on the card will probably take; 0 when nothing is
// known.
func (m *memory) start(card string) uint64 {
	var values []uint64
	for _, s := range m.Models[m.Cards[card]] {
		values = append(values, s.Overhead)
	}
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// card notes the model of a card and tells whether that was new.
func (m *memory) card(uuid, model string) bool {
	if m.Cards[uuid] == model {
		return false
	}
	if m.Cards == nil {
		m.Cards = map[string]string{}
	}
	m.Cards[uuid] = model
	return true
}

// learn notes what contexts of a share took last and tells whether that was
// new. What is more than a share may begin with teaches nothing.
func (m *memory) learn(card, share string, overhead uint64) bool {
	model, ok := m.Cards[card]
	if !ok || overhead > maxStart {
		return false
	}
	if m.Models == nil {
		m.Models = map[string][]seen{}
	}
	values := m.Models[model]
	for i := range values {
		if values[i].Share == share {
			changed := values[i].Overhead != overhead
			values[i].Overhead = overhead
			return changed
		}
	}
	values = append(values, seen{Share: share, Overhead: overhead})
	m.Models[model] = values[max(0, len(values)-kept):]
	return true
}

// loadMemory reads what saveMemory wrote. What cannot be used is forgotten: it
// will be seen again.
func loadMemory(name string) (memory, error) {
	var m memory
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		return memory{}, err
	}
	return m, nil
}

func saveMemory(name string, m memory) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return state.WriteFile(name, b, 0o600)
}
