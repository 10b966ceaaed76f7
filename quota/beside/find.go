package beside

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// LeaseName is the Lease by which replicas of Kueue's manager elect the one that
// admits. It is the default of leaderElection.resourceName in Kueue's
// configuration, and nobody has a reason to change it. Its namespace is the one
// that Kueue was installed in.
const LeaseName = "c1f6bfd2.kueue.x-k8s.io"

// fresh is how long after it was last renewed a Lease counts as held. Kueue
// renews it every two seconds and loses it after fifteen; the rest is for clocks
// that differ. A manager that is told to stop gives its Lease up at once.
const fresh = time.Minute

// hooks are the names of Kueue's webhooks for Workloads, whatever the
// configurations that hold them are called.
var hooks = []string{"mworkload.kb.io", "vworkload.kb.io"}

// Held says whether a Lease is held by a manager of Kueue. seen is when this
// process saw it being renewed last, the zero time for never: that counts too,
// as clocks of two machines may differ by more than is allowed for.
func Held(l *coordinationv1.Lease, seen, now time.Time) bool {
	if l.Name != LeaseName || ptr.Deref(l.Spec.HolderIdentity, "") == "" || l.Spec.RenewTime == nil {
		return false
	}
	return now.Sub(l.Spec.RenewTime.Time) < fresh || now.Sub(seen) < fresh
}

// Describe says what was found, for people.
func Describe(l *coordinationv1.Lease) string {
	return fmt.Sprintf("Lease %s/%s is held by %s", l.Namespace, l.Name, ptr.Deref(l.Spec.HolderIdentity, ""))
}

// Advice is what to do where the embedded engine and a manager of Kueue meet.
const Advice = "only one controller may admit Workloads: uninstall Kueue with its webhook configurations, or let it admit with engine: kueue"

// Find looks once for a manager of Kueue, and says what it found, "" for
// nothing. A webhook for Workloads counts even while nobody answers it: the API
// server would ask it before each write, and refuse.
func Find(ctx context.Context, api client.Reader, now time.Time) (string, error) {
	var leases coordinationv1.LeaseList
	if err := api.List(ctx, &leases, client.MatchingFields{"metadata.name": LeaseName}); err != nil {
		return "", fmt.Errorf("look for a manager of Kueue: %w", err)
	}
	for i := range leases.Items {
		if Held(&leases.Items[i], time.Time{}, now) {
			return Describe(&leases.Items[i]), nil
		}
	}
	return FindWebhooks(ctx, api)
}

// FindWebhooks is the part of [Find] that looks for webhooks.
func FindWebhooks(ctx context.Context, api client.Reader) (string, error) {
	var mutating admissionv1.MutatingWebhookConfigurationList
	if err := api.List(ctx, &mutating); err != nil {
		return "", fmt.Errorf("look for the webhooks of Kueue: %w", err)
	}
	for i := range mutating.Items {
		for j := range mutating.Items[i].Webhooks {
			if h := &mutating.Items[i].Webhooks[j]; isKueues(h.Name, h.Rules) {
				return fmt.Sprintf("webhook %s of MutatingWebhookConfiguration %s is asked before Workloads are written", h.Name, mutating.Items[i].Name), nil
			}
		}
	}
	var validating admissionv1.ValidatingWebhookConfigurationList
	if err := api.List(ctx, &validating); err != nil {
		return "", fmt.Errorf("look for the webhooks of Kueue: %w", err)
	}
	for i := range validating.Items {
		for j := range validating.Items[i].Webhooks {
			if h := &validating.Items[i].Webhooks[j]; isKueues(h.Name, h.Rules) {
				return fmt.Sprintf("webhook %s of ValidatingWebhookConfiguration %s is asked before Workloads are written", h.Name, validating.Items[i].Name), nil
			}
		}
	}
	return "", nil
}

// isKueues tells Kueue's own webhooks from those of policy engines, which may
// look at Workloads as at anything else.
func isKueues(name string, rules []admissionv1.RuleWithOperations) bool {
	return slices.Contains(hooks, name) && slices.ContainsFunc(rules, func(r admissionv1.RuleWithOperations) bool {
		return slices.Contains(r.APIGroups, kueue.SchemeGroupVersion.Group) && slices.ContainsFunc(r.Resources, func(s string) bool { return strings.HasPrefix(s, "workloads") })
	})
}
