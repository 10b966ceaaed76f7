package gpu

import (
	"maps"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestTheUseOfTimeIsTheMeanOfWhatNVMLSaw(t *testing.T) {
	sample := func(pid uint32, at uint64, util uint32) nvml.ProcessUtilizationSample {
		return nvml.ProcessUtilizationSample{Pid: pid, TimeStamp: at, SmUtil: util}
	}
	for name, tc := range map[string]struct {
		samples []nvml.ProcessUtilizationSample
		want    TimeUse
		until   uint64
	}{
		"nothing":                        {nil, TimeUse{}, 100},
		"one look":                       {[]nvml.ProcessUtilizationSample{sample(1, 200, 30), sample(2, 200, 70)}, TimeUse{1: 0.3, 2: 0.7}, 200},
		"a process that rested":          {[]nvml.ProcessUtilizationSample{sample(1, 200, 50), sample(1, 300, 50), sample(2, 300, 40)}, TimeUse{1: 0.5, 2: 0.2}, 300},
		"what was told before":           {[]nvml.ProcessUtilizationSample{sample(1, 100, 90), sample(1, 200, 10)}, TimeUse{1: 0.1}, 200},
		"more than there can be":         {[]nvml.ProcessUtilizationSample{sample(1, 200, 4000)}, TimeUse{1: 1}, 200},
		"each process at its own moment": {[]nvml.ProcessUtilizationSample{sample(1, 201, 30), sample(2, 202, 70)}, TimeUse{1: 0.3, 2: 0.7}, 202},
	} {
		got, until := timeUse(tc.samples, 100)
		if !maps.Equal(got, tc.want) || until != tc.until {
			t.Errorf("%s: %v until %d, want %v until %d", name, got, until, tc.want, tc.until)
		}
	}
}
