// Package apply makes members hold what bindings say: it renders each template for each of
// its clusters, applies what differs, and removes what no longer belongs there.
//
// Each cluster has a lane: a queue and workers of its own, so that a cluster that hangs
// delays nobody else. What is to be done is found by comparing digests with the mirror;
// a member is only called to be changed.
package apply

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/template"
)

// Options are what the applier works with.
type Options struct {
	Bindings  *binding.Cache
	Registry  *member.Registry // the clusters
	Mirror    *mirror.Mirror   // what they have
	Templates *template.Cache  // what they should have
	// HubID marks the namespaces in members that this hub created.
	HubID string
}

// registry is the part of member.Registry that the applier needs.
type registry interface {
	Member(name string) (*member.Member, bool)
	Members() []*member.Member
	Rediscover(cluster string)
	Subscribe(f func(member.Event))
}

// observer is the part of mirror.Mirror that the applier needs.
type observer interface {
	Lookup(cluster string, gr schema.GroupResource, namespace, name string) (presence.Presence, mirror.Object)
	Placed(binding types.UID) []mirror.Object
	PlacedIn(cluster string) []mirror.Object
	Namespaces(cluster string) (marked map[string]string, synced bool)
	Synced(cluster string, gr schema.GroupResource) bool
	Observe(cluster string, gvr schema.GroupVersionResource, o *unstructured.Unstructured)
	ObserveDeleted(cluster string, gr schema.GroupResource, namespace, name string, uid types.UID)
	Require(gvk schema.GroupVersionKind)
	Subscribe(f func(mirror.Event))
}

// templates is the part of template.Cache that the applier needs.
type templates interface {
	Get(gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, presence.Presence)
	Subscribe(f func(template.Event))
}

// Applier brings placed objects to the members.
type Applier struct {
	hub       client.Client
	hubID     string
	registry  registry
	mirror    observer
	templates templates

	bindings   *binding.Cache
	overrides  *overrides
	ledger     *ledger
	finalizing *finalizing
	// namespacesSynced is true once the hub's namespaces are known.
	namespacesSynced toolscache.InformerSynced

	mu      sync.RWMutex
	ctx     context.Context //nolint:containedctx // the lifetime of the lanes; nil until Start
	lanes   map[string]*lane
	running sync.WaitGroup
}

// Add adds the applier to the manager.
func Add(mgr ctrl.Manager, o Options) (*Applier, error) {
	return add(mgr, o.Bindings, o.Registry, o.Mirror, o.Templates, o.HubID)
}

func add(mgr ctrl.Manager, b *binding.Cache, r registry, m observer, t templates, hubID string) (*Applier, error) {
	a := &Applier{
		hub: mgr.GetClient(), hubID: hubID, bindings: b, registry: r, mirror: m, templates: t,
		ledger: newLedger(), lanes: map[string]*lane{},
	}
	a.finalizing = newFinalizing(a)
	ctx := context.Background() // the manager has not started: nothing is waited for
	var err error
	if a.overrides, err = newOverrides(ctx, mgr.GetCache()); err != nil {
		return nil, err
	}
	a.bindings.Subscribe(a.bindingChanged)
	a.overrides.subscribe(a.overrideChanged)
	if err := a.watchHubNamespaces(ctx, mgr.GetCache()); err != nil {
		return nil, err
	}
	r.Subscribe(a.memberChanged)
	m.Subscribe(a.observed)
	t.Subscribe(a.templateChanged)
	if err := mgr.Add(manager.RunnableFunc(a.start)); err != nil {
		return nil, fmt.Errorf("add applier to the manager: %w", err)
	}
	return a, nil
}

// Result is how the last attempt for a binding and a cluster ended; false while nothing
// is known.
func (a *Applier) Result(binding types.UID, cluster string) (Result, bool) {
	e, ok := a.ledger.get(binding, cluster)
	return e.result, ok && e.known
}

// Gone is true when a cluster that a binding does not name is known to hold nothing of it.
func (a *Applier) Gone(binding types.UID, cluster string) bool {
	e, _ := a.ledger.get(binding, cluster)
	return e.gone
}

// Subscribe calls f after a result of a binding changed. f must not block.
func (a *Applier) Subscribe(f func(binding types.NamespacedName)) { a.ledger.subscribe(f) }

// start opens a lane for every member once everything that a manifest depends on is
// known, and returns when ctx has ended and the lanes are empty.
func (a *Applier) start(ctx context.Context) error {
	synced := append(slices.Clone(a.overrides.synced), a.bindings.Synced, a.namespacesSynced)
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil // ctx has ended
	}
	a.mu.Lock()
	a.ctx = ctx
	a.mu.Unlock()
	for _, m := range a.registry.Members() {
		a.open(m.Name()) //nolint:contextcheck // a lane lives as long as the applier, whose context it has
	}
	a.finalizing.start(ctx, &a.running)
	for _, b := range a.bindings.All() {
		a.finalizing.look(b)
	}
	<-ctx.Done()
	a.mu.Lock()
	lanes := a.lanes
	a.lanes = map[string]*lane{}
	a.mu.Unlock()
	for _, l := range lanes {
		l.close()
	}
	a.running.Wait()
	return nil
}

// open makes sure that a cluster has a lane, and has it look at everything in the cluster.
func (a *Applier) open(cluster string) {
	m, ok := a.registry.Member(cluster)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ctx == nil || a.ctx.Err() != nil {
		return
	}
	if old, ok := a.lanes[cluster]; ok {
		if old.member == m {
			return
		}
		old.close()
	}
	l, err := newLane(a, m)
	if err != nil {
		logr.FromContextOrDiscard(a.ctx).Error(err, "cannot apply to cluster", "cluster", cluster)
		return
	}
	a.lanes[cluster] = l
	ctx := a.ctx
	a.running.Go(func() {
		l.lookAtEverything()
		l.run(ctx)
	})
}

// lane returns a cluster's lane.
func (a *Applier) lane(cluster string) (*lane, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	l, ok := a.lanes[cluster]
	return l, ok
}

func (a *Applier) everyLane(f func(*lane)) {
	a.mu.RLock()
	lanes := make([]*lane, 0, len(a.lanes))
	for _, l := range a.lanes {
		lanes = append(lanes, l)
	}
	a.mu.RUnlock()
	for _, l := range lanes {
		f(l)
	}
}

var namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// hubNamespace is the kind by which the hub's namespaces are watched: their names are enough.
func hubNamespace() *metav1.PartialObjectMetadata {
	n := &metav1.PartialObjectMetadata{}
	n.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
	return n
}
