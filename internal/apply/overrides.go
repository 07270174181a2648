package apply

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"sync"
	"time"

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
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/render"
)

// retirement is how long a deleted override policy is still applied. If the policy that places its
// objects, or the objects, were deleted together with it, that is known by then. So an object that
// is to stay as it is does not lose its override first.
const retirement = 2 * time.Second

// overrides holds the override policies of the hub, also deleted ones during their retirement. The
// methods may be called by several goroutines.
type overrides struct {
	index  *render.Overrides
	synced []toolscache.InformerSynced

	mu          sync.RWMutex
	subscribers []func(before, after *policyv1alpha1.OverridePolicy)
	// retiring reports whether a deleted override policy must still be applied after its retirement;
	// nil: none must.
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

// newOverrides returns the override policies of both scopes, which follow the informers once these
// run.
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

// changed updates the index after an event, and notifies the subscribers. was is nil for a new
// policy, and is for a deleted one. A deleted policy stays in the index until retire removes it. A
// policy whose spec did not change is ignored.
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
		was = retiring.Policy // a policy of this name was deleted just now, and is still applied
	}
	o.index.Set(is)
	o.tell(was, is)
}

// retire removes a deleted override policy and notifies the subscribers. If o.retiring reports that
// the policy must still be applied, retire is called again after another retirement. It does
// nothing if a new policy has the name.
func (o *overrides) retire(v *render.Override) {
	if o.index.Get(client.ObjectKeyFromObject(v.Policy)) != v {
		return // a new policy has the name of v
	}
	if o.retiring != nil && o.retiring(v) {
		time.AfterFunc(retirement, func() { o.retire(v) })
		return
	}
	if o.index.Delete(v) {
		o.tell(v.Policy, nil)
	}
}

// tell calls the subscribers with the state of a policy before a change (nil: it is new) and after
// it (nil: it is removed).
func (o *overrides) tell(was, is *policyv1alpha1.OverridePolicy) {
	o.mu.RLock()
	subscribers := o.subscribers
	o.mu.RUnlock()
	for _, f := range subscribers {
		f(was, is)
	}
}

// of returns the override policies that select a template, sorted in the order in which they are
// applied. missing names the policies of needed that do not exist. No policy selects a nil
// template.
func (o *overrides) of(source *unstructured.Unstructured, needed []types.NamespacedName) (selecting []*render.Override, missing []types.NamespacedName) {
	if source == nil {
		source = &unstructured.Unstructured{}
	}
	return o.index.With(source, needed)
}

// overrideKind returns the kind of an override policy: ClusterOverridePolicy for the namespace "",
// else OverridePolicy.
func overrideKind(namespace string) string {
	if namespace == "" {
		return "ClusterOverridePolicy"
	}
	return "OverridePolicy"
}

// touched calls f once with each binding that one of the override policies concerns: the binding
// needs the policy by name, or the policy selects its template. It reads only templates that the
// selectors can match.
func (a *Applier) touched(either []*render.Override, f func(*workv1alpha2.ResourceBinding)) {
	seen := sets.New[types.UID]()
	for _, v := range either {
		name := client.ObjectKeyFromObject(v.Policy)
		for _, b := range a.bindings.OverriddenBy(name) {
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

// candidates yields the bindings whose templates the selectors of an override policy can
// match, by kind, namespace and name. A binding may come more than once.
func (a *Applier) candidates(p *policyv1alpha1.OverridePolicy) iter.Seq[*workv1alpha2.ResourceBinding] {
	return func(yield func(*workv1alpha2.ResourceBinding) bool) {
		selectors := p.Spec.ResourceSelectors
		if len(selectors) == 0 {
			// A policy without selectors selects everything in its scope.
			selectors = []policyv1alpha1.ResourceSelector{{}}
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

// stillCounts reports whether a deleted override policy must still be applied. That is so if it
// selects an object whose placing policy is deleted as well, or cannot be read. It ends when
// placement has decided that the object stays as it is and requires the override. The policies are
// read from the API server: the caches may show one of two deletions later. stillCounts is false
// before start and after the end of its ctx.
func (a *Applier) stillCounts(v *render.Override) bool {
	a.mu.RLock()
	ctx := a.ctx
	a.mu.RUnlock()
	if ctx == nil || ctx.Err() != nil {
		return false
	}
	counts, read := false, sets.New[types.NamespacedName]()
	name := client.ObjectKeyFromObject(v.Policy)
	a.touched([]*render.Override{v}, func(b *workv1alpha2.ResourceBinding) {
		if counts || slices.Contains(binding.NeededOverrides(b), name) || !b.DeletionTimestamp.IsZero() {
			return
		}
		of := policyOf(b)
		if read.Has(of) {
			return
		}
		read.Insert(of)
		_, err := readPolicy(ctx, a.reader, of)
		counts = err != nil
	})
	return counts
}

// Overrides returns the override policies that select a template, in the order in which they are
// applied, for the records of decisions.
func (a *Applier) Overrides(o *unstructured.Unstructured) []records.Policy {
	var found []records.Policy
	for _, v := range a.overrides.index.Of(o) {
		p := v.Policy
		found = append(found, records.Policy{Kind: overrideKind(p.Namespace), Namespace: p.Namespace, Name: p.Name, Generation: p.Generation})
	}
	return found
}
