package apitest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Operators of kinds of jobs, as `make setup` builds them.
const (
	JobSet           = "jobset"
	TrainingOperator = "training-operator"
	MPIOperator      = "mpi-operator"
	RayOperator      = "ray-operator"
	Trainer          = "trainer"
	Volcano          = "volcano"
)

// StartOperator installs the CustomResourceDefinitions of an operator of the
// pinned version and runs it, as the admin, until the server stops; that of MPI,
// of which a machine can run one, until the test ends. Starting it again does
// nothing. Tests that share a server call it one after the other.
func (s *Server) StartOperator(t testing.TB, name string) {
	t.Helper()
	err, started := s.operators[name]
	if !started {
		err = s.startOperator(t.Context(), name)
		if s.operators == nil {
			s.operators = map[string]error{}
		}
		s.operators[name] = err
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if name == MPIOperator && !started {
		t.Cleanup(func() {
			s.endAll(name)
			delete(s.operators, name)
		})
	}
}

// Manifests are the CustomResourceDefinitions of an operator, or other files of
// its module.
func Manifests(operator, pattern string) ([]byte, error) {
	binary, err := Binary("kube-apiserver")
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(binary)), "manifests", operator, pattern))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no manifests %s of %s, run `make setup`: %w", pattern, operator, err)
	}
	var all [][]byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return bytes.Join(all, []byte("\n---\n")), nil
}

func (s *Server) startOperator(ctx context.Context, name string) error {
	crds, err := Manifests(name, "*_*.yaml")
	if err != nil {
		return err
	}
	if err := Apply(ctx, s.Admin, crds); err != nil {
		return err
	}
	if err := s.served(ctx, crds); err != nil {
		return err
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	kubeconfig := s.path("operator.kubeconfig")
	if err := os.WriteFile(kubeconfig, s.kubeconfig(adminToken), 0o600); err != nil {
		return err
	}
	health := fmt.Sprintf("127.0.0.1:%d", ports[0])
	switch name {
	case JobSet:
		return s.startJobSet(ctx, kubeconfig, health, ports[1])
	case TrainingOperator:
		return s.startTraining(ctx, kubeconfig, health, ports[1])
	case MPIOperator:
		return s.startMPI(ctx, kubeconfig)
	case Trainer:
		return s.startTrainer(ctx, kubeconfig, health, ports[1])
	case Volcano:
		return s.startVolcano(ctx, kubeconfig, health)
	case RayOperator:
		if err := s.runWith(name, []string{"KUBECONFIG=" + kubeconfig}, "--enable-leader-election=false", "--metrics-addr", "0", "--health-probe-bind-address", health); err != nil {
			return err
		}
		if err := ready(ctx, "http://"+health+"/readyz", http.DefaultClient); err != nil {
			return fmt.Errorf("%w\n%s", err, s.tail(name))
		}
		return nil
	}
	return fmt.Errorf("unknown operator %s", name)
}

// served waits until the API server serves what the definitions define: some
// operators end at once where it does not.
func (s *Server) served(ctx context.Context, crds []byte) error {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(crds), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(&u.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
		plural, _, _ := unstructured.NestedString(u.Object, "spec", "names", "plural")
		versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
		for _, v := range versions {
			version, _ := v.(map[string]any)["name"].(string)
			path := "/apis/" + group + "/" + version + "/" + plural
			var last error
			err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startsWithin, true, func(ctx context.Context) (bool, error) {
				last = s.Clients.Discovery().RESTClient().Get().AbsPath(path).Do(ctx).Error()
				return last == nil, nil
			})
			if err != nil {
				return fmt.Errorf("%s is not served: %w", path, last)
			}
		}
	}
}

// startJobSet runs JobSet's controller with its webhooks, which complete and check
// JobSets.
func (s *Server) startJobSet(ctx context.Context, kubeconfig, health string, port int) error {
	authority, err := s.servingCertificate(s.path("jobset-certs"))
	if err != nil {
		return err
	}
	config := fmt.Appendf(nil, `apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
internalCertManagement: {enable: false}
leaderElection: {leaderElect: false}
webhook: {host: 127.0.0.1, port: %d, certDir: %q}
`, port, s.path("jobset-certs"))
	if err := os.WriteFile(s.path("jobset.yaml"), config, 0o600); err != nil {
		return err
	}
	if err := s.runWith(JobSet, []string{"KUBECONFIG=" + kubeconfig}, "--config", s.path("jobset.yaml"), "--metrics-bind-address", "0", "--health-probe-bind-address", health); err != nil {
		return err
	}
	if err := ready(ctx, "http://"+health+"/readyz", http.DefaultClient); err != nil {
		return fmt.Errorf("%w\n%s", err, s.tail(JobSet))
	}
	hooks, err := Manifests(JobSet, "manifests.yaml")
	if err != nil {
		return err
	}
	hooks, err = aim(hooks, fmt.Sprintf("https://127.0.0.1:%d", port), authority, "jobset-")
	if err != nil {
		return err
	}
	return Apply(ctx, s.Admin, hooks)
}

