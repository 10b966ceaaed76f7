package controller

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// Whose priority class does not exist is not queued, and is told so.
func TestAPriorityClassThatDoesNotExistIsNamed(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", UID: "p", Labels: map[string]string{PriorityLabel: "urgent"}}}
	recorder := events.NewFakeRecorder(10)
	s := &sources{core: loaded(t), client: fake.NewClientBuilder().WithScheme(Scheme()).Build(), recorder: recorder, metrics: newMetrics(prometheus.NewRegistry())}
	if _, err := s.workload(t.Context(), wanted{owner: pod, gvk: corev1.SchemeGroupVersion.WithKind("Pod"), queue: "lq"}); err == nil {
		t.Fatal("queued without the priority that it asks for")
	}
	select {
	case got := <-recorder.Events:
		if !strings.Contains(got, PriorityLabel) || !strings.Contains(got, "urgent") {
			t.Errorf("the event says %q", got)
		}
	default:
		t.Error("nobody is told")
	}
}
