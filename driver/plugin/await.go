package plugin

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/state"
)

// A claim whose backend has to start something first is prepared in two rounds,
// so that it holds neither the checkpoint nor the plugin helper's lock while it
// waits: the first starts it and is refused, the second is the kubelet's call
// once more.

// waits are what the claims of a call have to wait for.
type waits map[types.UID]*enforce.NotReady

type waitsKey struct{}

// awaited notes a claim that the call will be made for once more. It is false
// for other refusals and where nobody waits.
func awaited(ctx context.Context, claim types.UID, refusal error) bool {
	var what *enforce.NotReady
	w, ok := ctx.Value(waitsKey{}).(waits)
	if !ok || !errors.As(refusal, &what) {
		return false
	}
	w[claim] = what
	return true
}

// await is around the helper's part of a call, and outside of its lock.
func (d *Driver) await(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if _, ok := req.(*drapb.NodePrepareResourcesRequest); !ok {
		return next(ctx, req)
	}
	w := waits{}
	answer, err := next(context.WithValue(ctx, waitsKey{}, w), req)
	if err != nil || len(w) == 0 {
		return answer, err
	}
	refused := map[types.UID]error{}
	for claim, what := range w {
		if err := what.Wait(ctx); err != nil {
			refused[claim] = err
		}
	}
	if len(refused) == 0 {
		answer, err = next(ctx, req)
	}
	resp, ok := answer.(*drapb.NodePrepareResourcesResponse)
	if !ok {
		return answer, err
	}
	failed := false
	for claim := range w {
		r := resp.Claims[string(claim)]
		if r == nil {
			continue
		}
		if why := refused[claim]; why != nil {
			r.Error = why.Error()
			klog.FromContext(ctx).Error(why, "Claim refused", "uid", claim)
		}
		failed = failed || r.Error != ""
	}
	if failed { // what was started for it may have nobody now
		err := d.store.Update(func(cp *state.Checkpoint) error {
			d.settleBackends(ctx, cp)
			return nil
		})
		if err != nil {
			klog.FromContext(ctx).Error(err, "What was started for a claim that is refused may still be there")
		}
	}
	return answer, err
}
