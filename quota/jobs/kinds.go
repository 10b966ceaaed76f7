package jobs

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// Kind describes one kind of job. Paths are field names with dots between them,
// from the object's root: "spec.runPolicy.suspend".
type Kind struct {
	// Group, Version and Kind name it. Objects of the kind that name another
	// version as their parent are recognised by group and kind alone.
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
	// Resource is its plural as in URLs: "jobs".
	Resource string `json:"resource"`
	// Suspend is the path of the field that holds it back. A kind without one is
	// governed through its pods: they are born gated, and deleted on eviction.
	Suspend string `json:"suspend,omitempty"`
	// Sets are its sets of like pods.
	Sets []Template `json:"podSets"`
	// Ends are the signs that it has ended for good; none for what never ends.
	Ends []End `json:"ends,omitempty"`
	// PriorityClass is the path of a priority class's name that is used before
	// those of the templates.
	PriorityClass string `json:"priorityClass,omitempty"`
	// Active is the path of the number of its pods that are not finished, if the
	// API forbids to change templates while there are any.
	Active string `json:"active,omitempty"`
	// Demands are the paths of fields that must be true, because without them the
	// kind's own controller does not let the job be suspended.
	Demands []string `json:"demands,omitempty"`
	// SetLabel is the label by which the kind's own controller tells the sets of
	// its pods apart, for pods that came before ours was in the templates.
	SetLabel string `json:"setLabel,omitempty"`
	// Nested says that it has jobs made of it which keep what was merged into
	// their templates once: that has to be taken out there too.
	Nested bool `json:"nested,omitempty"`
	// Retries say by what no pod is made in place of one that fails, in all sets;
	// nil if nothing but the templates' own tell.
	Retries *Retries `json:"retries,omitempty"`
	// Made says that its pods are those of a job that its own controller makes of
	// it, from templates that are elsewhere; Sets is empty then. Only kinds that
	// are known without configuration have it.
	Made *Made `json:"-"`
}

// Template describes where one set of like pods is, or one for each element of a
// list or map.
type Template struct {
	// Name is the set's. With Each it is the field of an element that names its
	// set; empty for the elements of a map, whose keys do.
	Name string `json:"name,omitempty"`
	// Each is the path of a list or map, each element of which is a set. The
	// paths below are then those inside an element.
	Each string `json:"each,omitempty"`
	// Path is the path of the PodTemplateSpec.
	Path string `json:"path"`
	// Least are paths of which the least value present is the number of pods; one
	// pod if none is.
	Least []string `json:"least,omitempty"`
	// Times are paths by whose values that number is multiplied, where present.
	Times []string `json:"times,omitempty"`
	// Optional says that the template may be missing.
	Optional bool `json:"optional,omitempty"`
	// Completions say how much is left to do, for sets that need fewer pods
	// towards their end; nil for others, and for those of configured kinds.
	Completions *Completions `json:"-"`
	// Retries say the same as those of the kind, for this set alone, or for each
	// element. Where both are there both must.
	Retries *Retries `json:"retries,omitempty"`
}

// End is a sign that a job has ended: a condition that is True, or a field that
// has a value.
type End struct {
	Condition string `json:"condition,omitempty"`
	Path      string `json:"path,omitempty"`
	Value     string `json:"value,omitempty"`
	// Failed says that it ended without success.
	Failed bool `json:"failed,omitempty"`
}

// GroupVersionKind is the kind's full name.
func (k *Kind) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}
}

// CRD is the name of the CustomResourceDefinition that serves the kind.
func (k *Kind) CRD() string { return k.Resource + "." + k.Group }

func conditions(failed string, succeeded ...string) []End {
	var ends []End
	for _, c := range succeeded {
		ends = append(ends, End{Condition: c})
	}
	return append(ends, End{Condition: failed, Failed: true})
}

// kubeflow is a kind of the training operator, all of which are alike but for
// the name of the field with their replicas, what a missing restart policy means,
// and the fields by which the number of pods may change.
func kubeflow(kind, resource, replicas string, never []string, elastic ...string) Kind {
	return Kind{
		Group: "kubeflow.org", Version: "v1", Kind: kind, Resource: resource,
		Suspend: "spec.runPolicy.suspend",
		Sets: []Template{{
			Each: "spec." + replicas, Path: "template", Least: []string{"replicas"},
			Retries: &Retries{Policy: "restartPolicy", Never: never},
		}},
		Retries:       &Retries{Unless: elastic},
		Ends:          conditions("Failed", "Succeeded"),
		PriorityClass: "spec.runPolicy.schedulingPolicy.priorityClass",
		SetLabel:      "training.kubeflow.org/replica-type",
	}
}

