package sanity

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// suite is a driver under test and what all checks share.
type suite struct {
	d      *Driver
	client kubernetes.Interface
	node   *corev1.Node
	class  *resourceapi.DeviceClass
	// namespace holds the suite's claims and pods.
	namespace string
	proc      *process // nil: not ours
	plugin    *plugin  // nil: not connected

	made []func(context.Context) error // undone at the end
}

func newSuite(ctx context.Context, d Driver) (_ *suite, err error) {
	config := rest.CopyConfig(d.API)
	config.QPS, config.Burst = 500, 1000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	s := &suite{d: &d, client: client}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := s.makeObjects(ctx); err != nil {
		return nil, fmt.Errorf("objects of the suite: %w", err)
	}
	if len(d.Command) > 0 {
		s.proc = s.newProcess()
		if err := s.proc.start(); err != nil {
			return nil, err
		}
	}
	// A driver that is not there would fail each check alike.
	if err := s.ready(ctx); err != nil {
		return nil, fmt.Errorf("the driver cannot be called:\n%w", err)
	}
	return s, nil
}

func (s *suite) makeObjects(ctx context.Context) error {
	nodes := s.client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, s.d.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		node, err = nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: s.d.NodeName, Labels: map[string]string{corev1.LabelHostname: s.d.NodeName},
		}}, metav1.CreateOptions{})
		s.undo(func(ctx context.Context) error { return nodes.Delete(ctx, s.d.NodeName, metav1.DeleteOptions{}) })
	}
	if err != nil {
		return err
	}
	s.node = node
	namespaces := s.client.CoreV1().Namespaces()
	ns, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "sanity-", Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	s.namespace = ns.Name
	s.undo(func(ctx context.Context) error { return namespaces.Delete(ctx, s.namespace, metav1.DeleteOptions{}) })
	classes := s.client.ResourceV1().DeviceClasses()
	if s.d.DeviceClass != "" {
		s.class, err = classes.Get(ctx, s.d.DeviceClass, metav1.GetOptions{})
		return err
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "sanity-"}}
	for _, expression := range append([]string{fmt.Sprintf("device.driver == %q", s.d.Name)}, s.d.Selectors...) {
		class.Spec.Selectors = append(class.Spec.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	if s.class, err = classes.Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	s.undo(func(ctx context.Context) error { return classes.Delete(ctx, s.class.Name, metav1.DeleteOptions{}) })
	return nil
}

// newProcess is a further instance of the driver, not started yet.
func (s *suite) newProcess() *process {
	return &process{argv: s.d.Command, env: s.d.Env, output: s.d.Output, podUIDs: s.d.Overlap}
}

func (s *suite) undo(f func(context.Context) error) { s.made = append(s.made, f) }

// close stops the driver and removes what the suite made. What is left after
// a failure does not matter to anybody: names are made up anew each time.
func (s *suite) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s.plugin.close()
	if s.proc != nil {
		_ = s.proc.stop(s.d.Patience)
		s.undo(func(ctx context.Context) error {
			return s.client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{},
				metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + s.d.Name + "," + resourceapi.ResourceSliceSelectorNodeName + "=" + s.d.NodeName})
		})
	}
	for i := len(s.made) - 1; i >= 0; i-- {
		_ = s.made[i](ctx)
	}
}

// ready waits until the plugin can be called. A check may have left the driver
// stopped or killed.
func (s *suite) ready(ctx context.Context) error {
	if s.proc != nil && s.proc.ended() != nil {
		s.disconnect()
		if err := s.proc.start(); err != nil {
			return err
		}
	}
	if s.plugin != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.d.Patience)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		if s.proc != nil {
			if err := s.proc.ended(); err != nil {
				return violated("to start and to register", "%v", err)
			}
		}
		p, err := find(ctx, s.d)
		if err == nil {
			s.plugin = p
			return nil
		}
		last = err
		pause(ctx, 50*time.Millisecond)
	}
	return violated(fmt.Sprintf("a registration socket with a DRA plugin %q within %s", s.d.Name, s.d.Patience), "%v", last)
}

// disconnect forgets the plugin, as a kubelet does that ends or that sees the
// driver end.
func (s *suite) disconnect() {
	s.plugin.close()
	s.plugin = nil
}

// restart ends the driver by stop and waits until its next instance can be
// called.
func (s *suite) restart(ctx context.Context, stop func() error) error {
	if err := stop(); err != nil {
		return err
	}
	return s.ready(ctx)
}

func (s *suite) terminate() error { return s.proc.stop(s.d.Patience) }

func (s *suite) crash() error {
	s.proc.kill()
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// eventually calls f until it returns nil; the error is f's last one.
func eventually(ctx context.Context, within time.Duration, f func() error) error {
	for end := time.Now().Add(within); ; {
		err := f()
		if err == nil || time.Now().After(end) || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		pause(ctx, 100*time.Millisecond)
	}
}
