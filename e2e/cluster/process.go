package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

var errEnded = errors.New("the process has ended")

// process is a process of the outer machine's PID namespace, told from later ones with the same
// number by when it started.
type process struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // clock ticks after the outer machine's boot
}

func identify(pid int) (process, error) {
	state, started, err := readStat(pid)
	if err != nil {
		return process{}, err
	}
	if state == 'Z' {
		return process{}, errEnded
	}
	return process{PID: pid, Started: started}, nil
}

// readStat reads state and start time (fields 3 and 22) of /proc/PID/stat. The second field, the
// command, is in parentheses and may hold anything.
func readStat(pid int) (state byte, started uint64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, errEnded
	}
	return parseStat(data)
}

func parseStat(data []byte) (state byte, started uint64, err error) {
	end := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[end+1:]))
	if end < 0 || len(fields) < 20 || len(fields[0]) != 1 {
		return 0, 0, fmt.Errorf("process state %q: want at least 22 fields", data)
	}
	started, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0][0], started, err
}

func (p process) alive() bool {
	state, started, err := readStat(p.PID)
	return err == nil && started == p.Started && state != 'Z'
}

func (p process) waitGone(patience time.Duration) bool {
	for deadline := time.Now().Add(patience); p.alive(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func (p process) write(file string) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

func readProcess(file string) (process, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return process{}, err
	}
	var p process
	if err := json.Unmarshal(data, &p); err != nil {
		return process{}, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}
