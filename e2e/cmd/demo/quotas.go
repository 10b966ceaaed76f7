package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// teamNamespace is the namespace of the examples.
const teamNamespace = "ml-team"

// quotas applies the examples and shows who is admitted, borrows, waits and makes room.
func (d *demo) quotas(ctx context.Context) error {
	if err := d.DeletePods(ctx, slicesNamespace); err != nil {
		return err
	}
	if err := d.apply(ctx, "00", "10", "20", "21", "22", "30"); err != nil {
		return err
	}
	for _, part := range []func(context.Context) error{d.admission, d.pytorch, d.borrowing, d.preemption} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) apply(ctx context.Context, prefixes ...string) error {
	manifests, err := testbed.Examples(prefixes...)
	if err != nil {
		return err
	}
	return d.Cluster.Apply(ctx, manifests)
}

// admission shows a job, a pod with a claim template and one with HAMi-style limits within their
// queues' budgets.
func (d *demo) admission(ctx context.Context) error {
	if err := d.apply(ctx, "40", "41", "43"); err != nil {
		return err
	}
	owners := []string{"inference-pod", "claim-pod", "llm-finetune"}
	if err := d.waitRunning(ctx, map[string]int{"inference-pod": 1, "claim-pod": 1, "llm-finetune": 2}); err != nil {
		return err
	}
	d.title("Queues: a pod with HAMi-style limits, one with a claim template and a job of two pods are admitted (40, 41 and 43 of docs/user/examples)")
	return d.printWorkloads(ctx, owners)
}

// pytorch shows a PyTorchJob with its real controller: both of its pods or none.
func (d *demo) pytorch(ctx context.Context) error {
	if err := d.StartTrainingOperator(ctx); err != nil {
		return err
	}
	if err := d.apply(ctx, "42"); err != nil {
		return err
	}
	if err := d.waitRunning(ctx, map[string]int{"torch-finetune": 2}); err != nil {
		return err
	}
	d.title("Kinds of jobs: a PyTorchJob, managed by the training operator, is admitted with both of its pods (42)")
	if err := d.printWorkloads(ctx, []string{"torch-finetune"}); err != nil {
		return err
	}
	_, err := d.Cluster.Kubectl(ctx, "delete", "pytorchjob", "torch-finetune", "--namespace", teamNamespace, "--cascade=foreground", "--timeout="+stepPatience.String())
	return err
}

// borrowing runs a job that needs more than its queue's own budget while the other queue is idle.
func (d *demo) borrowing(ctx context.Context) error {
	job := fmt.Sprintf(`{apiVersion: batch/v1, kind: Job, metadata: {name: inference-burst, namespace: %s,
  labels: {kueue.x-k8s.io/queue-name: team-inference-queue}}, spec: {parallelism: 10, completions: 10, suspend: true,
  template: {spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1, nodeSelector: {gpu-type: a100}, containers: [{name: c, image: %s,
  resources: {limits: {nvidia.com/gpu: 1}}}]}}}}`, teamNamespace, testbed.ProbeImage)
	if err := d.Cluster.Apply(ctx, []byte(job)); err != nil {
		return err
	}
	if err := d.waitRunning(ctx, map[string]int{"inference-burst": 10}); err != nil {
		return err
	}
	d.title("Borrowing: inference has 8 of its own and runs 10")
	borrowed, err := d.printUsage(ctx, "inference-cq", "2")
	if err != nil {
		return err
	}
	if !borrowed {
		return fmt.Errorf("inference-cq should borrow 2 nvidia.com/gpu")
	}
	if err := d.deleteJobs(ctx, "inference-burst", "llm-finetune"); err != nil {
		return err
	}
	d.title("Release: both jobs are deleted")
	free, err := d.printUsage(ctx, "inference-cq", "0")
	if err != nil {
		return err
	}
	if !free {
		return fmt.Errorf("inference-cq should borrow nothing after its job was deleted")
	}
	return nil
}

// preemption fills the fixed A100 slices with experiments; then production needs four of them.
func (d *demo) preemption(ctx context.Context) error {
	manifests, err := testbed.Examples("44")
	if err != nil {
		return err
	}
	experiments, production, found := strings.Cut(string(manifests), "---\napiVersion: batch/v1\nkind: Job\nmetadata:\n  name: production")
	if !found {
		return fmt.Errorf("the example 44 has no job production")
	}
	if err := d.Cluster.Apply(ctx, []byte(experiments)); err != nil {
		return err
	}
	names := []string{"experiment-a", "experiment-b", "experiment-c", "experiment-d"}
	running := map[string]int{}
	for _, name := range names {
		running[name] = 4
	}
	if err := d.waitRunning(ctx, running); err != nil {
		return err
	}
	if err := d.Cluster.Apply(ctx, []byte("apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: production"+production)); err != nil {
		return err
	}
	limited, cancel := d.wait(ctx)
	defer cancel()
	if _, err := d.WaitWorkload(limited, teamNamespace, "production", "admitted", func(w testbed.Workload) bool { return w.Admitted }); err != nil {
		return err
	}
	if err := d.waitRunning(ctx, map[string]int{"production": 4}); err != nil {
		return err
	}
	d.title("Room: sixteen slices are taken by experiments; production needs four and one experiment makes room (44)")
	if err := d.printWorkloads(ctx, append(names, "production")); err != nil {
		return err
	}
	evicted, err := d.waiting(ctx, names)
	if err != nil {
		return err
	}
	if len(evicted) != 1 {
		return fmt.Errorf("exactly one experiment should have made room, %v did", evicted)
	}
	if err := d.deleteJobs(ctx, "production"); err != nil {
		return err
	}
	if err := d.waitRunning(ctx, running); err != nil {
		return err
	}
	d.title("Production has ended: %s runs again", evicted[0])
	return d.printWorkloads(ctx, names)
}

