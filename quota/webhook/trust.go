package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// trust tells the API server, in the webhook's configurations, which authority
// signs the webhook's certificates. An authority that follows another is named
// beside it: at every instant both the certificate that is served and the one
// that will be are trusted. The replica that leads does it.
type trust struct {
	options Options
	secret  types.NamespacedName
	reader  client.Reader
	client  client.Client
}

// mostAuthorities bounds what a configuration names; the oldest go first.
const mostAuthorities = 3

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*trust) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (t *trust) Start(ctx context.Context) error {
	for {
		next := cmp.Or(t.options.validity.look, nextLook)
		done, err := t.declared(ctx, time.Now())
		if err != nil {
			log.FromContext(ctx).Error(err, "the API server cannot be told whom to trust for the webhook; it is tried again", "configuration", t.options.Configuration)
		}
		if !done {
			next = firstLook
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

// declared brings the configurations up to date, and says whether there is an
// authority to name.
func (t *trust) declared(ctx context.Context, now time.Time) (bool, error) {
	secret := &corev1.Secret{}
	if err := t.reader.Get(ctx, t.secret, secret); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	authority := secret.Data["ca.crt"]
	if len(authority) == 0 {
		return false, nil
	}
	name := types.NamespacedName{Name: t.options.Configuration}
	mutating := &admissionv1.MutatingWebhookConfiguration{}
	var clients []*admissionv1.WebhookClientConfig
	if err := t.reader.Get(ctx, name, mutating); err != nil {
		return false, fmt.Errorf("webhook configuration %s: %w", name.Name, err)
	}
	for i := range mutating.Webhooks {
		clients = append(clients, &mutating.Webhooks[i].ClientConfig)
	}
	if err := t.update(ctx, mutating, clients, authority, now); err != nil {
		return false, err
	}
	validating := &admissionv1.ValidatingWebhookConfiguration{}
	if err := t.reader.Get(ctx, name, validating); err != nil {
		return err == nil || apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	clients = nil
	for i := range validating.Webhooks {
		clients = append(clients, &validating.Webhooks[i].ClientConfig)
	}
	return true, t.update(ctx, validating, clients, authority, now)
}

func (t *trust) update(ctx context.Context, object client.Object, clients []*admissionv1.WebhookClientConfig, authority []byte, now time.Time) error {
	changed := false
	for _, c := range clients {
		bundle := bundleWith(authority, c.CABundle, now)
		changed = changed || !bytes.Equal(bundle, c.CABundle)
		c.CABundle = bundle
	}
	if !changed {
		return nil
	}
	if err := t.client.Update(ctx, object); err != nil {
		return fmt.Errorf("webhook configuration %s: %w", object.GetName(), err)
	}
	return nil
}

// bundleWith is a bundle that begins with the authority; those that bundle had
// follow while they are valid. What is no certificate is dropped.
func bundleWith(authority, bundle []byte, now time.Time) []byte {
	known := certificatesIn(authority, now)
	for _, c := range certificatesIn(bundle, now) {
		if !slices.ContainsFunc(known, func(k []byte) bool { return bytes.Equal(k, c) }) {
			known = append(known, c)
		}
	}
	var out bytes.Buffer
	for _, der := range known[:min(len(known), mostAuthorities)] {
		// A buffer takes all that is written.
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	return out.Bytes()
}

// trusts tells whether a bundle names the authority.
func trusts(bundle, authority []byte) bool {
	known := certificatesIn(bundle, time.Time{})
	for _, c := range certificatesIn(authority, time.Time{}) {
		if !slices.ContainsFunc(known, func(k []byte) bool { return bytes.Equal(k, c) }) {
			return false
		}
	}
	return len(authority) > 0
}

// certificatesIn are the certificates of a PEM text that have not run out by
// then, in DER.
func certificatesIn(text []byte, then time.Time) [][]byte {
	var out [][]byte
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return out
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && then.Before(c.NotAfter) {
			out = append(out, block.Bytes)
		}
	}
}
