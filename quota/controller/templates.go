package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sluice-gpu/sluice/quota/hami"
)

const (
	// MadeForLabel marks the claim templates that stand for limits of pods.
	MadeForLabel = "quota.sluice.dev/made-for"
	// madeForLimits is its value.
	madeForLimits = "limits"
	// usedAnnotation says when a template was last put into a pod.
	usedAnnotation = "quota.sluice.dev/last-used"
	// keepUnused is how long a template is kept that no pod names: longer than
	// anybody takes to make a pod that was told of it.
	keepUnused = time.Hour
	// sweepEvery is how often unused ones are looked for.
	sweepEvery = 10 * time.Minute
	// otherNames is how many names are tried where the first is taken by a
	// template of other content.
	otherNames = 8
)

// templates keeps the ResourceClaimTemplates that limits of pods become. One
// content has one name in a namespace, so all pods that ask for the same share
// it. Who may make templates may also take such a name: a template counts only
// if its content is the right one.
type templates struct {
	*core
	client client.Client
	live   client.Reader
}

// Cards are the memory sizes of the cards that there are, in bytes.
func (c *Controller) Cards() []int64 {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	return c.core.cards()
}

// Template returns the name of a ResourceClaimTemplate of exactly this content,
// which is made if there is none, unless dry says that nothing may be written.
func (c *Controller) Template(ctx context.Context, namespace string, spec *resourceapi.ResourceClaimSpec, dry bool) (string, error) {
	return c.templates.ensure(ctx, namespace, spec, dry)
}

func (t *templates) ensure(ctx context.Context, namespace string, spec *resourceapi.ResourceClaimSpec, dry bool) (string, error) {
	want := resourceapi.ResourceClaimTemplateSpec{Spec: *spec}
	base := hami.TemplateName(spec)
	for i := range otherNames {
		key := types.NamespacedName{Namespace: namespace, Name: base}
		if i > 0 {
			key.Name = fmt.Sprintf("%s-%d", base, i)
		}
		if known := t.known(key); known != nil && t.fresh(known) && equality.Semantic.DeepEqual(known.Spec, want) {
			return key.Name, nil
		}
		if dry {
			return key.Name, nil
		}
		made := &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: key.Name,
				Labels:      map[string]string{MadeForLabel: madeForLimits},
				Annotations: map[string]string{usedAnnotation: t.now().UTC().Format(time.RFC3339)},
			},
			Spec: want,
		}
		err := t.client.Create(ctx, made, client.FieldOwner(FieldOwner))
		if err == nil {
			t.saw(made)
			return key.Name, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("claim template %s: %w", key.Name, err)
		}
		now := &resourceapi.ResourceClaimTemplate{}
		if err := t.live.Get(ctx, key, now); err != nil {
			return "", fmt.Errorf("claim template %s: %w", key.Name, err)
		}
		if !equality.Semantic.DeepEqual(now.Spec, want) || now.DeletionTimestamp != nil {
			continue
		}
		if t.fresh(now) {
			return key.Name, nil
		}
		used := now.DeepCopy()
		metav1.SetMetaDataAnnotation(&used.ObjectMeta, usedAnnotation, t.now().UTC().Format(time.RFC3339))
		// On the version that was seen: who deletes it, as unused, does so too.
		if err := t.client.Patch(ctx, used, client.MergeFromWithOptions(now, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner)); err != nil {
			return "", fmt.Errorf("claim template %s: %w", key.Name, err)
		}
		t.saw(used)
		return key.Name, nil
	}
	return "", fmt.Errorf("the names %s to %s-%d are taken by other claim templates: delete them", base, base, otherNames-1)
}

func (t *templates) known(key types.NamespacedName) *resourceapi.ResourceClaimTemplate {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.core.templates[key]
}

// fresh says whether a template will not be deleted as unused for long enough.
// Those that somebody else made are never deleted here.
func (t *templates) fresh(x *resourceapi.ResourceClaimTemplate) bool {
	if x.DeletionTimestamp != nil {
		return false
	}
	return x.Labels[MadeForLabel] != madeForLimits || t.unused(x) < keepUnused/2
}

// unused is for how long a template was not put into a pod.
func (t *templates) unused(x *resourceapi.ResourceClaimTemplate) time.Duration {
	at, err := time.Parse(time.RFC3339, x.Annotations[usedAnnotation])
	if err != nil {
		at = x.CreationTimestamp.Time
	}
	return t.now().Sub(at)
}

// Start implements manager.Runnable: it deletes what is not used any more, in
// the replica that leads.
func (t *templates) Start(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := t.sweep(ctx); err != nil {
			log.FromContext(ctx).Error(err, "claim templates that are not used any more stay")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// sweep deletes the templates of pods' limits that no pod names and that were
// not put into one for a while.
func (t *templates) sweep(ctx context.Context) error {
	var old []*resourceapi.ResourceClaimTemplate
	t.mu.Lock()
	for _, x := range t.core.templates {
		if x.Labels[MadeForLabel] == madeForLimits && x.DeletionTimestamp == nil && t.unused(x) > keepUnused {
			old = append(old, x)
		}
	}
	t.mu.Unlock()
	named := map[string]map[string]bool{}
	for _, x := range old {
		if named[x.Namespace] == nil {
			names, err := t.namedIn(ctx, x.Namespace)
			if err != nil {
				return err
			}
			named[x.Namespace] = names
		}
		if named[x.Namespace][x.Name] {
			continue
		}
		same := client.Preconditions{UID: &x.UID, ResourceVersion: &x.ResourceVersion}
		if err := t.client.Delete(ctx, x.DeepCopy(), same); client.IgnoreNotFound(ignoreConflict(err)) != nil {
			return err
		}
	}
	return nil
}

func (t *templates) namedIn(ctx context.Context, namespace string) (map[string]bool, error) {
	var pods corev1.PodList
	if err := t.client.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for i := range pods.Items {
		for _, ref := range pods.Items[i].Spec.ResourceClaims {
			if ref.ResourceClaimTemplateName != nil {
				names[*ref.ResourceClaimTemplateName] = true
			}
		}
	}
	return names, nil
}
