package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Grant reserves quota for a workload, and admits it if no check is awaited.
// checks are the names of those that its queue wants for the flavors that it was
// given.
func Grant(wl *kueue.Workload, a *kueue.Admission, checks []kueue.AdmissionCheckReference, now time.Time) {
	wl.Status.Admission = a
	set(wl, now, kueue.WorkloadQuotaReserved, true, "QuotaReserved", fmt.Sprintf("Quota reserved in ClusterQueue %s", a.ClusterQueue))
	for _, kind := range []string{kueue.WorkloadEvicted, kueue.WorkloadPreempted, kueue.WorkloadBlockedOnPreemptionGates} {
		if meta.FindStatusCondition(wl.Status.Conditions, kind) != nil {
			set(wl, now, kind, false, "QuotaReserved", "Admitted again")
		}
	}
	if meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadPodsReady) != nil {
		set(wl, now, kueue.WorkloadPodsReady, false, kueue.WorkloadWaitForStart, "Not all pods are ready yet")
	}
	wl.Status.ResourceRequests = nil
	Expect(wl, checks, now)
	if len(checks) == 0 {
		admit(wl, now)
		return
	}
	set(wl, now, kueue.WorkloadAdmitted, false, kueue.WorkloadAdmittedReasonUnsatisfiedAdmissionChecks, "Waits for "+awaited(wl))
}

func admit(wl *kueue.Workload, now time.Time) {
	set(wl, now, kueue.WorkloadAdmitted, true, "Admitted", "The workload is admitted")
}

// Expect makes the list of checks in the status the ones that are wanted. What
// is known of a check stays; a new one is pending. It says whether anything has
// changed.
func Expect(wl *kueue.Workload, checks []kueue.AdmissionCheckReference, now time.Time) bool {
	var want []kueue.AdmissionCheckState
	for _, name := range checks {
		i := slices.IndexFunc(wl.Status.AdmissionChecks, func(s kueue.AdmissionCheckState) bool { return s.Name == name })
		if i >= 0 {
			want = append(want, wl.Status.AdmissionChecks[i])
			continue
		}
		want = append(want, kueue.AdmissionCheckState{Name: name, State: kueue.CheckStatePending, LastTransitionTime: metav1.NewTime(now), Message: "Not looked at yet"})
	}
	same := slices.EqualFunc(want, wl.Status.AdmissionChecks, func(a, b kueue.AdmissionCheckState) bool { return a.Name == b.Name })
	wl.Status.AdmissionChecks = want
	return !same
}

// Checked looks at the checks of a workload that holds quota and is not admitted
// yet. It admits it if all are ready, and says so. A verdict, if there is one,
// is that it must give its quota back.
func Checked(wl *kueue.Workload, now time.Time) (admitted bool, v *Verdict) {
	ready := true
	var retry *kueue.AdmissionCheckState
	for i := range wl.Status.AdmissionChecks {
		switch s := &wl.Status.AdmissionChecks[i]; s.State {
		case kueue.CheckStateRejected:
			return false, &Verdict{Deactivate: true, Reason: ReasonRejectedChecks, Message: fmt.Sprintf("Admission check %s rejects it: %s", s.Name, s.Message)}
		case kueue.CheckStateRetry:
			if retry == nil || after(s) > after(retry) {
				retry = s
			}
			ready = false
		case kueue.CheckStateReady:
		default:
			ready = false
		}
	}
	if retry != nil {
		v := &Verdict{Reason: kueue.WorkloadEvictedByAdmissionCheck, Message: fmt.Sprintf("Admission check %s wants it to be tried again: %s", retry.Name, retry.Message)}
		if d := after(retry); d > 0 {
			v.Back = now.Add(d)
		}
		return false, v
	}
	if !ready {
		return false, nil
	}
	if why := conflict(wl); why != "" {
		return false, &Verdict{Deactivate: true, Reason: ReasonRejectedChecks, Message: why}
	}
	admit(wl, now)
	return true, nil
}

func after(s *kueue.AdmissionCheckState) time.Duration {
	if s.RequeueAfterSeconds == nil {
		return 0
	}
	return time.Duration(*s.RequeueAfterSeconds) * time.Second
}

func awaited(wl *kueue.Workload) string {
	var names []string
	for i := range wl.Status.AdmissionChecks {
		if s := &wl.Status.AdmissionChecks[i]; s.State != kueue.CheckStateReady {
			names = append(names, string(s.Name))
		}
	}
	return "admission checks " + strings.Join(names, ", ")
}

// Updates is what the checks of a workload add to the pods of a set. Checks only
// add: what contradicts the pods, or another check, was refused before.
func Updates(wl *kueue.Workload, podSet string) kueue.PodSetUpdate {
	all := kueue.PodSetUpdate{Name: kueue.PodSetReference(podSet)}
	for i := range wl.Status.AdmissionChecks {
		for _, u := range wl.Status.AdmissionChecks[i].PodSetUpdates {
			if string(u.Name) != podSet {
				continue
			}
			all.Labels = merged(all.Labels, u.Labels)
			all.Annotations = merged(all.Annotations, u.Annotations)
			all.NodeSelector = merged(all.NodeSelector, u.NodeSelector)
			all.Tolerations = append(all.Tolerations, u.Tolerations...)
		}
	}
	return all
}

// conflict says which update contradicts the pods or another check, "" if none.
func conflict(wl *kueue.Workload) string {
	for i := range wl.Spec.PodSets {
		p := &wl.Spec.PodSets[i]
		// Cloned, as what checks add is put in to find where two contradict.
		labels, annotations, selector := merged(nil, p.Template.Labels), merged(nil, p.Template.Annotations), merged(nil, p.Template.Spec.NodeSelector)
		for j := range wl.Status.AdmissionChecks {
			s := &wl.Status.AdmissionChecks[j]
			for _, u := range s.PodSetUpdates {
				if u.Name != p.Name {
					continue
				}
				for _, m := range []struct {
					what      string
					have, add map[string]string
				}{{"label", labels, u.Labels}, {"annotation", annotations, u.Annotations}, {"nodeSelector", selector, u.NodeSelector}} {
					for k, v := range m.add {
						if old, ok := m.have[k]; ok && old != v {
							return fmt.Sprintf("Admission check %s sets %s %s=%s on pods of set %q, which have %s=%s", s.Name, m.what, k, v, p.Name, k, old)
						}
						m.have[k] = v
					}
				}
			}
		}
	}
	return ""
}

func merged(a, b map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range []map[string]string{a, b} {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

// With is a pod's spec with what checks add to where it may run. The argument is
// not changed.
func With(spec corev1.PodSpec, u kueue.PodSetUpdate) corev1.PodSpec {
	spec.NodeSelector = merged(spec.NodeSelector, u.NodeSelector)
	spec.Tolerations = append(slices.Clone(spec.Tolerations), u.Tolerations...)
	return spec
}

func set(wl *kueue.Workload, now time.Time, kind string, status bool, reason, message string) {
	const longest = 32 * 1024
	c := metav1.Condition{
		Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message[:min(len(message), longest)],
		ObservedGeneration: wl.Generation, LastTransitionTime: metav1.NewTime(now),
	}
	if status {
		c.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&wl.Status.Conditions, c)
}

func is(wl *kueue.Workload, kind string) bool {
	return meta.IsStatusConditionTrue(wl.Status.Conditions, kind)
}
