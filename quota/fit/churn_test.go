package fit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/quota/engine"
)

// stock is what a scheduler does, which knows nothing of promises: it sees all
// claims of the cluster, tries the nominated node first and any other after it,
// and takes what the allocator gives.
type stock struct {
	s      *State
	claims map[types.UID]*resourceapi.ResourceClaim
}

// ofTheScheduler is what a scheduler of the oldest supported Kubernetes does by
// default.
var ofTheScheduler = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true,
}

// allocate gives claims their devices on one node, nil if there are none.
func (k *stock) allocate(node string, ask []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	var all []*resourceapi.ResourceSlice
	for _, name := range slices.Sorted(maps.Keys(k.s.slices)) {
		all = append(all, k.s.slices[name])
	}
	state := newAllocated()
	for _, c := range k.claims {
		for _, d := range devicesOf(c.Status.Allocation.Devices.Results) {
			switch {
			case d.AdminAccess != nil && *d.AdminAccess:
			case d.ShareID == nil:
				state.AllocatedDevices.Insert(d.id)
			default:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(d.id, d.ShareID))
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(d.id, d.ConsumedCapacity))
			}
		}
	}
	a, err := structured.NewAllocator(context.Background(), ofTheScheduler, state, k.s, all, k.s.cel)
	if err != nil {
		return nil, err
	}
	return a.Allocate(context.Background(), k.s.nodes[node].object, ask)
}

// serve schedules one pod; "" if no node has room.
func (k *stock) serve(r *rapid.T, pod types.UID, nominated string, specs []resourceapi.ResourceClaimSpec) (string, []*resourceapi.ResourceClaim) {
	ask := claimsOf(specs)
	for i := range ask {
		ask[i].Name = fmt.Sprintf("%s-%d", pod, i)
		ask[i].UID = types.UID(ask[i].Name)
	}
	for _, name := range append([]string{nominated}, slices.Sorted(maps.Keys(k.s.nodes))...) {
		n := k.s.nodes[name]
		if n == nil || n.object == nil || n.object.Spec.Unschedulable {
			continue
		}
		results, err := k.allocate(name, ask)
		if err != nil {
			r.Fatal(err)
		}
		if results == nil {
			continue
		}
		for i := range ask {
			ask[i].Status.Allocation = &results[i]
		}
		return name, ask
	}
	return "", nil
}

// crowded is a cluster of few cards, those who want them, and a scheduler.
type crowded struct {
	*rapid.T
	s     *State
	stock *stock
	// admitted are the workloads that were promised room, wants what a pod of each
	// asks for, coming their pods that are not open yet.
	admitted map[engine.WorkloadID]engine.Assignment
	wants    map[engine.WorkloadID][]resourceapi.ResourceClaimSpec
	coming   []pending
	// open are the pods past their gate, by the node to which they are nominated.
	open []pending
	has  map[types.UID][]*resourceapi.ResourceClaim
	next int
	// others are claims of those whom no budget governs.
	others []*resourceapi.ResourceClaim
	// lost says that pods may be without their places through no fault of ours.
	lost bool
	// story is what has happened.
	story []string
	// plain says that all ask for so much memory of one card and nothing else.
	plain bool
}

type pending struct {
	id   engine.WorkloadID
	pod  types.UID
	node string
}

func (c *crowded) note(format string, args ...any) {
	c.story = append(c.story, fmt.Sprintf(format, args...))
}

func (c *crowded) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(c.T, label) }

// claimOf draws what a pod may ask for.
func (c *crowded) claimOf() []resourceapi.ResourceClaimSpec {
	one := func() resourceapi.ResourceClaimSpec {
		if c.plain {
			return spec([]int64{5, 10, 15, 20, 30, 40}[c.pick("gi", 6)])
		}
		claim := spec([]int64{0, 5, 10, 15, 20, 30, 40}[c.pick("gi", 7)])
		r := claim.Devices.Requests[0].Exactly
		if r.Capacity != nil && c.pick("cores", 3) == 0 {
			r.Capacity.Requests["cores"] = quantity([]string{"30", "60"}[c.pick("percent", 2)])
		}
		if c.pick("count", 6) == 0 {
			r.Count = 2
		}
		if c.pick("picky", 8) == 0 {
			r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(`device.attributes["gpu.sluice.dev"].nvlinkDomain == "%d"`, c.pick("domain", 2))}}}
		}
		return claim
	}
	all := []resourceapi.ResourceClaimSpec{one()}
	if !c.plain && c.pick("claims", 6) == 0 {
		all = append(all, one())
	}
	return all
}

