package jobs

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func table(t *testing.T, more ...Kind) *Table {
	t.Helper()
	table, err := NewTable(more...)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// parse finds a kind, such as "batch/v1 Job", and reads a job of it, with T for a
// template.
func parse(t *testing.T, kind, rest string) (*Kind, *unstructured.Unstructured) {
	t.Helper()
	version, name, _ := strings.Cut(kind, " ")
	k := table(t).Find(version, name)
	if k == nil {
		t.Fatalf("%s is not governed", kind)
	}
	j := job(t, strings.ReplaceAll(rest, ": T", ": "+template))
	j.SetAPIVersion(version)
	j.SetKind(name)
	j.SetName("j")
	return k, j
}

const template = `{spec: {containers: [{name: c, image: i}]}}`

// describe is a job's sets and counts in one line.
func describe(t *testing.T, k *Kind, j *unstructured.Unstructured) string {
	t.Helper()
	sets, err := k.PodSets(j)
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, s := range sets {
		if len(s.Template.Spec.Containers) != 1 {
			t.Errorf("set %s has no container", s.Name)
		}
		all = append(all, fmt.Sprintf("%s %d", s.Name, s.Count))
	}
	return strings.Join(all, ", ")
}

func TestEachKindsSetsAreFound(t *testing.T) {
	for name, tc := range map[string]struct{ kind, spec, want string }{
		"job":                    {"batch/v1 Job", `{parallelism: 3, completions: 9, template: T}`, "main 3"},
		"jobset":                 {"jobset.x-k8s.io/v1alpha2 JobSet", `{replicatedJobs: [{name: driver, template: {spec: {template: T}}}, {name: workers, replicas: 2, template: {spec: {parallelism: 4, completions: 4, template: T}}}]}`, "driver 1, workers 8"},
		"pytorch":                {"kubeflow.org/v1 PyTorchJob", `{pytorchReplicaSpecs: {Worker: {replicas: 3, template: T}, Master: {template: T}}}`, "master 1, worker 3"},
		"tensorflow":             {"kubeflow.org/v1 TFJob", `{tfReplicaSpecs: {PS: {replicas: 2, template: T}, Chief: {replicas: 1, template: T}}}`, "chief 1, ps 2"},
		"xgboost":                {"kubeflow.org/v1 XGBoostJob", `{xgbReplicaSpecs: {Master: {replicas: 1, template: T}}}`, "master 1"},
		"paddle":                 {"kubeflow.org/v1 PaddleJob", `{paddleReplicaSpecs: {Worker: {replicas: 2, template: T}}}`, "worker 2"},
		"jax":                    {"kubeflow.org/v1 JAXJob", `{jaxReplicaSpecs: {Worker: {replicas: 2, template: T}}}`, "worker 2"},
		"mpi":                    {"kubeflow.org/v2beta1 MPIJob", `{mpiReplicaSpecs: {Launcher: {replicas: 1, template: T}, Worker: {replicas: 4, template: T}}}`, "launcher 1, worker 4"},
		"ray cluster":            {"ray.io/v1 RayCluster", `{headGroupSpec: {template: T}, workerGroupSpecs: [{groupName: Small, replicas: 2, template: T}, {groupName: wide, replicas: 2, numOfHosts: 4, template: T}]}`, "head 1, small 2, wide 8"},
		"ray job":                {"ray.io/v1 RayJob", `{rayClusterSpec: {headGroupSpec: {template: T}}, submitterPodTemplate: T}`, "head 1, submitter 1"},
		"ray job on a cluster":   {"ray.io/v1 RayJob", `{clusterSelector: {a: b}}`, "RayJob j has no pod template at spec.rayClusterSpec.headGroupSpec.template"},
		"volcano":                {"batch.volcano.sh/v1alpha1 Job", `{tasks: [{name: ps, replicas: 1, template: T}, {name: worker, replicas: 2, template: T}]}`, "ps 1, worker 2"},
		"a negative count":       {"batch/v1 Job", `{parallelism: -3, template: T}`, "main 0"},
		"counts that overflow":   {"jobset.x-k8s.io/v1alpha2 JobSet", `{replicatedJobs: [{name: a, replicas: 9223372036854775807, template: {spec: {parallelism: 2147483647, template: T}}}]}`, "a 2147483647"},
		"two sets with one name": {"kubeflow.org/v1 PyTorchJob", `{pytorchReplicaSpecs: {worker: {template: T}, Worker: {template: T}}}`, `PyTorchJob j has two sets of pods with the name "worker"`},
		"a set without a name":   {"ray.io/v1 RayCluster", `{headGroupSpec: {template: T}, workerGroupSpecs: [{template: T}]}`, `RayCluster j: "" is no name for a set of pods, use lower case letters, digits and -`},
		"no sets":                {"kubeflow.org/v1 PyTorchJob", `{}`, "PyTorchJob j has 0 sets of pods, 1 to 18 can be governed"},
	} {
		t.Run(name, func(t *testing.T) {
			version, kind, _ := strings.Cut(tc.kind, " ")
			k := table(t).Find(version, kind)
			if k == nil {
				t.Fatalf("%s is not governed", tc.kind)
			}
			j := job(t, "apiVersion: "+version+"\nkind: "+kind+"\nmetadata: {name: j}\nspec: "+strings.ReplaceAll(tc.spec, ": T", ": "+template)+"\n")
			if got := describe(t, k, j); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

func TestARayJobThatCannotBeSuspendedIsRefused(t *testing.T) {
	k := table(t).Find("ray.io/v1", "RayJob")
	j := job(t, "kind: RayJob\nmetadata: {name: j}\nspec: {rayClusterSpec: {headGroupSpec: {template: "+template+"}}}\n")
	if err := k.Check(j); err == nil || !strings.Contains(err.Error(), "spec.shutdownAfterJobFinishes: true") {
		t.Errorf("%v", err)
	}
	if err := unstructured.SetNestedField(j.Object, true, "spec", "shutdownAfterJobFinishes"); err != nil {
		t.Fatal(err)
	}
	if err := k.Check(j); err != nil {
		t.Error(err)
	}
}

func TestJobsOfAnyKindAreStartedAndRestored(t *testing.T) {
	for _, k := range table(t).All() {
		if k.Made != nil {
			// Its templates are elsewhere: see made_test.go.
			continue
		}
		t.Run(k.Group+"/"+k.Version+" "+k.Kind, func(t *testing.T) {
			j, sets := sample(t, k)
			before := j.DeepCopy()
			add := map[string]Injection{}
			for _, s := range sets {
				i := flavor["main"]
				i.Labels = map[string]string{"set": s}
				add[s] = i
			}
			if err := k.Start(j, add); err != nil {
				t.Fatal(err)
			}
			if k.Suspended(j) {
				t.Error("still suspended")
			}
			if n := strings.Count(fmt.Sprint(j.Object), "gpu-type:a100"); n != len(sets) {
				t.Errorf("%d of %d templates have the flavor's label", n, len(sets))
			}
			if k.CanSuspend() {
				if err := k.SetSuspended(j, true); err != nil {
					t.Fatal(err)
				}
			}
			if err := k.Restore(j); err != nil {
				t.Fatal(err)
			}
			j.SetAnnotations(nil)
			if fmt.Sprint(j.Object) != fmt.Sprint(before.Object) {
				t.Errorf("not as it was:\n%v\n%v", before.Object, j.Object)
			}
		})
	}
}

// sample is a job of a kind with two elements in each list and map of sets.
func sample(t *testing.T, k *Kind) (*unstructured.Unstructured, []string) {
	t.Helper()
	j := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "j"}}}
	spec := func() any {
		return map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "newer": int64(1)}}}}
	}
	put := func(in map[string]any, path string, value any) {
		if err := unstructured.SetNestedField(in, value, fields(path)...); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for _, s := range k.Sets {
		switch {
		case s.Each == "":
			put(j.Object, s.Path, spec())
			names = append(names, s.Name)
		case s.Name == "":
			all := map[string]any{}
			for _, key := range []string{"Master", "Worker"} {
				e := map[string]any{}
				put(e, s.Path, spec())
				all[key] = e
				names = append(names, strings.ToLower(key))
			}
			put(j.Object, s.Each, all)
		default:
			var all []any
			for _, key := range []string{"a", "b"} {
				e := map[string]any{}
				put(e, s.Name, key)
				put(e, s.Path, spec())
				all = append(all, e)
				names = append(names, key)
			}
			put(j.Object, s.Each, all)
		}
	}
	if k.CanSuspend() {
		put(j.Object, k.Suspend, true)
	}
	return j, names
}

