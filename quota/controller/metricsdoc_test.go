package controller

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// names keeps the names of what is registered with it.
type names struct {
	prometheus.Registerer
	all map[string]bool
}

var described = regexp.MustCompile(`fqName: "([^"]+)"`)

func (n *names) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		descriptions := make(chan *prometheus.Desc, 100)
		c.Describe(descriptions)
		close(descriptions)
		for d := range descriptions {
			n.all[described.FindStringSubmatch(d.String())[1]] = true
		}
	}
}

func TestUsersAreToldOfEveryMetric(t *testing.T) {
	got := &names{all: map[string]bool{}}
	newMetrics(got)
	s := newStage(t, 1)
	got.MustRegister(roomMetrics{s.core}, haltMetric{s.core})
	if len(got.all) < 30 {
		t.Fatalf("%d metrics", len(got.all))
	}
	page, err := os.ReadFile(filepath.Join(apitest.Root(), "docs", "user", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name := range got.all {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/user/metrics.md does not tell of %s", name)
		}
	}
}
