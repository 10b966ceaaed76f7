package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"

	"github.com/sluice-gpu/sluice/quota/controller"
)

func TestMain(m *testing.M) { os.Exit(apitest.Main(m)) }

// renewalWebhook gates labelled pods through a webhook on this machine, and
// refuses them if it cannot be asked.
func renewalWebhook(name string, port int) *admissionregv1.MutatingWebhookConfiguration {
	return &admissionregv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregv1.MutatingWebhook{{
			Name:                    "pods.renewal.test",
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             new(admissionregv1.SideEffectClassNone),
			FailurePolicy:           new(admissionregv1.Fail),
			TimeoutSeconds:          new(int32(5)),
			ClientConfig:            admissionregv1.WebhookClientConfig{URL: new(fmt.Sprintf("https://localhost:%d%s", port, PodPath))},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": name}},
			Rules: []admissionregv1.RuleWithOperations{{
				Operations: []admissionregv1.OperationType{admissionregv1.Create},
				Rule:       admissionregv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}
}

// balance hands the connections to port on to the others in turn, as a Service does.
func balance(t *testing.T, to []int) (port int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for i := 0; ; i++ {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				there, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", to[i%len(to)]))
				if err != nil {
					return
				}
				defer there.Close()
				go func() {
					defer there.Close()
					_, _ = io.Copy(there, from)
				}()
				_, _ = io.Copy(from, there)
			}()
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

// freePort is a port that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// TestCertificatesAreRenewedWithoutAFailedRequest: the API server asks the
// webhook's two replicas all the time, while its certificate and its authority run
// out and are replaced again and again, and the Secret is deleted by hand.
func TestCertificatesAreRenewedWithoutAFailedRequest(t *testing.T) {
	const name = "renewal"
	s := apitest.Shared(t)
	ctx, cancel := context.WithCancel(t.Context())
	replicas := []int{freePort(t), freePort(t)}
	for _, err := range []error{
		second(s.Clients.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})),
		second(s.Clients.CoreV1().ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})),
		second(s.Clients.CoreV1().Secrets(name).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})),
		second(s.Clients.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, renewalWebhook(name, balance(t, replicas)), metav1.CreateOptions{})),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, len(replicas))
	for _, port := range replicas {
		mgr, err := ctrl.NewManager(s.Admin, ctrl.Options{
			Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
			LeaderElection: true, LeaderElectionID: name, LeaderElectionNamespace: name,
		})
		if err != nil {
			t.Fatal(err)
		}
		err = Add(mgr, noBackend{}, Options{
			Namespace: name, Service: name, Secret: name, Configuration: name, Host: "127.0.0.1", Port: port, CertDir: t.TempDir(),
			dnsName: "localhost", replica: fmt.Sprintf("rotator-%d", port),
			validity: validity{authority: 20 * time.Second, certificate: 12 * time.Second, ahead: 6 * time.Second, look: 250 * time.Millisecond},
		})
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- mgr.Start(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range replicas {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})

	ask := func(ctx context.Context) error {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Labels: map[string]string{"kueue.x-k8s.io/queue-name": "q"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		got, err := s.Clients.CoreV1().Pods(name).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && len(got.Spec.SchedulingGates) == 0 {
			err = fmt.Errorf("the pod was not gated")
		}
		return err
	}
	apitest.Eventually(t, apitest.Patience, "both replicas to serve", func(context.Context) error {
		for _, port := range replicas {
			if _, err := served(port); err != nil {
				return err
			}
		}
		return nil
	})
	apitest.Eventually(t, apitest.Patience, "the webhook to answer", ask)

	var asked atomic.Int64
	failures := make(chan error, 1000)
	stopped := make(chan struct{})
	asking, stop := context.WithCancel(ctx)
	for range 2 {
		go func() {
			defer func() { stopped <- struct{}{} }()
			for asking.Err() == nil {
				if err := ask(ctx); err != nil {
					failures <- err
				}
				asked.Add(1)
			}
		}()
	}
	// What each replica has shown.
	var certificates, authorities [2]map[string]bool
	for i := range replicas {
		certificates[i], authorities[i] = map[string]bool{}, map[string]bool{}
	}
	deleted := false
	apitest.Eventually(t, apitest.Patience, "four certificates and three authorities of each replica", func(ctx context.Context) error {
		for i, port := range replicas {
			leaf, err := served(port)
			if err != nil {
				return err
			}
			certificates[i][leaf.SerialNumber.String()+leaf.NotAfter.String()] = true
			authorities[i][string(leaf.AuthorityKeyId)] = true
		}
		if len(authorities[0]) == 2 && !deleted {
			deleted = true
			err := s.Clients.CoreV1().Secrets(name).Delete(ctx, name, metav1.DeleteOptions{})
			if err == nil || apierrors.IsNotFound(err) {
				_, err = s.Clients.CoreV1().Secrets(name).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			}
			return fmt.Errorf("the Secret was deleted: %w", err)
		}
		for i := range replicas {
			if len(certificates[i]) < 4 || len(authorities[i]) < 3 {
				return fmt.Errorf("replica %d: %d certificates of %d authorities so far", i, len(certificates[i]), len(authorities[i]))
			}
		}
		return nil
	})
	stop()
	<-stopped
	<-stopped
	close(failures)
	for err := range failures {
		t.Errorf("a request failed: %v", err)
	}
	t.Logf("%d requests, %d certificates, %d authorities", asked.Load(), len(certificates[0]), len(authorities[0]))
	if asked.Load() < 50 {
		t.Errorf("only %d requests were made", asked.Load())
	}
}

// served is the certificate that the webhook shows.
func served(port int) (*x509.Certificate, error) {
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0], nil
}

func second[T any](_ T, err error) error { return err }

// noBackend is asked, when pods that name no cards are gated, only for queues.
type noBackend struct{ Backend }

func (noBackend) QueueLabel() string                                 { return controller.QueueLabel }
func (noBackend) HasLocalQueue(context.Context, string, string) bool { return true }