func TestJobsOfEachKindEnd(t *testing.T) {
	for _, tc := range []struct{ kind, status, want string }{
		{"batch/v1 Job", `{conditions: [{type: Complete, status: 'True', message: m}]}`, "true true m"},
		{"batch/v1 Job", `{conditions: [{type: Failed, status: 'True', message: m}]}`, "true false m"},
		{"batch/v1 Job", `{conditions: [{type: Complete, status: 'False'}, {type: Suspended, status: 'True'}]}`, "false false "},
		{"jobset.x-k8s.io/v1alpha2 JobSet", `{conditions: [{type: Completed, status: 'True'}]}`, "true true "},
		{"kubeflow.org/v1 PyTorchJob", `{conditions: [{type: Running, status: 'False'}, {type: Succeeded, status: 'True'}]}`, "true true "},
		{"kubeflow.org/v2beta1 MPIJob", `{conditions: [{type: Failed, status: 'True'}]}`, "true false "},
		{"ray.io/v1 RayJob", `{jobDeploymentStatus: Complete, jobStatus: SUCCEEDED, message: done}`, "true true done"},
		{"ray.io/v1 RayJob", `{jobDeploymentStatus: Failed}`, "true false "},
		{"ray.io/v1 RayJob", `{jobDeploymentStatus: Retrying, jobStatus: FAILED}`, "false false "},
		{"ray.io/v1 RayCluster", `{state: ready}`, "false false "},
		{"batch.volcano.sh/v1alpha1 Job", `{state: {phase: Completed}}`, "true true "},
	} {
		version, kind, _ := strings.Cut(tc.kind, " ")
		done, ok, message := table(t).Find(version, kind).Done(job(t, "status: "+tc.status))
		if got := fmt.Sprint(done, " ", ok, " ", message); got != tc.want {
			t.Errorf("%s %s: %q, want %q", tc.kind, tc.status, got, tc.want)
		}
	}
}