// arrive has a workload come, which is admitted if it has room.
func (c *crowded) arrive() {
	c.next++
	id := engine.WorkloadID(fmt.Sprintf("ns/w%d", c.next))
	count := int32(1 + c.pick("pods", 2))
	_, a := ask(c.s, id, count, -1, nil)
	c.s.workloads[id].sets[0].Claims = c.claimOf()
	p, no := c.s.Place(&engine.Workload{ID: id}, a, nil)
	if no != nil {
		c.s.RemoveWorkload(id)
		return
	}
	c.s.Take(id, p)
	where := ""
	for _, sl := range c.s.workloads[id].slots {
		where += " " + sl.node
		for _, d := range sl.devices {
			where += "/" + d.Device
		}
	}
	c.note("%s of %d pods wants %s, is promised%s", id, count, need(claimsOf(c.s.workloads[id].sets[0].Claims)), where)
	c.admitted[id], c.wants[id] = a, c.s.workloads[id].sets[0].Claims
	for i := range count {
		c.coming = append(c.coming, pending{id: id, pod: types.UID(fmt.Sprintf("w%d-%d", c.next, i))})
	}
}

// opens opens the gate of a pod that has come, if it may be opened now.
func (c *crowded) opens(i int) bool {
	p := c.coming[i]
	a := c.admitted[p.id]
	node, no := c.s.Open(p.id, &a.PodSets[0], p.pod)
	if no != nil {
		return false
	}
	p.node = node
	c.note("%s is opened to %s", p.pod, node)
	c.coming = slices.Delete(c.coming, i, i+1)
	c.open = append(c.open, p)
	return true
}

// schedules has the scheduler take a pod past its gate.
func (c *crowded) schedules(i int) bool {
	p := c.open[i]
	node, claims := c.stock.serve(c.T, p.pod, p.node, c.wants[p.id])
	if node == "" {
		if !c.lost {
			c.Fatalf("pod %s, nominated to %s, finds no room%s", p.pod, p.node, c.picture())
		}
		return false
	}
	if node != p.node && !c.lost {
		c.Fatalf("pod %s was nominated to %s and served on %s%s", p.pod, p.node, node, c.picture())
	}
	c.open = slices.Delete(c.open, i, i+1)
	c.has[p.pod] = claims
	got := ""
	for _, claim := range claims {
		for _, d := range claim.Status.Allocation.Devices.Results {
			got += "/" + d.Device
		}
	}
	c.note("%s is given %s%s", p.pod, node, got)
	for _, claim := range claims {
		c.stock.claims[claim.UID] = claim
		c.s.SetClaim(claim, p.id)
	}
	c.s.Equipped(p.id, p.pod, node)
	pod := bound(string(p.pod), node, "10m")
	c.s.SetPod(pod, p.id)
	c.s.Settle(p.id, p.pod)
	return true
}

// ends has a pod end that runs.
func (c *crowded) ends() {
	running := slices.Sorted(maps.Keys(c.has))
	if len(running) == 0 {
		return
	}
	pod := running[c.pick("who ends", len(running))]
	c.note("%s ends", pod)
	for _, claim := range c.has[pod] {
		delete(c.stock.claims, claim.UID)
		c.s.RemoveClaim(claim.UID)
	}
	c.s.RemovePod(pod)
	delete(c.has, pod)
}

func newCrowded(r *rapid.T, plain bool) *crowded {
	c := &crowded{
		T: r, plain: plain, s: world(BinPack), admitted: map[engine.WorkloadID]engine.Assignment{},
		wants: map[engine.WorkloadID][]resourceapi.ResourceClaimSpec{}, has: map[types.UID][]*resourceapi.ResourceClaim{},
	}
	c.stock = &stock{s: c.s, claims: map[types.UID]*resourceapi.ResourceClaim{}}
	for n := range 1 + c.pick("nodes", 2) {
		var cards []int64
		for range 1 + c.pick("cards", 3) {
			cards = append(cards, []int64{20, 40}[c.pick("size", 2)])
		}
		name := fmt.Sprintf("n%d", n)
		addNode(c.s, name, nil, cards...)
		slice := c.s.slices[name].DeepCopy()
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"nvlinkDomain": {StringValue: ptr.To(fmt.Sprint(i % 2))}}
		}
		c.s.SetSlice(slice)
	}
	return c
}

// However pods come, in whatever order gates open and the scheduler serves those
// past them, whoever was promised room gets it, and where he was nominated.
func TestWhoeverWasPromisedRoomGetsItInAnyOrder(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := newCrowded(r, rapid.Bool().Draw(r, "plain"))
		for range 40 {
			// What is freed may go to others than it was thought to while pods are on
			// their way, which does no harm where each asks for a part of one card.
			c.goesOn(c.plain || len(c.open)+len(c.coming) == 0)
		}
		if left := c.settle(); left != "" {
			r.Fatal(left)
		}
	})
}

