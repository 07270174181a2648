// Package revision keeps the history of placed Deployments, StatefulSets and DaemonSets, as
// Kubernetes' own controllers would. `kubectl rollout history` and `undo` read it, and Helm 3 waits
// for a Deployment by its newest ReplicaSet.
//
// The history is in the records. From the second revision on it is also on the hub, as ReplicaSets
// with no replicas and as ControllerRevisions; for workloads that Helm manages, from the first
// revision on. The objects on the hub take precedence over the records, so that losing the records
// changes nothing on the hub. Kubernetes' garbage collector removes the objects with the workload.
//
// The package must not run on a hub with workload controllers, which would write the same objects.
package revision

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/reconciler"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/template"
)

const (
	// workers is the number of workloads that are reconciled at once.
	workers = 4
	// settle is how long changes of a workload are collected before it is reconciled.
	settle = 100 * time.Millisecond
	// firstRetry and lastRetry bound the delay before a failed reconciliation is repeated.
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
)

// Options are the caches and the records that revision uses.
type Options struct {
	Bindings  *binding.Cache
	Templates *template.Cache
	Records   records.RevisionKeeper
}

// request names a workload to reconcile or, if gone is set, a workload that is no longer placed.
type request struct {
	binding.Template

	gone     types.UID // UID of the template that is gone; "": reconcile it
	orphaned bool      // the template was deleted with propagation Orphan
}

// keeper keeps the histories of all placed workloads. It is the reconciler of the controller, whose
// workers call it concurrently. live reads from the API server, without the cache.
type keeper struct {
	hub       client.Client
	live      client.Reader
	bindings  *binding.Cache
	templates *template.Cache
	records   records.RevisionKeeper
	synced    []toolscache.InformerSynced

	mu    sync.RWMutex
	queue workqueue.TypedRateLimitingInterface[request] // nil until every cache is listed
}

// ownerIndex is the name of the field index that finds ReplicaSets and ControllerRevisions by the
// UID of the workload that controls them.
const ownerIndex = "metadata.ownerReferences.controller"

// controllerUID is the function of ownerIndex: it returns the UID of the object's controller, or
// nil if the object has no controller.
func controllerUID(o client.Object) []string {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}

// Add adds the controller of histories to the manager, and subscribes it to the caches in o. It
// must be called once, before the manager starts, and only on a hub without workload controllers.
func Add(mgr ctrl.Manager, o Options) error {
	k := &keeper{
		hub: mgr.GetClient(), live: mgr.GetAPIReader(), bindings: o.Bindings, templates: o.Templates, records: o.Records,
	}
	ctx := context.Background() // the manager has not started: no call blocks
	for _, kind := range []client.Object{&appsv1.ReplicaSet{}, &appsv1.ControllerRevision{}} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, kind, ownerIndex, controllerUID); err != nil {
			return fmt.Errorf("index %T by owner: %w", kind, err)
		}
		synced, err := binding.Watch(ctx, mgr.GetCache(), kind, ownerOf, k.ownedChanged)
		if err != nil {
			return err
		}
		k.synced = append(k.synced, synced)
	}
	k.synced = append(k.synced, o.Bindings.Synced)
	o.Bindings.Subscribe(k.bindingChanged)
	o.Templates.Subscribe(k.templateChanged)
	options := reconciler.Options[request](workers)
	options.Reconciler = k
	options.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[request](firstRetry, lastRetry)
	options.SkipNameValidation = new(true) // tests run several managers in one process
	c, err := controller.NewTyped("revision", mgr, options)
	if err != nil {
		return fmt.Errorf("create revision controller: %w", err)
	}
	if err := c.Watch(source.TypedFunc[request](k.start)); err != nil {
		return fmt.Errorf("watch for revisions: %w", err)
	}
	return nil
}

// ownerOf returns a request for the workload that controls a ReplicaSet or ControllerRevision; nil
// if the controller is no Deployment, StatefulSet or DaemonSet.
func ownerOf(o any) *request {
	object, ok := o.(client.Object)
	if !ok {
		return nil
	}
	owner := metav1.GetControllerOfNoCopy(object)
	if owner == nil {
		return nil
	}
	kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
	if !slices.Contains(kinds, kind) {
		return nil
	}
	return &request{Template: binding.Template{GroupKind: kind, Namespace: object.GetNamespace(), Name: owner.Name}}
}

// start waits until all caches are listed, so that no object is written twice. Then it sets k.queue
// and queues all placed workloads. The controller calls start before its workers run. The end of
// ctx is an error.
func (k *keeper) start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[request]) error {
	if !toolscache.WaitForCacheSync(ctx.Done(), k.synced...) {
		return ctx.Err()
	}
	k.mu.Lock()
	k.queue = queue
	k.mu.Unlock()
	for _, t := range k.bindings.Templates() {
		k.enqueue(request{Template: t})
	}
	return nil
}

