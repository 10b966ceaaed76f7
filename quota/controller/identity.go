package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

// podWorkload says which workload a pod says it belongs to, and which pod set.
// Whether that is true is for podFact.belongs to say. "" is a pod that no budget
// governs. A job's pods follow from the job that owns them: labels, which
// tenants may set when they make a pod, only tell apart the sets of kinds that
// have several.
func podWorkload(p *corev1.Pod) (engine.WorkloadID, string) {
	owner := metav1.GetControllerOf(p)
	if owner != nil {
		if kind := jobs.Find(owner.APIVersion, owner.Kind); kind != nil {
			set := kind.Templates[0].Name
			if l := p.Labels[PodSetLabel]; l != "" && len(kind.Templates) > 1 {
				set = l
			}
			return workloadID(p.Namespace, workloadName(owner.Kind, owner.Name, owner.UID)), set
		}
	}
	if p.Labels[QueueLabel] == "" {
		return "", ""
	}
	return workloadID(p.Namespace, workloadName("Pod", p.Name, p.UID)), mainSet
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