// startMPI runs the MPI operator. It answers for its health on port 8080 and on no
// other: if that is taken, it has to wait.
func (s *Server) startMPI(ctx context.Context, kubeconfig string) error {
	ctx, cancel := context.WithTimeout(ctx, startsWithin)
	defer cancel()
	for ctx.Err() == nil {
		if err := s.run(MPIOperator, "--kubeConfig", kubeconfig, "--lock-namespace", "default", "--kube-api-qps", "100", "--kube-api-burst", "200"); err != nil {
			return err
		}
		for ctx.Err() == nil && !strings.Contains(s.tail(MPIOperator), "Error starting server") {
			if strings.Contains(s.tail(MPIOperator), "Started workers") {
				return nil
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
	}
	return fmt.Errorf("it does not start:\n%s", s.tail(MPIOperator))
}

// startTraining runs the training operator. Its webhooks, which only check, are
// not called: it insists on certificates for a Service.
func (s *Server) startTraining(ctx context.Context, kubeconfig, health string, port int) error {
	if err := Apply(ctx, s.Admin, []byte(`
apiVersion: v1
kind: Namespace
metadata: {name: kubeflow}
---
apiVersion: v1
kind: Secret
metadata: {name: training-operator-webhook-cert, namespace: kubeflow}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validator.training-operator.kubeflow.org}
webhooks: []
`)); err != nil {
		return err
	}
	temp := s.path("training")
	if _, err := s.servingCertificate(filepath.Join(temp, "k8s-webhook-server", "serving-certs")); err != nil {
		return err
	}
	// It waits until a file is where a Secret would be mounted; what is in it does
	// not matter, its server looks elsewhere.
	const mounted = "/tmp/k8s-webhook-server/serving-certs"
	if err := errors.Join(os.MkdirAll(mounted, 0o755), touch(mounted+"/tls.crt")); err != nil {
		return err
	}
	if err := s.runWith("training-operator.v1", []string{"KUBECONFIG=" + kubeconfig, "TMPDIR=" + temp},
		// Its kinds but for its own MPIJob. Where a kind is missing that it manages, it
		// waits for it, perhaps before it looks at any other, and ends after two minutes.
		"--enable-scheme", "pytorchjob", "--enable-scheme", "tfjob", "--enable-scheme", "xgboostjob", "--enable-scheme", "paddlejob", "--enable-scheme", "jaxjob",
		"--metrics-bind-address", "0", "--health-probe-bind-address", health, "--webhook-server-port", fmt.Sprint(port),
		"--kube-api-qps", "100", "--kube-api-burst", "200"); err != nil {
		return err
	}
	if err := ready(ctx, "http://"+health+"/readyz", http.DefaultClient); err != nil {
		return fmt.Errorf("%w\n%s", err, s.tail("training-operator.v1"))
	}
	return nil
}

func touch(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// ready waits until an address answers that all is well.
func ready(ctx context.Context, url string, c *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, startsWithin)
	defer cancel()
	for last := error(nil); ; time.Sleep(100 * time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := c.Do(req)
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(res.Status)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s does not answer: %w", url, errors.Join(last, ctx.Err()))
		}
		last = err
	}
}

// aim makes webhooks call a server at an address.
func aim(stream []byte, url string, authority []byte, prefix string) ([]byte, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(stream), 4096)
	var all [][]byte
	for {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return bytes.Join(all, []byte("\n---\n")), nil
		}
		if err != nil {
			return nil, err
		}
		if len(u.Object) == 0 {
			continue
		}
		u.SetName(prefix + u.GetName())
		hooks, _, err := unstructured.NestedSlice(u.Object, "webhooks")
		if err != nil {
			return nil, err
		}
		for _, h := range hooks {
			h := h.(map[string]any)
			at, _, _ := unstructured.NestedString(h, "clientConfig", "service", "path")
			h["clientConfig"] = map[string]any{"url": url + at, "caBundle": authority}
		}
		u.Object["webhooks"] = hooks
		b, err := json.Marshal(u.Object)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
}

// servingCertificate makes a certificate for loopback in a folder, and returns
// it.
func (s *Server) servingCertificate(dir string) ([]byte, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "webhook"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return certificate, errors.Join(
		os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600),
	)
}
