// Package config is the quota controller's configuration file, a
// QuotaConfiguration of config.quota.sluice.dev/v1alpha1: its types, strict
// decoding, defaults and validation. An unknown field is an error, because a
// setting that is silently ignored is worse than a controller that says so at
// start. The configuration file of Kueue is read too; what it sets and is not
// honoured is named.
package config

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/fit"
	"github.com/sluice-gpu/sluice/quota/jobs"
	"github.com/sluice-gpu/sluice/quota/pricing"
)

// APIVersion and Kind identify the file.
const (
	APIVersion = "config.quota.sluice.dev/v1alpha1"
	Kind       = "QuotaConfiguration"
)

// QuotaConfiguration is the file.
type QuotaConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// Engine says who admits: embedded (default) is the engine of this controller,
	// kueue is a manager of Kueue in the cluster, whose AdmissionChecks are answered
	// here.
	Engine string `json:"engine,omitempty"`
	// QuotaCheckStrategy says what becomes of resources that a ClusterQueue has
	// no quota for. IgnoreUndeclared (default) does not hold them against the
	// workload, except that a queue without any device quota admits no device.
	// BlockUndeclared makes such a workload inadmissible.
	QuotaCheckStrategy string `json:"quotaCheckStrategy,omitempty"`
	// FairSharing turns on sharing by dominant resource and weight.
	FairSharing *FairSharing `json:"fairSharing,omitempty"`
	// HoleReserveAfter is how long a workload waits for room on cards before a
	// place is kept free for it. 0, the default, is never.
	HoleReserveAfter metav1.Duration `json:"holeReserveAfter,omitempty"`
	// Placement chooses among nodes with room: binpack (default), spread, nvlink or
	// none. A LocalQueue or ClusterQueue may have its own, by the annotation
	// quota.sluice.dev/placement.
	Placement string `json:"placement,omitempty"`
	// Concurrency is how many objects of each kind are worked on at once.
	// Default 8.
	Concurrency int `json:"concurrency,omitempty"`

	// WaitForPodsReady evicts workloads whose pods are not ready in time. Off if
	// not set.
	WaitForPodsReady *WaitForPodsReady `json:"waitForPodsReady,omitempty"`
	// MaxPreemptionNotice is the longest time to save its work that a preempted
	// job or pod may ask for, by the annotation quota.sluice.dev/preemption-notice.
	// 0, the default, gives none.
	MaxPreemptionNotice metav1.Duration `json:"maxPreemptionNotice,omitempty"`

	// Dimensions are more things that budgets count, beside devices, memory and
	// cores. At most 7, or as many as the presets leave of them.
	Dimensions []Dimension `json:"dimensions,omitempty"`
	// Presets are sets of dimensions by name. hami counts nvidia.com/total-gpumem
	// in MiB and nvidia.com/total-gpucores in percent.
	Presets []string `json:"presets,omitempty"`
	// FlavorOrder names a dimension: of several flavors in a ClusterQueue the one
	// where a whole card costs least in it is tried first. Empty, the default,
	// tries them as the ClusterQueue lists them.
	FlavorOrder string `json:"flavorOrder,omitempty"`

	// LocalQueueDefaulting puts jobs that name no queue into the LocalQueue
	// "default" of their namespace, where there is one, when they are made.
	LocalQueueDefaulting bool `json:"localQueueDefaulting,omitempty"`
	// ManageJobsWithoutQueueName suspends jobs that name no queue until they do.
	ManageJobsWithoutQueueName bool `json:"manageJobsWithoutQueueName,omitempty"`
	// ManagedJobsNamespaceSelector selects the namespaces where both hold.
	// Default: all but kube-system and sluice-system.
	ManagedJobsNamespaceSelector *metav1.LabelSelector `json:"managedJobsNamespaceSelector,omitempty"`
	// JobKinds describes kinds of jobs that are not known here, or are to be
	// governed otherwise.
	JobKinds []jobs.Kind `json:"jobKinds,omitempty"`

	compiled *pricing.Dimensions
	unheeded []string
}

// Unheeded are the fields of a Kueue configuration that were set and are not
// honoured, as path or "path: what there is instead". It is empty for a
// QuotaConfiguration, where a field that is not known is an error.
func (c *QuotaConfiguration) Unheeded() []string { return c.unheeded }

// FairSharing is as in the Kueue configuration.
type FairSharing struct {
	// PreemptionStrategies are tried in order: LessThanOrEqualToFinalShare,
	// LessThanInitialShare. Default: both.
	PreemptionStrategies []string `json:"preemptionStrategies,omitempty"`
}

// Load reads a file, a QuotaConfiguration or a Configuration of Kueue; an empty
// path gives the defaults.
func Load(path string) (*QuotaConfiguration, error) {
	if path == "" {
		return Decode(nil)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := Decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Decode reads, completes and checks a configuration. Nothing, or an object
// without fields, gives the defaults.
func Decode(b []byte) (*QuotaConfiguration, error) {
	c, err := read(b)
	if err != nil {
		return nil, err
	}
	if c.Engine == "" {
		c.Engine = "embedded"
	}
	if err := c.kueueDecides(); err != nil {
		return nil, err
	}
	if c.QuotaCheckStrategy == "" {
		c.QuotaCheckStrategy = "IgnoreUndeclared"
	}
	if c.Placement == "" {
		c.Placement = "binpack"
	}
	if c.Concurrency == 0 {
		c.Concurrency = 8
	}
	if err := c.compile(); err != nil {
		return nil, err
	}
	if c.ManagedJobsNamespaceSelector == nil {
		c.ManagedJobsNamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kube-system", "sluice-system"},
		}}}
	}
	return c, c.validate()
}

