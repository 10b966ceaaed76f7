package apitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// Root is the project's root.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// Render returns what the chart gives with these --set values, of the named
// templates alone if there are any.
func Render(t testing.TB, templates []string, set ...string) []byte {
	t.Helper()
	helm, err := Binary("helm")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"template", "sluice", filepath.Join(Root(), "deployments", "helm", "sluice"), "--namespace", "sluice-system"}
	for _, name := range templates {
		args = append(args, "--show-only", "templates/"+name)
	}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	cmd := exec.Command(helm, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helm %v: %v\n%s", args, err, stderr.String())
	}
	return out
}

// InstallCRDs applies the chart's CustomResourceDefinitions and waits until they
// are served.
func (s *Server) InstallCRDs(t testing.TB) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(Root(), "deployments", "helm", "sluice", "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs in the chart: %v", err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		s.Apply(t, b)
	}
	d, err := dynamic.NewForConfig(s.Admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []string{"workloads", "clusterqueues", "localqueues", "resourceflavors", "cohorts"} {
		Eventually(t, Patience, "CRD "+r+" served", func(ctx context.Context) error {
			_, err := d.Resource(schema.GroupVersionResource{Group: "kueue.x-k8s.io", Version: "v1beta2", Resource: r}).List(ctx, metav1.ListOptions{})
			return err
		})
	}
}

// Apply applies every document of a YAML stream server-side, as the admin.
func (s *Server) Apply(t testing.TB, stream []byte) {
	t.Helper()
	if err := Apply(t.Context(), s.Admin, stream); err != nil {
		t.Fatal(err)
	}
}

// Apply applies every document of a YAML stream server-side.
func Apply(ctx context.Context, cfg *rest.Config, stream []byte) error {
	d, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	dc, err := memoryDiscovery(cfg)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(dc)
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(stream), 4096)
	for {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(u.Object) == 0 {
			continue
		}
		m, err := mapper.RESTMapping(u.GroupVersionKind().GroupKind(), u.GroupVersionKind().Version)
		if err != nil {
			return err
		}
		var r dynamic.ResourceInterface = d.Resource(m.Resource)
		if m.Scope.Name() == "namespace" {
			ns := u.GetNamespace()
			if ns == "" {
				ns = "default"
			}
			r = d.Resource(m.Resource).Namespace(ns)
		}
		if _, err := r.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "apitest", Force: true}); err != nil {
			return fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
}

// Patience is how long a test waits for what must come to be. Waiting ends with
// the condition, so a long one costs nothing, and some of what is waited for
// takes long by itself: the garbage collector learns of a new kind twice a minute.
const Patience = 3 * time.Minute

// Eventually waits until check returns nil.
func Eventually(t testing.TB, within time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, within, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: not within %s: %v", what, within, last)
	}
}

func memoryDiscovery(cfg *rest.Config) (discovery.CachedDiscoveryInterface, error) {
	dc, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return memory.NewMemCacheClient(dc), nil
}
