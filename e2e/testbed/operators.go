package testbed

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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"github.com/sluice-gpu/sluice/e2e/cluster"
)

// operatorHealth is where the training operator answers for its health, in the control plane's
// network namespace.
const operatorHealth = "127.0.0.1:18081"

// StartTrainingOperator installs the training operator's CustomResourceDefinitions and runs the
// operator of the pinned version beside the control plane, until the cluster goes down. Where it
// runs already nothing is done. Of its kinds it manages PyTorchJobs alone: where a kind is missing
// that it manages, it may start with that one and wait for it before it looks at any other, and ends
// after two minutes.
//
// Its validating webhooks are not called: they check the form of jobs, and are reached by a Service.
func (b *Testbed) StartTrainingOperator(ctx context.Context) error {
	if b.operatorAnswers(ctx) == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	if err := b.installPyTorchJobs(ctx); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "training-operator-")
	if err != nil {
		return err
	}
	if err := operatorCertificate(dir); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	init, err := b.initContainer(ctx, dir)
	if err != nil {
		return err
	}
	cmd := exec.Command(b.Cluster.Binary("training-operator.v1"), "--enable-scheme", "pytorchjob",
		"--metrics-bind-address", "0", "--health-probe-bind-address", operatorHealth,
		"--webhook-server-port", "18443", "--pytorch-init-container-template-file", init, "--kube-api-qps", "100", "--kube-api-burst", "200")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "TMPDIR="+dir), log, log
	if err := b.Cluster.Start(cmd); err != nil {
		return err
	}
	return Until(ctx, "the training operator to answer", func() (bool, string, error) {
		err := b.operatorAnswers(ctx)
		if err != nil && errors.Is(cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone) {
			said, _ := os.ReadFile(log.Name())
			return false, "", fmt.Errorf("it has ended: %s", tail(string(said), 5))
		}
		return err == nil, fmt.Sprint(err, "; its log is ", log.Name()), nil
	})
}

// installPyTorchJobs makes the definition of PyTorchJobs and what the operator expects to find, and
// waits until the API server serves the kind: an operator that does not find it looks again seconds
// later.
func (b *Testbed) installPyTorchJobs(ctx context.Context) error {
	cache, err := cluster.CacheDir()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(cluster.Manifests(cache, "training-operator"), "*_pytorchjobs.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no manifests of the training operator in the cache, run `make setup`: %w", err)
	}
	args := []string{"apply", "--server-side", "--force-conflicts"}
	for _, file := range files {
		args = append(args, "-f", file)
	}
	if _, err := b.Cluster.Kubectl(ctx, args...); err != nil {
		return err
	}
	err = b.Cluster.Apply(ctx, []byte(`
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
`))
	if err != nil {
		return err
	}
	return Until(ctx, "PyTorchJobs to be served", func() (bool, string, error) {
		list, err := b.Client.Discovery().ServerResourcesForGroupVersion("kubeflow.org/v1")
		if err != nil {
			return false, err.Error(), nil
		}
		served := slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Kind == "PyTorchJob" })
		return served, fmt.Sprintf("%d other kinds are", len(list.APIResources)), nil
	})
}

// initContainer writes what the operator puts before the containers of a PyTorchJob's workers, where
// they would look the master's name up. No image with a resolver is here, nor a cluster's DNS: any
// program that ends is as good.
func (b *Testbed) initContainer(ctx context.Context, dir string) (file string, err error) {
	deployment, err := b.Client.AppsV1().Deployments(SystemNamespace).Get(ctx, "sluice-quota", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "init.yaml")
	text := fmt.Sprintf("- {name: init-pytorch, image: %q, imagePullPolicy: Never, args: [--version]}\n", deployment.Spec.Template.Spec.Containers[0].Image)
	return file, os.WriteFile(file, []byte(text), 0o644)
}

// operatorCertificate puts a certificate where the operator's server reads it, below its folder for
// temporary files, and a sign that it is there where the operator looks for a mounted Secret, which
// is the same place for all operators of this machine. Both are there before the operator starts,
// for it ends where it finds the sign and no certificate. The one that it makes for itself and keeps
// in a Secret is used by nobody.
func operatorCertificate(dir string) error {
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		return err
	}
	served := filepath.Join(dir, "k8s-webhook-server", "serving-certs")
	const mounted = "/tmp/k8s-webhook-server/serving-certs"
	if err := errors.Join(os.MkdirAll(served, 0o755), os.MkdirAll(mounted, 0o755)); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(served, "tls.crt"), certificate, 0o600),
		os.WriteFile(filepath.Join(served, "tls.key"), key, 0o600),
		os.WriteFile(filepath.Join(mounted, "tls.crt"), nil, 0o644),
	)
}

func (b *Testbed) operatorAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+operatorHealth+"/readyz", nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: b.Cluster.DialContext, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
