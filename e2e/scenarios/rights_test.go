package scenarios

import (
	"context"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

// right is a question to the API server: "VERB RESOURCE[/SUBRESOURCE][.GROUP] [NAME]", in the
// namespace where it says "in NAMESPACE" and in all without.
type right = string

func attributes(t *testing.T, r right) *authorizationv1.ResourceAttributes {
	t.Helper()
	question, namespace, _ := strings.Cut(r, " in ")
	words := strings.Fields(question)
	if len(words) < 2 {
		t.Fatalf("%q is no right", r)
	}
	resource, group, _ := strings.Cut(words[1], ".")
	resource, subresource, _ := strings.Cut(resource, "/")
	a := &authorizationv1.ResourceAttributes{Verb: words[0], Group: group, Resource: resource, Subresource: subresource, Namespace: namespace}
	if len(words) > 2 {
		a.Name = words[2]
	}
	return a
}

func may(t *testing.T, ctx context.Context, user string, groups []string, r right) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: groups, ResourceAttributes: attributes(t, r),
	}}
	review, err := bed.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// What each of Sluice's own identities, and a tenant with the role edit in one namespace, may do,
// as the API server answers it.
func TestEverybodyHasTheRightsThatHeNeedsAndNoOthers(t *testing.T) {
	ctx, ns := scenario(t)
	tenantOf(t, ctx, ns)
	account := "system:serviceaccount:" + testbed.SystemNamespace + ":"
	const (
		resource = ".resource.k8s.io"
		kueue    = ".kueue.x-k8s.io"
		rbac     = ".rbac.authorization.k8s.io"
		webhooks = ".admissionregistration.k8s.io"
	)
	// Nobody of these, ever.
	never := []right{
		"get secrets in default", "list secrets", "impersonate users", "create serviceaccounts/token in default", "create pods/exec in default",
		"bind clusterroles" + rbac, "escalate clusterroles" + rbac, "create clusterrolebindings" + rbac, "update clusterroles" + rbac,
		"patch nodes", "update nodes/status", "get nodes/proxy", "create certificatesigningrequests.certificates.k8s.io",
		"update validatingadmissionpolicies" + webhooks, "delete validatingadmissionpolicybindings" + webhooks,
		"update resourceclaims/status" + resource + " in default", "create deviceclasses" + resource, "update customresourcedefinitions.apiextensions.k8s.io",
	}
	for who, rights := range map[string]struct{ may, mayNot []right }{
		account + "sluice-driver": {
			may: []right{
				"get resourceclaims" + resource + " in default", "list resourceslices" + resource, "create resourceslices" + resource,
				"delete resourceslices" + resource, "get nodes", "create events in default",
			},
			mayNot: []right{
				"list secrets in " + testbed.SystemNamespace, "create pods in default", "update pods in default", "update resourceclaims" + resource + " in default",
				"delete resourceclaims" + resource + " in default", "patch deviceclasses" + resource, "get workloads" + kueue + " in default",
				"update clusterqueues" + kueue, "update mutatingwebhookconfigurations" + webhooks,
			},
		},
		account + "sluice-quota": {
			may: []right{
				"list pods", "update pods in default", "delete pods in default", "list jobs.batch", "update jobs.batch in default", "list nodes",
				"update resourceclaims" + resource + " in default", "list resourceslices" + resource, "list deviceclasses" + resource,
				"create workloads" + kueue + " in default", "update workloads/status" + kueue + " in default", "update clusterqueues/status" + kueue,
				"update secrets sluice-quota-webhook in " + testbed.SystemNamespace, "update mutatingwebhookconfigurations" + webhooks + " sluice-quota",
				"update leases.coordination.k8s.io in " + testbed.SystemNamespace, "patch deviceclasses" + resource + " gpu.sluice.dev",
				"create resourceclaimtemplates" + resource + " in default", "delete resourceclaimtemplates" + resource + " in default",
			},
			mayNot: []right{
				"get secrets other in " + testbed.SystemNamespace, "update mutatingwebhookconfigurations" + webhooks + " other", "create pods in default",
				"create resourceslices" + resource, "delete resourceslices" + resource, "patch deviceclasses" + resource + " other",
				"delete clusterqueues" + kueue, "create jobs.batch in default", "delete nodes", "delete namespaces", "create resourceclaims" + resource + " in default",
				"update configmaps in " + testbed.SystemNamespace,
			},
		},
		"tenant": {
			may: []right{
				"create pods in " + ns, "create jobs.batch in " + ns, "create resourceclaims" + resource + " in " + ns,
				"create resourceclaimtemplates" + resource + " in " + ns, "get workloads" + kueue + " in " + ns, "list localqueues" + kueue + " in " + ns,
			},
			mayNot: []right{
				"create workloads" + kueue + " in " + ns, "update workloads" + kueue + " in " + ns, "update workloads/status" + kueue + " in " + ns,
				"delete workloads" + kueue + " in " + ns, "create localqueues" + kueue + " in " + ns, "update clusterqueues" + kueue,
				"update resourceclaims/status" + resource + " in " + ns, "update resourceclaims/binding" + resource + " in " + ns,
				"create resourceslices" + resource, "list pods in " + testbed.SystemNamespace,
			},
		},
	} {
		groups := []string{"system:authenticated"}
		if strings.HasPrefix(who, account) {
			groups = append(groups, "system:serviceaccounts", "system:serviceaccounts:"+testbed.SystemNamespace)
		}
		for _, r := range rights.may {
			if !may(t, ctx, who, groups, r) {
				t.Errorf("%s may not %s", who, r)
			}
		}
		for _, r := range append(rights.mayNot, never...) {
			if may(t, ctx, who, groups, r) {
				t.Errorf("%s may %s", who, r)
			}
		}
	}
}
