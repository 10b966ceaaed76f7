package sanity

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

var sliceChecks = []Check{
	{
		Name:     "slices/complete",
		Contract: "Each pool has as many slices of its newest generation as resourceSliceCount says, and none of an older one. Schedulers ignore a pool that is not complete.",
		Source:   srcAPI + ", ResourcePool",
		run: func(c *scope) error {
			_, err := c.published(c.ctx)
			return err
		},
	},
	{
		Name:     "slices/one-node-a-pool",
		Contract: "All slices of a pool are for the same node or the same set of nodes: a device belongs to the node whose plugin prepares it.",
		Source:   srcAPI + ", ResourceSliceSpec",
		run:      oneNodeAPool,
	},
	{
		Name:     "slices/unique-names",
		Contract: "Driver, pool and device name together identify a device. Names are DNS labels and no name is used twice in a pool, not even in two slices.",
		Source:   srcAPI + ", Device",
		run:      uniqueNames,
	},
	{
		Name:     "slices/owned-by-the-node",
		Contract: "Slices of a node's devices are owned by the Node object, so that they go when it goes.",
		Source:   srcKEP,
		Level:    Should,
		run:      ownedByTheNode,
	},
	{
		Name:     "slices/no-writes-at-rest",
		Contract: "Slices are written when devices change and not otherwise: every write makes all schedulers look at all pods again that wait for devices.",
		Source:   srcKEP + "; k8s.io/dynamic-resource-allocation/resourceslice",
		run:      noWritesAtRest,
	},
	{
		Name:     "slices/untouched-by-claims",
		Contract: "Slices tell what a node has, not what is free. What is in use, schedulers know from the claims.",
		Source:   srcKEP,
		Level:    Should,
		run:      untouchedByClaims,
	},
	{
		Name:     "slices/back-after-deletion",
		Contract: "A kubelet deletes the slices of its node when it starts. The driver publishes the same devices again.",
		Source:   srcKEP + "; pkg/kubelet/cm/dra/plugin of Kubernetes",
		run:      backAfterDeletion,
	},
}

func oneNodeAPool(c *scope) error {
	items, err := c.published(c.ctx)
	if err != nil {
		return err
	}
	nodes := map[string]string{}
	for _, slice := range items {
		spec := slice.Spec
		node := fmt.Sprintf("node %q, selector %v, all nodes %v, by device %v", ptr.Deref(spec.NodeName, ""), spec.NodeSelector, ptr.Deref(spec.AllNodes, false), ptr.Deref(spec.PerDeviceNodeSelection, false))
		if before, ok := nodes[spec.Pool.Name]; ok && before != node {
			return violated("the slices of pool "+spec.Pool.Name, "one is for %s, another for %s", before, node)
		}
		nodes[spec.Pool.Name] = node
	}
	return nil
}

func uniqueNames(c *scope) error {
	items, err := c.published(c.ctx)
	if err != nil {
		return err
	}
	seen := map[string]string{}
	for _, slice := range items {
		for _, d := range slice.Spec.Devices {
			asked := "the devices of pool " + slice.Spec.Pool.Name
			if problems := validation.IsDNS1123Label(d.Name); len(problems) > 0 {
				return violated(asked, "the name %q: %s", d.Name, strings.Join(problems, ", "))
			}
			id := slice.Spec.Pool.Name + "/" + d.Name
			if other, ok := seen[id]; ok {
				return violated(asked, "device %s is in slice %s and in slice %s", d.Name, other, slice.Name)
			}
			seen[id] = slice.Name
		}
	}
	return nil
}

func ownedByTheNode(c *scope) error {
	items, err := c.published(c.ctx)
	if err != nil {
		return err
	}
	for _, slice := range items {
		if slice.Spec.NodeName == nil {
			continue
		}
		owned := false
		for _, owner := range slice.OwnerReferences {
			owned = owned || owner.Kind == "Node" && owner.UID == c.node.UID
		}
		if !owned {
			return violated("the owner of slice "+slice.Name, "%v, want node %s with UID %s", slice.OwnerReferences, c.node.Name, c.node.UID)
		}
	}
	return nil
}

// versions tells slices by name, generation and resourceVersion.
func versions(items []resourceapi.ResourceSlice) string {
	var all []string
	for _, s := range items {
		all = append(all, fmt.Sprintf("%s generation %d of pool %s at resourceVersion %s", s.Name, s.Spec.Pool.Generation, s.Spec.Pool.Name, s.ResourceVersion))
	}
	return strings.Join(all, "; ")
}

func noWritesAtRest(c *scope) error {
	before, err := c.published(c.ctx)
	if err != nil {
		return err
	}
	pause(c.ctx, c.d.Quiet)
	after, err := c.listSlices(c.ctx)
	if err != nil {
		return err
	}
	if versions(before) != versions(after) {
		return violated(fmt.Sprintf("the slices, and again %s later in which nothing was asked of the driver", c.d.Quiet), "first %s\nthen  %s", versions(before), versions(after))
	}
	return nil
}

func untouchedByClaims(c *scope) error {
	before, err := c.published(c.ctx)
	if err != nil {
		return err
	}
	claim, err := c.oneClaim()
	if err != nil {
		return err
	}
	if _, err := c.prepare(claim); err != nil {
		return err
	}
	if err := c.unprepare(claim); err != nil {
		return err
	}
	after, err := c.listSlices(c.ctx)
	if err != nil {
		return err
	}
	if versions(before) != versions(after) {
		return violated("the slices before and after a claim was prepared and unprepared", "before %s\nafter  %s", versions(before), versions(after))
	}
	return nil
}

func backAfterDeletion(c *scope) error {
	before, err := c.published(c.ctx)
	if err != nil {
		return err
	}
	gone := map[string]bool{}
	for _, slice := range before {
		gone[string(slice.UID)] = true
		if err := c.client.ResourceV1().ResourceSlices().Delete(c.ctx, slice.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	// As a kubelet does after it has deleted them.
	c.disconnect()
	if err := c.ready(c.ctx); err != nil {
		return err
	}
	asked := fmt.Sprintf("the slices, within %s after all were deleted and the plugin was registered again", c.d.Patience)
	var after []resourceapi.ResourceSlice
	err = eventually(c.ctx, c.d.Patience, func() (err error) {
		if after, err = c.listSlices(c.ctx); err != nil {
			return err
		}
		for _, slice := range after {
			if gone[string(slice.UID)] {
				return fmt.Errorf("slice %s is still there", slice.Name)
			}
		}
		return incomplete(after)
	})
	if err != nil {
		return violated(asked, "%v", err)
	}
	if was, is := names(devicesOf(before)), names(devicesOf(after)); was != is {
		return violated(asked, "devices %s\nbefore:   %s", is, was)
	}
	return nil
}
