package ticket

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/sluice-gpu/sluice/quota/internal/apitest"
)

// What the chart value quota.enforce binds, and how.
func TestEnforceChoosesWhatIsBound(t *testing.T) {
	always := []string{
		"sluice-birth-tickets-are-the-controllers [Deny] everywhere",
		"sluice-marks-are-the-controllers [Deny] everywhere",
		"sluice-monitor-needs-admin-access [Deny] everywhere",
		"sluice-queue-label-stays [Deny] everywhere",
		"sluice-tickets-are-the-controllers [Deny] everywhere",
	}
	enforced := func(how string) []string {
		all := slices.Clone(always)
		for _, name := range []string{"sluice-allocated-claims-stay", "sluice-allocation-needs-ticket", "sluice-gate-is-the-controllers"} {
			all = append(all, name+" "+how)
		}
		slices.Sort(all)
		return all
	}
	for mode, want := range map[string][]string{
		"off":        always,
		"audit":      enforced("[Warn Audit] everywhere"),
		"namespaces": enforced("[Deny] where quota.sluice.dev/enforce=true"),
		"all":        enforced("[Deny] everywhere"),
	} {
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(apitest.Render(t, []string{"quota-policies.yaml"}, "quota.enforce="+mode)), 4096)
		var got []string
		for {
			b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
			err := decoder.Decode(b)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if b.Kind != "ValidatingAdmissionPolicyBinding" {
				continue
			}
			where := "everywhere"
			if b.Spec.MatchResources != nil {
				var labels []string
				for k, v := range b.Spec.MatchResources.NamespaceSelector.MatchLabels {
					labels = append(labels, k+"="+v)
				}
				where = "where " + strings.Join(labels, ",")
			}
			got = append(got, fmt.Sprintf("%s %v %s", b.Spec.PolicyName, b.Spec.ValidationActions, where))
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("enforce=%s (-want +got):\n%s", mode, diff)
		}
	}
}
