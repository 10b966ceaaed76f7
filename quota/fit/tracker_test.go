package fit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	informers "k8s.io/client-go/informers/resource/v1"
	listers "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// told is an informer that says at once what it is told.
type told struct {
	cache.SharedIndexInformer
	indexer  cache.Indexer
	handlers []cache.ResourceEventHandler
}

func newTold() *told {
	return &told{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}
}

func (i *told) AddEventHandlerWithOptions(h cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	i.handlers = append(i.handlers, h)
	return i, nil
}

func (i *told) RemoveEventHandler(cache.ResourceEventHandlerRegistration) error { return nil }
func (i *told) AddIndexers(all cache.Indexers) error                            { return i.indexer.AddIndexers(all) }
func (i *told) GetIndexer() cache.Indexer                                       { return i.indexer }
func (i *told) HasSynced() bool                                                 { return true }
func (i *told) HasSyncedChecker() cache.DoneChecker                             { return i }
func (i *told) Name() string                                                    { return "told" }

func (i *told) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (i *told) set(o runtime.Object) {
	old, known, _ := i.indexer.Get(o)
	_ = i.indexer.Add(o)
	for _, h := range i.handlers {
		if known {
			h.OnUpdate(old, o)
		} else {
			h.OnAdd(o, false)
		}
	}
}

func (i *told) remove(name string) {
	old, known, _ := i.indexer.GetByKey(name)
	if !known {
		return
	}
	_ = i.indexer.Delete(old)
	for _, h := range i.handlers {
		h.OnDelete(old)
	}
}

type toldSlices struct{ *told }

func (t toldSlices) Informer() cache.SharedIndexInformer { return t.told }
func (t toldSlices) Lister() listers.ResourceSliceLister {
	return listers.NewResourceSliceLister(t.indexer)
}

type toldRules struct{ *told }

func (t toldRules) Informer() cache.SharedIndexInformer { return t.told }
func (t toldRules) Lister() listers.DeviceTaintRuleLister {
	return listers.NewDeviceTaintRuleLister(t.indexer)
}

// The scheduler sees slices through this tracker. Whatever slices and rules come,
// change and go, the same taints lie on the same devices here.
func TestRulesTaintTheDevicesThatTheSchedulersTrackerTaints(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		pick := func(label string, n int) int { return rapid.IntRange(0, n-1).Draw(r, label) }
		slicesTold, rulesTold := newTold(), newTold()
		theirs, err := tracker.StartTracker(context.Background(), tracker.Options{
			EnableDeviceTaintRules: true, EnableConsumableCapacity: true,
			SliceInformer: informers.ToTypedResourceSliceInformer(toldSlices{slicesTold}), TaintInformer: informers.ToTypedDeviceTaintRuleInformer(toldRules{rulesTold}),
		})
		if err != nil {
			r.Fatal(err)
		}
		defer theirs.Stop()
		ours := world(BinPack)
		taint := func() resourceapi.DeviceTaint {
			return resourceapi.DeviceTaint{Key: fmt.Sprintf("k%d", pick("key", 2)), Value: fmt.Sprint(pick("value", 2)), Effect: []resourceapi.DeviceTaintEffect{
				resourceapi.DeviceTaintEffectNone, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute}[pick("effect", 3)]}
		}
		maybe := func(label string, names ...string) *string {
			if i := pick(label, len(names)+1); i < len(names) {
				return ptr.To(names[i])
			}
			return nil
		}
		for range 30 {
			name := fmt.Sprintf("o%d", pick("name", 4))
			switch pick("event", 6) {
			case 0, 1:
				slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
				slice.Spec.Driver, slice.Spec.NodeName = []string{"gpu.sluice.dev", "other"}[pick("driver", 2)], maybe("node", "n1", "n2")
				slice.Spec.Pool = resourceapi.ResourcePool{Name: fmt.Sprintf("p%d", pick("pool", 2)), Generation: int64(pick("generation", 2)), ResourceSliceCount: 1}
				for i := range pick("devices", 4) {
					d := resourceapi.Device{Name: fmt.Sprintf("d%d", i)}
					for range pick("taints", 3) {
						d.Taints = append(d.Taints, taint())
					}
					slice.Spec.Devices = append(slice.Spec.Devices, d)
				}
				slicesTold.set(slice)
				ours.SetSlice(slice)
			case 2:
				slicesTold.remove(name)
				ours.RemoveSlice(name)
			case 3, 4:
				rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name}}
				rule.Spec.Taint = taint()
				if pick("selects", 5) > 0 {
					rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{
						Driver: maybe("its driver", "gpu.sluice.dev", "other"), Pool: maybe("its pool", "p0", "p1"), Device: maybe("its device", "d0", "d1")}
				}
				rulesTold.set(rule)
				ours.SetTaintRule(rule)
			case 5:
				rulesTold.remove(name)
				ours.RemoveTaintRule(name)
			}
			if pick("look", 3) == 0 {
				ours.reindex()
			}
			want, err := theirs.ListPatchedResourceSlices()
			if err != nil {
				r.Fatal(err)
			}
			var got []*resourceapi.ResourceSlice
			for _, p := range ours.pools {
				got = append(got, p.slices...)
			}
			if a, b := taintsOf(got), taintsOf(want); !maps.Equal(a, b) {
				r.Fatalf("here\n%v\nthere\n%v", a, b)
			}
			for _, n := range ours.nodes {
				for _, c := range n.cards {
					if tainted := slices.ContainsFunc(c.device.Taints, func(t resourceapi.DeviceTaint) bool { return t.Effect != resourceapi.DeviceTaintEffectNone }); tainted != c.tainted {
						r.Fatalf("card %s of node %s is tainted: %v", c.device.Name, n.name, c.tainted)
					}
				}
			}
		}
	})
}

// taintsOf are the taints of each device, in one order.
func taintsOf(all []*resourceapi.ResourceSlice) map[string]string {
	of := map[string]string{}
	for _, slice := range all {
		for i := range slice.Spec.Devices {
			d := slice.Spec.Devices[i].DeepCopy()
			slices.SortFunc(d.Taints, func(a, b resourceapi.DeviceTaint) int {
				return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value), cmp.Compare(a.Effect, b.Effect))
			})
			of[slice.Name+"/"+d.Name] = fmt.Sprint(d.Taints)
		}
	}
	return of
}
