package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/fit"
)

// This file names mistakes in the objects of the budget while they are written:
// what the schemas let pass, and what would show only as a queue that admits
// nothing or as a quota that means something else. What may be put right by
// making another object later is warned of.

// Budget knows the objects of the budget that there are.
type Budget interface {
	// CohortParents are the parents of the Cohorts that have one, by name.
	CohortParents(ctx context.Context) map[string]string
	// Missing says which of these ResourceFlavors, and whether the ClusterQueue,
	// if one is named, do not exist.
	Missing(ctx context.Context, flavors []string, queue string) []string
	// Priced are the resources that devices cost.
	Priced() []string
}

// findings are what is wrong with an object, and what may be meant otherwise.
type findings struct {
	mistakes field.ErrorList
	warnings []string
}

func (f *findings) wrong(at *field.Path, value any, format string, args ...any) {
	f.mistakes = append(f.mistakes, field.Invalid(at, value, fmt.Sprintf(format, args...)))
}

func (f *findings) warn(format string, args ...any) {
	f.warnings = append(f.warnings, fmt.Sprintf(format, args...))
}

// validateBudget looks at an object of the budget. An update is refused for
// mistakes that it makes, not for those that were there before.
func validateBudget(ctx context.Context, known Budget, req admission.Request) admission.Response {
	now, name, err := inspect(ctx, known, req.Kind.Kind, req.Object.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if req.Operation == admissionv1.Update {
		before, _, err := inspect(ctx, known, req.Kind.Kind, req.OldObject.Raw)
		if err == nil {
			now.mistakes = unlike(now.mistakes, before.mistakes)
		}
		now.warnings = append(now.warnings, changed(req)...)
	}
	if len(now.mistakes) == 0 {
		return admission.Allowed("").WithWarnings(now.warnings...)
	}
	status := apierrors.NewInvalid(schema.GroupKind{Group: req.Kind.Group, Kind: req.Kind.Kind}, name, now.mistakes).Status()
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: false, Result: &status, Warnings: now.warnings}}
}

var index = regexp.MustCompile(`\[\d+\]`)

// unlike lists the mistakes that were not there before, wherever in a list.
func unlike(now, before field.ErrorList) field.ErrorList {
	had := map[string]int{}
	key := func(e *field.Error) string { return index.ReplaceAllString(e.Error(), "[]") }
	for _, e := range before {
		had[key(e)]++
	}
	var fresh field.ErrorList
	for _, e := range now {
		if had[key(e)]--; had[key(e)] < 0 {
			fresh = append(fresh, e)
		}
	}
	return fresh
}

func inspect(ctx context.Context, known Budget, kind string, raw []byte) (*findings, string, error) {
	f := &findings{}
	read := func(o metav1.Object) error { return json.Unmarshal(raw, o) }
	switch kind {
	case "ClusterQueue":
		o := &kueue.ClusterQueue{}
		if err := read(o); err != nil {
			return nil, "", err
		}
		f.clusterQueue(ctx, known, o)
		return f, o.Name, nil
	case "Cohort":
		o := &kueue.Cohort{}
		if err := read(o); err != nil {
			return nil, "", err
		}
		f.cohort(ctx, known, o)
		return f, o.Name, nil
	case "LocalQueue":
		o := &kueue.LocalQueue{}
		if err := read(o); err != nil {
			return nil, "", err
		}
		f.weight(o.Spec.FairSharing)
		f.placement(o.Annotations)
		for _, what := range known.Missing(ctx, nil, string(o.Spec.ClusterQueue)) {
			f.warn("%s does not exist: the LocalQueue admits nothing until there is one", what)
		}
		return f, o.Name, nil
	case "ResourceFlavor":
		o := &kueue.ResourceFlavor{}
		if err := read(o); err != nil {
			return nil, "", err
		}
		f.flavor(o)
		return f, o.Name, nil
	case "AdmissionCheck":
		o := &kueue.AdmissionCheck{}
		if err := read(o); err != nil {
			return nil, "", err
		}
		if o.Spec.ControllerName == kueue.MultiKueueControllerName {
			f.warn("checks of MultiKueue are not supported: a ClusterQueue that wants this one is inactive")
		}
		return f, o.Name, nil
	}
	return f, "", nil
}

