package controller

import (
	"context"
	"maps"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// Check says what is wrong with a claim that is being made, by the devices of
// the whole cluster.
func (c *Controller) Check(ctx context.Context, claim *resourceapi.DeviceClaim, at *field.Path) (field.ErrorList, []string) {
	return c.core.all().Check(ctx, claim, at)
}

// HasLocalQueue says whether a namespace has a LocalQueue of a name.
func (c *Controller) HasLocalQueue(ctx context.Context, namespace, name string) bool {
	err := c.templates.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &kueue.LocalQueue{})
	return !apierrors.IsNotFound(err)
}

// CohortParents are the parents of the Cohorts that have one, by name.
func (c *Controller) CohortParents(ctx context.Context) map[string]string {
	var all kueue.CohortList
	if err := c.templates.client.List(ctx, &all); err != nil {
		return nil
	}
	parents := map[string]string{}
	for i := range all.Items {
		if p := all.Items[i].Spec.ParentName; p != "" {
			parents[all.Items[i].Name] = string(p)
		}
	}
	return parents
}

// Priced are the resources that devices cost, those of the configuration too.
func (c *Controller) Priced() []string {
	var all []string
	for _, r := range c.core.priced() {
		all = append(all, string(r))
	}
	return all
}

// Missing says which of these ResourceFlavors, and whether the ClusterQueue, if one
// is named, do not exist. It says nothing of what cannot be known.
func (c *Controller) Missing(ctx context.Context, flavors []string, queue string) []string {
	var all []string
	gone := func(o client.Object, kind, name string) {
		key := types.NamespacedName{Name: name}
		// The caches may not show yet what was made a moment before.
		if apierrors.IsNotFound(c.templates.client.Get(ctx, key, o)) && apierrors.IsNotFound(c.live.Get(ctx, key, o)) {
			all = append(all, kind+" "+name)
		}
	}
	for _, name := range flavors {
		gone(&kueue.ResourceFlavor{}, "ResourceFlavor", name)
	}
	if queue != "" {
		gone(&kueue.ClusterQueue{}, "ClusterQueue", queue)
	}
	return all
}

// everywhere is the name of no flavor: a flavor's is one that an object can have.
const everywhere = "*"

// all is the fleet of all devices. It is used outside the lock, so it has the
// classes for itself.
func (c *core) all() *pricing.Fleet {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.fleets[everywhere]; f != nil {
		return f
	}
	if c.fleets == nil {
		c.fleets = map[string]*pricing.Fleet{}
	}
	var options []pricing.Option
	if largest, grow := c.comingCards(); grow {
		options = append(options, pricing.Coming(largest))
	}
	f := pricing.NewFleet("", maps.Clone(c.fit.Classes()), c.devicesOf(), nil, options...)
	c.fleets[everywhere] = f
	return f
}
