package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// inUse is the finalizer of queues and flavors: what is in use stays until it is
// not, and says for whom.
const inUseFinalizer = kueue.ResourceInUseFinalizerName

// users are those for whom queues and flavors are kept.
type users struct {
	queues  map[string][]string
	locals  map[types.NamespacedName][]string
	flavors map[string][]string
}

// leaving says whether anything is being deleted: only then is it asked who uses
// what.
func leaving(queues []kueue.ClusterQueue, locals []kueue.LocalQueue, flavors []kueue.ResourceFlavor) bool {
	return slices.ContainsFunc(queues, func(o kueue.ClusterQueue) bool { return o.DeletionTimestamp != nil }) ||
		slices.ContainsFunc(locals, func(o kueue.LocalQueue) bool { return o.DeletionTimestamp != nil }) ||
		slices.ContainsFunc(flavors, func(o kueue.ResourceFlavor) bool { return o.DeletionTimestamp != nil })
}

func (c *core) users() users {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := users{queues: map[string][]string{}, locals: map[types.NamespacedName][]string{}, flavors: map[string][]string{}}
	for id, w := range c.works {
		if w.object == nil || w.object.Status.Admission == nil {
			continue
		}
		a, name := w.object.Status.Admission, "Workload "+string(id)
		u.queues[string(a.ClusterQueue)] = append(u.queues[string(a.ClusterQueue)], name)
		local := types.NamespacedName{Namespace: w.object.Namespace, Name: string(w.object.Spec.QueueName)}
		u.locals[local] = append(u.locals[local], name)
		seen := map[kueue.ResourceFlavorReference]bool{}
		for i := range a.PodSetAssignments {
			for _, f := range a.PodSetAssignments[i].Flavors {
				if !seen[f] {
					seen[f] = true
					u.flavors[string(f)] = append(u.flavors[string(f)], name)
				}
			}
		}
	}
	for name, q := range c.queues {
		for _, g := range q.Spec.ResourceGroups {
			for _, f := range g.Flavors {
				u.flavors[string(f.Name)] = append(u.flavors[string(f.Name)], "ClusterQueue "+name)
			}
		}
	}
	for _, all := range []map[string][]string{u.queues, u.flavors} {
		for _, names := range all {
			slices.Sort(names)
		}
	}
	for _, names := range u.locals {
		slices.Sort(names)
	}
	return u
}

// named is a list of users for people.
func named(users []string) string {
	const shown = 5
	if len(users) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(users[:shown], ", "), len(users)-shown)
	}
	return strings.Join(users, ", ")
}

// keep puts the finalizer on an object, and takes it off one that is being
// deleted and that nobody uses any more.
func (s *statuses) keep(ctx context.Context, o client.Object, users []string) error {
	before, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return nil
	}
	if o.GetDeletionTimestamp() == nil {
		if !controllerutil.AddFinalizer(o, inUseFinalizer) {
			return nil
		}
	} else if len(users) > 0 || !controllerutil.RemoveFinalizer(o, inUseFinalizer) {
		return nil
	}
	if err := s.limit.Wait(ctx); err != nil {
		return err
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return ignoreConflict(client.IgnoreNotFound(s.client.Patch(ctx, o, patch, client.FieldOwner(FieldOwner))))
}

// flavor keeps a flavor while it is in use.
func (s *statuses) flavor(ctx context.Context, f *kueue.ResourceFlavor, u users) error {
	who := u.flavors[f.Name]
	if f.DeletionTimestamp != nil && len(who) > 0 && !slices.Equal(s.told[f.Name], who) {
		s.told[f.Name] = who
		s.recorder.Eventf(f, nil, corev1.EventTypeNormal, "InUse", "Quota", "It is being deleted, and goes when it is not used any more by %s", named(who))
	}
	if err := s.keep(ctx, f, who); err != nil {
		return err
	}
	maps.DeleteFunc(s.told, func(name string, _ []string) bool { return name == f.Name && len(who) == 0 })
	return nil
}
