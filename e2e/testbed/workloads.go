package testbed

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Workload is what the quota API says about a job or pod that waits for, or has, quota.
type Workload struct {
	Name string
	// Owner is the job or pod, such as experiment-a.
	Owner, Queue string
	// ClusterQueue and Flavors are empty until quota is reserved.
	ClusterQueue, Flavors string
	Admitted, Evicted     bool
	// Why is the message of the condition that tells where the workload stands.
	Why string
}

type workloadObject struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		QueueName string `json:"queueName"`
	} `json:"spec"`
	Status struct {
		Admission *struct {
			ClusterQueue      string `json:"clusterQueue"`
			PodSetAssignments []struct {
				Flavors map[string]string `json:"flavors"`
			} `json:"podSetAssignments"`
		} `json:"admission"`
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// Workloads lists the namespace's workloads by owner's name.
func (b *Testbed) Workloads(ctx context.Context, namespace string) (map[string]Workload, error) {
	out, err := b.Cluster.Kubectl(ctx, "get", "workloads.kueue.x-k8s.io", "--namespace", namespace, "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []workloadObject `json:"items"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, err
	}
	workloads := map[string]Workload{}
	for _, object := range list.Items {
		w := object.summary()
		workloads[w.Owner] = w
	}
	return workloads, nil
}

func (o workloadObject) summary() Workload {
	w := Workload{Name: o.Metadata.Name, Queue: o.Spec.QueueName}
	for _, owner := range o.Metadata.OwnerReferences {
		w.Owner = owner.Name
	}
	for _, c := range o.Status.Conditions {
		switch c.Type {
		case "Admitted":
			w.Admitted = c.Status == metav1.ConditionTrue
		case "Evicted":
			w.Evicted = c.Status == metav1.ConditionTrue
		case "QuotaReserved":
			w.Why = c.Message
		}
	}
	if admission := o.Status.Admission; admission != nil {
		w.ClusterQueue = admission.ClusterQueue
		seen := map[string]bool{}
		var flavors []string
		for _, podSet := range admission.PodSetAssignments {
			for _, flavor := range podSet.Flavors {
				if !seen[flavor] {
					seen[flavor] = true
					flavors = append(flavors, flavor)
				}
			}
		}
		w.Flavors = strings.Join(flavors, ",")
	}
	return w
}

// WaitWorkload waits until the workload of a job or pod is as check wants it.
func (b *Testbed) WaitWorkload(ctx context.Context, namespace, owner, what string, check func(Workload) bool) (Workload, error) {
	var w Workload
	err := Until(ctx, fmt.Sprintf("workload of %s/%s to be %s", namespace, owner, what), func() (bool, string, error) {
		all, err := b.Workloads(ctx, namespace)
		if err != nil {
			return false, "", err
		}
		var found bool
		w, found = all[owner]
		return found && check(w), fmt.Sprintf("it is %+v", w), nil
	})
	return w, err
}

// Usage is what a ClusterQueue uses of one resource of one flavor.
type Usage struct{ Queue, Flavor, Resource, Total, Borrowed string }

// QueueUsage reads the usage of all ClusterQueues from their status.
func (b *Testbed) QueueUsage(ctx context.Context) ([]Usage, error) {
	out, err := b.Cluster.Kubectl(ctx, "get", "clusterqueues.kueue.x-k8s.io", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
			Status   struct {
				FlavorsUsage []struct {
					Name      string `json:"name"`
					Resources []struct {
						Name     string `json:"name"`
						Total    string `json:"total"`
						Borrowed string `json:"borrowed"`
					} `json:"resources"`
				} `json:"flavorsUsage"`
			} `json:"status"`
		} `json:"items"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, err
	}
	var usage []Usage
	for _, queue := range list.Items {
		for _, flavor := range queue.Status.FlavorsUsage {
			for _, r := range flavor.Resources {
				usage = append(usage, Usage{queue.Metadata.Name, flavor.Name, r.Name, r.Total, r.Borrowed})
			}
		}
	}
	return usage, nil
}
