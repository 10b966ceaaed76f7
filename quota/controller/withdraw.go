package controller

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/jobs"
)

// withdraw takes a job out of its queue whose label was removed while it waited:
// its Workload goes, its templates become what they were, and it runs if its user
// wanted that, or stays suspended where every job has to name a queue.
//
// The Workload is deleted on the version that was seen without a reservation, and
// before the job is let go: if it is admitted in between, the job stays.
func (r *jobReconciler) withdraw(ctx context.Context, kind *jobs.Kind, job *unstructured.Unstructured, wl *kueue.Workload, held bool) (ctrl.Result, error) {
	if done, _, _ := kind.Done(job); done {
		return ctrl.Result{}, nil
	}
	if wl != nil && wl.DeletionTimestamp == nil {
		if kind.CanSuspend() && kind.Suspended(job) && !jobs.Held(job) {
			if kind.Meant(job) {
				// While its Workload is there, so that nothing is lost if this is cut short.
				jobs.Mark(job)
				return ctrl.Result{}, client.IgnoreNotFound(ignoreConflict(r.client.Update(ctx, job, client.FieldOwner(FieldOwner))))
			}
			r.event(job, corev1.EventTypeNormal, "StaysSuspended", "Stays suspended: it was when it was made, as far as is known; set %s to false to let it run without a queue", strings.Join(kind.SuspendPath(), "."))
		}
		uid, version := wl.UID, wl.ResourceVersion
		err := r.client.Delete(ctx, wl, client.Preconditions{UID: &uid, ResourceVersion: &version})
		if apierrors.IsConflict(err) {
			return ctrl.Result{RequeueAfter: recheck}, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
		r.event(job, corev1.EventTypeNormal, "Withdrawn", "Withdrawn from LocalQueue %s: label %s is gone", wl.Spec.QueueName, r.queueLabel())
	}
	if kind.CanSuspend() && jobs.Started(job) {
		return r.restore(ctx, kind, job)
	}
	if held {
		return ctrl.Result{}, r.hold(ctx, kind, job, nil, errNoQueue)
	}
	if !kind.CanSuspend() || !jobs.Held(job) {
		return ctrl.Result{}, nil
	}
	if err := kind.LetGo(job); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.client.Update(ctx, job, client.FieldOwner(FieldOwner)); err != nil {
		if apierrors.IsConflict(err) {
			return ctrl.Result{RequeueAfter: recheck}, nil
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.event(job, corev1.EventTypeNormal, "Released", "Runs without a queue")
	return ctrl.Result{}, nil
}
