package controller

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Whoever has not renewed its lease in time changes nothing. Who has never had it may, as a
// replica that renews its certificate.
func TestNothingIsWrittenByWhoMayNotLeadAnyMore(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer server.Close()
	now := time.Now()
	f := &fence{now: func() time.Time { return now }, lasts: 10 * time.Second}
	send := func(wrap func(http.RoundTripper) http.RoundTripper, method, path string) error {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := wrap(http.DefaultTransport).RoundTrip(r)
		if err == nil {
			_ = answer.Body.Close()
		}
		return err
	}
	const claim, lease = "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c", "/apis/coordination.k8s.io/v1/namespaces/s/leases/l"
	check := func(when string, written bool) {
		t.Helper()
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			err := send(f.guard, method, claim)
			if written && err != nil || !written && !errors.Is(err, errFenced) {
				t.Errorf("%s: %s: %v", when, method, err)
			}
		}
		if err := send(f.guard, http.MethodGet, claim); err != nil {
			t.Errorf("%s: GET: %v", when, err)
		}
	}
	renew := func() {
		t.Helper()
		if err := send(f.lease, http.MethodPut, lease); err != nil {
			t.Fatal(err)
		}
	}

	check("before it leads", true)
	renew()
	now = now.Add(10 * time.Second)
	check("in time", true)
	renew()
	now = now.Add(5 * time.Second)
	status = http.StatusConflict
	renew()
	if err := send(f.lease, http.MethodGet, lease); err != nil {
		t.Fatal(err)
	}
	status = http.StatusOK
	now = now.Add(5*time.Second + time.Millisecond)
	check("late, after a renewal that another's has won over", false)
	// An elector that was late leaves the lease, whoever has it.
	if err := send(f.lease, http.MethodPut, lease); !errors.Is(err, errFenced) {
		t.Errorf("who was late writes the lease: %v", err)
	}
	check("after that", false)
}

func TestTheLeasesConnectionIsNotTheGuardedOne(t *testing.T) {
	options := ctrl.Options{}
	api := &rest.Config{Host: "https://example.com"}
	guarded := Fenced(api, &options)
	switch {
	case api.WrapTransport != nil:
		t.Error("the caller's connection is changed")
	case guarded.WrapTransport == nil:
		t.Error("nothing guards what is written")
	case options.LeaderElectionConfig == nil || options.LeaderElectionConfig.WrapTransport == nil:
		t.Error("nobody sees the renewals")
	}
}
