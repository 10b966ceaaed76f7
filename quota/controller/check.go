package controller

import (
	"context"
	"maps"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
	f := pricing.NewFleet("", maps.Clone(c.fit.Classes()), c.devicesOf(), nil)
	c.fleets[everywhere] = f
	return f
}
