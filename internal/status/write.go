package status

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
)

// dropManagedFields empties an object's managedFields; the API server does not fill them
// again. They would be half of a binding, and its status has no other writer.
var dropManagedFields = client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"managedFields":[{}]}}`))

// do brings the status of a binding and of its template up to date.
func (w *writer) do(ctx context.Context, name types.NamespacedName) {
	b, ok := w.bindings.Get(name)
	if !ok {
		return
	}
	log := logr.FromContextOrDiscard(ctx).WithName("status").WithValues("binding", name.String())
	err := w.write(logr.NewContext(ctx, log), b)
	switch {
	case err == nil:
		w.failures.Forget(name)
	case ctx.Err() != nil || apierrors.IsNotFound(err):
	case apierrors.IsConflict(err):
		w.queue.AddAfter(name, settle) // the cache is about to know the newer one
	default:
		log.Error(err, "write status")
		w.queue.AddAfter(name, w.failures.When(name))
	}
}

func (w *writer) write(ctx context.Context, b *workv1alpha2.ResourceBinding) error {
	name, now := binding.Name(b), time.Now()
	views := w.views(ctx, b)
	for _, v := range views {
		if v.contact == unsure {
			w.queue.AddAfter(name, unsureDelay)
		}
	}
	if !b.DeletionTimestamp.IsZero() {
		return w.writeRemoval(ctx, b, views, now)
	}
	var outcome *placement.Outcome
	if v, ok := w.placement.Outcome(b.UID); ok {
		outcome = &v
	}
	status, err := compute(b, outcome, views, now)
	if err != nil {
		return err
	}
	if !equality.Semantic.DeepEqual(status, b.Status) {
		if wait := w.wait(b, views, now); wait > 0 {
			w.queue.AddAfter(name, wait)
			return nil
		}
		if err := w.writeBinding(ctx, b, status); err != nil {
			return err
		}
	}
	return w.writeTemplate(ctx, b, status)
}

// writeRemoval says of a deleted binding what it waits for, if that takes its time.
func (w *writer) writeRemoval(ctx context.Context, b *workv1alpha2.ResourceBinding, views []view, now time.Time) error {
	w.mu.Lock()
	t := w.paces[b.UID]
	if t.deleted.IsZero() {
		t.deleted = now
		w.paces[b.UID] = t
	}
	w.mu.Unlock()
	if wait := t.deleted.Add(removalPatience).Sub(now); wait > 0 {
		w.queue.AddAfter(binding.Name(b), wait)
		return nil
	}
	c := removal(views)
	if c == nil {
		return nil
	}
	status := *b.Status.DeepCopy()
	c.ObservedGeneration = b.Generation
	if set(&status, *c, now); equality.Semantic.DeepEqual(status, b.Status) {
		return nil
	}
	return w.writeBinding(ctx, b, status)
}

// wait is how long a write is put off: for clusters that are about to answer for the
// first time, and to leave some time between two writes.
func (w *writer) wait(b *workv1alpha2.ResourceBinding, views []view, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.paces[b.UID]
	if t.first.IsZero() {
		t.first = now
		w.paces[b.UID] = t
	}
	if len(b.Status.Conditions) == 0 && now.Sub(t.first) < patience {
		for _, v := range views {
			if v.placed && !answered(b, v) {
				return settle
			}
		}
	}
	return t.written.Add(pace).Sub(now)
}

func (w *writer) writeBinding(ctx context.Context, b *workv1alpha2.ResourceBinding, status workv1alpha2.BindingStatus) error {
	o := binding.Object(b.DeepCopy())
	if len(b.Status.Conditions) == 0 {
		if err := w.hub.Patch(ctx, o, dropManagedFields); err != nil {
			return fmt.Errorf("drop managedFields of the binding: %w", err)
		}
	}
	either, ok := o.(interface {
		Binding() *workv1alpha2.ResourceBinding
	})
	if !ok || either.Binding().UID != b.UID || either.Binding().Generation != b.Generation {
		return nil // it changed; the cache is about to tell
	}
	either.Binding().Status = status
	if err := w.hub.Status().Update(ctx, o); err != nil {
		return fmt.Errorf("update status: %w", err)
	}
	w.mu.Lock()
	t := w.paces[b.UID]
	t.written = time.Now()
	w.paces[b.UID] = t
	w.mu.Unlock()
	logr.FromContextOrDiscard(ctx).V(1).Info("wrote status")
	return nil
}

// writeTemplate writes the template's own status, added up from the clusters that it is
// placed in, if its kind has one.
func (w *writer) writeTemplate(ctx context.Context, b *workv1alpha2.ResourceBinding, status workv1alpha2.BindingStatus) error {
	gvk := schema.FromAPIVersionAndKind(b.Spec.Resource.APIVersion, b.Spec.Resource.Kind)
	o, state := w.templates.Get(gvk, b.Namespace, b.Spec.Resource.Name)
	if state != presence.Present || b.Spec.Resource.UID != "" && o.GetUID() != b.Spec.Resource.UID {
		return nil
	}
	placed := make(map[string]bool, len(b.Spec.Clusters))
	for _, c := range b.Spec.Clusters {
		placed[c.Name] = true
	}
	var items []workv1alpha2.AggregatedStatusItem
	for _, i := range status.AggregatedStatus {
		if placed[i.ClusterName] {
			items = append(items, i)
		}
	}
	wanted, ok := interpreter.Aggregate(o, items)
	if !ok {
		return nil
	}
	same, err := equal(wanted, o.Object["status"])
	if err != nil || same {
		return err
	}
	// The whole status, in one operation that also knows whose it is.
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": o.GetUID()},
		{"op": "add", "path": "/status", "value": wanted},
	})
	if err != nil {
		return fmt.Errorf("encode status of %s %s: %w", gvk.Kind, o.GetName(), err)
	}
	target := &unstructured.Unstructured{}
	target.SetGroupVersionKind(gvk)
	target.SetNamespace(o.GetNamespace())
	target.SetName(o.GetName())
	err = w.hub.Status().Patch(ctx, target, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(workv1alpha2.FieldManager))
	if err != nil && !apierrors.IsNotFound(err) { // not found: it is gone, or its kind has no status of its own
		return fmt.Errorf("update status of %s %s: %w", gvk.Kind, o.GetName(), err)
	}
	return nil
}

// equal compares two statuses as they are written down: numbers have other types where
// they come from the interpreter than where they come from the API server.
func equal(wanted map[string]any, is any) (bool, error) {
	if is == nil {
		is = map[string]any{}
	}
	if equality.Semantic.DeepEqual(wanted, is) {
		return true, nil
	}
	a, err := json.Marshal(wanted)
	if err != nil {
		return false, fmt.Errorf("encode status: %w", err)
	}
	b, err := json.Marshal(is)
	if err != nil {
		return false, fmt.Errorf("encode status: %w", err)
	}
	return sameJSON(a, b), nil
}

// views is what is known of a binding in each cluster that it names, and in those that
// may still hold something of it. A deleted binding is placed nowhere.
func (w *writer) views(ctx context.Context, b *workv1alpha2.ResourceBinding) []view {
	objects := w.mirror.Placed(b.UID)
	gvk := schema.FromAPIVersionAndKind(b.Spec.Resource.APIVersion, b.Spec.Resource.Kind)
	placed := map[string]bool{}
	if b.DeletionTimestamp.IsZero() {
		for _, c := range b.Spec.Clusters {
			placed[c.Name] = true
		}
	}
	clusters := binding.Clusters(b)
	found := make(map[string]*mirror.Object, len(objects))
	for i := range objects {
		clusters.Insert(objects[i].Cluster)
		if objects[i].Name == b.Spec.Resource.Name {
			found[objects[i].Cluster] = &objects[i]
		}
	}
	views := make([]view, 0, len(clusters))
	for cluster := range clusters {
		m, joined := w.registry.Member(cluster)
		if !placed[cluster] && (w.applier.Gone(b.UID, cluster) || !joined && w.left(ctx, cluster)) {
			continue
		}
		v := view{cluster: cluster, placed: placed[cluster], contact: w.contact(ctx, m, cluster), object: found[cluster]}
		if r, ok := w.applier.Result(b.UID, cluster); ok {
			v.result = &r
		}
		if joined {
			if api, served := m.APIs().Kind(gvk); served != presence.Unknown {
				v.listed = served == presence.Absent || w.mirror.Synced(cluster, api.GroupVersionResource().GroupResource())
			}
		}
		views = append(views, v)
	}
	return views
}

// contact says whether a cluster answers. Right after a start that is not known, and what
// an earlier process wrote decides.
func (w *writer) contact(ctx context.Context, m *member.Member, cluster string) contact {
	switch {
	case m == nil && w.left(ctx, cluster):
		return lost
	case m == nil:
		return unsure
	case m.Reachable():
		return answers
	case m.WasReachable():
		return unsure
	default:
		return lost
	}
}

// left is true when the hub knows no such cluster.
func (w *writer) left(ctx context.Context, cluster string) bool {
	return apierrors.IsNotFound(w.hub.Get(ctx, client.ObjectKey{Name: cluster}, &clusterv1alpha1.Cluster{}))
}
