package controller

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/jobs"
)

// setsOf reads a job's sets of pods, from the job that was made of it where its
// kind has them there. jobs.ErrNotMade if that is not so far; its next change
// brings this job here again.
func (r *jobReconciler) setsOf(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured) ([]jobs.PodSet, error) {
	if kind.Made == nil {
		return kind.PodSets(job)
	}
	made, of, err := r.madeOf(ctx, kind, job)
	if err != nil {
		return nil, err
	}
	return kind.MadeSets(job, made, of)
}

// madeOf is the job that was made of another, and its kind. jobs.ErrNotMade if it
// is not there.
func (r *jobReconciler) madeOf(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured) (*unstructured.Unstructured, *jobs.Kind, error) {
	for _, child := range r.jobsUnder(job.GetUID()) {
		if !kind.Makes(child.kind) {
			continue
		}
		made := &unstructured.Unstructured{}
		made.SetGroupVersionKind(child.kind.GroupVersionKind())
		if err := r.live.Get(ctx, child.name, made); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, nil, err
		}
		if o := metav1.GetControllerOf(made); o != nil && o.UID == job.GetUID() && made.GetDeletionTimestamp() == nil {
			return made, child.kind, nil
		}
	}
	return nil, nil, jobs.ErrNotMade
}

// lookForLast remembers for which sets a job makes no other pods, by the job that
// was made of it where its kind has them there.
func (r *jobReconciler) lookForLast(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured, wl *kueue.Workload) error {
	if kind.Made != nil {
		made, of, err := r.madeOf(ctx, kind, job)
		if errors.Is(err, jobs.ErrNotMade) {
			return nil
		}
		if err != nil {
			return err
		}
		kind, job = of, made
	}
	r.noteLast(wl, kind, job)
	return nil
}

// unmade keeps a job back that cannot be queued yet, because what has its pods is
// not made.
func (r *jobReconciler) unmade(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured) error {
	if done, _, _ := kind.Done(job); done || !kind.CanSuspend() || kind.Suspended(job) {
		return nil
	}
	return ignoreConflict(r.suspend(ctx, kind, job))
}

// parentComing says whether the job that controls another is there and not known
// yet, as kinds are watched apart: then it is not known either whether the other
// has a Workload of its own, and what it is made of would be charged twice.
func (r *jobReconciler) parentComing(ctx context.Context, job *unstructured.Unstructured) (bool, error) {
	o := metav1.GetControllerOf(job)
	if o == nil {
		return false, nil
	}
	kind := r.kinds.Find(o.APIVersion, o.Kind)
	r.mu.Lock()
	known := r.owners[o.UID] != nil
	r.mu.Unlock()
	if kind == nil || known {
		return false, nil
	}
	parent := &unstructured.Unstructured{}
	parent.SetGroupVersionKind(kind.GroupVersionKind())
	err := r.live.Get(ctx, types.NamespacedName{Namespace: job.GetNamespace(), Name: o.Name}, parent)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return false, nil
	}
	return err == nil && parent.GetUID() == o.UID, err
}

// above is the job of which another was made, nil if its kind does not make any,
// or it is not known.
func (c *core) above(f *ownerFact) *ownerFact {
	if p := c.owners[f.parent]; p != nil && p.kind.Makes(f.kind) && p.name.Namespace == f.name.Namespace {
		return p
	}
	return nil
}

// queueOfMade is the queue that the job made of another names, for one that names
// none: its runtime may have been labelled instead.
func (c *core) queueOfMade(f *ownerFact) string {
	if f.kind.Made == nil {
		return ""
	}
	for child := range c.under[f.uid] {
		if o := c.owners[child]; o != nil && f.kind.Makes(o.kind) && o.queue != "" {
			return o.queue
		}
	}
	return ""
}

// nested is a job below another, and the one that controls it.
type nested struct {
	jobRequest
	parent types.UID
}

// nestedIn are the jobs that templates of another were merged into: those under
// it, or under the one that was made of it, which follows it by itself.
func (c *core) nestedIn(kind *jobs.Kind, uid types.UID) []nested {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []nested
	for child := range c.under[uid] {
		f := c.owners[child]
		switch {
		case f == nil:
		case kind.Makes(f.kind):
			for below := range c.under[f.uid] {
				if o := c.owners[below]; o != nil {
					all = append(all, nested{jobRequest{o.kind, o.name}, f.uid})
				}
			}
		default:
			all = append(all, nested{jobRequest{f.kind, f.name}, uid})
		}
	}
	return all
}
