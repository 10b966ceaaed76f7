package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// slicesNamespace is where pods ask for devices directly, without a queue.
const slicesNamespace = "demo"

// clear removes what an earlier run left, so that the cards are free.
func (d *demo) clear(ctx context.Context) error {
	ctx, cancel := d.wait(ctx)
	defer cancel()
	_, err := d.Cluster.Kubectl(ctx, "delete", "namespace", slicesNamespace, teamNamespace, "--ignore-not-found", "--timeout="+stepPatience.String())
	return err
}

// devices shows what the nodes publish.
func (d *demo) devices(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, devicesPatience)
	defer cancel()
	if err := d.WaitDevices(limited); err != nil {
		return err
	}
	d.title("What the nodes offer (ResourceSlices)")
	slices, err := d.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	t := table{header: []string{"NODE", "DEVICE", "PRODUCT", "MEMORY", "A CLAIM WITHOUT SIZE GETS", "CORES", "SHARED"}}
	for i := range slices.Items {
		for _, device := range slices.Items[i].Spec.Devices {
			if device.AllowMultipleAllocations == nil || !*device.AllowMultipleAllocations {
				continue
			}
			memory, cores := device.Capacity["memory"], device.Capacity["cores"]
			t.add(slices.Items[i].Spec.Pool.Name, device.Name, text(device, "productName"),
				memory.Value.String(), standard(memory).String(), cores.Value.String(), fmt.Sprint(*device.AllowMultipleAllocations))
		}
	}
	t.print(d.out)
	return nil
}

func text(device resourcev1.Device, name resourcev1.QualifiedName) string {
	if value := device.Attributes[name].StringValue; value != nil {
		return *value
	}
	return ""
}

// standard is what a claim gets that names no amount.
func standard(c resourcev1.DeviceCapacity) *resource.Quantity {
	if c.RequestPolicy != nil && c.RequestPolicy.Default != nil {
		return c.RequestPolicy.Default
	}
	return &c.Value
}

// asking is a pod of the slices part: what it asks for and where it may run.
type asking struct {
	pod, words string
	node       string
	ask        testbed.Capacity
	limit      bool // nvidia.com/gpu: 1 instead of a claim
}

// slices runs pods that take parts of cards and shows what each was given and what it sees.
func (d *demo) slices(ctx context.Context) error {
	if err := d.CreateNamespace(ctx, slicesNamespace, nil); err != nil {
		return err
	}
	askings := []asking{
		{pod: "quarter", words: "memory 20Gi", node: "node-2", ask: testbed.Capacity{Memory: "20Gi"}},
		{pod: "half", words: "memory 20Gi, cores 50", node: "node-2", ask: testbed.Capacity{Memory: "20Gi", Cores: "50"}},
		{pod: "small", words: "memory 5Gi", node: "node-2", ask: testbed.Capacity{Memory: "5Gi"}},
		{pod: "whole", words: "a GPU, no size", node: "node-2"},
		{pod: "plain-dynamic", words: "nvidia.com/gpu: 1", node: "node-2", limit: true},
		{pod: "plain-fixed", words: "nvidia.com/gpu: 1", node: "node-1", limit: true},
		{pod: "plain-t4", words: "nvidia.com/gpu: 1", node: "node-3", limit: true},
	}
	for _, a := range askings {
		options := []testbed.PodOption{testbed.OnNode(a.node)}
		if a.limit {
			options = append(options, testbed.WithLimit("nvidia.com/gpu", "1"))
		} else {
			if err := d.Create(ctx, slicesNamespace, testbed.Template(a.pod, a.ask)); err != nil {
				return err
			}
			options = append(options, testbed.WithTemplate(a.pod))
		}
		if err := d.Create(ctx, slicesNamespace, testbed.Pod(a.pod, []string{"info", "hold"}, options...)); err != nil {
			return err
		}
		limited, cancel := d.wait(ctx)
		_, err := d.WaitPhase(limited, slicesNamespace, a.pod, corev1.PodRunning)
		cancel()
		if err != nil {
			return err
		}
	}
	d.title("Pods on parts of cards: what they asked, what they were given, what CUDA tells them")
	t := table{header: []string{"POD", "ASKED", "NODE", "DEVICE", "MEMORY", "CORES", "CUDA SEES", "TOTAL"}}
	for _, a := range askings {
		row, err := d.describeShare(ctx, slicesNamespace, a)
		if err != nil {
			return err
		}
		t.add(row...)
	}
	t.print(d.out)
	return nil
}

// describeShare checks that the container sees what its claim was given, and returns its row.
func (d *demo) describeShare(ctx context.Context, namespace string, a asking) ([]string, error) {
	shares, err := d.Shares(ctx, namespace, a.pod)
	if err != nil {
		return nil, err
	}
	if len(shares) != 1 {
		return nil, fmt.Errorf("pod %s should have one share, has %+v", a.pod, shares)
	}
	limited, cancel := d.wait(ctx)
	defer cancel()
	info, err := d.WaitProbe(limited, namespace, a.pod, "main", "info")
	if err != nil {
		return nil, err
	}
	share := shares[0]
	given := resource.MustParse(share.Memory)
	if uint64(given.Value()) != info.DeviceTotal {
		return nil, fmt.Errorf("pod %s was given %s (%d bytes), but CUDA in its container sees %d bytes",
			a.pod, share.Memory, given.Value(), info.DeviceTotal)
	}
	return []string{a.pod, a.words, share.Node, share.Device, share.Memory, share.Cores,
		fmt.Sprintf("%d x %s", info.Devices, info.Name), bytesText(info.DeviceTotal)}, nil
}

func bytesText(n uint64) string {
	return fmt.Sprintf("%d MiB", n>>20)
}
