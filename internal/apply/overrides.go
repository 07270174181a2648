package apply

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/render"
)

// retirement is how long a deleted override policy still counts. What is deleted together with
// it, its objects or the policy that places them, is known by then. So an object that is to
// stay as it is does not lose its override first.
const retirement = 2 * time.Second

// overrides are the override policies of the hub.
type overrides struct {
	index  *render.Overrides
	synced []toolscache.InformerSynced

	mu          sync.RWMutex
	subscribers []func(before, after *policyv1alpha1.OverridePolicy)
	// retiring reports whether a deleted override policy still has to count; nil: none has.
	retiring func(v *render.Override) bool
}

// asOverride returns an object of the hub as an override policy; nil for any other object.
func asOverride(o any) *policyv1alpha1.OverridePolicy {
	if p, ok := o.(interface {
		Override() *policyv1alpha1.OverridePolicy
	}); ok {
		return p.Override()
	}
	return nil
}

func newOverrides(ctx context.Context, informers cache.Informers) (*overrides, error) {
	o := &overrides{index: render.NewOverrides()}
	for _, kind := range []client.Object{&policyv1alpha1.OverridePolicy{}, &policyv1alpha1.ClusterOverridePolicy{}} {
		synced, err := binding.Watch(ctx, informers, kind, asOverride, o.changed)
		if err != nil {
			return nil, err
		}
		o.synced = append(o.synced, synced)
	}
	return o, nil
}

func (o *overrides) subscribe(f func(before, after *policyv1alpha1.OverridePolicy)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.subscribers = append(o.subscribers, f)
}

func (o *overrides) changed(was, is *policyv1alpha1.OverridePolicy) {
	if was != nil && is != nil && was.UID == is.UID && was.Generation == is.Generation {
		return
	}
	if is == nil {
		if v := o.index.Get(client.ObjectKeyFromObject(was)); v != nil {
			time.AfterFunc(retirement, func() { o.retire(v) })
		}
		return
	}
	if retiring := o.index.Get(client.ObjectKeyFromObject(is)); was == nil && retiring != nil {
		was = retiring.Policy // it was deleted just now, and still counts
	}
	o.index.Set(is)
	o.tell(was, is)
}

// retire removes a deleted override policy as soon as nothing is left for which it has to
// count.
func (o *overrides) retire(v *render.Override) {
	if o.index.Get(client.ObjectKeyFromObject(v.Policy)) != v {
		return // a new policy has its name
	}
	if o.retiring != nil && o.retiring(v) {
		time.AfterFunc(retirement, func() { o.retire(v) })
		return
	}
	if o.index.Delete(v) {
		o.tell(v.Policy, nil)
	}
}

func (o *overrides) tell(was, is *policyv1alpha1.OverridePolicy) {
	o.mu.RLock()
	subscribers := o.subscribers
	o.mu.RUnlock()
	for _, f := range subscribers {
		f(was, is)
	}
}

// of returns the override policies that select a template, nil if there is none, and those of
// the needed ones that do not exist.
func (o *overrides) of(source *unstructured.Unstructured, needed []types.NamespacedName) (selecting []*render.Override, missing []types.NamespacedName) {
	if source == nil {
		source = &unstructured.Unstructured{}
	}
	return o.index.With(source, needed)
}

// overrideKind returns the kind of an override policy.
func overrideKind(namespace string) string {
	if namespace == "" {
		return "ClusterOverridePolicy"
	}
	return "OverridePolicy"
}

// touched calls f once with each binding that needs one of some override policies, or whose
// template one of them selects. It checks only templates that the selectors can match.
func (a *Applier) touched(either []*render.Override, f func(*workv1alpha2.ResourceBinding)) {
	seen := sets.New[types.UID]()
	for _, v := range either {
		name := client.ObjectKeyFromObject(v.Policy)
		for _, b := range a.bindings.Needing(name) {
			if !seen.Has(b.UID) {
				seen.Insert(b.UID)
				f(b)
			}
		}
		for b := range a.candidates(v.Policy) {
			if seen.Has(b.UID) {
				continue
			}
			a.looked.Add(1)
			if o, state := a.template(b); state == presence.Present && v.Selects(o) {
				seen.Insert(b.UID)
				f(b)
			}
		}
	}
}

// candidates yields the bindings whose templates the selectors of an override policy can match.
// A binding may come more than once.
func (a *Applier) candidates(p *policyv1alpha1.OverridePolicy) iter.Seq[*workv1alpha2.ResourceBinding] {
	return func(yield func(*workv1alpha2.ResourceBinding) bool) {
		selectors := p.Spec.ResourceSelectors
		if len(selectors) == 0 {
			selectors = []policyv1alpha1.ResourceSelector{{}} // everything in its scope
		}
		for _, s := range selectors {
			kind := schema.FromAPIVersionAndKind(s.APIVersion, s.Kind).GroupKind()
			namespace := cmp.Or(p.Namespace, s.Namespace)
			if s.Name != "" && namespace != "" {
				if b, _ := a.bindings.Of(binding.Template{GroupKind: kind, Namespace: namespace, Name: s.Name}); b != nil && !yield(b) {
					return
				}
				continue
			}
			for _, b := range a.bindings.Within(kind, namespace) {
				if (s.Name == "" || s.Name == b.Spec.Resource.Name) && !yield(b) {
					return
				}
			}
		}
	}
}

// stillCounts reports whether a deleted override policy changes objects whose placing policy is
// deleted as well, while placement has not yet decided that those objects stay as they are.
func (a *Applier) stillCounts(v *render.Override) bool {
	a.mu.RLock()
	ctx := a.ctx
	a.mu.RUnlock()
	if ctx == nil || ctx.Err() != nil {
		return false
	}
	counts := false
	name := client.ObjectKeyFromObject(v.Policy)
	a.touched([]*render.Override{v}, func(b *workv1alpha2.ResourceBinding) {
		if counts || slices.Contains(binding.NeededOverrides(b), name) || !b.DeletionTimestamp.IsZero() {
			return
		}
		var p client.Object = &policyv1alpha1.ClusterPropagationPolicy{}
		key := client.ObjectKey{Name: b.Spec.PolicyRef.Name}
		if b.Spec.PolicyRef.Kind != policy.Kind("") {
			p, key.Namespace = &policyv1alpha1.PropagationPolicy{}, b.Namespace
		}
		counts = apierrors.IsNotFound(a.hub.Get(ctx, key, p))
	})
	return counts
}

// Overrides returns the override policies that select a template, in the order in which they
// are applied.
func (a *Applier) Overrides(o *unstructured.Unstructured) []records.Policy {
	var found []records.Policy
	for _, v := range a.overrides.index.Of(o) {
		p := v.Policy
		found = append(found, records.Policy{Kind: overrideKind(p.Namespace), Namespace: p.Namespace, Name: p.Name, Generation: p.Generation})
	}
	return found
}
