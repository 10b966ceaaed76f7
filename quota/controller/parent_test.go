package controller

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// jobsThere is an API that serves a few jobs, by kind and name. Whatever else is
// asked of it fails.
type jobsThere struct {
	client.Client
	all map[string]*unstructured.Unstructured
	err error
}

func (j *jobsThere) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	found := j.all[u.GetKind()+" "+key.Name]
	switch {
	case found != nil:
		found.DeepCopyInto(u)
		return nil
	case j.err != nil:
		return j.err
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// A RayJob and its RayCluster, which has its labels, are watched apart. The cluster
// must not get a Workload of its own because it was seen first.
func TestAJobIsNotQueuedBeforeTheOneThatControlsItIsKnown(t *testing.T) {
	made := func(kind, name string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetAPIVersion("ray.io/v1")
		u.SetKind(kind)
		u.SetNamespace("team")
		u.SetName(name)
		u.SetUID(types.UID(name))
		u.SetResourceVersion("1")
		u.SetLabels(map[string]string{QueueLabel: "lq"})
		return u
	}
	parent, child := made("RayJob", "above"), made("RayCluster", "below")
	child.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "ray.io/v1", Kind: "RayJob", Name: "above", UID: "above", Controller: ptr.To(true)}})
	s := newStage(t, 1)
	s.saw(child)
	api := &jobsThere{all: map[string]*unstructured.Unstructured{"RayJob above": parent, "RayCluster below": child}}
	r := &jobReconciler{sources: &sources{core: s.core, client: api}, live: api}
	kind := s.kinds.Find("ray.io/v1", "RayCluster")

	// Nothing is written: the API here would fail.
	got, err := r.Reconcile(t.Context(), jobRequest{kind, types.NamespacedName{Namespace: "team", Name: "below"}})
	if err != nil || got != (ctrl.Result{RequeueAfter: recheck}) {
		t.Errorf("before the parent is known: %v, %v", got, err)
	}
	is := func(what string, want bool) {
		t.Helper()
		if coming, err := r.parentComing(t.Context(), child); coming != want || err != nil {
			t.Errorf("%s: %v, %v", what, coming, err)
		}
	}
	is("the parent is there", true)
	another := parent.DeepCopy()
	another.SetUID("another")
	api.all["RayJob above"] = another
	is("another of the name is there", false)
	delete(api.all, "RayJob above")
	is("it is gone", false)
	api.err = errors.New("no answer")
	if coming, err := r.parentComing(t.Context(), child); coming || err == nil {
		t.Errorf("no answer: %v, %v", coming, err)
	}
	s.saw(parent)
	is("it is known", false)
	if got, err := r.Reconcile(t.Context(), jobRequest{kind, types.NamespacedName{Namespace: "team", Name: "below"}}); err != nil || got != (ctrl.Result{}) {
		t.Errorf("below a parent: %v, %v", got, err)
	}
}
