package main

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

func TestSubjectsAreFoundByTheNamesOfTheirKind(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, kueue.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	named := func(name string, owners ...metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "team", Name: name, OwnerReferences: owners}
	}
	replica := named("web-5d7c-x", metav1.OwnerReference{Kind: "ReplicaSet", Name: "web-5d7c"})
	replica.Labels = map[string]string{"pod-template-hash": "5d7c"}
	ns := namespaced{namespace: "team", cl: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&resourceapi.ResourceClaim{ObjectMeta: named("shared")},
		&kueue.Workload{ObjectMeta: named("resourceclaim-shared-1", metav1.OwnerReference{Kind: "ResourceClaim", Name: "shared"})},
		&kueue.Workload{ObjectMeta: named("pytorchjob-train-1", metav1.OwnerReference{Kind: "PyTorchJob", Name: "train"})},
		&corev1.Pod{ObjectMeta: replica},
		&corev1.Pod{ObjectMeta: named("db-0", metav1.OwnerReference{Kind: "StatefulSet", Name: "db"})},
	).Build()}
	for _, tc := range []struct{ kind, name, workload, fails string }{
		{"claim", "shared", "resourceclaim-shared-1", ""},
		{"resourceclaims", "shared", "resourceclaim-shared-1", ""},
		{"", "shared", "resourceclaim-shared-1", ""},
		{"pytorchjob", "train", "pytorchjob-train-1", ""},
		{"workload", "pytorchjob-train-1", "pytorchjob-train-1", ""},
		{"deployment", "web", "", "as in pod/web-5d7c-x"},
		{"", "web", "", "as in pod/web-5d7c-x"},
		{"statefulsets", "db", "", "as in pod/db-0"},
		{"deployment", "db", "", "no workload, pod, claim or job"},
		{"job", "shared", "", "no workload, pod, claim or job"},
	} {
		s, err := ns.find(context.Background(), tc.kind, tc.name)
		switch {
		case tc.fails != "":
			if err == nil || !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s/%s: error %v, want one that says %q", tc.kind, tc.name, err, tc.fails)
			}
		case err != nil:
			t.Errorf("%s/%s: %v", tc.kind, tc.name, err)
		case s.Workload == nil || s.Workload.Name != tc.workload:
			t.Errorf("%s/%s: workload %v, want %s", tc.kind, tc.name, s.Workload, tc.workload)
		}
	}
}
