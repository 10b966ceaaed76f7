package plugin

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/driver/slicing"
)

// planFor applies the newest configuration that makes sense. What is prepared
// is not touched by it: a share is what the checkpoint says it was given.
//
// A Misfit comes with a plan. It means that the configuration in use stopped to
// fit, because cards or labels changed.
func (d *Driver) planFor(ctx context.Context, gpus []gpu.GPU, labels map[string]string) (*slicing.Plan, error) {
	if d.cfg.File != nil {
		next, err := d.cfg.File.Changed()
		switch {
		case next != nil:
			d.pending = next
		case err != nil:
			d.pending = nil
			d.refuse(ctx, err)
		}
	}
	if d.pending != nil {
		plan, err := slicing.Make(gpus, labels, d.pending)
		if err == nil {
			d.configuration, d.pending, d.refused = d.pending, nil, ""
			d.metrics.configurationRefused(false)
			klog.FromContext(ctx).Info("The configuration was read anew", "file", d.cfg.File.Name, "nodeGroups", len(d.configuration.NodeGroups))
			d.event(ctx, corev1.EventTypeNormal, "ConfigurationRead", "the driver cuts the node's cards by the configuration as it was changed")
			return plan, nil
		}
		d.refuse(ctx, explained(d.pending, err))
	}
	plan, err := slicing.Make(gpus, labels, d.configuration)
	err = explained(d.configuration, err)
	switch {
	case err == nil:
		d.misfit = ""
	case d.plan() != nil && err.Error() != d.misfit:
		d.misfit = err.Error()
		d.event(ctx, corev1.EventTypeWarning, configurationRefused, d.misfit+"; nothing new is placed on such cards")
	}
	return plan, err
}

// refuse says once that the last good configuration stays in use.
func (d *Driver) refuse(ctx context.Context, err error) {
	d.metrics.configurationRefused(true)
	if err.Error() == d.refused {
		return
	}
	d.refused = err.Error()
	klog.FromContext(ctx).Error(err, "The configuration was changed and cannot be used; the last good one stays")
	d.event(ctx, corev1.EventTypeWarning, configurationRefused, err.Error()+"; the last good configuration stays in use")
}

// explained adds where in the file a misfit comes from.
func explained(c *config.DriverConfiguration, err error) error {
	var misfit slicing.Misfit
	if !errors.As(err, &misfit) {
		return err
	}
	group, field := misfit.Where()
	return c.Wrong(group, field, err)
}

const configurationRefused = "ConfigurationRefused"

// ReportConfiguration tells those who look at a node that its driver does not
// start, and why. uid is the node's, if it is known.
func ReportConfiguration(ctx context.Context, client kubernetes.Interface, node string, uid types.UID, err error) {
	if err := nodeEvent(ctx, client, node, uid, corev1.EventTypeWarning, configurationRefused, err.Error()+"; the driver does not start"); err != nil {
		klog.FromContext(ctx).Error(err, "An event was not written", "node", node)
	}
}

// event is about this node. It does not wait for the API server.
func (d *Driver) event(ctx context.Context, kind, reason, message string) {
	uid := d.node.uid()
	go func() {
		if err := nodeEvent(ctx, d.cfg.KubeClient, d.cfg.NodeName, uid, kind, reason, message); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "An event was not written", "node", d.cfg.NodeName, "reason", reason)
		}
	}()
}

// maxMessage is the most that an event's message has (events.k8s.io).
const maxMessage = 1024

func nodeEvent(ctx context.Context, client kubernetes.Interface, node string, uid types.UID, kind, reason, message string) error {
	if uid == "" {
		uid = types.UID(node) // as the kubelet does
	}
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "")
	}
	now := metav1.Now()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: node + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: uid},
		Type:           kind, Reason: reason, Message: message,
		Source: corev1.EventSource{Component: "sluice-driver", Host: node}, Count: 1,
		FirstTimestamp: now, LastTimestamp: now,
		ReportingController: driver.Name + "/driver", ReportingInstance: node,
	}, metav1.CreateOptions{})
	return err
}
