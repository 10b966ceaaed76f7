package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/ticket"
)

// Subject is what somebody asks about, with the objects around it. Workload is
// nil where there is none; Local and Cluster are nil where they do not exist.
type Subject struct {
	// Name is what was asked for, such as "pod/train-0".
	Name     string
	Queue    string // of the label
	Workload *kueue.Workload
	Local    *kueue.LocalQueue
	Cluster  *kueue.ClusterQueue
	Pods     []corev1.Pod
	Claims   []resourceapi.ResourceClaim
	// Beside are all Workloads of the namespace.
	Beside []kueue.Workload
}

// Why tells how far the subject has come, what it waits for, and in whose
// words: the first line is the answer, the others are what it rests on.
func Why(s Subject) []string {
	out := []string{s.Name + ": " + s.answer()}
	if w := s.Workload; w != nil {
		line := fmt.Sprintf("  workload %s, queue %s", w.Name, w.Spec.QueueName)
		if s.Local != nil {
			line += fmt.Sprintf(" (ClusterQueue %s)", s.Local.Spec.ClusterQueue)
		}
		if w.Spec.Priority != nil {
			line += fmt.Sprintf(", priority %d", *w.Spec.Priority)
		}
		out = append(out, line)
		if at := place(*w, s.Beside); at != "" {
			out = append(out, "    "+at)
		}
		if a := w.Status.Admission; a != nil {
			for _, set := range a.PodSetAssignments {
				out = append(out, "    charged for "+string(set.Name)+": "+charge(set))
			}
		}
		for _, c := range w.Status.Conditions {
			out = append(out, fmt.Sprintf("    %s=%s %s: %s", c.Type, c.Status, c.Reason, cmp.Or(c.Message, "-")))
		}
	}
	for _, p := range s.Pods {
		out = append(out, "  pod "+p.Name+": "+pod(p))
	}
	for _, c := range s.Claims {
		out = append(out, "  claim "+c.Name+": "+claim(c))
	}
	return out
}

func (s Subject) answer() string {
	w := s.Workload
	switch {
	case w == nil && s.Queue == "":
		return "no queue label: Sluice does not manage it; where quota is enforced it gets no device. Label it " + controller.QueueLabel + "=<LocalQueue>"
	case w == nil && s.Local == nil:
		return fmt.Sprintf("waits for LocalQueue %s, which is not in this namespace", s.Queue)
	case w == nil:
		return s.withoutWorkload()
	}
	condition := func(kind string) *metav1.Condition { return meta.FindStatusCondition(w.Status.Conditions, kind) }
	is := func(kind string) bool { return meta.IsStatusConditionTrue(w.Status.Conditions, kind) }
	switch {
	case is(kueue.WorkloadFinished):
		return "has finished: " + condition(kueue.WorkloadFinished).Message
	case s.Local == nil:
		return fmt.Sprintf("waits for LocalQueue %s, which is not in this namespace", w.Spec.QueueName)
	case s.Cluster == nil:
		return fmt.Sprintf("waits for ClusterQueue %s, which does not exist", s.Local.Spec.ClusterQueue)
	case w.Spec.Active != nil && !*w.Spec.Active:
		return "is deactivated: set spec.active of the workload to let it queue again"
	case is(kueue.WorkloadAdmitted):
		return "is admitted" + s.afterAdmission()
	case is(kueue.WorkloadQuotaReserved):
		return "has its quota, and waits for " + waitsFor(w)
	case active(*s.Cluster) != "yes":
		return fmt.Sprintf("waits for ClusterQueue %s, which admits nothing now (active: %s)", s.Cluster.Name, active(*s.Cluster))
	case condition(kueue.WorkloadQuotaReserved) != nil:
		return "waits: " + condition(kueue.WorkloadQuotaReserved).Message
	default:
		return "waits to be looked at"
	}
}

// withoutWorkload tells why there may be none for something that names a queue.
func (s Subject) withoutWorkload() string {
	for _, p := range s.Pods {
		switch group := p.Labels[controller.GroupLabel]; {
		case p.Spec.NodeName != "" && !controller.HasGate(&p):
			return fmt.Sprintf("is not governed: pod %s was put on node %s without a ticket, and only the scheduler allocates devices; make it again without spec.nodeName", p.Name, p.Spec.NodeName)
		case group != "":
			return fmt.Sprintf("is of pod group %s, which is queued when all its pods are there (annotation %s: %s)", group, controller.GroupTotal, p.Annotations[controller.GroupTotal])
		}
	}
	return fmt.Sprintf("labelled for queue %s; the controller has made no Workload for it yet", s.Queue)
}

// afterAdmission tells what pods of an admitted workload still wait for.
func (s Subject) afterAdmission() string {
	for _, p := range s.Pods {
		switch {
		case controller.HasGate(&p):
			return fmt.Sprintf(", pod %s waits for room (its gate is closed, and its event NoRoom says what is missing)", p.Name)
		case p.Spec.NodeName == "":
			return fmt.Sprintf(", pod %s waits for the scheduler: %s", p.Name, scheduled(p))
		case p.Status.Phase == corev1.PodPending:
			return fmt.Sprintf(", pod %s is starting on %s", p.Name, p.Spec.NodeName)
		}
	}
	return ""
}

// waitsFor names the admission checks that are not ready.
func waitsFor(w *kueue.Workload) string {
	var checks []string
	for _, c := range w.Status.AdmissionChecks {
		if c.State != kueue.CheckStateReady {
			checks = append(checks, fmt.Sprintf("admission check %s (%s%s)", c.Name, c.State, prefixed(": ", c.Message)))
		}
	}
	return cmp.Or(strings.Join(checks, ", "), "the controller to admit it")
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

func charge(set kueue.PodSetAssignment) string {
	var parts []string
	for name, q := range set.ResourceUsage {
		if q.IsZero() { // the queue covers it, and no pod of the set asks for it
			continue
		}
		part := fmt.Sprintf("%s %s", amount(string(name), q), name)
		if flavor, ok := set.Flavors[name]; ok {
			part += " of " + string(flavor)
		}
		parts = append(parts, part)
	}
	slices.Sort(parts)
	return cmp.Or(strings.Join(parts, ", "), "nothing")
}

func pod(p corev1.Pod) string {
	words := string(p.Status.Phase)
	switch {
	case controller.HasGate(&p):
		words += ", gate closed"
	case p.Spec.NodeName == "":
		words += ", " + scheduled(p)
	default:
		words += " on " + p.Spec.NodeName
	}
	if n := p.Status.NominatedNodeName; n != "" && p.Spec.NodeName == "" {
		words += ", nominated for " + n
	}
	return words
}

func scheduled(p corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return cmp.Or(c.Message, c.Reason)
		}
	}
	return "not tried yet"
}

func claim(c resourceapi.ResourceClaim) string {
	var words []string
	switch t, err := ticket.Read(c.Annotations); {
	case err != nil:
		words = append(words, "a damaged ticket: "+err.Error())
	case t != nil:
		words = append(words, "ticket for "+t.Workload)
	default:
		words = append(words, "no ticket")
	}
	if c.Status.Allocation == nil {
		return strings.Join(append(words, "no device"), ", ")
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		device := r.Pool + "/" + r.Device
		if m, ok := r.ConsumedCapacity["memory"]; ok {
			device += " " + gib(m.Value())
		}
		if cores, ok := r.ConsumedCapacity["cores"]; ok && !cores.IsZero() {
			device += " " + cores.String() + " cores"
		}
		words = append(words, device)
	}
	return strings.Join(words, ", ")
}
