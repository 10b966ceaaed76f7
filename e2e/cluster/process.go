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
	s, err := readStat(pid)
	if err != nil {
		return process{}, err
	}
	if s.ended() {
		return process{}, errEnded
	}
	return process{PID: pid, Started: s.started}, nil
}

// stat is what /proc/PID/stat says of a process; see proc_pid_stat(5).
type stat struct {
	state   byte   // field 3, of the first thread
	threads int    // field 20
	started uint64 // field 22, in clock ticks after boot
}

// ended says whether the process is gone for everybody but its parent: sockets and files closed,
// locks released. That its first thread is a zombie is not enough. The first thread of a process
// that was killed is one as soon as itself has ended, while any other still holds what they share.
func (s stat) ended() bool {
	return (s.state == 'Z' || s.state == 'X') && s.threads <= 1
}

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, errEnded
	}
	return parseStat(data)
}

// parseStat reads the text of /proc/PID/stat. The second field, the command, is in parentheses and
// may hold anything.
func parseStat(data []byte) (stat, error) {
	end := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[end+1:]))
	if end < 0 || len(fields) < 20 || len(fields[0]) != 1 {
		return stat{}, fmt.Errorf("process state %q: want at least 22 fields", data)
	}
	threads, err := strconv.Atoi(fields[17])
	if err != nil {
		return stat{}, fmt.Errorf("process state %q: number of threads: %w", data, err)
	}
	started, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("process state %q: start: %w", data, err)
	}
	return stat{state: fields[0][0], threads: threads, started: started}, nil
}

func (p process) alive() bool {
	s, err := readStat(p.PID)
	return err == nil && s.started == p.Started && !s.ended()
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
