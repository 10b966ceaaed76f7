package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// tenant is a user who may edit the team's namespace and nothing else.
const tenant = "mallory"

// bypasses tries, as a tenant, to get a device without quota.
func (d *demo) bypasses(ctx context.Context) error {
	if _, err := d.Cluster.Kubectl(ctx, "create", "rolebinding", "edit", "--clusterrole=edit", "--user="+tenant, "--namespace", teamNamespace); err != nil {
		return err
	}
	if err := d.deleteJobs(ctx, "experiment-a", "experiment-b", "experiment-c", "experiment-d"); err != nil {
		return err
	}
	t := table{header: []string{"A TENANT TRIES TO", "AND IS TOLD"}}
	for _, try := range []struct {
		words string
		do    func(context.Context) (string, error)
	}{
		{"write a ticket on a claim of its own", d.forgedTicket},
		{"put a ticket into a claim template", d.templateTicket},
		{"open the gate of a waiting pod", d.removedGate},
		{"strip the finalizer of an allocated claim", d.strippedFinalizer},
		{"run a pod without a queue", d.noQueue},
		{"run a pod while the webhook is away", d.noWebhook},
		{"name the node, so that no scheduler asks", d.namedNode},
	} {
		message, err := try.do(ctx)
		if err != nil {
			return fmt.Errorf("a tenant tried to %s: %w", try.words, err)
		}
		t.add(try.words, message)
	}
	d.title("Nothing without a ticket: ways around the gate, and what the API server answers")
	t.print(d.out)
	return nil
}

// denied runs kubectl as the tenant and returns the policy's message; it is an error if the
// request was let through.
func (d *demo) denied(ctx context.Context, args ...string) (string, error) {
	args = append(args, "--as="+tenant, "--as-group=system:authenticated", "--namespace", teamNamespace)
	out, err := d.Cluster.Kubectl(ctx, args...)
	if err == nil {
		return "", fmt.Errorf("it was not refused: %s", out)
	}
	message, found := policyMessage(err.Error())
	if !found {
		return "", fmt.Errorf("it was not refused by a policy, but: %w", err)
	}
	return message, nil
}

// policyMessage finds what a ValidatingAdmissionPolicy said in an error or condition.
func policyMessage(text string) (string, bool) {
	_, message, found := strings.Cut(text, "denied request: ")
	message, _, _ = strings.Cut(message, "\n")
	return message, found
}

func (d *demo) createAsTenant(ctx context.Context, manifest string) error {
	file, err := os.CreateTemp("", "sluice-demo-*.yaml")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	if _, err := file.WriteString(manifest); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	_, err = d.Cluster.Kubectl(ctx, "create", "-f", file.Name(), "--as="+tenant, "--as-group=system:authenticated", "--namespace", teamNamespace)
	return err
}

const claimManifest = `{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: %s}, spec: {devices: {requests: [
  {name: gpu, exactly: {deviceClassName: gpu.sluice.dev, capacity: {requests: {memory: 1Gi}}}}]}}}`

// podManifest is a pod that uses a named claim; extra goes into its spec.
func podManifest(name, claim, extra string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1,
  tolerations: [{key: nvidia.com/gpu, operator: Exists}], resourceClaims: [{name: gpu, resourceClaimName: %s}], %s
  containers: [{name: c, image: %s, resources: {claims: [{name: gpu}]}}]}}`, name, claim, extra, testbed.ProbeImage)
}

func (d *demo) forgedTicket(ctx context.Context) (string, error) {
	if err := d.createAsTenant(ctx, fmt.Sprintf(claimManifest, "forged")); err != nil {
		return "", err
	}
	return d.denied(ctx, "annotate", "resourceclaim", "forged", "quota.sluice.dev/ticket=mine", "quota.sluice.dev/ticket-devices=1")
}

func (d *demo) templateTicket(ctx context.Context) (string, error) {
	return d.denied(ctx, "annotate", "resourceclaimtemplate", "slice-20g-half", "quota.sluice.dev/ticket=mine")
}

// removedGate has a job wait that asks more than the budget has, and opens its pod's gate.
func (d *demo) removedGate(ctx context.Context) (string, error) {
	pod := fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: waiting, labels: {kueue.x-k8s.io/queue-name: no-such-queue}},
  spec: {restartPolicy: Never, containers: [{name: c, image: %s, resources: {limits: {nvidia.com/gpu: 1}}}]}}`, testbed.ProbeImage)
	if err := d.createAsTenant(ctx, pod); err != nil {
		return "", err
	}
	return d.denied(ctx, "patch", "pod", "waiting", "--type=json", `-p=[{"op":"remove","path":"/spec/schedulingGates"}]`)
}

