// Package revision keeps the history of the Deployments, StatefulSets and DaemonSets that are
// placed, as Kubernetes' own controllers would on the hub if they ran there: `kubectl rollout
// history` and `undo` read it, and Helm 3 waits for a Deployment by its newest ReplicaSet.
//
// The history is in the records. It is written to the hub, as ReplicaSets that ask for no
// replicas and as ControllerRevisions, from the second revision on, and for what Helm manages
// from the first. What is on the hub is believed before the records are, so that losing them
// changes nothing there; Kubernetes' garbage collector removes it with the workload.
//
// It must not run on a hub that has workload controllers: they would write the same.
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
	workers = 4
	// settle is how long changes of a workload are collected before it is looked at.
	settle = 100 * time.Millisecond
	// firstRetry and lastRetry bound the time until a failed look is repeated.
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
)

// Options are the rooms that are asked.
type Options struct {
	Bindings  *binding.Cache
	Templates *template.Cache
	Records   records.RevisionKeeper
}

// request is a workload to look at, or one that is placed no longer.
type request struct {
	binding.Template

	gone     types.UID // of the template; empty: it is to be looked at
	orphaned bool      // the template that is gone was deleted with propagation Orphan
}

// keeper keeps the histories.
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

// ownerIndex finds the objects of a history by the UID of the workload that controls them.
const ownerIndex = "metadata.ownerReferences.controller"

func controllerUID(o client.Object) []string {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}

// Add starts to keep histories with the manager.
func Add(mgr ctrl.Manager, o Options) error {
	k := &keeper{
		hub: mgr.GetClient(), live: mgr.GetAPIReader(), bindings: o.Bindings, templates: o.Templates, records: o.Records,
	}
	ctx := context.Background() // the manager has not started: nothing is waited for
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
	options.SkipNameValidation = new(true) // several managers may live in one process: the tests'
	c, err := controller.NewTyped("revision", mgr, options)
	if err != nil {
		return fmt.Errorf("create revision controller: %w", err)
	}
	if err := c.Watch(source.TypedFunc[request](k.start)); err != nil {
		return fmt.Errorf("watch for revisions: %w", err)
	}
	return nil
}

// ownerOf is the workload that an object of a history belongs to; nil: none of ours.
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

// start lets the work begin once everything on the hub is known: nothing is written that may be
// there already. The controller calls it before its workers run.
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

// enqueue has a workload looked at shortly, as soon as the work may begin.
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

func (k *keeper) ownedChanged(before, after *request) {
	for _, r := range []*request{before, after} {
		if r != nil {
			k.enqueue(*r)
		}
	}
}

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

// Reconcile brings records and hub to the history of one workload.
func (k *keeper) Reconcile(ctx context.Context, r request) (reconcile.Result, error) {
	b, _ := k.bindings.Of(r.Template)
	if r.gone != "" {
		if b != nil && b.Spec.Resource.UID == r.gone {
			return reconcile.Result{}, nil // it is placed again
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
		// The cache is behind, and another event is about to say what it missed.
		return reconcile.Result{RequeueAfter: settle}, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconcile.Result{}, nil // the workload is about to go, too
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("keep the revisions of %s: %w", r.Template, err)
	}
	return reconcile.Result{}, nil
}

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
		return unread // which number the template has cannot be told
	}
	p, err := decide(w, known, objects, time.Now())
	if err != nil {
		return err
	}
	// What cannot be recorded is written to the hub nonetheless: somebody may wait for it.
	if unread == nil {
		unread = k.record(ctx, w, p)
	}
	return cmp.Or(k.write(ctx, w, p), unread)
}

// objects is the history of a workload as it is on the hub.
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
	if len(p.forget) == 0 { // no numbers would be all of them
		return nil
	}
	if err := k.records.DeleteRevisions(ctx, w.uid, p.forget...); err != nil {
		return fmt.Errorf("forget revisions: %w", err)
	}
	return nil
}

// write brings the hub's objects to the plan.
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

// put writes one object and its status, where they differ from what is wanted.
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
		return nil // the cache is behind, and about to tell
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

var errUnseen = errors.New("it exists, and the cache does not show it yet")

// create creates an object of the history. One that exists under its name and belongs to the
// workload is an earlier write.
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
