package translate

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// fate is what becomes of a field of the quota API.
type fate string

const (
	// honoured fields have the meaning that the API gives them.
	honoured fate = "honoured"
	// refused fields make their object inactive, or the request fail, with a
	// reason.
	refused fate = "refused"
	// written fields are of a status, and are written here.
	written fate = "written"
	// unneeded fields are of a status that only a refused feature would need.
	unneeded fate = "unneeded"
)

// fates names every field of every object of the API that is served, by its path
// in the object. A field below one that is refused has its fate.
var fates = map[string]fate{
	"ClusterQueue.spec.resourceGroups":                    honoured,
	"ClusterQueue.spec.cohortName":                        honoured,
	"ClusterQueue.spec.queueingStrategy":                  honoured,
	"ClusterQueue.spec.namespaceSelector":                 honoured,
	"ClusterQueue.spec.flavorFungibility":                 honoured,
	"ClusterQueue.spec.preemption":                        honoured,
	"ClusterQueue.spec.admissionChecksStrategy":           honoured, // of others; MultiKueue's make the queue inactive
	"ClusterQueue.spec.stopPolicy":                        honoured,
	"ClusterQueue.spec.fairSharing":                       honoured,
	"ClusterQueue.spec.admissionScope":                    honoured,
	"ClusterQueue.spec.concurrentAdmissionPolicy":         refused,
	"ClusterQueue.status.conditions":                      written,
	"ClusterQueue.status.flavorsReservation":              written,
	"ClusterQueue.status.flavorsUsage":                    written,
	"ClusterQueue.status.pendingWorkloads":                written,
	"ClusterQueue.status.reservingWorkloads":              written,
	"ClusterQueue.status.admittedWorkloads":               written,
	"ClusterQueue.status.fairSharing":                     written,
	"Cohort.spec.parentName":                              honoured,
	"Cohort.spec.resourceGroups":                          honoured,
	"Cohort.spec.fairSharing":                             honoured,
	"Cohort.status.fairSharing":                           written,
	"LocalQueue.spec.clusterQueue":                        honoured,
	"LocalQueue.spec.stopPolicy":                          honoured,
	"LocalQueue.spec.fairSharing":                         honoured,
	"LocalQueue.status.conditions":                        written,
	"LocalQueue.status.pendingWorkloads":                  written,
	"LocalQueue.status.reservingWorkloads":                written,
	"LocalQueue.status.admittedWorkloads":                 written,
	"LocalQueue.status.flavorsReservation":                written,
	"LocalQueue.status.flavorsUsage":                      written,
	"LocalQueue.status.fairSharing":                       unneeded,
	"ResourceFlavor.spec.nodeLabels":                      honoured,
	"ResourceFlavor.spec.nodeTaints":                      honoured,
	"ResourceFlavor.spec.tolerations":                     honoured,
	"ResourceFlavor.spec.topologyName":                    refused,
	"WorkloadPriorityClass.value":                         honoured,
	"WorkloadPriorityClass.description":                   honoured, // it is for people
	"AdmissionCheck.spec.controllerName":                  honoured,
	"AdmissionCheck.spec.parameters":                      honoured, // it is for that controller
	"AdmissionCheck.status.conditions":                    honoured,
	"Workload.spec.podSets.name":                          honoured,
	"Workload.spec.podSets.template":                      honoured,
	"Workload.spec.podSets.count":                         honoured,
	"Workload.spec.podSets.minCount":                      honoured,
	"Workload.spec.podSets.topologyRequest":               refused,
	"Workload.spec.queueName":                             honoured,
	"Workload.spec.priorityClassRef":                      honoured, // says where the priority is from
	"Workload.spec.priority":                              honoured,
	"Workload.spec.active":                                honoured,
	"Workload.spec.maximumExecutionTimeSeconds":           honoured,
	"Workload.spec.preemptionGates":                       honoured,
	"Workload.status.conditions":                          written,
	"Workload.status.admission":                           written,
	"Workload.status.requeueState":                        written,
	"Workload.status.reclaimablePods":                     honoured,
	"Workload.status.admissionChecks":                     honoured,
	"Workload.status.resourceRequests":                    unneeded, // the reason to wait names what is asked for
	"Workload.status.accumulatedPastExecutionTimeSeconds": written,
	"Workload.status.schedulingStats":                     written,
	"Workload.status.nominatedClusterNames":               unneeded,
	"Workload.status.clusterName":                         unneeded,
	"Workload.status.unhealthyNodes":                      unneeded,
	"Workload.status.preemptionGates":                     honoured,
}