// Whatever happens to nodes and devices besides, nobody waits who could be served.
func TestNobodyWaitsWhileThereIsRoom(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := newCrowded(r, false)
		c.lost = true
		for range 40 {
			if c.pick("accident", 4) > 0 {
				c.goesOn(true)
				continue
			}
			name := fmt.Sprintf("n%d", c.pick("node", len(c.s.nodes)))
			switch c.pick("kind", 4) {
			case 0, 1:
				o := c.s.nodes[name].object.DeepCopy()
				o.Spec.Unschedulable = !o.Spec.Unschedulable
				c.s.SetNode(o)
			case 2:
				c.foreign(name)
			case 3:
				c.unforeign()
			}
		}
		c.settle()
		for _, p := range slices.Concat(c.coming, c.open) {
			if node, _ := c.stock.serve(r, p.pod, p.node, c.wants[p.id]); node != "" {
				a := c.admitted[p.id]
				named, no := c.s.Open(p.id, &a.PodSets[0], p.pod)
				r.Fatalf("pod %s waits, %s %v, although %s has room for it%s", p.pod, named, no, node, c.picture())
			}
		}
	})
}

// goesOn lets one thing happen that does every day.
func (c *crowded) goesOn(ends bool) {
	switch c.pick("event", 8) {
	case 0, 1, 2:
		c.arrive()
	case 3, 4:
		if len(c.coming) > 0 {
			c.opens(c.pick("who opens", len(c.coming)))
		}
	case 5, 6:
		if len(c.open) > 0 {
			c.schedules(c.pick("who is served", len(c.open)))
		}
	case 7:
		if ends {
			c.ends()
		}
	}
}

// foreign has somebody take devices of a node whom no budget governs.
func (c *crowded) foreign(name string) {
	c.next++
	pod := types.UID(fmt.Sprintf("foreign-%d", c.next))
	node, claims := c.stock.serve(c.T, pod, name, c.claimOf())
	if node == "" {
		return
	}
	c.others = append(c.others, claims...)
	for _, claim := range claims {
		c.stock.claims[claim.UID] = claim
		c.s.SetClaim(claim, "")
	}
}

func (c *crowded) unforeign() {
	if len(c.others) == 0 {
		return
	}
	i := c.pick("whose", len(c.others))
	delete(c.stock.claims, c.others[i].UID)
	c.s.RemoveClaim(c.others[i].UID)
	c.others = slices.Delete(c.others, i, i+1)
}

// settle lets everybody go on until nobody can, and says who is left.
func (c *crowded) settle() string {
	for progress := true; progress; {
		progress = false
		for i := 0; i < len(c.coming); {
			if c.opens(i) {
				progress = true
			} else {
				i++
			}
		}
		for i := len(c.open) - 1; i >= 0; i-- {
			// As the controller does with those on their way.
			c.renominate(i)
			progress = c.schedules(i) || progress
		}
	}
	left := ""
	for _, p := range c.coming {
		a := c.admitted[p.id]
		_, no := c.s.Open(p.id, &a.PodSets[0], p.pod)
		left += fmt.Sprintf("\n%s never comes past its gate: %v", p.pod, no)
	}
	if left != "" {
		left += c.picture()
	}
	return left
}

// renominate looks again at the node of a pod past its gate.
func (c *crowded) renominate(i int) {
	p := &c.open[i]
	a := c.admitted[p.id]
	if node, no := c.s.Open(p.id, &a.PodSets[0], p.pod); no == nil {
		p.node = node
	}
}

// picture is what is on the cards and who waits.
func (c *crowded) picture() string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(c.s.nodes)) {
		n := c.s.nodes[name]
		text += "\n" + name + ":"
		for _, card := range c.s.view(n, &trial{}).cards {
			text += fmt.Sprintf(" %s %dGi free of %d", card.device.Name, card.freeMemory>>30, card.memory>>30)
		}
		for _, sl := range n.slots {
			text += fmt.Sprintf("; %s/%s promised", sl.workload, sl.pod)
			for _, d := range sl.devices {
				text += " " + d.Device
			}
		}
	}
	for _, line := range c.story {
		text += "\n- " + line
	}
	return text
}

func claimsOf(specs []resourceapi.ResourceClaimSpec) []*resourceapi.ResourceClaim {
	var all []*resourceapi.ResourceClaim
	for _, spec := range specs {
		all = append(all, &resourceapi.ResourceClaim{Spec: spec})
	}
	return all
}
