// Package status is the only writer of the bindings' status and of the templates' own. It
// writes what changed and nothing else: what is not known, because this process has just
// started or a cluster does not answer, stays as it was written before.
package status

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
	"orrery.dev/orrery/internal/template"
)

// Options are what the statuses are made from.
type Options struct {
	Bindings  *binding.Cache
	Placement *placement.Controller // verdicts
	Applier   *apply.Applier        // results
	Mirror    *mirror.Mirror        // observations
	Registry  *member.Registry      // reachability
	Templates *template.Cache       // whose status is written
}

const (
	// workers is how many bindings are written at once.
	workers = 8
	// settle is how long changes are collected before they are written, so that the
	// answers of all clusters become one write.
	settle = 100 * time.Millisecond
	// patience is how much longer a binding that has no status yet waits for clusters
	// that have not answered.
	patience = 500 * time.Millisecond
	// pace is the least time between two writes of one binding: rollouts change quickly.
	pace = time.Second
	// removalPatience is how long a deleted binding may take to go without saying why.
	removalPatience = 3 * time.Second
	// unsureDelay is when to look again at a binding in a cluster that stopped answering,
	// while the cluster's own condition does not say so yet.
	unsureDelay = 2 * time.Second

	soonest, atMost = 500 * time.Millisecond, 2 * time.Minute
)

// placer is the part of placement.Controller that is needed here.
type placer interface {
	Outcome(binding types.UID) (placement.Outcome, bool)
	Subscribe(f func(binding types.NamespacedName))
}

// applier is the part of apply.Applier that is needed here.
type applier interface {
	Result(binding types.UID, cluster string) (apply.Result, bool)
	Gone(binding types.UID, cluster string) bool
	Subscribe(f func(binding types.NamespacedName))
}

// observer is the part of mirror.Mirror that is needed here.
type observer interface {
	Placed(binding types.UID) []mirror.Object
	Synced(cluster string, gr schema.GroupResource) bool
	Subscribe(f func(mirror.Event))
}

// registry is the part of member.Registry that is needed here.
type registry interface {
	Member(name string) (*member.Member, bool)
	Subscribe(f func(member.Event))
}

// templates is the part of template.Cache that is needed here.
type templates interface {
	Get(gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, presence.Presence)
	Subscribe(f func(template.Event))
}

// writer writes the status of bindings and templates.
type writer struct {
	hub       client.Client
	placement placer
	applier   applier
	mirror    observer
	registry  registry
	templates templates
	bindings  *binding.Cache
	queue     workqueue.TypedDelayingInterface[types.NamespacedName]
	failures  workqueue.TypedRateLimiter[types.NamespacedName]

	mu    sync.Mutex
	paces map[types.UID]times
}

// times of one binding in this process.
type times struct{ first, written, deleted time.Time }

// Add adds the status writer to the manager.
func Add(mgr ctrl.Manager, o Options) error {
	w := newWriter(mgr.GetClient(), o.Bindings, o.Placement, o.Applier, o.Mirror, o.Registry, o.Templates)
	if err := mgr.Add(manager.RunnableFunc(w.start)); err != nil {
		return fmt.Errorf("add status writer to the manager: %w", err)
	}
	return nil
}

func newWriter(hub client.Client, b *binding.Cache, p placer, a applier, m observer, r registry, t templates) *writer {
	w := &writer{
		hub: hub, placement: p, applier: a, mirror: m, registry: r, templates: t, bindings: b,
		queue:    workqueue.NewTypedDelayingQueue[types.NamespacedName](),
		failures: workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](soonest, atMost),
		paces:    map[types.UID]times{},
	}
	w.bindings.Subscribe(func(before, after *workv1alpha2.ResourceBinding) {
		if after != nil {
			w.changed(binding.Name(after))
			return
		}
		w.mu.Lock()
		delete(w.paces, before.UID)
		w.mu.Unlock()
	})
	p.Subscribe(w.changed)
	a.Subscribe(w.changed)
	m.Subscribe(func(e mirror.Event) {
		if b, ok := w.bindings.ByUID(e.Binding); ok {
			w.changed(binding.Name(b))
		}
	})
	r.Subscribe(func(e member.Event) {
		for _, name := range w.bindings.In(e.Name) {
			w.changed(name)
		}
	})
	t.Subscribe(func(e template.Event) {
		if b, _ := w.bindings.Of(binding.Template{GroupKind: e.GVK.GroupKind(), Namespace: e.Namespace, Name: e.Name}); b != nil {
			w.changed(binding.Name(b))
		}
	})
	return w
}

// changed has a binding's status computed again shortly.
func (w *writer) changed(binding types.NamespacedName) { w.queue.AddAfter(binding, settle) }

// start writes until ctx ends.
func (w *writer) start(ctx context.Context) error {
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for {
				name, closed := w.queue.Get()
				if closed {
					return
				}
				w.do(ctx, name)
				w.queue.Done(name)
			}
		})
	}
	<-ctx.Done()
	w.queue.ShutDown()
	running.Wait()
	return nil
}
