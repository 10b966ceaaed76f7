package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"
)

const second = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
const first = "apiVersion: config.kueue.x-k8s.io/v1beta1\nkind: Configuration\n"

func TestAKueueConfigurationMeansWhatItMeansThere(t *testing.T) {
	c, err := Decode([]byte(second + `
manageJobsWithoutQueueName: true
managedJobsNamespaceSelector: {matchLabels: {team: a}}
waitForPodsReady:
  timeout: 5m
  recoveryTimeout: 3m
  requeuingStrategy: {timestamp: Creation, backoffLimitCount: 4, backoffBaseSeconds: 10}
fairSharing: {preemptionStrategies: [LessThanInitialShare]}
resources: {quotaCheckStrategy: IgnoreUndeclared}
`))
	if err != nil {
		t.Fatal(err)
	}
	if !c.ManageJobsWithoutQueueName || !c.LocalQueueDefaulting || c.ManagedJobsNamespaceSelector.MatchLabels["team"] != "a" {
		t.Errorf("jobs without a queue: %+v", c)
	}
	r := c.Lifecycle().PodsReady
	if r == nil || r.Timeout != 5*time.Minute || r.Recovery != 3*time.Minute || r.ByEviction || ptr.Deref(r.Limit, 0) != 4 || r.Base != 10*time.Second || r.Max != time.Hour {
		t.Errorf("pods are waited for by %+v", r)
	}
	if c.FairSharing == nil || !slices.Equal(c.FairSharing.PreemptionStrategies, []string{"LessThanInitialShare"}) {
		t.Errorf("fair sharing is %+v", c.FairSharing)
	}
	if c.QuotaCheckStrategy != "IgnoreUndeclared" || c.Placement != "binpack" || len(c.Unheeded()) != 0 {
		t.Errorf("strategy %s, placement %s, unheeded %q", c.QuotaCheckStrategy, c.Placement, c.Unheeded())
	}
}

func TestAKueueConfigurationHasTheDefaultsOfItsVersion(t *testing.T) {
	for _, tt := range []struct {
		text    string
		timeout time.Duration // 0: pods are not waited for
		fair    bool
	}{
		{second, 30 * time.Minute, false},
		{second + "waitForPodsReady: {recoveryTimeout: 1m}\n", 30 * time.Minute, false},
		{second + "fairSharing: {preemptionStrategies: []}\n", 30 * time.Minute, true},
		{first, 0, false},
		{first + "waitForPodsReady: {timeout: 7m}\nfairSharing: {enable: false}\n", 0, false},
		{first + "waitForPodsReady: {enable: true, blockAdmission: false}\nfairSharing: {enable: true}\n", 5 * time.Minute, true},
	} {
		c, err := Decode([]byte(tt.text))
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		var timeout time.Duration
		if r := c.Lifecycle().PodsReady; r != nil {
			timeout = r.Timeout
		}
		if timeout != tt.timeout || (c.FairSharing != nil) != tt.fair || c.QuotaCheckStrategy != "BlockUndeclared" || len(c.Unheeded()) != 0 {
			t.Errorf("%s: pods have %s, fair sharing %+v, strategy %s, unheeded %q", tt.text, timeout, c.FairSharing, c.QuotaCheckStrategy, c.Unheeded())
		}
	}
}

func TestWhatAKueueConfigurationSetsInVainIsNamed(t *testing.T) {
	c, err := Decode([]byte(first + `
health: {healthProbeBindAddress: ":8081"}
integrations: {frameworks: [batch/job, pod], labelKeysToCopy: [team]}
waitForPodsReady: {enable: true, timeout: 1m}
resources: {excludeResourcePrefixes: [example.com/]}
multiKueue: {origin: here}
queueVisibility: {updateIntervalSeconds: 5}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, line := range c.Unheeded() {
		path, _, _ := strings.Cut(line, ":")
		got = append(got, path)
	}
	want := []string{"health", "integrations.frameworks", "integrations.labelKeysToCopy", "multiKueue", "queueVisibility", "resources.excludeResourcePrefixes",
		"waitForPodsReady.blockAdmission, true where not set"}
	if !slices.Equal(got, want) {
		t.Errorf("named are\n%s\nwant\n%s", strings.Join(c.Unheeded(), "\n"), strings.Join(want, "\n"))
	}
}

func TestAMistakeInAKueueConfigurationIsAnError(t *testing.T) {
	for text, says := range map[string]string{
		second + "waitForPodsRedy: {}":                                       "waitForPodsRedy",
		second + "fairSharing: {enable: true, preemptionStrategies: []}":     "enable",
		second + "fairSharing: {preemptionStrategies: [Luck]}":               "Luck",
		second + "waitForPodsReady: {requeuingStrategy: {timestamp: Never}}": "use Eviction or Creation",
		first + "visibilityServer: {bindPort: 1}":                            "visibilityServer",
		second + "resources: {quotaCheckStrategy: Perhaps}":                  "use IgnoreUndeclared or BlockUndeclared",
	} {
		if _, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: error %v, want %q", text, err, says)
		}
	}
}
