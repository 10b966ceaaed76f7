package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// Options say where the webhook is and who may call it what.
type Options struct {
	// Namespace, Service and Secret are those of the chart.
	Namespace, Service, Secret string
	// Configuration is the name of the MutatingWebhookConfiguration, and of a
	// ValidatingWebhookConfiguration if there is one.
	Configuration string
	// Host and Port are listened on.
	Host string
	Port int
	// CertDir is where the certificate is kept as files.
	CertDir string
	// SchedulerUsers make claims for extended resources.
	SchedulerUsers []string

	// dnsName is what the certificate is for; empty: the Service's name.
	dnsName string
	// replica tells those of one process apart; empty: there is one.
	replica string
	// validity of what is issued; zero: ten years the authority, one year the
	// certificate, both renewed 90 days before their end.
	validity validity
}

// validity says how long certificates hold, how long before its end each is
// renewed, and how often that is looked at.
type validity struct{ authority, certificate, ahead, look time.Duration }

// Add adds the webhook to a manager: its certificates, made and renewed by the
// replica that leads and kept in a Secret, and its server, in every replica.
func Add(mgr ctrl.Manager, backend Backend, o Options) error {
	if err := os.MkdirAll(o.CertDir, 0o700); err != nil {
		return err
	}
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Secret}
	if o.dnsName == "" {
		o.dnsName = fmt.Sprintf("%s.%s.svc", o.Service, o.Namespace)
	}
	err := rotator.AddRotator(mgr, &rotator.CertRotator{
		SecretKey:             key,
		CertDir:               o.CertDir,
		CAName:                "sluice-quota-ca",
		CAOrganization:        "sluice",
		DNSName:               o.dnsName,
		IsReady:               make(chan struct{}),
		ControllerName:        o.replica,
		FieldOwner:            "sluice-quota-certificates",
		RequireLeaderElection: true,

		CaCertDuration: o.validity.authority, ServerCertDuration: o.validity.certificate,
		LookaheadInterval: o.validity.ahead, RotationCheckFrequency: o.validity.look,
	})
	if err != nil {
		return fmt.Errorf("webhook certificates: %w", err)
	}
	// The rotator would name one authority alone, from one instant to the next.
	if err := mgr.Add(&trust{options: o, secret: key, reader: mgr.GetAPIReader(), client: mgr.GetClient()}); err != nil {
		return err
	}
	return mgr.Add(&server{options: o, secret: key, reader: mgr.GetAPIReader(), cache: mgr.GetCache(), handlers: Handlers(backend, o.SchedulerUsers)})
}

// server serves once there is a certificate. It takes the certificate from the
// Secret itself: a mounted Secret would show a new one only minutes later.
//
// A certificate of a new authority is served once the webhook's configuration
// has named that one for long enough that every API server has seen it.
type server struct {
	options  Options
	secret   types.NamespacedName
	reader   client.Reader
	cache    cache.Cache
	handlers map[string]http.Handler

	served    atomic.Pointer[tls.Certificate]
	authority []byte // that signed it; renewed's alone
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*server) NeedLeaderElection() bool { return false }

const (
	firstLook = 200 * time.Millisecond
	// A certificate of the same authority is replaced weeks before its end.
	nextLook = time.Minute
	// An API server follows a webhook's configuration within milliseconds.
	untilSeen = 2 * time.Second
)

// Start implements manager.Runnable.
func (s *server) Start(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	if err := s.watch(ctx, changed); err != nil {
		return err
	}
	for !s.renewed(ctx) {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(firstLook):
		}
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-time.After(cmp.Or(s.options.validity.look, nextLook)):
			}
			s.renewed(ctx)
		}
	}()
	w := webhook.NewServer(webhook.Options{
		Host: s.options.Host, Port: s.options.Port,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion = tls.VersionTLS13
			c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.served.Load(), nil }
		}},
	})
	for path, h := range s.handlers {
		w.Register(path, h)
	}
	return w.Start(ctx)
}

// watch tells when the webhook's configuration has changed.
func (s *server) watch(ctx context.Context, changed chan<- struct{}) error {
	informer, err := s.cache.GetInformer(ctx, &admissionv1.MutatingWebhookConfiguration{})
	if err != nil {
		return fmt.Errorf("watching the webhook's configuration: %w", err)
	}
	tell := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: tell, UpdateFunc: func(_, now any) { tell(now) },
	})
	return err
}

// renewed serves the Secret's certificate if the API server trusts it by now,
// and says whether there is one to serve.
func (s *server) renewed(ctx context.Context) bool {
	logger := log.FromContext(ctx).WithValues("secret", s.secret)
	secret := &corev1.Secret{}
	if err := s.reader.Get(ctx, s.secret, secret); err != nil {
		if !apierrors.IsNotFound(err) {
			logger.Error(err, "the webhook's certificate cannot be read")
		}
		return s.served.Load() != nil
	}
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil { // not made yet
		return s.served.Load() != nil
	}
	if s.served.Load() != nil && !bytes.Equal(secret.Data["ca.crt"], s.authority) {
		if !s.trusted(ctx, secret.Data["ca.crt"]) {
			return true
		}
		select {
		case <-ctx.Done():
			return true
		case <-time.After(untilSeen):
		}
	}
	// The rotator of the replica that leads wants to see files.
	for _, name := range []string{"ca.crt", "tls.key", "tls.crt"} {
		if err := replace(filepath.Join(s.options.CertDir, name), secret.Data[name]); err != nil {
			logger.Error(err, "the webhook's certificate cannot be written", "file", name)
			return s.served.Load() != nil
		}
	}
	s.authority = secret.Data["ca.crt"]
	s.served.Store(&pair)
	return true
}

// trusted tells whether the API server knows the authority.
func (s *server) trusted(ctx context.Context, authority []byte) bool {
	c := &admissionv1.MutatingWebhookConfiguration{}
	if err := s.cache.Get(ctx, types.NamespacedName{Name: s.options.Configuration}, c); err != nil {
		return false
	}
	for _, w := range c.Webhooks {
		if !trusts(w.ClientConfig.CABundle, authority) {
			return false
		}
	}
	return true
}

// replace writes a file so that readers see the old or the new content.
func replace(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
