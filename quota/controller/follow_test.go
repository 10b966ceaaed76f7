package controller_test

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// follow follows what the world's namespace holds.
func (w *world) follow(ctx context.Context, t testing.TB, list client.ObjectList) <-chan watch.Event {
	t.Helper()
	live, err := client.NewWithWatch(w.Admin, client.Options{Scheme: w.client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return follow(ctx, t, live, list, w.ns)
}

// follow is a watch of what the namespace holds that goes on, without leaving
// anything out, where the server ends it, as it does with one that falls behind.
// It ends with its context.
func follow(ctx context.Context, t testing.TB, c client.WithWatch, list client.ObjectList, namespace string) <-chan watch.Event {
	t.Helper()
	begin := func(from string) (watch.Interface, error) {
		return c.Watch(ctx, list, &client.ListOptions{Namespace: namespace, Raw: &metav1.ListOptions{ResourceVersion: from}})
	}
	now, err := begin("")
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan watch.Event)
	go func() {
		defer close(events)
		from := ""
		for {
			for e := range now.ResultChan() {
				if m, err := meta.Accessor(e.Object); err == nil && m.GetResourceVersion() != "" {
					from = m.GetResourceVersion()
				}
				select {
				case events <- e:
				case <-ctx.Done():
					now.Stop()
					return
				}
			}
			if ctx.Err() != nil {
				return
			}
			if now, err = begin(from); err != nil {
				if ctx.Err() == nil {
					t.Errorf("the watch ended and cannot go on: %v", err)
				}
				return
			}
		}
	}()
	return events
}
