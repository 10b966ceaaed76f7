package config

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// rendered is the configuration that the chart gives the controller, and the
// rest of the chart.
func rendered(t *testing.T, set ...string) (c *QuotaConfiguration, chart string) {
	t.Helper()
	chart = string(apitest.Render(t, nil, set...))
	for document := range strings.SplitSeq(chart, "\n---") {
		var object struct {
			Kind string
			Data map[string]string
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		text, found := object.Data["quota.yaml"]
		if !found || object.Kind != "ConfigMap" {
			continue
		}
		c, err := Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c, chart
	}
	t.Fatal("no ConfigMap has a quota.yaml")
	return nil, ""
}

func TestAKueueConfigurationInTheChartReachesTheController(t *testing.T) {
	c, chart := rendered(t, "quota.config.apiVersion=config.kueue.x-k8s.io/v1beta2", "quota.config.kind=Configuration",
		"quota.config.fairSharing.preemptionStrategies={LessThanInitialShare}", "quota.config.pprofBindAddress=:8083")
	if c.FairSharing == nil || !c.LocalQueueDefaulting || len(c.Unheeded()) != 1 {
		t.Errorf("the controller reads %+v, unheeded %q", c, c.Unheeded())
	}
	// Jobs that name no queue are put into the LocalQueue default: the webhook must see them all.
	_, hook, found := strings.Cut(chart, "name: unnamed-jobs.quota.sluice.dev")
	_, condition, _ := strings.Cut(hook, "expression: >-\n")
	if line, _, _ := strings.Cut(condition, "\n"); !found || !strings.HasPrefix(strings.TrimSpace(line), "!(") {
		t.Errorf("the webhook is asked about jobs without a queue where %s", line)
	}
}

func TestTheChartsConfigurationIsAQuotaConfiguration(t *testing.T) {
	c, _ := rendered(t, "quota.config.holeReserveAfter=5m", "quota.config.placement=spread")
	if c.Kind != Kind || c.Placement != "spread" || c.HoleReserveAfter.Minutes() != 5 {
		t.Errorf("the controller reads %+v", c)
	}
}
