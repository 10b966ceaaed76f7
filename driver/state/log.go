package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// The log is a head of fixed size and lines. The head tells how many bytes of
// lines count: what is behind them was being written by a process that died, and
// a file that is shorter was cut. Each line is a checksum, a space and one
// change in JSON.
//
//	sluice checkpoint, version 2, id 6b1f..., bytes 000000000417, sum 9a3c...
//	1f0c9be2a4d87765 {"boot":"3a55..."}
//	77d1c0b35e2f9a01 {"put":{"uid":"...","namespace":"team","name":"slice","shares":[...]}}
//	04b7e1a9d2c6f358 {"drop":"..."}
//
// The id is another one in each file, so that a reader that has read so many
// bytes of it knows that it need only read on.

// Version is the layout of logs that this program writes and the highest it
// reads. Fields that a reader does not know are ignored; a change of another kind
// than it knows is a new version.
const Version = 2

// head is the beginning of a log.
type head struct {
	id    string
	bytes int64 // of lines
}

const headSize = 128

// change is one line.
type change struct {
	Boot *string   `json:"boot,omitempty"`
	Put  *Claim    `json:"put,omitempty"`
	Drop types.UID `json:"drop,omitempty"`
}

// encode gives headSize bytes.
func (h head) encode() []byte {
	text := fmt.Sprintf("sluice checkpoint, version %d, id %s, bytes %012d", Version, h.id, h.bytes)
	text = fmt.Sprintf("%s, sum %s", text, short(text))
	return fmt.Appendf(nil, "%-*s\n", headSize-1, text)
}

// decodeHead reads a head. The error matches ErrCorrupt.
func decodeHead(b []byte) (head, error) {
	if len(bytes.TrimSpace(b)) == 0 {
		return head{}, fmt.Errorf("%w: the file is empty", ErrCorrupt)
	}
	text, sum, ok := strings.Cut(strings.TrimSpace(string(b)), ", sum ")
	rest, known := strings.CutPrefix(text, "sluice checkpoint, version ")
	if !ok || !known {
		return head{}, fmt.Errorf("%w: it does not begin as a checkpoint", ErrCorrupt)
	}
	parts := strings.Split(rest, ", ")
	if version, err := strconv.Atoi(parts[0]); err != nil || version != Version {
		if err != nil {
			return head{}, fmt.Errorf("%w: its version is %q", ErrCorrupt, parts[0])
		}
		return head{}, wrongVersion(version, Version)
	}
	if got := short(text); got != sum {
		return head{}, fmt.Errorf("%w: checksum of its head is %s, the text has %s", ErrCorrupt, sum, got)
	}
	if len(parts) != 3 {
		return head{}, fmt.Errorf("%w: its head has %d parts", ErrCorrupt, len(parts))
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(parts[2], "bytes "), 10, 64)
	if err != nil || n < 0 {
		return head{}, fmt.Errorf("%w: its head tells of %q", ErrCorrupt, parts[2])
	}
	return head{id: strings.TrimPrefix(parts[1], "id "), bytes: n}, nil
}

// encodeLine is one line with its end.
func encodeLine(c change) ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s %s\n", short(string(b)), b), nil
}

// encodeAll are the lines of a whole checkpoint.
func encodeAll(c *Checkpoint) ([]byte, error) {
	changes := []change{{Boot: &c.BootID}}
	for _, claim := range c.Claims() {
		changes = append(changes, change{Put: &claim})
	}
	return encodeLines(changes)
}

// encodeChanges are the lines that say what changed since the last save.
func encodeChanges(c *Checkpoint) ([]byte, error) {
	var changes []change
	for uid, old := range c.before {
		switch claim, ok := c.claims[uid]; {
		case ok && (old == nil || !same(*old, claim)):
			changes = append(changes, change{Put: &claim})
		case !ok && old != nil:
			changes = append(changes, change{Drop: uid})
		}
	}
	return encodeLines(changes)
}

func encodeLines(changes []change) ([]byte, error) {
	var out []byte
	for _, c := range changes {
		line, err := encodeLine(c)
		if err != nil {
			return nil, err
		}
		out = append(out, line...)
	}
	return out, nil
}

func same(a, b Claim) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// applyLines makes the changes of whole lines. The error matches ErrCorrupt; then
// some may have been made.
func (c *Checkpoint) applyLines(b []byte) error {
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte("\n"))
		sum, data, ok := bytes.Cut(line, []byte(" "))
		if !ended || !ok {
			return fmt.Errorf("%w: a line is cut: %.40q", ErrCorrupt, line)
		}
		if got := short(string(data)); got != string(sum) {
			return fmt.Errorf("%w: checksum is %.20s, the line has %s", ErrCorrupt, sum, got)
		}
		var l change
		if err := json.Unmarshal(data, &l); err != nil {
			return fmt.Errorf("%w: %v", ErrCorrupt, err)
		}
		switch {
		case l.Boot != nil:
			c.BootID = *l.Boot
		case l.Put != nil:
			c.set(*l.Put)
		case l.Drop != "":
			c.unset(l.Drop)
		default:
			return fmt.Errorf("%w: a change of a kind that is not known: %.40s", ErrCorrupt, data)
		}
		b = rest
	}
	return nil
}

// short is enough of a checksum to find damage.
func short(text string) string { return sum([]byte(text))[:16] }