func TestEveryFieldOfTheQuotaAPIHasAFate(t *testing.T) {
	found := map[string]bool{}
	for _, o := range []any{
		kueue.ClusterQueue{}, kueue.Cohort{}, kueue.LocalQueue{}, kueue.ResourceFlavor{},
		kueue.WorkloadPriorityClass{}, kueue.AdmissionCheck{}, kueue.Workload{},
	} {
		typ := reflect.TypeOf(o)
		walkFields(typ, typ.Name(), func(path string) bool {
			if fates[path] == "" {
				return false
			}
			found[path] = true
			return true
		}, func(path string) { t.Errorf("field %s is new: say what becomes of it", path) })
	}
	for _, path := range slices.Sorted(maps.Keys(fates)) {
		if !found[path] {
			t.Errorf("there is no field %s any more", path)
		}
	}
}

// walkFields calls known for each path of JSON fields, and goes deeper where it
// says false; unknown is called for leaves that nobody knows.
func walkFields(typ reflect.Type, path string, known func(string) bool, unknown func(string)) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "metadata" || f.Name == "TypeMeta" {
			continue
		}
		at := path + "." + name
		if known(at) {
			continue
		}
		inner := f.Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() != reflect.Struct || inner.PkgPath() != reflect.TypeFor[kueue.Workload]().PkgPath() {
			unknown(at)
			continue
		}
		walkFields(inner, at, known, unknown)
	}
}

// What a queue, cohort or LocalQueue says reaches the engine: no two values of a
// field that is honoured look the same to it.
func TestHonouredFieldsReachTheEngine(t *testing.T) {
	// Fields that something else than the engine looks at.
	elsewhere := map[string]bool{"admissionChecksStrategy": true}
	seen := func(o any) string {
		switch o := o.(type) {
		case *kueue.ClusterQueue:
			return describe(ClusterQueue(o))
		case *kueue.Cohort:
			return describe(Cohort(o))
		case *kueue.LocalQueue:
			return describe(LocalQueue(o))
		}
		return ""
	}
	for _, o := range []any{&kueue.ClusterQueue{}, &kueue.Cohort{}, &kueue.LocalQueue{}} {
		spec := reflect.ValueOf(o).Elem().FieldByName("Spec")
		empty := seen(o)
		leaves(spec, "", func(path string, set func()) {
			if elsewhere[strings.Split(path, ".")[0]] {
				return
			}
			spec.SetZero()
			set()
			if seen(o) == empty {
				t.Errorf("%T: %s changes nothing", o, path)
			}
			spec.SetZero()
		})
	}
}

// describe follows pointers, so that two values that are alike print alike.
func describe(v any) string { return show(reflect.ValueOf(v)) }

func show(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return "nil"
		}
		return "&" + show(v.Elem())
	case reflect.Struct:
		var b strings.Builder
		for i := range v.NumField() {
			fmt.Fprintf(&b, "%s=%s ", v.Type().Field(i).Name, show(v.Field(i)))
		}
		return "{" + b.String() + "}"
	case reflect.Slice:
		var b strings.Builder
		for i := range v.Len() {
			b.WriteString(show(v.Index(i)) + ",")
		}
		return "[" + b.String() + "]"
	}
	return fmt.Sprint(v)
}

// leaves calls f for every field of a struct of the API, with a function that
// sets it alone to something.
func leaves(v reflect.Value, path string, f func(path string, set func())) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		index := i
		f(strings.TrimPrefix(path+"."+name, "."), func() { fill(v.Field(index)) })
	}
}

// fill gives a value something in every part of it.
func fill(v reflect.Value) {
	if v.Type() == reflect.TypeFor[resource.Quantity]() {
		v.Set(reflect.ValueOf(resource.MustParse("7")))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString("x")
		switch v.Type() {
		case reflect.TypeFor[kueue.AdmissionMode]():
			v.SetString(string(kueue.UsageBasedAdmissionFairSharing))
		case reflect.TypeFor[kueue.StopPolicy]():
			v.SetString(string(kueue.Hold))
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(7)
	}
}
