package apitest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kueue is the manager of Kueue, as `make setup` builds it.
const Kueue = "kueue"

// InstallKueueCRDs applies the CustomResourceDefinitions of Kueue, without the
// conversion that its installation adds, and waits until they are served.
func (s *Server) InstallKueueCRDs(t testing.TB) {
	t.Helper()
	crds, err := Manifests(Kueue, "kueue.x-k8s.io_*.yaml")
	if err == nil {
		err = Apply(t.Context(), s.Admin, crds)
	}
	if err == nil {
		err = s.served(t.Context(), crds)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// SharedWithKueue returns a second server of this package's tests, started at
// first use: one with Kueue's CustomResourceDefinitions, in which its manager may
// be run. first is called once, before anything else is in it.
func SharedWithKueue(t testing.TB, first func(*Server) error) *Server {
	t.Helper()
	sharedKueue.once.Do(func() {
		if sharedKueue.server, sharedKueue.err = Start(); sharedKueue.err != nil {
			return
		}
		sharedKueue.server.InstallKueueCRDs(t)
		sharedKueue.err = first(sharedKueue.server)
	})
	if sharedKueue.err != nil {
		t.Fatal(sharedKueue.err)
	}
	return sharedKueue.server
}

// StartKueue runs Kueue's manager, as the admin, with its webhooks and its
// integrations of batch Jobs and of pods, if it does not run yet. The result
// uninstalls it.
func (s *Server) StartKueue(t testing.TB) (uninstall func()) {
	t.Helper()
	if s.kueue == nil {
		if err := s.startKueue(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		s.kueue = s.running[len(s.running)-1]
		s.mu.Unlock()
	}
	return func() {
		c := s.kueue
		s.kueue = nil
		ctx := context.WithoutCancel(t.Context())
		hooks := s.Clients.AdmissionregistrationV1()
		if err := errors.Join(
			hooks.MutatingWebhookConfigurations().Delete(ctx, kueueHooks+"mutating-webhook-configuration", metav1.DeleteOptions{}),
			hooks.ValidatingWebhookConfigurations().Delete(ctx, kueueHooks+"validating-webhook-configuration", metav1.DeleteOptions{}),
		); err != nil {
			t.Error(err)
		}
		s.end(c)
		if err := s.Clients.CoordinationV1().Leases(kueueNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	}
}

const (
	// kueueHooks begins the names of its webhook configurations.
	kueueHooks     = "kueue-"
	kueueNamespace = "kueue-system"
)

// endAll stops all programs of a name.
func (s *Server) endAll(name string) {
	s.mu.Lock()
	running := slices.Clone(s.running)
	s.mu.Unlock()
	for _, c := range running {
		if filepath.Base(c.Path) == name {
			s.end(c)
		}
	}
}

// end stops one program.
func (s *Server) end(c *exec.Cmd) {
	_ = c.Process.Signal(syscall.SIGTERM)
	_ = c.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(r *exec.Cmd) bool { return r == c })
}

func (s *Server) startKueue(ctx context.Context) error {
	if err := Apply(ctx, s.Admin, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: kueue-system}\n")); err != nil {
		return err
	}
	// It reads them for its metrics, also where it serves none, from nowhere else.
	const metrics = "/etc/kueue/metrics/certs"
	if _, err := s.servingCertificate(metrics); err != nil {
		return err
	}
	authority, err := s.servingCertificate(s.path("kueue-certs"))
	if err != nil {
		return err
	}
	ports, err := freePorts(2)
	if err != nil {
		return err
	}
	health := fmt.Sprintf("127.0.0.1:%d", ports[0])
	config := fmt.Appendf(nil, `apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: kueue-system
health: {healthProbeBindAddress: %q}
metrics: {bindAddress: "0"}
webhook: {host: 127.0.0.1, port: %d, certDir: %q}
leaderElection: {leaderElect: true, resourceNamespace: kueue-system}
internalCertManagement: {enable: false}
featureGates: {VisibilityOnDemand: false}
integrations: {frameworks: [batch/job, pod]}
`, health, ports[1], s.path("kueue-certs"))
	kubeconfig := s.path("kueue.kubeconfig")
	if err := errors.Join(os.WriteFile(s.path("kueue.yaml"), config, 0o600), os.WriteFile(kubeconfig, s.kubeconfig(adminToken), 0o600)); err != nil {
		return err
	}
	if err := s.runWith(Kueue, []string{"KUBECONFIG=" + kubeconfig}, "--config", filepath.Clean(s.path("kueue.yaml")), "--zap-log-level=2"); err != nil {
		return err
	}
	if err := ready(ctx, "http://"+health+"/readyz", http.DefaultClient); err != nil {
		return fmt.Errorf("%w\n%s", err, s.tail(Kueue))
	}
	hooks, err := Manifests(Kueue, "manifests.yaml")
	if err != nil {
		return err
	}
	hooks, err = aim(hooks, fmt.Sprintf("https://127.0.0.1:%d", ports[1]), authority, kueueHooks)
	if err != nil {
		return err
	}
	return Apply(ctx, s.Admin, hooks)
}
