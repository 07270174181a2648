package apply

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/render"
)

// overrides are the hub's override policies.
type overrides struct {
	index  *render.Overrides
	synced []toolscache.InformerSynced

	mu          sync.RWMutex
	subscribers []func(before, after *policyv1alpha1.OverridePolicy)
}

// asOverride is an object of the hub as an override policy; nil for any other object.
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
		o.index.Delete(client.ObjectKeyFromObject(was))
	} else {
		o.index.Set(is)
	}
	o.mu.RLock()
	subscribers := o.subscribers
	o.mu.RUnlock()
	for _, f := range subscribers {
		f(was, is)
	}
}

// Overrides are the override policies that select a template, in the order in which they are
// applied.
func (a *Applier) Overrides(o *unstructured.Unstructured) []records.Policy {
	var found []records.Policy
	for _, v := range a.overrides.index.Of(o) {
		p := v.Policy
		kind := "OverridePolicy"
		if p.Namespace == "" {
			kind = "ClusterOverridePolicy"
		}
		found = append(found, records.Policy{Kind: kind, Namespace: p.Namespace, Name: p.Name, Generation: p.Generation})
	}
	return found
}