// enqueue queues a workload after the delay settle. It does nothing before start, and for kinds
// without revisions.
func (k *keeper) enqueue(r request) {
	if !slices.Contains(kinds, r.GroupKind) {
		return
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.queue != nil {
		k.queue.AddAfter(r, settle)
	}
}

// ownedChanged queues the workloads that controlled a history object before and after a change;
// nil: none did.
func (k *keeper) ownedChanged(before, after *request) {
	for _, r := range []*request{before, after} {
		if r != nil {
			k.enqueue(*r)
		}
	}
}

// bindingChanged queues the workload of a new or deleted binding. It ignores other changes of a
// binding.
func (k *keeper) bindingChanged(before, after *workv1alpha2.ResourceBinding) {
	switch {
	case before == nil:
		k.enqueue(request{Template: binding.TemplateOf(after)})
	case after == nil && before.Spec.Resource.UID != "":
		k.enqueue(request{
			Template: binding.TemplateOf(before), gone: before.Spec.Resource.UID,
			orphaned: before.Spec.DeletionPropagation == metav1.DeletePropagationOrphan,
		})
	}
}

// templateChanged queues the workload that an event names or, for an event without a name, all
// placed workloads of its kind.
func (k *keeper) templateChanged(e template.Event) {
	if e.Name != "" {
		k.enqueue(request{Template: binding.Template{GroupKind: e.GVK.GroupKind(), Namespace: e.Namespace, Name: e.Name}})
		return
	}
	for _, t := range k.bindings.Templates() {
		if t.GroupKind == e.GVK.GroupKind() {
			k.enqueue(request{Template: t})
		}
	}
}

// Reconcile brings the records and the history objects on the hub up to date for one workload. For
// a workload that is gone, it deletes the records, and the history objects if the workload was
// orphaned. A workload that is not placed, is being deleted or is not in the cache is left alone.
func (k *keeper) Reconcile(ctx context.Context, r request) (reconcile.Result, error) {
	b, _ := k.bindings.Of(r.Template)
	if r.gone != "" {
		if b != nil && b.Spec.Resource.UID == r.gone {
			return reconcile.Result{}, nil // the template is placed again
		}
		if r.orphaned {
			switch waits, err := k.deleteOrphans(ctx, r); {
			case err != nil:
				return reconcile.Result{}, fmt.Errorf("delete what is left of the revisions of %s: %w", r.Template, err)
			case waits:
				return reconcile.Result{RequeueAfter: settle}, nil
			}
		}
		if err := k.records.DeleteRevisions(ctx, r.gone); err != nil {
			return reconcile.Result{}, fmt.Errorf("forget the revisions of %s: %w", r.Template, err)
		}
		return reconcile.Result{}, nil
	}
	if b == nil || !b.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	t, state := k.templates.Get(binding.Kind(b), r.Namespace, r.Name)
	if state != presence.Present || t.GetDeletionTimestamp() != nil ||
		b.Spec.Resource.UID != "" && t.GetUID() != b.Spec.Resource.UID {
		return reconcile.Result{}, nil
	}
	err := k.keep(ctx, t)
	switch {
	case apierrors.IsConflict(err):
		// The cache is stale; the missing event follows.
		return reconcile.Result{RequeueAfter: settle}, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconcile.Result{}, nil // the workload is deleted soon, too
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("keep the revisions of %s: %w", r.Template, err)
	}
	return reconcile.Result{}, nil
}

// keep brings the records and the history objects on the hub up to date for the workload t. If the
// records cannot be read, keep returns the error. It then still writes the objects if the hub has
// some already, or if Helm manages the workload and may wait for them.
func (k *keeper) keep(ctx context.Context, t *unstructured.Unstructured) error {
	w, err := read(t)
	if err != nil {
		return err
	}
	objects, err := k.objects(ctx, w)
	if err != nil {
		return err
	}
	known, unread := k.known(ctx, w)
	if unread != nil && !w.helm && len(objects) == 0 {
		return unread // the number of the template is unknown
	}
	p, err := decide(w, known, objects, time.Now())
	if err != nil {
		return err
	}
	// If the records fail, the hub is written all the same: a client may wait for the objects.
	if unread == nil {
		unread = k.record(ctx, w, p)
	}
	return cmp.Or(k.write(ctx, w, p), unread)
}

// objects returns the revisions of a workload that have an object on the hub, in no order, from the
// cache.
func (k *keeper) objects(ctx context.Context, w *workload) ([]object, error) {
	var items []client.Object
	owned := []client.ListOption{client.InNamespace(w.namespace), client.MatchingFields{ownerIndex: string(w.uid)}}
	if w.deployment != nil {
		var list appsv1.ReplicaSetList
		if err := k.hub.List(ctx, &list, owned...); err != nil {
			return nil, fmt.Errorf("list ReplicaSets: %w", err)
		}
		for i := range list.Items {
			items = append(items, &list.Items[i])
		}
	} else {
		var list appsv1.ControllerRevisionList
		if err := k.hub.List(ctx, &list, owned...); err != nil {
			return nil, fmt.Errorf("list ControllerRevisions: %w", err)
		}
		for i := range list.Items {
			items = append(items, &list.Items[i])
		}
	}
	objects := make([]object, 0, len(items))
	for _, item := range items {
		o, err := fromObject(item, w.uid)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// known returns the revisions of a workload that are in the records.
func (k *keeper) known(ctx context.Context, w *workload) ([]revision, error) {
	list, err := k.records.Revisions(ctx, w.uid)
	if err != nil {
		return nil, fmt.Errorf("read the records: %w", err)
	}
	known := make([]revision, 0, len(list))
	for _, item := range list {
		r, err := fromRecord(item)
		if err != nil {
			return nil, err
		}
		known = append(known, r)
	}
	return known, nil
}

// record stores and deletes revisions in the records as the plan says.
func (k *keeper) record(ctx context.Context, w *workload, p plan) error {
	for _, r := range p.record {
		item, err := r.record(w.uid)
		if err != nil {
			return err
		}
		if err := k.records.PutRevision(ctx, item); err != nil {
			return fmt.Errorf("record revision %d: %w", r.number, err)
		}
	}
	if len(p.forget) == 0 { // without numbers all would be deleted
		return nil
	}
	if err := k.records.DeleteRevisions(ctx, w.uid, p.forget...); err != nil {
		return fmt.Errorf("forget revisions: %w", err)
	}
	return nil
}

// write creates, updates and deletes the history objects on the hub as the plan says, and annotates
// the Deployment. An object that is gone meanwhile is no error.
func (k *keeper) write(ctx context.Context, w *workload, p plan) error {
	for _, wanted := range p.write {
		if err := k.put(ctx, w, wanted); err != nil {
			return err
		}
	}
	for _, o := range p.remove {
		uid := o.GetUID()
		err := k.hub.Delete(ctx, o, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %s: %w", o.GetName(), err)
		}
	}
	if p.annotate == "" {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": w.uid, "annotations": map[string]string{numberAnnotation: p.annotate},
	}})
	if err != nil {
		return fmt.Errorf("encode annotation: %w", err)
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: w.name}}
	err = k.hub.Patch(ctx, d, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(workv1alpha2.FieldManager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("annotate: %w", err)
	}
	return nil
}

// put creates or updates one history object, as wanted.action says, and then the status of a
// ReplicaSet if it differs. If the cache is behind the hub, so that an object to create exists or
// one to update is gone, put does nothing: an event follows.
func (k *keeper) put(ctx context.Context, w *workload, wanted write) error {
	o := wanted.object
	var err error
	switch wanted.action {
	case create:
		err = k.create(ctx, w, o)
	case update:
		err = k.hub.Update(ctx, o, client.FieldOwner(workv1alpha2.FieldManager))
	case keep:
	}
	if apierrors.IsNotFound(err) || errors.Is(err, errUnseen) {
		return nil // the cache is stale; an event follows
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", strings.ToLower(string(wanted.action)), o.GetName(), err)
	}
	rs, ok := o.(*appsv1.ReplicaSet)
	if !ok {
		return nil
	}
	status := w.status(rs, wanted.current)
	if equality.Semantic.DeepEqual(rs.Status, status) {
		return nil
	}
	rs = rs.DeepCopy()
	rs.Status = status
	err = k.hub.Status().Update(ctx, rs, client.FieldOwner(workv1alpha2.FieldManager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("update status of %s: %w", rs.Name, err)
	}
	return nil
}

// errUnseen is the error of create for an object that this process created before.
var errUnseen = errors.New("it exists, and the cache does not show it yet")

// create creates a history object. If an object with the name exists, create reads it into o. If
// the workload controls that object, this process created it before, and the error is errUnseen. An
// object of another owner is an error for the user, who must delete it.
func (k *keeper) create(ctx context.Context, w *workload, o client.Object) error {
	err := k.hub.Create(ctx, o, client.FieldOwner(workv1alpha2.FieldManager))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	if failed := k.live.Get(ctx, client.ObjectKeyFromObject(o), o); failed != nil {
		return failed
	}
	if owner := metav1.GetControllerOfNoCopy(o); owner == nil || owner.UID != w.uid {
		return fmt.Errorf("%w, and is somebody else's: delete it, and it is made again", err)
	}
	return errUnseen
}
