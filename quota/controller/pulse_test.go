package controller

import (
	"testing"
	"time"

	"github.com/sluice-gpu/sluice/quota/config"
)

func TestAComputationThatDoesNotEndIsReportedAsNotAlive(t *testing.T) {
	c := newCore(&config.QuotaConfiguration{})
	p := &pulse{}
	p.watch(t.Context(), c, time.Millisecond)
	c.mu.Lock()
	stuck := time.Now()
	if err := p.check(stuck.Add(stuckAfter / 2)); err != nil {
		t.Errorf("after half of the time: %v", err)
	}
	if p.check(stuck.Add(stuckAfter+time.Second)) == nil {
		t.Error("alive although nobody gets at the core")
	}
	c.mu.Unlock()
	time.Sleep(50 * time.Millisecond)
	if err := p.check(time.Now().Add(stuckAfter / 2)); err != nil {
		t.Errorf("after it ended: %v", err)
	}
}
