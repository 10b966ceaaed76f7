package controller_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"github.com/sluice-gpu/sluice/quota/webhook"
)

// serveChecks puts the chart's validating webhook in force, served on loopback.
func (w *world) serveChecks(t *testing.T, c *controller.Controller) {
	t.Helper()
	mux := http.NewServeMux()
	for path, h := range webhook.Handlers(c, []string{"system:kube-scheduler"}) {
		mux.Handle(path, h)
	}
	server := httptest.NewTLSServer(mux)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	cfg := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := yaml.Unmarshal(bytes.TrimPrefix(apitest.Render(t, []string{"quota-validation.yaml"}), []byte("---\n")), cfg); err != nil {
		t.Fatal(err)
	}
	for i := range cfg.Webhooks {
		at := &cfg.Webhooks[i].ClientConfig
		at.URL = ptr.To(server.URL + *at.Service.Path)
		at.Service, at.CABundle = nil, authority
		cfg.Webhooks[i].FailurePolicy = ptr.To(admissionregistrationv1.Fail)
	}
	if err := w.client.Create(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.client.Delete(context.Background(), cfg)
		time.Sleep(500 * time.Millisecond)
		server.Close()
	})
	apitest.Eventually(t, apitest.Patience, "checks in force", func(ctx context.Context) error {
		if err := w.client.Create(ctx, w.claim("probe", "-1Gi"), client.DryRunAll); err == nil {
			return fmt.Errorf("a negative size is let through")
		}
		return nil
	})
}

func (w *world) claim(name, memory string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{Spec: claimSpec(memory, "")}
	c.Namespace, c.Name = w.ns, name
	return c
}

// TestMistakesInClaimsAreRefusedWhileTheyAreMade: each of these passes the API
// server by itself.
func TestMistakesInClaimsAreRefusedWhileTheyAreMade(t *testing.T) {
	w := newWorld(t)
	node := w.node(t, "n1", 1, "80Gi", "", nil)
	c := w.start(t)
	apitest.Eventually(t, apitest.Patience, "the controller knows the card", func(context.Context) error {
		if len(c.Cards()) == 0 {
			return fmt.Errorf("no card")
		}
		return nil
	})
	w.serveChecks(t, c)

	// Only this test's card is selected, whatever others publish.
	on := func(claim *resourceapi.ResourceClaim, key, q string) *resourceapi.ResourceClaim {
		exact := claim.Spec.Devices.Requests[0].Exactly
		exact.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{resourceapi.QualifiedName(key): resource.MustParse(q)}}
		return claim
	}
	parameters := func(claim *resourceapi.ResourceClaim, raw string) *resourceapi.ResourceClaim {
		claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.sluice.dev", Parameters: runtime.RawExtension{Raw: []byte(raw)}}}}}
		return claim
	}
	const slice = `"apiVersion":"gpu.sluice.dev/v1alpha1","kind":"SliceConfig"`
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		says  string
	}{
		"a key that nothing publishes": {on(w.claim("a", ""), "memroy", "1Gi"), `supported values: "cores", "memory"`},
		"a key with its domain":        {on(w.claim("a", ""), "gpu.sluice.dev/memory", "1Gi"), `write "memory"`},
		"nothing":                      {on(w.claim("a", ""), "memory", "0"), "allowed are 256Mi to 80Gi (" + node},
		"less than nothing":            {on(w.claim("a", ""), "cores", "-1"), "allowed are 0 to 100"},
		"less than the least":          {on(w.claim("a", ""), "memory", "1Mi"), "less than the least share; allowed are 256Mi to 80Gi"},
		"more than the largest card":   {on(w.claim("a", ""), "memory", "90Gi"), "allowed are 256Mi to 80Gi (" + node},
		"a field that is not there":    {parameters(w.claim("a", "1Gi"), "{"+slice+`,"corePolici":"hard"}`), "spec.devices.config[0].opaque.parameters"},
		"another kind":                 {parameters(w.claim("a", "1Gi"), `{"apiVersion":"gpu.sluice.dev/v1alpha1","kind":"GpuConfig"}`), "spec.devices.config[0].opaque.parameters"},
	} {
		err := w.client.Create(t.Context(), tc.claim)
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("claim, %s: %v, want %q", name, err, tc.says)
		}
		template := &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: tc.claim.Spec}}
		template.Namespace, template.Name = w.ns, "a"
		if err := w.client.Create(t.Context(), template); err == nil || !strings.Contains(err.Error(), "spec.spec.devices") {
			t.Errorf("template, %s: %v", name, err)
		}
	}
	for name, claim := range map[string]*resourceapi.ResourceClaim{
		"a slice":         w.claim("slice", "20Gi"),
		"with parameters": parameters(w.claim("hard", "20Gi"), "{"+slice+`,"corePolicy":"hard"}`),
	} {
		if err := w.client.Create(t.Context(), claim); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	class := &resourceapi.DeviceClass{}
	class.Name = w.ns
	class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.sluice.dev", Parameters: runtime.RawExtension{Raw: []byte("{" + slice + `,"corePolicy":"soft"}`)}}}}}
	if err := w.client.Create(t.Context(), class); err == nil || !strings.Contains(err.Error(), "corePolicy") {
		t.Errorf("a class: %v", err)
	}
}