// waiting returns those of the jobs that are not admitted.
func (d *demo) waiting(ctx context.Context, names []string) ([]string, error) {
	workloads, err := d.Workloads(ctx, teamNamespace)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return workloads[name].Admitted }), nil
}

// podsOf returns the pods of a job, or the pod of that name.
func (d *demo) podsOf(ctx context.Context, owner string) ([]corev1.Pod, error) {
	list, err := d.Client.CoreV1().Pods(teamNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || p.Name != owner && p.Labels["batch.kubernetes.io/job-name"] != owner &&
			p.Labels["training.kubeflow.org/job-name"] != owner
	}), nil
}

// waitRunning waits until each owner has that many running pods.
func (d *demo) waitRunning(ctx context.Context, counts map[string]int) error {
	limited, cancel := d.wait(ctx)
	defer cancel()
	return testbed.Until(limited, "pods to run", func() (bool, string, error) {
		for owner, want := range counts {
			pods, err := d.podsOf(limited, owner)
			if err != nil {
				return false, "", err
			}
			running := 0
			for _, pod := range pods {
				if pod.Status.Phase == corev1.PodRunning {
					running++
				}
			}
			if running != want {
				workloads, err := d.Workloads(limited, teamNamespace)
				return false, fmt.Sprintf("%d of %d pods of %s run; %+v", running, want, owner, workloads[owner]), err
			}
		}
		return true, "", nil
	})
}

func (d *demo) deleteJobs(ctx context.Context, names ...string) error {
	limited, cancel := d.wait(ctx)
	defer cancel()
	args := append([]string{"delete", "job", "--namespace", teamNamespace, "--cascade=foreground", "--timeout=" + stepPatience.String()}, names...)
	_, err := d.Cluster.Kubectl(limited, args...)
	return err
}

// printWorkloads prints a row for each pod of the owners, or the reason why there is none.
func (d *demo) printWorkloads(ctx context.Context, owners []string) error {
	workloads, err := d.Workloads(ctx, teamNamespace)
	if err != nil {
		return err
	}
	t := table{header: []string{"WORKLOAD", "QUEUE", "ADMITTED", "FLAVOR", "POD", "DEVICE", "MEMORY", "CORES"}}
	var reasons []string
	for _, owner := range owners {
		w := workloads[owner]
		if !w.Admitted {
			t.add(owner, w.Queue, "no", "", "", "", "", "")
			reasons = append(reasons, fmt.Sprintf("%s waits: %s", owner, w.Why))
			continue
		}
		pods, err := d.podsOf(ctx, owner)
		if err != nil {
			return err
		}
		for _, pod := range pods {
			shares, err := d.Shares(ctx, teamNamespace, pod.Name)
			if err != nil {
				return err
			}
			for _, s := range shares {
				t.add(owner, w.Queue, "yes", w.Flavors, pod.Name, s.Node+"/"+s.Device, s.Memory, s.Cores)
			}
		}
	}
	t.print(d.out)
	for _, reason := range reasons {
		d.say("%s", reason)
	}
	return nil
}

// printUsage waits until the queue's status says that it borrows that much of the fixed A100
// flavor, prints the usage of all queues that use anything, and tells whether it came so.
func (d *demo) printUsage(ctx context.Context, queue, borrowed string) (bool, error) {
	limited, cancel := d.wait(ctx)
	defer cancel()
	var usage []testbed.Usage
	err := testbed.Until(limited, queue+" to say that it borrows "+borrowed, func() (bool, string, error) {
		var err error
		usage, err = d.QueueUsage(limited)
		as := slices.ContainsFunc(usage, func(u testbed.Usage) bool {
			return u.Queue == queue && u.Flavor == "a100-4vgpu-20g" && u.Borrowed == borrowed
		})
		return as, fmt.Sprintf("%+v", usage), err
	})
	t := table{header: []string{"CLUSTERQUEUE", "FLAVOR", "RESOURCE", "USED", "OF IT BORROWED"}}
	for _, u := range usage {
		if u.Total != "0" || u.Queue == queue {
			t.add(u.Queue, u.Flavor, u.Resource, u.Total, u.Borrowed)
		}
	}
	t.print(d.out)
	return err == nil, err
}
