package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// limits runs programs that take memory until they are refused, by every way that a program can
// reach the driver.
func (d *demo) limits(ctx context.Context) error {
	if err := d.DeletePods(ctx, slicesNamespace); err != nil {
		return err
	}
	const slice = "20Gi"
	if err := d.Create(ctx, slicesNamespace, testbed.Template("limited", testbed.Capacity{Memory: slice})); err != nil {
		return err
	}
	d.title("A container is held to its slice (%s of a card): it allocates until it is refused", slice)
	t := table{header: []string{"PROGRAM", "TOOK", "ONE BYTE MORE", "FREE", "DEVICE"}}
	programs := []struct {
		pod, words string
		args       []string
	}{
		{"linked", "linked with libcuda", []string{"--via", "link"}},
		{"cleared-env", "environment cleared", []string{"--clear-env"}},
		{"procaddress", "cuGetProcAddress", []string{"--via", "procaddress"}},
		{"dlopen", "dlopen and dlsym", []string{"--via", "dlopen"}},
	}
	for _, p := range programs {
		args := append(p.args, "info", "alloc:10Gi", "alloc-until-oom:1Mi", "alloc:1", "meminfo", "hold")
		pod := testbed.Pod(p.pod, args, testbed.OnNode("node-2"), testbed.WithTemplate("limited"))
		if err := d.Create(ctx, slicesNamespace, pod); err != nil {
			return err
		}
		row, err := d.takeUntilRefused(ctx, p.pod, slice)
		if err != nil {
			return err
		}
		t.add(append([]string{p.words}, row...)...)
	}
	t.print(d.out)
	return nil
}

// takeUntilRefused waits for the program's end and checks that it got its slice to the last MiB,
// and not more.
func (d *demo) takeUntilRefused(ctx context.Context, pod, slice string) ([]string, error) {
	limited, cancel := d.wait(ctx)
	defer cancel()
	if _, err := d.WaitPhase(limited, slicesNamespace, pod, corev1.PodRunning); err != nil {
		return nil, err
	}
	end, err := d.WaitProbe(limited, slicesNamespace, pod, "main", "meminfo")
	if err != nil {
		return nil, err
	}
	steps, err := d.Probe(limited, slicesNamespace, pod, "main")
	if err != nil {
		return nil, err
	}
	var took uint64
	var oneMore string
	for _, step := range steps {
		if step.Step == "alloc:1" {
			oneMore = step.Result
		} else {
			took += step.Bytes
		}
	}
	if oneMore != "CUDA_ERROR_OUT_OF_MEMORY" {
		return nil, fmt.Errorf("pod %s asked for one byte more than its slice and was told %s", pod, oneMore)
	}
	limit := resource.MustParse(slice)
	if took != uint64(limit.Value()) {
		return nil, fmt.Errorf("pod %s has a slice of %d bytes and took %d", pod, limit.Value(), took)
	}
	shares, err := d.Shares(limited, slicesNamespace, pod)
	if err != nil {
		return nil, err
	}
	if len(shares) != 1 {
		return nil, fmt.Errorf("pod %s should have one share, has %+v", pod, shares)
	}
	return []string{bytesText(took), oneMore, bytesText(end.Free), shares[0].Node + "/" + shares[0].Device}, nil
}