func TestOperatorsDescribeKindsOfTheirOwn(t *testing.T) {
	own := Kind{
		Group: "example.com", Version: "v1", Kind: "Render", Resource: "renders", Suspend: "spec.paused",
		Sets: []Template{{Name: "main", Path: "spec.template", Least: []string{"spec.frames"}}},
		Ends: []End{{Path: "status.phase", Value: "Done"}},
	}
	k := table(t, own).Find("example.com/v1", "Render")
	if k == nil {
		t.Fatal("not governed")
	}
	j := job(t, "kind: Render\nmetadata: {name: j}\nspec: {paused: true, frames: 7, template: "+template+"}\n")
	if got := describe(t, k, j); got != "main 7" || !k.Suspended(j) {
		t.Errorf("%s, suspended %v", got, k.Suspended(j))
	}
	for name, broken := range map[string]func(*Kind){
		"resource is empty":      func(k *Kind) { k.Resource = "" },
		"podSets is empty":       func(k *Kind) { k.Sets = nil },
		"podSets[0].path":        func(k *Kind) { k.Sets = []Template{{Name: "a"}} },
		"needs a name":           func(k *Kind) { k.Sets = []Template{{Path: "spec.t"}} },
		"ends[0]":                func(k *Kind) { k.Ends = []End{{Path: "status.phase"}} },
		`path "spec..x"`:         func(k *Kind) { k.Suspend = "spec..x" },
		`path "status.active."`:  func(k *Kind) { k.Active = "status.active." },
		"job kind ?: kind is em": func(k *Kind) { k.Kind = "" },
	} {
		k := own
		broken(&k)
		if _, err := NewTable(k); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
	if replaced := table(t, Kind{Group: "batch", Version: "v1", Kind: "Job", Resource: "jobs", Sets: own.Sets}); len(replaced.All()) != len(table(t).All()) {
		t.Error("a kind that is described again is there twice")
	}
}

func TestAKindIsFoundByOtherVersionsToo(t *testing.T) {
	all := table(t)
	if k := all.Find("kubeflow.org/v1", "MPIJob"); k == nil || k.Version != "v1" {
		t.Errorf("%+v", k)
	}
	if k := all.Find("ray.io/v1alpha1", "RayCluster"); k == nil || k.Version != "v1" {
		t.Errorf("%+v", k)
	}
	for _, none := range [][2]string{{"example.com/v1", "Job"}, {"batch/v1", "CronJob"}, {"a/b/c", "Job"}} {
		if k := all.Find(none[0], none[1]); k != nil {
			t.Errorf("%v is governed by %v", none, k.GroupVersionKind())
		}
	}
}