// changed warns of changes that do not do what they seem to.
func changed(req admission.Request) []string {
	if req.Kind.Kind != "WorkloadPriorityClass" {
		return nil
	}
	var before, now kueue.WorkloadPriorityClass
	if json.Unmarshal(req.OldObject.Raw, &before) != nil || json.Unmarshal(req.Object.Raw, &now) != nil || before.Value == now.Value {
		return nil
	}
	return []string{fmt.Sprintf("priority %d holds for Workloads that are made from now on; those that exist keep %d", now.Value, before.Value)}
}

func (f *findings) clusterQueue(ctx context.Context, known Budget, q *kueue.ClusterQueue) {
	spec := field.NewPath("spec")
	f.groups(ctx, known, q.Spec.ResourceGroups, q.Spec.CohortName != "", "spec.cohortName")
	f.weight(q.Spec.FairSharing)
	f.placement(q.Annotations)
	if q.Spec.NamespaceSelector == nil {
		f.warn("spec.namespaceSelector is missing: no namespace may use this ClusterQueue; {} lets all of them")
	}
	f.mistakes = append(f.mistakes, metavalidation.ValidateLabelSelector(q.Spec.NamespaceSelector, metavalidation.LabelSelectorValidationOptions{}, spec.Child("namespaceSelector"))...)
	if q.Spec.ConcurrentAdmissionPolicy != nil {
		f.warn("spec.concurrentAdmissionPolicy is not supported: the ClusterQueue is inactive while it is set")
	}
	s := q.Spec.AdmissionChecksStrategy
	if s == nil {
		return
	}
	flavors := sets.New[string]()
	for _, g := range q.Spec.ResourceGroups {
		for _, fl := range g.Flavors {
			flavors.Insert(string(fl.Name))
		}
	}
	for i, rule := range s.AdmissionChecks {
		for j, on := range rule.OnFlavors {
			if !flavors.Has(string(on)) {
				f.wrong(spec.Child("admissionChecksStrategy", "admissionChecks").Index(i).Child("onFlavors").Index(j), on, "this ClusterQueue has no quota of flavor %s, so check %s would never be asked for it", on, rule.Name)
			}
		}
	}
}

func (f *findings) cohort(ctx context.Context, known Budget, c *kueue.Cohort) {
	f.groups(ctx, known, c.Spec.ResourceGroups, c.Spec.ParentName != "", "spec.parentName")
	f.weight(c.Spec.FairSharing)
	at, parent := field.NewPath("spec", "parentName"), string(c.Spec.ParentName)
	switch parent {
	case "":
		return
	case c.Name:
		f.wrong(at, parent, "a Cohort cannot be its own parent")
		return
	}
	parents := known.CohortParents(ctx)
	path, seen := []string{c.Name, parent}, sets.New(parent)
	for at := parents[parent]; at != "" && !seen.Has(at); at = parents[at] {
		path = append(path, at)
		if at == c.Name {
			f.warn("the parents go round in a circle (%s): every ClusterQueue below it is inactive until one of them is changed", strings.Join(path, " > "))
			return
		}
		seen.Insert(at)
	}
}

// groups looks at quotas. shared says that there is somebody to borrow from and
// to lend to, by the field that would name him.
func (f *findings) groups(ctx context.Context, known Budget, groups []kueue.ResourceGroup, shared bool, by string) {
	at := field.NewPath("spec", "resourceGroups")
	covered, flavors := map[corev1.ResourceName]int{}, map[kueue.ResourceFlavorReference]int{}
	for i, g := range groups {
		names := sets.New[corev1.ResourceName]()
		for j, r := range g.CoveredResources {
			first, again := covered[r]
			switch {
			case names.Has(r):
				f.wrong(at.Index(i).Child("coveredResources").Index(j), r, "%s is listed twice", r)
			case again:
				f.wrong(at.Index(i).Child("coveredResources").Index(j), r, "%s is covered by resourceGroups[%d] already; a resource has one group, and with it one choice of flavor", r, first)
			default:
				covered[r] = i
			}
			names.Insert(r)
		}
		for j := range g.Flavors {
			quotas, here := &g.Flavors[j], at.Index(i).Child("flavors").Index(j)
			if first, again := flavors[quotas.Name]; again {
				f.wrong(here.Child("name"), quotas.Name, "flavor %s is in resourceGroups[%d] already; put all resources that it has quota of into one group", quotas.Name, first)
			} else {
				flavors[quotas.Name] = i
			}
			has := sets.New[corev1.ResourceName]()
			for k := range quotas.Resources {
				q := &quotas.Resources[k]
				has.Insert(q.Name)
				f.quota(q, here.Child("resources").Index(k), string(quotas.Name), shared, by)
			}
			if extra := sets.List(has.Difference(names)); len(extra) > 0 {
				f.wrong(here.Child("resources"), extra, "not in coveredResources of the group: they would count for nothing")
			}
			if less := sets.List(names.Difference(has)); len(less) > 0 {
				f.wrong(here.Child("resources"), quotas.Name, "flavor %s has no quota of %v, which the group covers; write nominalQuota 0 for none", quotas.Name, less)
			}
		}
	}
	priced := known.Priced()
	for _, r := range slices.Sorted(maps.Keys(covered)) {
		if name := string(r); looksPriced(name) && !slices.Contains(priced, name) {
			f.warn("devices cost nothing by the name of %s, so a quota of it does not bound them; they cost %s", name, strings.Join(priced, ", "))
		}
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(flavors)) {
		names = append(names, string(name))
	}
	for _, what := range known.Missing(ctx, names, "") {
		f.warn("%s does not exist: nothing is admitted until there is one", what)
	}
}

