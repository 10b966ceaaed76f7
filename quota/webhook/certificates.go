package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// Options say where the webhook is and who may call it what.
type Options struct {
	// Namespace, Service and Secret are those of the chart.
	Namespace, Service, Secret string
	// Configuration is the name of the MutatingWebhookConfiguration.
	Configuration string
	// Host and Port are listened on.
	Host string
	Port int
	// CertDir is where the certificate is kept as files.
	CertDir string
	// SchedulerUsers make claims for extended resources.
	SchedulerUsers []string
}

// Add adds the webhook to a manager: its certificates, made and renewed by the
// replica that leads and kept in a Secret, and its server, in every replica.
func Add(mgr ctrl.Manager, backend Backend, o Options) error {
	if err := os.MkdirAll(o.CertDir, 0o700); err != nil {
		return err
	}
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Secret}
	err := rotator.AddRotator(mgr, &rotator.CertRotator{
		SecretKey:             key,
		CertDir:               o.CertDir,
		CAName:                "sluice-quota-ca",
		CAOrganization:        "sluice",
		DNSName:               fmt.Sprintf("%s.%s.svc", o.Service, o.Namespace),
		IsReady:               make(chan struct{}),
		Webhooks:              []rotator.WebhookInfo{{Name: o.Configuration, Type: rotator.Mutating}},
		FieldOwner:            "sluice-quota-certificates",
		RequireLeaderElection: true,
	})
	if err != nil {
		return fmt.Errorf("webhook certificates: %w", err)
	}
	return mgr.Add(&server{options: o, secret: key, reader: mgr.GetAPIReader(), handlers: Handlers(backend, o.SchedulerUsers)})
}

// server serves once there is a certificate. It copies the certificate from the
// Secret itself: a mounted Secret would show a new one only minutes later.
type server struct {
	options  Options
	secret   types.NamespacedName
	reader   client.Reader
	handlers map[string]http.Handler
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*server) NeedLeaderElection() bool { return false }

const (
	firstLook = 200 * time.Millisecond
	nextLook  = time.Minute
)

// Start implements manager.Runnable.
func (s *server) Start(ctx context.Context) error {
	for !s.copied(ctx) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(firstLook):
		}
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(nextLook):
				s.copied(ctx)
			}
		}
	}()
	w := webhook.NewServer(webhook.Options{
		Host: s.options.Host, Port: s.options.Port, CertDir: s.options.CertDir,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) { c.MinVersion = tls.VersionTLS13 }},
	})
	for path, h := range s.handlers {
		w.Register(path, h)
	}
	return w.Start(ctx)
}

// copied puts the Secret's certificate into files, and says whether there is
// one. The server notices when the files change.
func (s *server) copied(ctx context.Context) bool {
	secret := &corev1.Secret{}
	if err := s.reader.Get(ctx, s.secret, secret); err != nil {
		if !apierrors.IsNotFound(err) {
			log.FromContext(ctx).Error(err, "the webhook's certificate cannot be read", "secret", s.secret)
		}
		return false
	}
	for _, name := range []string{"ca.crt", "tls.key", "tls.crt"} {
		if len(secret.Data[name]) == 0 {
			return false
		}
	}
	for _, name := range []string{"ca.crt", "tls.key", "tls.crt"} {
		path := filepath.Join(s.options.CertDir, name)
		if old, err := os.ReadFile(path); err == nil && string(old) == string(secret.Data[name]) {
			continue
		}
		if err := replace(path, secret.Data[name]); err != nil {
			log.FromContext(ctx).Error(err, "the webhook's certificate cannot be written", "file", path)
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
