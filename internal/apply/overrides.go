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

// overrides are the hub's override policies by namespace; cluster-wide ones have none.
type overrides struct {
	synced []toolscache.InformerSynced

	mu          sync.RWMutex
	all         map[string]map[string]*policyv1alpha1.OverridePolicy
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
	o := &overrides{all: map[string]map[string]*policyv1alpha1.OverridePolicy{}}
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
	o.mu.Lock()
	if is == nil {
		delete(o.all[was.Namespace], was.Name)
	} else {
		if o.all[is.Namespace] == nil {
			o.all[is.Namespace] = map[string]*policyv1alpha1.OverridePolicy{}
		}
		o.all[is.Namespace][is.Name] = is
	}
	subscribers := o.subscribers
	o.mu.Unlock()
	for _, f := range subscribers {
		f(was, is)
	}
}

// in returns the policies that may select objects of a namespace: its own and the
// cluster-wide ones, in no order.
func (o *overrides) in(namespace string) []*policyv1alpha1.OverridePolicy {
	o.mu.RLock()
	defer o.mu.RUnlock()
	var found []*policyv1alpha1.OverridePolicy
	for _, p := range o.all[""] {
		found = append(found, p)
	}
	if namespace != "" {
		for _, p := range o.all[namespace] {
			found = append(found, p)
		}
	}
	return found
}

// Overrides are the override policies that select a template, in the order in which they are
// applied.
func (a *Applier) Overrides(o *unstructured.Unstructured) []records.Policy {
	var found []records.Policy
	for _, p := range render.Overrides(a.overrides.in(o.GetNamespace()), o) {
		kind := "OverridePolicy"
		if p.Namespace == "" {
			kind = "ClusterOverridePolicy"
		}
		found = append(found, records.Policy{Kind: kind, Namespace: p.Namespace, Name: p.Name, Generation: p.Generation})
	}
	return found
}
