package beside_test

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sluice-gpu/sluice/quota/beside"
)

func TestALeaseIsHeldWhileSomebodyRenewsIt(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) *metav1.MicroTime { return ptr.To(metav1.NewMicroTime(now.Add(-d))) }
	for name, c := range map[string]struct {
		lease  string
		holder *string
		renew  *metav1.MicroTime
		seen   time.Time
		held   bool
	}{
		"renewed a moment ago":                         {beside.LeaseName, ptr.To("a"), ago(2 * time.Second), time.Time{}, true},
		"by a clock that is ahead":                     {beside.LeaseName, ptr.To("a"), ago(-time.Hour), time.Time{}, true},
		"by a clock that is behind, as was seen":       {beside.LeaseName, ptr.To("a"), ago(time.Hour), now.Add(-time.Second), true},
		"renewed long ago":                             {beside.LeaseName, ptr.To("a"), ago(time.Hour), time.Time{}, false},
		"renewed long ago, and seen being so long ago": {beside.LeaseName, ptr.To("a"), ago(time.Hour), now.Add(-time.Hour), false},
		"given up":      {beside.LeaseName, ptr.To(""), ago(time.Second), now, false},
		"nobody's":      {beside.LeaseName, nil, ago(time.Second), now, false},
		"never renewed": {beside.LeaseName, ptr.To("a"), nil, now, false},
		"another's":     {"sluice-quota", ptr.To("a"), ago(time.Second), now, false},
	} {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: c.lease}}
		l.Spec.HolderIdentity, l.Spec.RenewTime = c.holder, c.renew
		if got := beside.Held(l, c.seen, now); got != c.held {
			t.Errorf("%s: held %v, want %v", name, got, c.held)
		}
	}
}
