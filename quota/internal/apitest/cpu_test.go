package apitest

import (
	"testing"
	"time"
)

func TestProcessorTimeIsReadBehindAnyName(t *testing.T) {
	const rest = " S 1 2 2 0 -1 4194560 100 0 3 0 250 50 7 8 20 0 9 0 12345 1 2"
	for _, name := range []string{"etcd", "a b", "odd) R 9 9"} {
		got, err := processorTime("42 (" + name + ")" + rest)
		if err != nil || got != 3*time.Second {
			t.Errorf("%s: %v %v, want 3s", name, got, err)
		}
	}
	for _, text := range []string{"", "42 (etcd) S 1", "42 (etcd) S 1 2 2 0 -1 4194560 100 0 3 0 x 50"} {
		if got, err := processorTime(text); err == nil {
			t.Errorf("%q has %v", text, got)
		}
	}
}
