package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gpu/sluice/quota/engine"
	"github.com/sluice-gpu/sluice/quota/jobs"
)

// maxName bounds a Workload's name: it is also a label value.
const maxName = 63

// workloadName is the name of the Workload of an object. It follows from the
// object's identity, so a Workload that was deleted by mistake is made again
// under the same name, and an object made anew under an old name gets another.
func workloadName(kind, name string, uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	suffix := "-" + hex.EncodeToString(sum[:])[:6]
	prefix := strings.ToLower(kind) + "-" + name
	if len(prefix) > maxName-len(suffix) {
		prefix = strings.TrimRight(prefix[:maxName-len(suffix)], "-.")
	}
	return strings.ReplaceAll(prefix, ".", "-") + suffix
}

// mainSet is the name of the pod set of workloads that have one only.
const mainSet = "main"

// membership is where a pod says that it belongs. Whether that is true is for
// podFact.belongs to say.
type membership struct {
	// workload is "" for a pod that no budget governs.
	workload engine.WorkloadID
	set      string
	// owner is the object whose Workload it is: a job, or the pod itself.
	owner types.UID
	// kind is the job's, nil for a pod that is its own workload or in a group.
	kind *jobs.Kind
	// group is its pod group, nil if it is in none.
	group *groupKey
}

// membership of a pod. A job's pods follow from the jobs that own them, one
// above the other; labels, which tenants may set when they make a pod, only tell
// apart the sets of kinds that have several.
func (c *core) membership(p *corev1.Pod) membership {
	if ref := metav1.GetControllerOf(p); ref != nil {
		if kind := c.kinds.Find(ref.APIVersion, ref.Kind); kind != nil {
			top := c.governor(p.Namespace, kind, ref)
			return membership{
				workload: workloadID(p.Namespace, workloadName(top.kind.Kind, top.name.Name, top.uid)),
				set:      top.kind.SetOf(p, PodSetLabel),
				owner:    top.uid,
				kind:     top.kind,
			}
		}
	}
	if p.Labels[c.queueLabel()] == "" {
		return membership{}
	}
	if group := groupKeyOf(p, c.queueLabel()); group != nil {
		return membership{workload: workloadID(p.Namespace, group.workload()), set: role(p), group: group}
	}
	return membership{workload: workloadID(p.Namespace, workloadName("Pod", p.Name, p.UID)), set: mainSet, owner: p.UID}
}

// member is membership for those who do not hold the lock.
func (c *core) member(p *corev1.Pod) membership {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.membership(p)
}

// claimWorkload is the workload of a claim that several pods may share, "" for
// claims that were made for one pod.
func claimWorkload(c *resourceapi.ResourceClaim) engine.WorkloadID {
	for _, o := range c.OwnerReferences {
		if o.Kind == "Pod" {
			return ""
		}
	}
	return workloadID(c.Namespace, workloadName("ResourceClaim", c.Name, c.UID))
}

// isNamed says whether an object is a claim that several pods may share.
func isNamed(o client.Object) bool {
	claim, ok := o.(*resourceapi.ResourceClaim)
	return ok && claimWorkload(claim) != ""
}
