package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

const gib = uint64(1) << 30

// limits runs programs that take memory until they are refused: by every way that a program can
// reach the driver, and in every way that containers can share slices.
func (d *demo) limits(ctx context.Context) error {
	if err := d.DeletePods(ctx, slicesNamespace); err != nil {
		return err
	}
	for _, template := range []struct{ name, memory string }{{"slice-20", "20Gi"}, {"slice-10", "10Gi"}, {"slice-5", "5Gi"}} {
		if err := d.Create(ctx, slicesNamespace, testbed.Template(template.name, testbed.Capacity{Memory: template.memory})); err != nil {
			return err
		}
	}
	again := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }
	probe := func(name string, way []string, options ...testbed.PodOption) *corev1.Pod {
		args := append(append([]string{}, way...), testbed.UntilRefused...)
		return testbed.Pod(name, args, append([]testbed.PodOption{testbed.OnNode("node-2")}, options...)...)
	}
	slice := testbed.WithTemplate("slice-20")
	t := table{header: []string{"PROGRAM", "SLICE", "TOOK", "ONE BYTE MORE", "DEVICE"}}
	for _, p := range []struct {
		words string
		pod   *corev1.Pod
		limit uint64
	}{
		{"linked with libcuda", probe("linked", []string{"--via", "link"}, slice), 20 * gib},
		{"with a cleared environment", probe("cleared-env", []string{"--clear-env"}, slice), 20 * gib},
		{"by cuGetProcAddress", probe("procaddress", []string{"--via", "procaddress"}, slice), 20 * gib},
		{"by dlopen and dlsym", probe("dlopen", []string{"--via", "dlopen"}, slice), 20 * gib},
		{"two containers that share a claim, together", probe("containers", nil, testbed.WithContainer("beside", testbed.UntilRefused...), slice), 20 * gib},
		{"one container with two slices of one card", probe("two-slices", nil, testbed.WithTemplate("slice-10"), testbed.WithTemplate("slice-5")), 15 * gib},
		{"the successor of a program that was killed", probe("killed", nil, slice, again), 20 * gib},
	} {
		if err := d.Create(ctx, slicesNamespace, p.pod); err != nil {
			return err
		}
		took, refusal, err := d.takeUntilRefused(ctx, p.pod, p.limit)
		if err != nil {
			return err
		}
		if p.pod.Name == "killed" {
			if err := d.kill(ctx, p.pod.Name); err != nil {
				return err
			}
			if took, refusal, err = d.takeUntilRefused(ctx, p.pod, p.limit); err != nil {
				return err
			}
		}
		shares, err := d.Shares(ctx, slicesNamespace, p.pod.Name)
		if err != nil {
			return err
		}
		var sizes []string
		for _, share := range shares {
			sizes = append(sizes, share.Memory)
		}
		t.add(p.words, strings.Join(sizes, " + "), bytesText(took), refusal, shares[0].Node+"/"+shares[0].Device)
	}
	row, err := d.contexts(ctx, probe("contexts", []string{"alloc:1Gi", "sleep:3s"}, slice))
	if err != nil {
		return err
	}
	t.add(row...)
	d.title("Containers are held to their slices: each program allocates until it is refused")
	t.print(d.out)
	return nil
}

// contexts runs the program where every context takes 300 MiB of the card, which its slice has to
// pay for: the node sees it while the program sleeps.
func (d *demo) contexts(ctx context.Context, pod *corev1.Pod) (row []string, err error) {
	const cost = 300 << 20
	set := func(bytes uint64) error {
		if err := d.DeletePods(ctx, slicesNamespace); err != nil {
			return err
		}
		return d.ContextsCost(ctx, "node-2", bytes)
	}
	if err := set(cost); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set(0)) }()
	if err := d.Create(ctx, slicesNamespace, pod); err != nil {
		return nil, err
	}
	took, refusal, err := d.takeUntilRefused(ctx, pod, 20*gib-cost)
	if err != nil {
		return nil, err
	}
	shares, err := d.Shares(ctx, slicesNamespace, pod.Name)
	if err != nil {
		return nil, err
	}
	return []string{"with a context that takes 300 MiB of the card", shares[0].Memory, bytesText(took), refusal, shares[0].Node + "/" + shares[0].Device}, nil
}

// takeUntilRefused waits for the end of UntilRefused in all containers of the pod and checks that
// together they got the limit to the last byte, and not one more. It returns what they took and
// what they were told then.
func (d *demo) takeUntilRefused(ctx context.Context, pod *corev1.Pod, limit uint64) (took uint64, refusal string, err error) {
	limited, cancel := d.wait(ctx)
	defer cancel()
	for _, container := range pod.Spec.Containers {
		taken, told, err := d.TakenUntilRefused(limited, slicesNamespace, pod.Name, container.Name)
		if err != nil {
			return 0, "", err
		}
		if told != "CUDA_ERROR_OUT_OF_MEMORY" {
			return 0, "", fmt.Errorf("pod %s asked for one byte more than its slice and was told %s", pod.Name, told)
		}
		took, refusal = took+taken, told
	}
	if took != limit {
		return 0, "", fmt.Errorf("pod %s has a slice of %d bytes and took %d", pod.Name, limit, took)
	}
	return took, refusal, nil
}

// kill ends the program in the pod with SIGKILL and waits until its successor runs.
func (d *demo) kill(ctx context.Context, name string) error {
	limited, cancel := d.wait(ctx)
	defer cancel()
	pod, err := d.Client.CoreV1().Pods(slicesNamespace).Get(limited, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	script := fmt.Sprintf(`for p in /proc/[0-9]*; do
	grep -q %s $p/cgroup 2>/dev/null && [ "$(readlink $p/exe)" = /usr/bin/cudaprobe ] && kill -KILL ${p#/proc/}
done; true`, pod.UID)
	var words strings.Builder
	if err := d.Cluster.NodeExec(limited, pod.Spec.NodeName, nil, &words, &words, "sh", "-c", script); err != nil {
		return fmt.Errorf("kill the program of pod %s: %w: %s", name, err, words.String())
	}
	return testbed.Until(limited, "the successor of the killed program to run", func() (bool, string, error) {
		pod, err := d.Client.CoreV1().Pods(slicesNamespace).Get(limited, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		status := pod.Status.ContainerStatuses[0]
		return status.RestartCount > 0 && status.State.Running != nil, status.State.String(), nil
	})
}
