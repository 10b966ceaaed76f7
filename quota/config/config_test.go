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
		"quotaCheckStrategie: x":                                              "quotaCheckStrategie",
		"quotaCheckStrategy: Perhaps":                                         "use IgnoreUndeclared or BlockUndeclared",
		"dimensions: [{name: tflops, expression: '1.0'}]":                     "with a domain",
		"dimensions: [{name: x.kubernetes.io/y, expression: '1.0'}]":          "are taken",
		"dimensions: [{name: example.com/x, expression: 'request.memory *'}]": "example.com/x",
		"dimensions: [{name: quota.sluice.dev/cards, expression: '1.0'}]":     "is there twice",
		"dimensions: [{name: nvidia.com/gpu-memory, expression: '1.0'}]":      "is there twice",
		"dimensions: [{name: example.com/x, expresion: '1.0'}]":               "expresion",
		"presets: [volcano]":                                                  "known are hami",
		"presets: [hami, hami]":                                               "is there twice",
		"flavorOrder: example.com/cost":                                       "none of the dimensions quota.sluice.dev/cards",
		"engine: kueuue":                                                      "use embedded or kueue",
		"{engine: kueue, fairSharing: {}}":                                    "fairSharing has no effect with engine: kueue",
		"{engine: kueue, quotaCheckStrategy: BlockUndeclared}":                "set it in Kueue's configuration",
		"placement: tight":                                                    "use binpack, spread, nvlink or none",
		"concurrency: -1":                                                     "use 1 to 1000",
		"holeReserveAfter: -5s":                                               "must not be negative",
		"fairSharing: {preemptionStrategies: [Luck]}":                         "Luck",
		"apiVersion: config.kueue.x-k8s.io/v1beta2":                           "is not a QuotaConfiguration",
		"apiVersion: config.kueue.x-k8s.io/v1alpha1\nkind: Configuration":     "nor a Configuration of config.kueue.x-k8s.io/v1beta1 or config.kueue.x-k8s.io/v1beta2",
		"kind: DriverConfiguration":                                           "is not a QuotaConfiguration",
		"quotaCheckStrategy: A\nquotaCheckStrategy: B":                        "already set",
		"fairSharing: {preemptionStrategies: [], weight: 12}":                 "weight",
	} {
		if _, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: error %v, want %q", text, err, says)
		}
	}
}

func TestDimensionsAndPresetsAreCompiledInOrder(t *testing.T) {
	c, err := Decode([]byte("presets: [hami]\nflavorOrder: example.com/tflops\ndimensions:\n- name: example.com/tflops\n  expression: device.attributes[\"gpu.sluice.dev\"].fp16TFLOPS * request.coresShare\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(c.Pricing().Names(), " "); got != "quota.sluice.dev/cards nvidia.com/total-gpumem nvidia.com/total-gpucores example.com/tflops" {
		t.Error(got)
	}
}
