package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/lifecycle"
)

// leaveTime is how long the controller of an evicted workload's owner has to delete its
// pods before that is done here.
const leaveTime = 10 * time.Second

// clearOut takes an evicted workload's devices away: unused tickets, and the
// pods for which claims are reserved, whoever owns them by now. Pods of the
// workload's owner are left to it for a while, since it would only make others
// if they went before it is suspended.
func (s *sources) clearOut(ctx context.Context, live client.Reader, wl *kueue.Workload) error {
	patient := s.now().Sub(lifecycle.StopsAt(wl, s.rules)) < leaveTime
	owner := metav1.GetControllerOf(wl)
	for _, name := range s.chargedClaims(wl) {
		claim := &resourceapi.ResourceClaim{}
		if err := live.Get(ctx, name, claim); err != nil {
			if client.IgnoreNotFound(err) != nil {
				return err
			}
			continue
		}
		if claim.Status.Allocation == nil {
			if err := ignoreConflict(s.takeBack(ctx, claim)); err != nil {
				return err
			}
			continue
		}
		for _, user := range claim.Status.ReservedFor {
			if user.APIGroup != "" || user.Resource != "pods" {
				continue
			}
			pod := &corev1.Pod{}
			if err := live.Get(ctx, types.NamespacedName{Namespace: wl.Namespace, Name: user.Name}, pod); err != nil {
				if client.IgnoreNotFound(err) != nil {
					return err
				}
				continue
			}
			owned := owner != nil && s.member(pod).owner == owner.UID
			if pod.UID != user.UID || pod.DeletionTimestamp != nil || ended(pod) || owned && patient {
				continue
			}
			s.event(pod, corev1.EventTypeWarning, "Evicted", "Deleted: Workload %s, which pays for its devices, is evicted", wl.Name)
			uid := pod.UID
			if err := client.IgnoreNotFound(ignoreConflict(s.client.Delete(ctx, pod, client.Preconditions{UID: &uid}))); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeUnused takes back the tickets of a Workload by which no device is held.
func (s *sources) takeUnused(ctx context.Context, live client.Reader, wl *kueue.Workload) error {
	for _, name := range s.chargedClaims(wl) {
		claim := &resourceapi.ResourceClaim{}
		if err := live.Get(ctx, name, claim); client.IgnoreNotFound(err) != nil {
			return err
		} else if err != nil || chargedTo(claim) != workloadID(wl.Namespace, wl.Name) {
			continue
		}
		if err := ignoreConflict(s.takeBack(ctx, claim)); err != nil {
			return err
		}
	}
	return nil
}

func (c *core) chargedClaims(wl *kueue.Workload) []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []types.NamespacedName
	for _, name := range c.charges[workloadID(wl.Namespace, wl.Name)] {
		names = append(names, name)
	}
	return names
}
