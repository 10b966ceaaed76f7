package fakegpu

import (
	"strings"
	"testing"
	"time"
)

func TestNodeDescriptionExpandsCountsAndKeepsWhatItNames(t *testing.T) {
	n, err := ParseNode([]byte(`
name: node-3
arbitration: fifo
slice: 5ms
contextMiB: 300
cards:
- model: T4
  count: 2
- model: A100-SXM4-80GB
  uuid: GPU-11111111-2222-3333-4444-555555555555
  numa: 1
`))
	if err != nil {
		t.Fatal(err)
	}
	cards, err := n.CardInfos()
	if err != nil {
		t.Fatal(err)
	}
	if len(cards) != 3 || cards[1].Name != "Tesla T4" || cards[2].UUID != "GPU-11111111-2222-3333-4444-555555555555" || cards[2].NUMA != 1 {
		t.Errorf("cards %+v", cards)
	}
	if time.Duration(n.Slice) != 5*time.Millisecond {
		t.Errorf("slice %v", n.Slice)
	}
}

func TestCardsKeepTheirNamesFromOneStartToTheNext(t *testing.T) {
	uuids := map[string]bool{}
	for _, name := range []string{"node-1", "node-1", "node-2"} {
		cards, _ := Node{Name: name, Cards: []Card{{Model: "T4", Count: 2}}}.CardInfos()
		for _, c := range cards {
			uuids[c.UUID] = true
			if len(c.UUID) != len("GPU-8a5c2f1a-0000-0000-0000-000000000000") {
				t.Errorf("UUID %q", c.UUID)
			}
		}
	}
	if len(uuids) != 4 {
		t.Errorf("two nodes of two cards have %d names", len(uuids))
	}
}

func TestNodeDescriptionRefusesNonsense(t *testing.T) {
	for name, tc := range map[string]struct{ yaml, want string }{
		"unknown model":      {"cards: [{model: V100}]", `cards[0]: no card model "V100"; known are A100-PCIE-40GB`},
		"unknown field":      {"cards: [{modle: T4}]", `unknown field "modle"`},
		"uuid of many":       {"cards: [{model: T4, count: 2, uuid: GPU-1}]", "are of one card, but count is 2"},
		"too many":           {"cards: [{model: T4, count: 17}]", "17 cards, a node has at most 16"},
		"link to nowhere":    {"cards: [{model: T4, nvlink: [3]}]", "card 0 has an NVLink to card 3"},
		"nothing left":       {"cards: [{model: T4, memoryMiB: 100}]", "265 MiB reserved of 100 MiB leave nothing"},
		"duration of number": {"slice: 5\ncards: [{model: T4}]", `a duration is a text such as "2ms"`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseNode([]byte(tc.yaml)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
