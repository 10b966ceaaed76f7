package controller

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// garbage is GOGC: how much may be allocated before it is collected, in percent
// of what is alive. Little is alive here for long and much passes through, so
// that the usual 100 makes collections a sixth of all work.
const garbage = 200

// TuneMemory lets the process trade memory for less collecting, as long as it
// stays well below what its container may have. Who sets GOGC or GOMEMLIMIT gets
// what that says.
func TuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		text, _ := os.ReadFile("/sys/fs/cgroup/memory.max")
		debug.SetMemoryLimit(softLimit(string(text)))
	}
}

// softLimit is the size from which on collecting is no longer put off, for the
// limit of a container in bytes: three quarters, as not all memory is Go's.
// Anything but a number ("max", or no such file) is no limit.
func softLimit(container string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(container), 10, 64)
	if err != nil || n <= 0 {
		return math.MaxInt64
	}
	return n / 4 * 3
}
