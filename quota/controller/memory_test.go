package controller

import (
	"math"
	"testing"
)

func TestCollectingIsNotPutOffNearTheContainersLimit(t *testing.T) {
	for container, want := range map[string]int64{
		"1073741824\n": 805306368,
		"max\n":        math.MaxInt64,
		"":             math.MaxInt64,
		"-1":           math.MaxInt64,
		"0":            math.MaxInt64,
	} {
		if got := softLimit(container); got != want {
			t.Errorf("limit %q: collects from %d on, want %d", container, got, want)
		}
	}
}
