package monitor

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const (
	// askAgain is the time between two questions for the same claim while a
	// process of an unknown pod runs; refresh without such a reason.
	askAgain = 2 * time.Second
	refresh  = 5 * time.Minute
)

// users knows which pods use a claim. It asks the API server, one claim after
// another and away from the loop that looks at the cards.
type users struct {
	client kubernetes.Interface

	mu     sync.Mutex
	claims map[types.UID]*claimUsers
	wake   chan struct{}
}

type claimUsers struct {
	name   types.NamespacedName
	pods   []Pod
	asked  time.Time
	wanted bool
}

func newUsers(client kubernetes.Interface) *users {
	return &users{client: client, claims: map[types.UID]*claimUsers{}, wake: make(chan struct{}, 1)}
}

// of returns the known pods of the claims. Claims that are not among them are
// forgotten; new ones are asked for.
func (u *users) of(shares []Share) map[types.UID][]Pod {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := map[types.UID][]Pod{}
	now := time.Now()
	next := map[types.UID]*claimUsers{}
	for _, s := range shares {
		c, ok := u.claims[s.ClaimUID]
		if !ok {
			c = &claimUsers{name: s.Claim}
		}
		c.wanted = c.wanted || now.Sub(c.asked) > refresh
		next[s.ClaimUID] = c
		out[s.ClaimUID] = c.pods
	}
	u.claims = next
	u.nudge()
	return out
}

// stranger says that a process runs that no known pod accounts for: a pod may
// have begun to use any claim of the card.
func (u *users) stranger(claims []types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, uid := range claims {
		if c, ok := u.claims[uid]; ok && time.Since(c.asked) > askAgain {
			c.wanted = true
		}
	}
	u.nudge()
}

func (u *users) nudge() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// run asks until ctx ends.
func (u *users) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
		}
		for uid, name := range u.wantedNow() {
			pods, err := u.ask(ctx, uid, name)
			if err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(4).Info("The pods of a claim cannot be read", "claim", name, "err", err)
			}
			u.mu.Lock()
			if c, ok := u.claims[uid]; ok && err == nil {
				c.pods = pods
			}
			u.mu.Unlock()
		}
	}
}

func (u *users) wantedNow() map[types.UID]types.NamespacedName {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := map[types.UID]types.NamespacedName{}
	for uid, c := range u.claims {
		if c.wanted {
			c.wanted, c.asked = false, time.Now()
			out[uid] = c.name
		}
	}
	return out
}

func (u *users) ask(ctx context.Context, uid types.UID, name types.NamespacedName) ([]Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	claim, err := u.client.ResourceV1().ResourceClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || (err == nil && claim.UID != uid) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pods []Pod
	for _, r := range claim.Status.ReservedFor {
		if r.APIGroup == "" && r.Resource == "pods" {
			pods = append(pods, Pod{UID: r.UID, Name: r.Name})
		}
	}
	return pods, nil
}
