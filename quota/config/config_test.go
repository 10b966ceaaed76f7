package config

import (
	"strings"
	"testing"
)

func TestAnEmptyFileGivesTheDefaults(t *testing.T) {
	for _, text := range []string{"", "{}", "apiVersion: config.quota.sluice.dev/v1alpha1\nkind: QuotaConfiguration\n"} {
		c, err := Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if c.QuotaCheckStrategy != "IgnoreUndeclared" || c.Placement != "binpack" || c.Concurrency != 8 {
			t.Errorf("%q gives %+v", text, c)
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for text, says := range map[string]string{
		"quotaCheckStrategie: x":                              "quotaCheckStrategie",
		"quotaCheckStrategy: Perhaps":                         "use IgnoreUndeclared or BlockUndeclared",
		"placement: tight":                                    "use binpack or spread",
		"concurrency: -1":                                     "use 1 to 1000",
		"holeReserveAfter: -5s":                               "must not be negative",
		"fairSharing: {preemptionStrategies: [Luck]}":         "Luck",
		"apiVersion: config.kueue.x-k8s.io/v1beta2":           "is not a QuotaConfiguration",
		"kind: DriverConfiguration":                           "is not a QuotaConfiguration",
		"quotaCheckStrategy: A\nquotaCheckStrategy: B":        "already set",
		"fairSharing: {preemptionStrategies: [], weight: 12}": "weight",
	} {
		if _, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: error %v, want %q", text, err, says)
		}
	}
}
