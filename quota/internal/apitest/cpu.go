package apitest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor times in /proc (USER_HZ, see proc(5)).
const tick = 10 * time.Millisecond

// CPU is the processor time that the server's programs have taken so far, by their
// names.
func (s *Server) CPU() (map[string]time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]time.Duration{}
	for _, c := range s.running {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
		if err != nil {
			return nil, err
		}
		took, err := processorTime(string(text))
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", c.Process.Pid, err)
		}
		all[filepath.Base(c.Path)] += took
	}
	return all, nil
}

// processorTime reads a process' time, its own and the kernel's for it, from its
// stat file. The name, which comes second, may hold anything.
func processorTime(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const user, system = 11, 12
	if len(fields) <= system {
		return 0, fmt.Errorf("no processor times in %q", stat)
	}
	ticks := 0
	for _, text := range []string{fields[user], fields[system]} {
		n, err := strconv.Atoi(text)
		if err != nil {
			return 0, fmt.Errorf("processor times in %q: %w", stat, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}