// read reads a file of a kind that is known.
func read(b []byte) (*QuotaConfiguration, error) {
	var t metav1.TypeMeta
	if err := yaml.Unmarshal(b, &t); err == nil && isKueue(t) {
		return decodeKueue(t.APIVersion, b)
	}
	c := &QuotaConfiguration{}
	if err := yaml.UnmarshalStrict(b, c); err != nil {
		return nil, err
	}
	if c.APIVersion != "" && c.APIVersion != APIVersion || c.Kind != "" && c.Kind != Kind {
		return nil, fmt.Errorf("%s %s is not a %s of %s, nor a %s of %s", c.APIVersion, c.Kind, Kind, APIVersion,
			kueueKind, strings.Join(slices.Sorted(maps.Keys(kueueFiles)), " or "))
	}
	return c, nil
}

// kueueDecides refuses what is Kueue's to decide where Kueue admits.
func (c *QuotaConfiguration) kueueDecides() error {
	if !c.BesideKueue() {
		return nil
	}
	for field, set := range map[string]bool{
		"quotaCheckStrategy": c.QuotaCheckStrategy != "", "fairSharing": c.FairSharing != nil, "waitForPodsReady": c.WaitForPodsReady != nil,
		"holeReserveAfter": c.HoleReserveAfter.Duration != 0, "flavorOrder": c.FlavorOrder != "",
	} {
		if set {
			return fmt.Errorf("%s has no effect with engine: kueue: set it in Kueue's configuration, or leave it out", field)
		}
	}
	return nil
}

// Jobs are the kinds of jobs that are governed.
func (c *QuotaConfiguration) Jobs() *jobs.Table {
	t, err := jobs.NewTable(c.JobKinds...)
	if err != nil {
		// Decode has refused it.
		t, _ = jobs.NewTable()
	}
	return t
}

func (c *QuotaConfiguration) validate() error {
	if _, err := metav1.LabelSelectorAsSelector(c.ManagedJobsNamespaceSelector); err != nil {
		return fmt.Errorf("managedJobsNamespaceSelector: %w", err)
	}
	if _, err := jobs.NewTable(c.JobKinds...); err != nil {
		return fmt.Errorf("jobKinds: %w", err)
	}
	if !slices.Contains([]string{"embedded", "kueue"}, c.Engine) {
		return fmt.Errorf("engine is %q, use embedded or kueue", c.Engine)
	}
	if !slices.Contains([]string{"IgnoreUndeclared", "BlockUndeclared"}, c.QuotaCheckStrategy) {
		return fmt.Errorf("quotaCheckStrategy is %q, use IgnoreUndeclared or BlockUndeclared", c.QuotaCheckStrategy)
	}
	if _, err := fit.ParsePolicy(c.Placement); err != nil {
		return err
	}
	if c.Concurrency < 1 || c.Concurrency > 1000 {
		return fmt.Errorf("concurrency is %d, use 1 to 1000", c.Concurrency)
	}
	if err := c.validateLifecycle(); err != nil {
		return err
	}
	if c.HoleReserveAfter.Duration < 0 {
		return fmt.Errorf("holeReserveAfter is %s, it must not be negative", c.HoleReserveAfter.Duration)
	}
	if c.FairSharing != nil {
		known := []string{string(engine.LessThanOrEqualToFinalShare), string(engine.LessThanInitialShare)}
		for _, s := range c.FairSharing.PreemptionStrategies {
			if !slices.Contains(known, s) {
				return fmt.Errorf("fairSharing.preemptionStrategies names %q, use %s or %s", s, known[0], known[1])
			}
		}
	}
	return nil
}

// BesideKueue says whether a manager of Kueue admits.
func (c *QuotaConfiguration) BesideKueue() bool { return c.Engine == "kueue" }

// EngineOptions are what the engine is made with. devices are the budget
// resources that stand for devices.
func (c *QuotaConfiguration) EngineOptions(devices ...engine.Resource) []engine.Option {
	opts := []engine.Option{engine.Devices(devices...)}
	if c.QuotaCheckStrategy == "IgnoreUndeclared" {
		opts = append(opts, engine.IgnoreUndeclared(devices...))
	}
	if c.FairSharing != nil {
		var strategies []engine.FairStrategy
		for _, s := range c.FairSharing.PreemptionStrategies {
			strategies = append(strategies, engine.FairStrategy(s))
		}
		opts = append(opts, engine.FairSharing(strategies...))
	}
	if d := c.HoleReserveAfter.Duration; d > 0 {
		opts = append(opts, engine.HoleReserveAfter(max(d, time.Second)))
	}
	return opts
}
