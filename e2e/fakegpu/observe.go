package fakegpu

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is what one process has on one card.
type Process struct {
	Client   uint64 `json:"client"` // names the process in the log; never used again
	PID      int    `json:"pid"`    // here; 0 when it is in no pid namespace that we see
	OwnPID   int    `json:"ownPid"` // in its own pid namespace
	Host     string `json:"host"`   // its host name: a pod's name in a cluster
	Command  string `json:"comm"`
	Used     uint64 `json:"used"` // bytes
	Contexts int    `json:"contexts"`
	BusyNs   uint64 `json:"busyNs"`
	Kernels  uint64 `json:"kernels"` // finished
	Queued   int    `json:"queued"`
}

// Usage is what is in use of one card.
type Usage struct {
	Card      int       `json:"card"`
	UUID      string    `json:"uuid"`
	Usable    uint64    `json:"usable"` // bytes
	Used      uint64    `json:"used"`
	BusyNs    uint64    `json:"busyNs"` // since the card was reset
	NowNs     uint64    `json:"nowNs"`  // CLOCK_MONOTONIC of the reading
	Processes []Process `json:"processes"`
}

// Run is a stretch of time for which one process had the card without a break.
type Run struct {
	Card    int    `json:"card"`
	StartNs uint64 `json:"startNs"` // CLOCK_MONOTONIC
	EndNs   uint64 `json:"endNs"`
	Client  uint64 `json:"client"`
	OwnPID  int    `json:"ownPid"`
	Host    string `json:"host"`
	Kernels uint64 `json:"kernels"` // that ended within
}

// Usage reads what is in use, one element a card. Processes that died have nothing any more.
func (in *Installed) Usage() ([]Usage, error) {
	out, err := in.control("usage")
	if err != nil {
		return nil, err
	}
	var u []Usage
	if err := json.Unmarshal(out, &u); err != nil {
		return nil, fmt.Errorf("cannot read usage: %w", err)
	}
	return u, nil
}

// Log reads what ran on the cards since a time of CLOCK_MONOTONIC in nanoseconds; a card keeps its
// last 262,144 runs.
func (in *Installed) Log(sinceNs uint64) ([]Run, error) {
	out, err := in.control("log", strconv.FormatUint(sinceNs, 10))
	if err != nil {
		return nil, err
	}
	var runs []Run
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var r Run
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("cannot read the log of runs: %w", err)
		}
		runs = append(runs, r)
	}
	return runs, lines.Err()
}

func (in *Installed) control(args ...string) ([]byte, error) {
	cmd := exec.Command(in.Program(ctl), args...)
	cmd.Env = append(os.Environ(), in.Env()...)
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := err.(*exec.ExitError); ok {
			return nil, fmt.Errorf("fakegpuctl %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
		}
		return nil, err
	}
	return out, nil
}

// Fault is something that goes wrong with a node's hardware.
type Fault string

// Unload is a driver whose kernel module is gone: nothing initialises any more.
func Unload() Fault { return "unload" }

// Lost is a card that fell off the bus.
func Lost(card int) Fault { return Fault(fmt.Sprintf("lost %d", card)) }

// XID is an error event of a card, delivered once to every event set that waits for it.
func XID(card int, code uint64) Fault { return Fault(fmt.Sprintf("xid %d %d", card, code)) }

// XIDOn is an error event of one GPU instance of a card.
func XIDOn(card, instance int, code uint64) Fault {
	return Fault(fmt.Sprintf("xid %d %d %d", card, code, instance))
}

// ECC is a number of further memory errors.
func ECC(card int, uncorrected bool, n uint64) Fault {
	return Fault(fmt.Sprintf("ecc %d %s %d", card, map[bool]string{true: "uncorrected", false: "corrected"}[uncorrected], n))
}

// Temperature is what a card's sensor reads, in degrees Celsius.
func Temperature(card, degrees int) Fault { return Fault(fmt.Sprintf("temp %d %d", card, degrees)) }

// Inject adds faults to those the node has.
func (in *Installed) Inject(faults ...Fault) error {
	old, err := os.ReadFile(in.faultsFile())
	if err != nil {
		return err
	}
	for _, f := range faults {
		old = fmt.Appendf(old, "%s\n", f)
	}
	return replaceFile(in.faultsFile(), old)
}

// Repair ends all faults. XIDs have happened: they stay told.
func (in *Installed) Repair() error {
	old, err := os.ReadFile(in.faultsFile())
	if err != nil {
		return err
	}
	var kept []byte
	for line := range bytes.Lines(old) {
		if bytes.HasPrefix(line, []byte("xid ")) {
			kept = append(kept, line...)
		}
	}
	return replaceFile(in.faultsFile(), kept)
}

func (in *Installed) faultsFile() string { return filepath.Join(in.StateDir, "faults") }