// looksPriced says whether a resource's name is one by which somebody may mean
// to budget devices: the names here, HAMi's, and what is close to them.
func looksPriced(name string) bool {
	return strings.HasPrefix(name, "nvidia.com/gpu") || strings.HasPrefix(name, "nvidia.com/total-gpu") || strings.HasPrefix(name, "quota.sluice.dev/")
}

func (f *findings) quota(q *kueue.ResourceQuota, at *field.Path, flavor string, shared bool, by string) {
	for _, has := range []struct {
		name string
		n    *resource.Quantity
	}{{"nominalQuota", &q.NominalQuota}, {"borrowingLimit", q.BorrowingLimit}, {"lendingLimit", q.LendingLimit}} {
		name, n := has.name, has.n
		if n == nil {
			continue
		}
		if n.Sign() < 0 {
			f.wrong(at.Child(name), n.String(), "a quota cannot be below zero")
		}
		if name != "nominalQuota" && !shared {
			f.wrong(at.Child(name), n.String(), "there is nobody to share with: set %s, or leave this out", by)
		}
	}
	if l := q.LendingLimit; l != nil && l.Sign() >= 0 && l.Cmp(q.NominalQuota) > 0 {
		f.wrong(at.Child("lendingLimit"), l.String(), "more than the nominalQuota of %s cannot be lent", q.NominalQuota.String())
	}
	least := resource.MustParse("1Mi")
	if n := q.NominalQuota; strings.HasSuffix(string(q.Name), "memory") && n.Sign() > 0 && n.Cmp(least) < 0 {
		f.warn("%s of flavor %s is %s bytes; write a unit, as in %sGi, if that is not meant", q.Name, flavor, n.String(), n.String())
	}
}

func (f *findings) weight(s *kueue.FairSharing) {
	if s != nil && s.Weight != nil && s.Weight.Sign() < 0 {
		f.wrong(field.NewPath("spec", "fairSharing", "weight"), s.Weight.String(), "a weight cannot be below zero")
	}
}

func (f *findings) placement(annotations map[string]string) {
	at := field.NewPath("metadata", "annotations").Key(controller.PlacementAnnotation)
	if text, ok := annotations[controller.PlacementAnnotation]; ok {
		if _, err := fit.ParsePolicy(text); err != nil {
			f.wrong(at, text, "%s", err.Error())
		}
	}
}

func (f *findings) flavor(o *kueue.ResourceFlavor) {
	f.mistakes = append(f.mistakes, metavalidation.ValidateLabels(o.Spec.NodeLabels, field.NewPath("spec", "nodeLabels"))...)
	annotations := field.NewPath("metadata", "annotations")
	if text, ok := o.Annotations[controller.ElasticAnnotation]; ok && text != "true" && text != "false" {
		f.wrong(annotations.Key(controller.ElasticAnnotation), text, "write \"true\" or \"false\"")
	}
	if text, ok := o.Annotations[controller.ElasticCardAnnotation]; ok {
		if q, err := resource.ParseQuantity(text); err != nil || q.Sign() <= 0 {
			f.wrong(annotations.Key(controller.ElasticCardAnnotation), text, "the memory of one card is needed, as in 80Gi")
		} else if o.Annotations[controller.ElasticAnnotation] != "true" {
			f.warn("annotation %s counts only with %s: \"true\"", controller.ElasticCardAnnotation, controller.ElasticAnnotation)
		}
	}
	if name := ptr.Deref(o.Spec.TopologyName, ""); name != "" {
		f.warn("spec.topologyName is not supported: every ClusterQueue with quota of this flavor is inactive")
	}
}
