package apitest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
)

// startTrainer runs the controller of TrainJobs with its webhooks, which complete
// and check them. It needs JobSet's.
func (s *Server) startTrainer(ctx context.Context, kubeconfig, health string, port int) error {
	const program = "trainer-controller-manager"
	temp := s.path("trainer")
	authority, err := s.servingCertificate(filepath.Join(temp, "k8s-webhook-server", "serving-certs"))
	if err != nil {
		return err
	}
	config := fmt.Appendf(nil, `apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
certManagement: {enable: false}
leaderElection: {leaderElect: false}
metrics: {bindAddress: "0"}
health: {healthProbeBindAddress: %q}
webhook: {host: 127.0.0.1, port: %d}
clientConnection: {qps: 100, burst: 200}
`, health, port)
	if err := os.WriteFile(s.path("trainer.yaml"), config, 0o600); err != nil {
		return err
	}
	if err := s.runWith(program, []string{"KUBECONFIG=" + kubeconfig, "TMPDIR=" + temp}, "--config", s.path("trainer.yaml")); err != nil {
		return err
	}
	if err := ready(ctx, "http://"+health+"/readyz", http.DefaultClient); err != nil {
		return fmt.Errorf("%w\n%s", err, s.tail(program))
	}
	hooks, err := Manifests(Trainer, "manifests.yaml")
	if err != nil {
		return err
	}
	hooks, err = aim(hooks, fmt.Sprintf("https://127.0.0.1:%d", port), authority, "trainer-")
	if err != nil {
		return err
	}
	return Apply(ctx, s.Admin, hooks)
}

// startVolcano runs the controller of Volcano's Jobs. Its scheduler does not run:
// whoever uses this lets jobs into their queue in its place.
func (s *Server) startVolcano(ctx context.Context, kubeconfig, health string) error {
	const program = "controller-manager"
	// The queue of jobs that name none, and the one above it.
	if err := Apply(ctx, s.Admin, []byte(`
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: root}
spec: {weight: 1}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: default}
spec: {weight: 1}
`)); err != nil {
		return err
	}
	if err := s.runWith(program, nil, "--kubeconfig", kubeconfig, "--leader-elect=false",
		"--controllers", "job-controller,pg-controller,queue-controller", "--enable-healthz=true", "--healthz-address", health,
		"--kube-api-qps", "100", "--kube-api-burst", "200"); err != nil {
		return err
	}
	if err := ready(ctx, "http://"+health+"/healthz", http.DefaultClient); err != nil {
		return fmt.Errorf("%w\n%s", err, s.tail(program))
	}
	return nil
}
