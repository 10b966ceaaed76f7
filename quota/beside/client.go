package beside

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// NewClient is a client that reads Workloads open and writes them sealed.
func NewClient(c client.Client) client.Client { return &sealing{c} }

type sealing struct{ client.Client }

// NewReader is a reader that reads Workloads open.
func NewReader(r client.Reader) client.Reader { return &opening{r} }

type opening struct{ client.Reader }

// Get implements client.Reader.
func (o *opening) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return opened(o.Reader.Get(ctx, key, obj, opts...), obj)
}

// List implements client.Reader.
func (o *opening) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return openedList(o.Reader.List(ctx, list, opts...), list)
}

// Get implements client.Reader.
func (s *sealing) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return opened(s.Client.Get(ctx, key, obj, opts...), obj)
}

// List implements client.Reader.
func (s *sealing) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return openedList(s.Client.List(ctx, list, opts...), list)
}

// Create implements client.Writer.
func (s *sealing) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	return sealed(obj, func(o client.Object) error { return s.Client.Create(ctx, o, opts...) })
}

// Update implements client.Writer.
func (s *sealing) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	return sealed(obj, func(o client.Object) error { return s.Client.Update(ctx, o, opts...) })
}

// Status implements client.StatusClient.
func (s *sealing) Status() client.SubResourceWriter { return &sealingStatus{s.Client.Status()} }

type sealingStatus struct{ client.SubResourceWriter }

// Update implements client.SubResourceWriter.
func (s *sealingStatus) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	return sealed(obj, func(o client.Object) error { return s.SubResourceWriter.Update(ctx, o, opts...) })
}

func opened(err error, obj client.Object) error {
	if wl, ok := obj.(*kueue.Workload); ok && err == nil {
		return Open(wl)
	}
	return err
}

func openedList(err error, list client.ObjectList) error {
	if all, ok := list.(*kueue.WorkloadList); ok && err == nil {
		for i := range all.Items {
			if err := Open(&all.Items[i]); err != nil {
				return err
			}
		}
	}
	return err
}

// sealed writes an object, sealed if it is a Workload, and makes it what came
// back.
func sealed(obj client.Object, write func(client.Object) error) error {
	wl, ok := obj.(*kueue.Workload)
	if !ok {
		return write(obj)
	}
	out := wl.DeepCopy()
	if err := Seal(out); err != nil {
		return err
	}
	if err := write(out); err != nil {
		return err
	}
	out.DeepCopyInto(wl)
	return Open(wl)
}
