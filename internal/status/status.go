// Package status writes the status of bindings, and of their templates: the objects on the hub that
// bindings place in clusters. It is the only writer of both, except that package apply records work
// in status.runs of a binding before the work begins. It writes only what changed. What is not
// known, because this process has just started or a cluster does not answer, stays as it was
// written before.
package status

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/queue"
	"orrery.dev/orrery/internal/template"
)

// Options are the packages and callbacks that the status writer uses.
type Options struct {
	Bindings  *binding.Cache
	Placement *placement.Controller // the outcomes of decisions
	Applier   *apply.Applier        // the results of writes to clusters
	Mirror    *mirror.Mirror        // the observed copies
	Registry  *member.Registry      // which clusters answer
	Templates *template.Cache       // the templates whose status is written
	// Recorded returns what an earlier process knew of a copy in a cluster that has not answered this
	// process yet. It is asked about clusters that are not in the status of the binding, which has
	// only the first 100. ok is false if nothing was known. A nil Recorded counts as always false.
	Recorded func(binding types.UID, cluster string) (applied bool, health workv1alpha2.ResourceHealth, ok bool)
}

const (
	// workers is the number of bindings whose status is computed and written at the same time.
	workers = 8
	// firstRetry is the delay before a failed write is repeated. The delay grows up to lastRetry.
	firstRetry, lastRetry = 500 * time.Millisecond, 2 * time.Minute
)

// placer is the part of placement.Controller that this package uses.
type placer interface {
	Outcome(binding types.UID) (placement.Outcome, bool)
	DeletionWait(binding types.UID) string
	Subscribe(f func(binding types.NamespacedName))
}

// applier is the part of apply.Applier that this package uses.
type applier interface {
	Result(binding types.UID, cluster string) (apply.Result, bool)
	Gone(binding types.UID, cluster string) bool
	Ended(binding types.UID, cluster string) (mirror.Object, bool)
	Contest(binding types.UID, cluster string) apply.Contest
	Subscribe(f func(binding types.NamespacedName))
}

// observer is the part of mirror.Mirror that this package uses.
type observer interface {
	Placed(binding types.UID) []mirror.Object
	Synced(cluster string, gr schema.GroupResource) bool
	Subscribe(f func(mirror.Event))
}

// registry is the part of member.Registry that this package uses.
type registry interface {
	Member(name string) (*member.Member, bool)
	Subscribe(f func(member.Event))
}

// templates is the part of template.Cache that this package uses.
type templates interface {
	Get(gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, presence.Presence)
	Subscribe(f func(template.Event))
}

// writer writes the status of bindings and templates.
type writer struct {
	hub       client.Client
	events    events
	placement placer
	applier   applier
	mirror    observer
	registry  registry
	templates templates
	bindings  *binding.Cache
	recorded  func(binding types.UID, cluster string) (applied bool, health workv1alpha2.ResourceHealth, ok bool)
	queue     *queue.Queue[types.NamespacedName]
	pacer     *pacer
	clusters  *clusters
	started   time.Time // when start began to write
}

// Add adds the status writer to the manager, which must not have started.
func Add(mgr ctrl.Manager, o Options) error {
	w := &writer{
		hub: mgr.GetClient(), events: mgr.GetEventRecorder("orrery"), placement: o.Placement, applier: o.Applier,
		mirror: o.Mirror, registry: o.Registry, templates: o.Templates, bindings: o.Bindings, recorded: o.Recorded,
	}
	return w.add(mgr)
}

// add subscribes the writer, whose inputs are set, to them and adds it to the manager. Tests call
// it with other inputs than Add.
func (w *writer) add(mgr ctrl.Manager) error {
	w.pacer = newPacer()
	w.queue = queue.New(workers, firstRetry, lastRetry, w.do)
	w.subscribe()
	var err error
	ctx := context.Background() // the manager has not started, so nothing here waits
	if w.clusters, err = watchClusters(ctx, mgr.GetCache(), w.clusterChanged); err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(w.start)); err != nil {
		return fmt.Errorf("add status writer to the manager: %w", err)
	}
	return nil
}

// start computes and writes queued statuses until ctx ends, once the Clusters of the hub are known.
// It returns nil.
func (w *writer) start(ctx context.Context) error {
	if !toolscache.WaitForCacheSync(ctx.Done(), w.clusters.synced) {
		return nil // ctx has ended
	}
	w.started = time.Now()
	w.queue.Run(ctx)
	return nil
}

// clusterChanged queues the status of all bindings that name a cluster, because the cluster
// changed.
func (w *writer) clusterChanged(cluster string) {
	for _, name := range w.bindings.In(cluster) {
		w.changed(name)
	}
}

// subscribe makes everything that can change a status queue the status of the binding.
func (w *writer) subscribe() {
	w.bindings.Subscribe(func(before, after *workv1alpha2.ResourceBinding) {
		if after != nil {
			w.changed(binding.Name(after))
			return
		}
		w.pacer.forget(before.UID)
	})
	w.placement.Subscribe(w.changed)
	w.applier.Subscribe(w.changed)
	w.mirror.Subscribe(func(e mirror.Event) {
		if b, ok := w.bindings.ByUID(e.Binding); ok {
			w.changed(binding.Name(b))
		}
	})
	w.registry.Subscribe(func(e member.Event) { w.clusterChanged(e.Name) })
	w.templates.Subscribe(func(e template.Event) {
		if b, _ := w.bindings.Of(binding.Template{GroupKind: e.GVK.GroupKind(), Namespace: e.Namespace, Name: e.Name}); b != nil {
			w.changed(binding.Name(b))
		}
	})
}

// changed queues the status of the binding with the name. It is computed after settle.
func (w *writer) changed(binding types.NamespacedName) { w.queue.AddAfter(binding, settle) }
