// Package chart tests the Helm chart without a cluster: that it renders with every switch in either
// position, and that what it tells a monitoring system is true.
package chart

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sluice-gpu/sluice/e2e/cluster"
)

const (
	chart = "../../deployments/helm/sluice"
	files = chart + "/files"
)

// helm runs the pinned helm.
func helm(t *testing.T, args ...string) string {
	t.Helper()
	cache, err := cluster.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(cache, "bin", "helm"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// kinds counts the rendered objects by kind, each of which must be well-formed.
func kinds(t *testing.T, rendered string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, document := range strings.Split(rendered, "\n---") {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if object.Kind == "" {
			continue
		}
		if object.Metadata.Name == "" {
			t.Errorf("a %s has no name", object.Kind)
		}
		out[object.Kind]++
	}
	return out
}

func TestTheChartRendersWithEverySwitchInEitherPosition(t *testing.T) {
	helm(t, "lint", "--strict", chart)
	everything := kinds(t, helm(t, "template", "s", chart, "--set", "monitoring.scrape.enabled=true,monitoring.rules.enabled=true"))
	for kind, n := range map[string]int{"DaemonSet": 1, "Deployment": 1, "ServiceMonitor": 1, "PodMonitor": 1, "PrometheusRule": 1} {
		if everything[kind] != n {
			t.Errorf("%d objects are a %s, want %d", everything[kind], kind, n)
		}
	}
	for set, absent := range map[string][]string{
		"monitoring.scrape.enabled=false":                     {"ServiceMonitor", "PodMonitor", "PrometheusRule"},
		"driver.enabled=false,monitoring.scrape.enabled=true": {"DaemonSet", "PodMonitor"},
		"quota.enabled=false,monitoring.scrape.enabled=true":  {"Deployment", "ServiceMonitor", "MutatingWebhookConfiguration"},
		"driver.limiter=false":                                nil,
		"driver.guard=false":                                  nil,
		"deviceClass.extendedResourceName=":                   nil,
		"quota.enforce=off":                                   nil,
		"quota.config.engine=kueue":                           nil,
		"quota.enforce=audit":                                 nil,
		"quota.enforce=namespaces":                            nil,
	} {
		got := kinds(t, helm(t, "template", "s", chart, "--set", set))
		for _, kind := range absent {
			if got[kind] != 0 {
				t.Errorf("%s: there is a %s", set, kind)
			}
		}
	}
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("promtool", args...)
	cmd.Dir = files
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestTheRulesRecordAndAlertAsTheyShould(t *testing.T) {
	promtool(t, "check", "rules", "--lint-fatal", "rules.yaml")
	promtool(t, "test", "rules", "rules_test.yaml")
}

// A rule on a metric that nobody exports is silent for ever.
func TestTheRulesAskForMetricsThatAreExported(t *testing.T) {
	b, err := os.ReadFile(files + "/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Record, Expr string }
		}
	}
	if err := yaml.Unmarshal(b, &rules); err != nil {
		t.Fatal(err)
	}
	exported := exportedNames(t)
	name := regexp.MustCompile(`\b(?:kueue|sluice)_\w+`)
	seen := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			for _, metric := range name.FindAllString(rule.Expr, -1) {
				seen++
				if !exported[metric] && !exported[regexp.MustCompile(`_(sum|count|bucket)$`).ReplaceAllString(metric, "")] {
					t.Errorf("%s is exported by nobody, in %q", metric, rule.Expr)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no metric is asked for")
	}
}

// exportedNames are the metrics that the product's sources name.
func exportedNames(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	word := regexp.MustCompile(`"([a-z][a-z0-9_]+)"`)
	for _, dir := range []string{"../../driver", "../../quota"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, m := range word.FindAllStringSubmatch(string(b), -1) {
				out[m[1]] = true
				if strings.Contains(path, "driver/monitor") { // names after a prefix
					out["sluice_share_"+m[1]], out["sluice_card_"+m[1]] = true, true
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(fmt.Errorf("%s: %w", dir, err))
		}
	}
	return out
}

// A wildcard in a role grants what nobody has thought of.
func TestNoRoleOfTheChartHasAWildcard(t *testing.T) {
	roles := 0
	for _, document := range strings.Split(helm(t, "template", "s", chart), "\n---") {
		var role struct {
			Kind     string
			Metadata struct{ Name string }
			Rules    []struct{ APIGroups, Resources, Verbs []string }
		}
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind != "ClusterRole" && role.Kind != "Role" {
			continue
		}
		roles++
		for _, rule := range role.Rules {
			for _, list := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs} {
				for _, word := range list {
					if strings.Contains(word, "*") {
						t.Errorf("%s %s grants %v of %v in %v", role.Kind, role.Metadata.Name, rule.Verbs, rule.Resources, rule.APIGroups)
					}
				}
			}
		}
	}
	if roles < 4 {
		t.Errorf("%d roles were looked at", roles)
	}
}