// rayCluster are the sets of pods of a Ray cluster whose spec is at a path.
func rayCluster(path string) []Template {
	return []Template{
		{Name: "head", Path: path + ".headGroupSpec.template"},
		{Name: "groupName", Each: path + ".workerGroupSpecs", Path: "template", Least: []string{"replicas"}, Times: []string{"numOfHosts"}},
	}
}

// builtIn are the kinds that are known without configuration.
func builtIn() []Kind {
	// What the operators make of a restart policy that is not named: some restart
	// pods then, some do not.
	never, neverIfMissing := []string{"Never"}, []string{"Never", ""}
	mpi := kubeflow("MPIJob", "mpijobs", "mpiReplicaSpecs", neverIfMissing)
	mpi.Version, mpi.SetLabel = "v2beta1", "training.kubeflow.org/job-role"
	// The launcher is a Job, whatever its restart policy says.
	mpi.Retries = &Retries{Sets: []string{"launcher"}, Limit: "spec.runPolicy.backoffLimit"}
	older := kubeflow("MPIJob", "mpijobs", "mpiReplicaSpecs", nil)
	// The training operator makes the pods of an MPIJob again when one was evicted.
	older.Retries, older.Sets[0].Retries = nil, nil
	return []Kind{
		{
			Group: "batch", Version: "v1", Kind: "Job", Resource: "jobs",
			Suspend: "spec.suspend",
			Sets: []Template{{
				Name: "main", Path: "spec.template", Least: []string{"spec.parallelism", "spec.completions"},
				Completions: &Completions{Of: "spec.completions", Done: "status.succeeded"},
			}},
			Ends:   conditions("Failed", "Complete"),
			Active: "status.active",
			Retries: &Retries{
				Limit: "spec.backoffLimit", Failed: "status.failed",
				Unless: []string{"spec.podFailurePolicy", "spec.backoffLimitPerIndex", "spec.managedBy"},
			},
		},
		{
			Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet", Resource: "jobsets",
			Suspend: "spec.suspend",
			Sets: []Template{{
				Name: "name", Each: "spec.replicatedJobs", Path: "template.spec.template",
				Least: []string{"template.spec.parallelism", "template.spec.completions"}, Times: []string{"replicas"},
				Completions: &Completions{Of: "replicas", Each: "status.replicatedJobsStatus", Done: "succeeded", Again: "spec.failurePolicy"},
				// Its Jobs replace pods like others.
				Retries: &Retries{
					Limit:  "template.spec.backoffLimit",
					Unless: []string{"template.spec.podFailurePolicy", "template.spec.backoffLimitPerIndex", "template.spec.managedBy"},
				},
			}},
			// Without a policy it fails with the first of its Jobs.
			Retries: &Retries{
				Limit: "spec.failurePolicy.maxRestarts", Failed: "status.restartsCountTowardsMax", Missing: ptr.To[int64](0),
				Unless: []string{"spec.failurePolicy.rules", "spec.managedBy"},
			},
			Ends:     conditions("Failed", "Completed"),
			SetLabel: "jobset.sigs.k8s.io/replicatedjob-name",
			Nested:   true,
		},
		kubeflow("PyTorchJob", "pytorchjobs", "pytorchReplicaSpecs", never, "spec.elasticPolicy"),
		kubeflow("TFJob", "tfjobs", "tfReplicaSpecs", neverIfMissing, "spec.enableDynamicWorker"),
		kubeflow("XGBoostJob", "xgboostjobs", "xgbReplicaSpecs", neverIfMissing),
		kubeflow("PaddleJob", "paddlejobs", "paddleReplicaSpecs", never, "spec.elasticPolicy"),
		kubeflow("JAXJob", "jaxjobs", "jaxReplicaSpecs", neverIfMissing),
		trainJob(),
		mpi,
		older,
		{
			Group: "ray.io", Version: "v1", Kind: "RayJob", Resource: "rayjobs",
			Suspend: "spec.suspend",
			Demands: []string{"spec.shutdownAfterJobFinishes"},
			Sets:    append(rayCluster("spec.rayClusterSpec"), Template{Name: "submitter", Path: "spec.submitterPodTemplate", Optional: true}),
			Ends: []End{
				{Path: "status.jobDeploymentStatus", Value: "Failed", Failed: true},
				{Path: "status.jobDeploymentStatus", Value: "Complete"},
			},
		},
		{
			Group: "ray.io", Version: "v1", Kind: "RayCluster", Resource: "rayclusters",
			Suspend: "spec.suspend",
			Sets:    rayCluster("spec"),
		},
		{
			// Volcano has no field to suspend a job by.
			Group: "batch.volcano.sh", Version: "v1alpha1", Kind: "Job", Resource: "jobs",
			Sets: []Template{{Name: "name", Each: "spec.tasks", Path: "template", Least: []string{"replicas"}}},
			Ends: []End{
				{Path: "status.state.phase", Value: "Completed"},
				{Path: "status.state.phase", Value: "Failed", Failed: true},
				{Path: "status.state.phase", Value: "Terminated", Failed: true},
				{Path: "status.state.phase", Value: "Aborted", Failed: true},
			},
			PriorityClass: "spec.priorityClassName",
			SetLabel:      "volcano.sh/task-spec",
		},
	}
}

