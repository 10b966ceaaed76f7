package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pollInterval is how often a wait looks again.
const pollInterval = 200 * time.Millisecond

// Patience is how long a wait for the cluster goes on. One that ends when the condition holds costs
// nothing where all is well.
const Patience = 3 * time.Minute

// Share is one device, or part of one, that a claim was given.
type Share struct {
	Claim, Node, Device, ShareID string
	// Memory and Cores are the consumed capacity as quantities; empty for an exclusive device.
	Memory, Cores string
}

// Until calls check until it returns true or ctx ends; the error then carries the last reason.
func Until(ctx context.Context, what string, check func() (done bool, reason string, err error)) error {
	for {
		done, reason, err := check()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: gave up waiting: %s", what, reason)
		case <-time.After(pollInterval):
		}
	}
}

// WaitPhase waits until the pod has the phase. A pod that has ended in another phase is an error
// at once, with its log.
func (b *Testbed) WaitPhase(ctx context.Context, namespace, name string, phase corev1.PodPhase) (*corev1.Pod, error) {
	var pod *corev1.Pod
	err := Until(ctx, fmt.Sprintf("pod %s/%s to be %s", namespace, name, phase), func() (bool, string, error) {
		var err error
		pod, err = b.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, "no such pod yet", nil
		}
		if err != nil {
			return false, "", err
		}
		ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
		if ended && pod.Status.Phase != phase {
			log, _ := b.Log(ctx, namespace, name, pod.Spec.Containers[0].Name)
			return false, "", fmt.Errorf("it is %s: %s\n%s", pod.Status.Phase, pod.Status.Message, log)
		}
		return pod.Status.Phase == phase, b.explain(ctx, pod), nil
	})
	return pod, err
}

// WaitUnschedulable waits until the scheduler has said of the pod that it fits nowhere, and
// returns the scheduler's words.
func (b *Testbed) WaitUnschedulable(ctx context.Context, namespace, name string) (message string, err error) {
	err = Until(ctx, fmt.Sprintf("pod %s/%s to be unschedulable", namespace, name), func() (bool, string, error) {
		pod, err := b.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		if pod.Spec.NodeName != "" {
			return false, "", fmt.Errorf("it was placed on %s", pod.Spec.NodeName)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				message = c.Message
				return true, "", nil
			}
		}
		return false, b.explain(ctx, pod), nil
	})
	return message, err
}

// explain says why a pod is where it is: its conditions, waiting containers and latest events.
func (b *Testbed) explain(ctx context.Context, pod *corev1.Pod) string {
	words := []string{"phase " + string(pod.Status.Phase)}
	for _, c := range pod.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			words = append(words, c.Message)
		}
	}
	for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if s.State.Waiting != nil {
			words = append(words, s.Name+" waits: "+s.State.Waiting.Reason+" "+s.State.Waiting.Message)
		}
	}
	if events, err := b.Events(ctx, pod.Namespace, pod.Name); err == nil && len(events) > 0 {
		words = append(words, "last event: "+events[len(events)-1])
	}
	return strings.Join(words, "; ")
}

// Events returns the messages of the events on an object of the namespace, oldest first.
func (b *Testbed) Events(ctx context.Context, namespace, name string) ([]string, error) {
	list, err := b.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	if err != nil {
		return nil, err
	}
	sort.SliceStable(list.Items, func(i, j int) bool {
		return list.Items[i].ResourceVersion < list.Items[j].ResourceVersion
	})
	var messages []string
	for _, e := range list.Items {
		messages = append(messages, e.Reason+": "+e.Message)
	}
	return messages, nil
}

// Log returns what the container has printed so far.
func (b *Testbed) Log(ctx context.Context, namespace, pod, container string) (string, error) {
	stream, err := b.Client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container}).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	text, err := io.ReadAll(stream)
	return string(text), err
}

// Shares returns what the pod's claims were given, in the order of the pod's claims, the one made
// for extended resources last.
func (b *Testbed) Shares(ctx context.Context, namespace, name string) ([]Share, error) {
	pod, err := b.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var claims []string
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.ResourceClaimName != nil {
			claims = append(claims, *status.ResourceClaimName)
		}
	}
	for _, claim := range pod.Spec.ResourceClaims {
		if claim.ResourceClaimName != nil {
			claims = append(claims, *claim.ResourceClaimName)
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		claims = append(claims, status.ResourceClaimName)
	}
	var shares []Share
	for _, claim := range claims {
		object, err := b.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		shares = append(shares, SharesOf(object)...)
	}
	return shares, nil
}

// SharesOf reads what an allocated claim was given; none for a claim that has no allocation.
func SharesOf(claim *resourcev1.ResourceClaim) []Share {
	if claim.Status.Allocation == nil {
		return nil
	}
	var shares []Share
	for _, result := range claim.Status.Allocation.Devices.Results {
		share := Share{Claim: claim.Name, Node: result.Pool, Device: result.Device}
		if result.ShareID != nil {
			share.ShareID = string(*result.ShareID)
		}
		if memory, ok := result.ConsumedCapacity["memory"]; ok {
			share.Memory = memory.String()
		}
		if cores, ok := result.ConsumedCapacity["cores"]; ok {
			share.Cores = cores.String()
		}
		shares = append(shares, share)
	}
	return shares
}

// goneWithin bounds how long pods and allocations may take to go, and goneByHand how long
// an allocation may outlive the pods: those that a test wrote itself end with nobody's pod.
const (
	goneWithin = 3 * time.Minute
	goneByHand = 20 * time.Second
)

// DeletePods deletes the pods of a namespace and waits until they are gone and their claims with
// them, so that the devices are free for what comes next. Claims that are still allocated a while
// after the last pod has gone are taken their allocation, since nobody else would.
func (b *Testbed) DeletePods(ctx context.Context, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	err := b.Client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var alone time.Time // since when there are claims and no pods
	return Until(ctx, "pods and claims of "+namespace+" to be gone", func() (bool, string, error) {
		pods, podErr := b.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		claims, claimErr := b.Client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
		if err := errors.Join(podErr, claimErr); err != nil {
			return false, "", err
		}
		var allocated []string
		for i := range claims.Items {
			if claims.Items[i].Status.Allocation != nil {
				allocated = append(allocated, claims.Items[i].Name)
			}
		}
		reason := fmt.Sprintf("%d pods, allocated claims %v", len(pods.Items), allocated)
		if len(pods.Items) > 0 || len(allocated) == 0 {
			alone = time.Time{}
			return len(pods.Items) == 0 && len(allocated) == 0, reason, nil
		}
		if alone.IsZero() {
			alone = time.Now()
		}
		if time.Since(alone) < goneByHand {
			return false, reason, nil
		}
		for i := range claims.Items {
			if claims.Items[i].Status.Allocation == nil {
				continue
			}
			claims.Items[i].Status = resourcev1.ResourceClaimStatus{}
			_, err := b.Client.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, &claims.Items[i], metav1.UpdateOptions{})
			if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return false, "", err
			}
		}
		return false, reason, nil
	})
}
