package gpu

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TimeUse is which part of a card's SM time each process used lately, by PID,
// 0 to 1.
type TimeUse map[int]float64

// TimeUse tells how the processes on a card used its time since a moment, and
// up to which moment NVML has looked, to be handed in the next time. Moments
// are NVML's microseconds; 0: lately. Not every card tells.
func (s *Scanner) TimeUse(uuid string, since uint64) (use TimeUse, until uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lib == nil {
		return nil, since, ErrUnavailable
	}
	dev, ret := s.lib.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return nil, since, fmt.Errorf("NVML does not find card %s: %s", uuid, describe(ret))
	}
	samples, ret := dev.GetProcessUtilization(since)
	switch ret {
	case nvml.SUCCESS:
		use, until = timeUse(samples, since)
		return use, until, nil
	case nvml.ERROR_NOT_FOUND: // nobody used it
		return TimeUse{}, since, nil
	}
	return nil, since, fmt.Errorf("NVML does not tell the use of card %s by process: %s", uuid, describe(ret))
}

// timeUse averages samples. A process may have several, one for each time that
// NVML looked and the process had worked.
func timeUse(samples []nvml.ProcessUtilizationSample, since uint64) (TimeUse, uint64) {
	use, looks, most, until := TimeUse{}, map[int]int{}, 1, since
	for _, s := range samples {
		if s.TimeStamp <= since { // NVML hands out more than it was asked for
			continue
		}
		pid := int(s.Pid)
		use[pid] += min(float64(s.SmUtil), 100) / 100
		looks[pid]++
		most = max(most, looks[pid])
		until = max(until, s.TimeStamp)
	}
	for pid := range use {
		use[pid] /= float64(most)
	}
	return use, until
}