// Table is the kinds of jobs that are governed.
type Table struct{ kinds []Kind }

// NewTable has the kinds that are known, and others that an operator described.
// One that is described again replaces what is known of it.
func NewTable(more ...Kind) (*Table, error) {
	t := &Table{kinds: builtIn()}
	for i := range more {
		k := more[i]
		if err := k.validate(); err != nil {
			return nil, err
		}
		t.kinds = slices.DeleteFunc(t.kinds, func(known Kind) bool { return known.Group == k.Group && known.Kind == k.Kind })
		t.kinds = append(t.kinds, k)
	}
	return t, nil
}

// All are the kinds, in the table's order.
func (t *Table) All() []*Kind {
	var all []*Kind
	for i := range t.kinds {
		all = append(all, &t.kinds[i])
	}
	return all
}

// Find returns the row of a kind, nil if it is not governed. The row of the very
// version comes before those of others.
func (t *Table) Find(apiVersion, kind string) *Kind {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil
	}
	var found *Kind
	for i := range t.kinds {
		k := &t.kinds[i]
		if k.Group != gv.Group || k.Kind != kind {
			continue
		}
		if k.Version == gv.Version {
			return k
		}
		if found == nil {
			found = k
		}
	}
	return found
}

// validate refuses a description that cannot be followed.
func (k *Kind) validate() error {
	name := k.Kind
	if name == "" {
		name = "?"
	}
	for what, value := range map[string]string{"group": k.Group, "version": k.Version, "kind": k.Kind, "resource": k.Resource} {
		if value == "" {
			return fmt.Errorf("job kind %s: %s is empty", name, what)
		}
	}
	if len(k.Sets) == 0 {
		return fmt.Errorf("job kind %s: podSets is empty; name at least one pod template", name)
	}
	if err := k.Retries.validate(); err != nil {
		return fmt.Errorf("job kind %s: %w", name, err)
	}
	paths := append(append([]string{k.Suspend, k.PriorityClass, k.Active}, k.Demands...), k.Retries.paths()...)
	for i, s := range k.Sets {
		if s.Path == "" {
			return fmt.Errorf("job kind %s: podSets[%d].path is empty; it is the path of a PodTemplateSpec", name, i)
		}
		if s.Each == "" && s.Name == "" {
			return fmt.Errorf("job kind %s: podSets[%d] needs a name, or each for a list or map of sets", name, i)
		}
		if err := s.Retries.validate(); err != nil {
			return fmt.Errorf("job kind %s: podSets[%d].%w", name, i, err)
		}
		if s.Retries != nil && len(s.Retries.Sets) > 0 {
			return fmt.Errorf("job kind %s: podSets[%d].retries.sets is for the retries of the kind; those of a set are about it", name, i)
		}
		paths = append(append(append(append(paths, s.Path, s.Each), s.Least...), s.Times...), s.Retries.paths()...)
	}
	for i, e := range k.Ends {
		if (e.Condition == "") == (e.Path == "") || (e.Path == "") != (e.Value == "") {
			return fmt.Errorf("job kind %s: ends[%d] is either a condition, or a path with a value", name, i)
		}
		paths = append(paths, e.Path)
	}
	for _, p := range paths {
		if p != "" && slices.Contains(strings.Split(p, "."), "") {
			return fmt.Errorf("job kind %s: path %q has an empty field name; write it like spec.template", name, p)
		}
	}
	return nil
}

// fields are a path's field names.
func fields(path string) []string { return strings.Split(path, ".") }