// strippedFinalizer deletes the claim under the running claim-pod and takes its finalizers away.
func (d *demo) strippedFinalizer(ctx context.Context) (string, error) {
	shares, err := d.Shares(ctx, teamNamespace, "claim-pod")
	if err != nil {
		return "", err
	}
	if len(shares) != 1 {
		return "", fmt.Errorf("claim-pod should have one share, has %+v", shares)
	}
	return d.denied(ctx, "patch", "resourceclaim", shares[0].Claim, "--type=merge", `-p={"metadata":{"finalizers":null}}`)
}

func (d *demo) noQueue(ctx context.Context) (string, error) {
	if err := d.createAsTenant(ctx, podManifest("no-queue", "forged", "")); err != nil {
		return "", err
	}
	return d.waitDenied(ctx, "no-queue")
}

// noWebhook takes the controller away, and with it the webhook that closes gates.
func (d *demo) noWebhook(ctx context.Context) (string, error) {
	scale := func(replicas string) error {
		_, err := d.Cluster.Kubectl(ctx, "scale", "deployment/sluice-quota", "--replicas="+replicas, "--namespace", testbed.SystemNamespace)
		return err
	}
	if err := scale("0"); err != nil {
		return "", err
	}
	if _, err := d.Cluster.Kubectl(ctx, "wait", "pod", "--for=delete", "--selector=app.kubernetes.io/component=quota",
		"--namespace", testbed.SystemNamespace, "--timeout="+stepPatience.String()); err != nil {
		return "", err
	}
	pod := fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: no-webhook, labels: {kueue.x-k8s.io/queue-name: team-training-queue}},
  spec: {restartPolicy: Never, tolerations: [{key: nvidia.com/gpu, operator: Exists}], containers: [{name: c, image: %s, resources: {limits: {nvidia.com/gpu: 1}}}]}}`, testbed.ProbeImage)
	if err := d.createAsTenant(ctx, pod); err != nil {
		return "", err
	}
	message, err := d.waitDenied(ctx, "no-webhook")
	if err != nil {
		return "", err
	}
	if err := scale("1"); err != nil {
		return "", err
	}
	_, err = d.Cluster.Kubectl(ctx, "rollout", "status", "deployment/sluice-quota", "--namespace", testbed.SystemNamespace, "--timeout="+stepPatience.String())
	return message, err
}

// waitDenied waits until the scheduler was refused an allocation for the pod, and returns the
// policy's message.
func (d *demo) waitDenied(ctx context.Context, name string) (message string, err error) {
	limited, cancel := d.wait(ctx)
	defer cancel()
	err = testbed.Until(limited, "pod "+name+" to be refused its device", func() (bool, string, error) {
		pod, err := d.Client.CoreV1().Pods(teamNamespace).Get(limited, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		if pod.Status.Phase == corev1.PodRunning {
			return false, "", fmt.Errorf("it was not refused: the pod runs on %s", pod.Spec.NodeName)
		}
		texts, err := d.Events(limited, teamNamespace, name)
		if err != nil {
			return false, "", err
		}
		for _, c := range pod.Status.Conditions {
			texts = append(texts, c.Message)
		}
		for _, text := range texts {
			if found, ok := policyMessage(text); ok {
				message = found
				return true, "", nil
			}
		}
		return false, strings.Join(texts, "; "), nil
	})
	return message, err
}

// namedNode creates a pod that is bound at birth: the kubelet refuses it, since nobody has
// allocated its claim.
func (d *demo) namedNode(ctx context.Context) (string, error) {
	if err := d.createAsTenant(ctx, podManifest("named-node", "forged", "nodeName: node-2,")); err != nil {
		if message, found := policyMessage(err.Error()); found {
			return message, nil
		}
		return "", err
	}
	limited, cancel := d.wait(ctx)
	defer cancel()
	var said string
	err := testbed.Until(limited, "the kubelet to refuse pod named-node", func() (bool, string, error) {
		pod, err := d.Client.CoreV1().Pods(teamNamespace).Get(limited, "named-node", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		if pod.Status.Phase == corev1.PodRunning {
			return false, "", fmt.Errorf("it was not refused: the pod runs")
		}
		events, err := d.Events(limited, teamNamespace, "named-node")
		for _, event := range events {
			if strings.Contains(event, "not allowed to use ResourceClaim") {
				said = event
				return true, "", nil
			}
		}
		return false, strings.Join(events, "; "), err
	})
	return said, err
}
