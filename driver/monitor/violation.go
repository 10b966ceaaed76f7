package monitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceac "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/driver"
)

// A share that holds more of its card than it was given is a violation. Every
// one is reported: to the pod by an event, to the claim by a condition of the
// device, to Prometheus. What else is done is the operator's choice.

// ConditionWithinShare is the condition of a device in a claim's status: False
// while programs hold more of the card than the share, True afterwards. A share
// that never did has none.
const ConditionWithinShare = "WithinShare"

// Reasons of events and conditions.
const (
	reasonAbove  = "MemoryAboveShare"
	reasonWithin = "MemoryWithinShare"
	reasonKilled = "ProcessKilled"
)

// end kills the process that holds the most of the card, once the share has been
// above its limit for as long as is tolerated, and then another one as long as
// it is.
func (m *Monitor) end(ctx context.Context, g group, found map[string]*shareSeen, e *excess, now time.Time) {
	if m.cfg.Kill == nil {
		return
	}
	after := m.cfg.Kill()
	if after <= 0 || now.Sub(e.since) < after || now.Sub(e.killed) < after {
		return
	}
	worst := slices.MaxFunc(g.processes, func(a, b Process) int { return cmp.Compare(a.Memory, b.Memory) })
	e.killed = now
	first := g.shares[0]
	log := klog.FromContext(ctx)
	if err := m.kill(worst); err != nil {
		log.Error(err, "A process that holds more than its share was not ended", "claim", first.Claim, "pid", worst.PID)
		return
	}
	m.mu.Lock()
	m.last.killed++
	m.mu.Unlock()
	log.Info("Ended a process that holds more than its share", "claim", first.Claim, "device", first.Device, "pid", worst.PID, "bytes", worst.Memory)
	text := fmt.Sprintf("was above its share of card %s for %s: its process that held the most, %d bytes (PID %d on the node), was killed.",
		first.Device, now.Sub(e.since).Round(time.Second), worst.Memory, worst.PID)
	for _, p := range podsOf(g, found) {
		m.event(ctx, first.Claim.Namespace, p, reasonKilled, text, now)
	}
}

// kill ends a process, unless its PID is another's by now: the descriptor holds
// the process whose owner is read after it was taken.
func (m *Monitor) kill(p Process) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, ok := (&owners{proc: m.cfg.Proc}).of([]int{p.PID})[p.PID]
	if !ok || now.Pod != p.Pod || now.Pod == "" {
		return fmt.Errorf("PID %d belongs to pod %q now, not to %q", p.PID, now.Pod, p.Pod)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// tell writes the condition of a share's device into its claim. It does so aside:
// the API server may be slow, and the loop has a heartbeat.
func (m *Monitor) tell(ctx context.Context, s Share, within bool, text string, now time.Time) {
	status, reason := metav1.ConditionFalse, reasonAbove
	if within {
		status, reason = metav1.ConditionTrue, reasonWithin
	}
	device := resourceac.AllocatedDeviceStatus().WithDriver(driver.Name).WithPool(m.cfg.NodeName).WithDevice(s.Device).
		WithConditions(metaac.Condition().WithType(ConditionWithinShare).WithStatus(status).WithReason(reason).
			WithMessage(text).WithLastTransitionTime(metav1.NewTime(now)))
	if s.ShareID != "" {
		device = device.WithShareID(string(s.ShareID))
	}
	claim := resourceac.ResourceClaim(s.Claim.Name, s.Claim.Namespace).WithUID(s.ClaimUID).
		WithStatus(resourceac.ResourceClaimStatus().WithDevices(device))
	go func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := m.cfg.KubeClient.ResourceV1().ResourceClaims(s.Claim.Namespace).ApplyStatus(ctx, claim,
			metav1.ApplyOptions{FieldManager: "sluice-monitor-" + string(cmp.Or(s.ShareID, types.UID(s.Device))), Force: true})
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The condition of a share was not written", "claim", s.Claim, "device", s.Device)
		}
	}()
}

func (m *Monitor) event(ctx context.Context, namespace string, pod Pod, reason, text string, now time.Time) {
	e := eventOf(m.cfg.NodeName, namespace, pod, reason, text, now)
	go func() { // the API server may be slow, and the loop has a heartbeat
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if _, err := m.cfg.KubeClient.CoreV1().Events(namespace).Create(ctx, e, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "An event was not written", "pod", klog.KRef(namespace, pod.Name))
		}
	}()
}

func eventOf(node, namespace string, pod Pod, reason, text string, now time.Time) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: strings.ToLower(pod.Name) + ".", Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: "The pod " + text,
		Source: corev1.EventSource{Component: "sluice-driver", Host: node}, Count: 1,
		FirstTimestamp: metav1.NewTime(now), LastTimestamp: metav1.NewTime(now),
		ReportingController: "gpu.sluice.dev/driver", ReportingInstance: node,
	}
}
