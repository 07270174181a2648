package status

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/queue"
	"orrery.dev/orrery/internal/template"
)

// do updates the status of a binding and of its template.
func (w *writer) do(ctx context.Context, name types.NamespacedName) queue.Next {
	b, ok := w.bindings.Get(name)
	if !ok {
		return queue.Next{}
	}
	if b.DeletionTimestamp.IsZero() {
		if w.asking(b) {
			return queue.Next{} // an event reports whether each answers
		}
		if w.listing(b) {
			return queue.Next{After: startLook}
		}
	}
	log := logr.FromContextOrDiscard(ctx).WithName("status").WithValues("binding", name.String())
	next, err := w.write(logr.NewContext(ctx, log), b)
	switch {
	case err == nil:
		return queue.Next{After: next}
	case ctx.Err() != nil || apierrors.IsNotFound(err):
		return queue.Next{}
	case apierrors.IsConflict(err):
		return queue.Next{After: settle} // the caches will have the newer version soon
	default:
		log.Error(err, "write status")
		return queue.Next{Backoff: true}
	}
}

// write updates the status. next is the delay before the next call without an event; 0: none is
// needed.
func (w *writer) write(ctx context.Context, b *workv1alpha2.ResourceBinding) (next time.Duration, err error) {
	views := w.views(b)
	if !b.DeletionTimestamp.IsZero() {
		if wait := w.pacer.removal(b.UID); wait > 0 {
			return wait, nil
		}
		return 0, w.writeRemoval(ctx, b, views)
	}
	var outcome *placement.Outcome
	if v, ok := w.placement.Outcome(b.UID); ok {
		outcome = &v
	}
	o := w.template(b)
	of := subjectOf(o)
	if wait := w.placement.DeletionWait(b.UID); o == nil && wait != "" {
		of.deletion, of.waitReason = cut(wait, maxScheduledMessage), workv1alpha2.ReasonDependenciesBehind
	}
	watching := w.watched(b)
	of.isNew = watching > 0
	of.edited = w.pacer.see(b.UID, version{binding: b.Generation, template: of.version})
	marks := runs(b, o, views, func(cluster string) bool { return w.joined(cluster) || w.clusters.left(cluster) }, time.Now())
	for i := range views {
		views[i].run = binding.RunIn(marks, b.Spec.Resource.UID, views[i].cluster)
		if r := views[i].run; r != nil && o != nil && !binding.RunsThere(r, views[i].id) && interpreter.RunPhase(o) == "" {
			// The run is that of another cluster with the same name. The work will begin in this one.
			views[i].run = nil
		}
	}
	standings, err := judge(b, of, views)
	if err != nil {
		return 0, err
	}
	status := compute(b, of, outcome, standings, marks, time.Now())
	if !equality.Semantic.DeepEqual(status, b.Status) {
		due := slices.ContainsFunc(standings, func(s standing) bool { return s.placed && (s.applied == waiting || s.applied == unknown) })
		if wait := w.pacer.wait(b, due); wait > 0 {
			return wait, nil
		}
		if err := w.writeBinding(ctx, b, status); err != nil {
			return 0, err
		}
	}
	if o != nil {
		if err := w.writeTemplate(ctx, b, o, of, standings); err != nil {
			return 0, err
		}
	}
	return watching, nil
}

// template returns the template of the binding; nil if it is not known, or is another object.
func (w *writer) template(b *workv1alpha2.ResourceBinding) *unstructured.Unstructured {
	o, state := w.templates.Get(binding.Kind(b), b.Namespace, b.Spec.Resource.Name)
	if state != presence.Present || b.Spec.Resource.UID != "" && o.GetUID() != b.Spec.Resource.UID {
		return nil
	}
	return o
}

func subjectOf(o *unstructured.Unstructured) subject {
	if o == nil {
		return subject{}
	}
	// 0 if it has another type.
	observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	s := subject{version: template.Version(o), generation: o.GetGeneration(), observed: observed, nodePorts: interpreter.NodePorts(o)}
	if len(placement.DeletionWaitsFor(o)) > 0 {
		s.deletion, s.waitReason = placement.DeletionWaits(o), workv1alpha2.ReasonFinalizersRemain
	}
	return s
}

// writeRemoval writes into the status of a deleted binding what the deletion waits for.
func (w *writer) writeRemoval(ctx context.Context, b *workv1alpha2.ResourceBinding, views []view) error {
	c := removal(b.Generation, views)
	if c == nil {
		return nil
	}
	status := *b.Status.DeepCopy()
	// The template is gone.
	meta.RemoveStatusCondition(&status.Conditions, workv1alpha2.ConditionDeletionWaits)
	meta.RemoveStatusCondition(&status.Conditions, workv1alpha2.ConditionContested)
	c.ObservedGeneration = b.Generation
	if set(&status, *c, time.Now()); equality.Semantic.DeepEqual(status, b.Status) {
		return nil
	}
	return w.writeBinding(ctx, b, status)
}

func (w *writer) writeBinding(ctx context.Context, b *workv1alpha2.ResourceBinding, status workv1alpha2.BindingStatus) error {
	updated := b.DeepCopy()
	updated.Status = status
	if err := w.hub.Status().Update(ctx, binding.Object(updated)); err != nil {
		return fmt.Errorf("update status: %w", err)
	}
	w.pacer.wrote(b.UID)
	w.tell(b, status)
	logr.FromContextOrDiscard(ctx).V(1).Info("wrote status")
	return nil
}

// writeTemplate writes the template's own status, aggregated from those of its copies, if its
// kind has one.
func (w *writer) writeTemplate(
	ctx context.Context, b *workv1alpha2.ResourceBinding, o *unstructured.Unstructured, of subject, standings []standing,
) error {
	reports, ok := reported(of, standings)
	if !ok {
		return nil
	}
	wanted, ok := interpreter.Aggregate(o, placing(b), reports)
	if !ok || interpreter.Equal(wanted, o.Object["status"]) {
		return nil
	}
	// The whole status is written, for the version of the template that it was computed for. A
	// status that is computed from an older template could undo an earlier write.
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": o.GetUID()},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": o.GetResourceVersion()},
		{"op": "add", "path": "/status", "value": wanted},
	})
	if err != nil {
		return fmt.Errorf("encode status of %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	target := &unstructured.Unstructured{}
	target.SetGroupVersionKind(o.GroupVersionKind())
	target.SetNamespace(o.GetNamespace())
	target.SetName(o.GetName())
	err = w.hub.Status().Patch(ctx, target, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(workv1alpha2.FieldManager))
	switch {
	case apierrors.IsNotFound(err): // it is gone, or its kind has no status subresource
	case apierrors.IsInvalid(err):
		// The hub enforces rules for a status that those of several clusters may break together, such
		// as that of a pod that was created again. The binding has the true status.
		logr.FromContextOrDiscard(ctx).Info("the hub refuses the status of the template",
			"template", binding.TemplateOf(b).String(), "reason", err.Error())
	case err != nil:
		return fmt.Errorf("update status of %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// placing describes how the replicas of a binding are placed.
func placing(b *workv1alpha2.ResourceBinding) interpreter.Placing {
	if !binding.Divided(b) {
		return interpreter.Placing{Duplicated: b.Spec.ReplicaSchedulingType == policyv1alpha1.Duplicated}
	}
	if b.Spec.Replicas == nil {
		return interpreter.Placing{}
	}
	missing := *b.Spec.Replicas
	for _, c := range b.Spec.Clusters {
		if c.Replicas != nil {
			missing -= *c.Replicas
		}
	}
	return interpreter.Placing{Missing: max(0, missing)}
}

// views returns what is known of a binding in each cluster that it names, and in those that may
// still hold a copy. A deleted binding is placed nowhere.
func (w *writer) views(b *workv1alpha2.ResourceBinding) []view {
	// Results and lists are read before the objects. A list that completes, or a copy that is
	// applied, in between must not make an object that was read too early count as absent.
	clusters := binding.Clusters(b)
	results, listed := map[string]apply.Result{}, map[string]bool{}
	for cluster := range clusters {
		if r, ok := w.applier.Result(b.UID, cluster); ok {
			results[cluster] = r
		}
		listed[cluster] = w.listed(cluster, binding.Kind(b))
	}
	objects := w.mirror.Placed(b.UID)
	recorded := make(map[string]*workv1alpha2.AggregatedStatusItem, len(b.Status.AggregatedStatus))
	for i := range b.Status.AggregatedStatus {
		recorded[b.Status.AggregatedStatus[i].ClusterName] = &b.Status.AggregatedStatus[i]
	}
	leaving := map[string]bool{}
	for _, t := range b.Spec.GracefulEvictionTasks {
		leaving[t.FromCluster] = true
	}
	placed := map[string]bool{}
	if b.DeletionTimestamp.IsZero() {
		for _, c := range b.Spec.Clusters {
			placed[c.Name] = true
		}
	}
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
		if !placed[cluster] && (w.applier.Gone(b.UID, cluster) || !joined && w.clusters.left(cluster)) {
			continue
		}
		v := view{
			cluster: cluster, placed: placed[cluster], leaving: !placed[cluster] && leaving[cluster],
			contact: w.contact(m, cluster), object: found[cluster], recorded: recorded[cluster],
			listed: listed[cluster],
		}
		if joined {
			v.id = m.ID()
		}
		if v.recorded == nil && w.recorded != nil {
			if applied, health, ok := w.recorded(b.UID, cluster); ok {
				v.recorded = &workv1alpha2.AggregatedStatusItem{Applied: applied, Health: health}
			}
		}
		v.contest = w.applier.Contest(b.UID, cluster)
		if o, gone := w.applier.Ended(b.UID, cluster); gone {
			v.ended = &o
		}
		r, ok := results[cluster]
		// The binding does not name the cluster, which is known by the copy in it.
		if _, asked := listed[cluster]; !asked {
			r, ok = w.applier.Result(b.UID, cluster)
		}
		if ok {
			v.result = &r
		}
		views = append(views, v)
	}
	return views
}

// listed reports whether the mirror knows every object of a kind in a cluster.
func (w *writer) listed(cluster string, gvk schema.GroupVersionKind) bool {
	m, joined := w.registry.Member(cluster)
	if !joined {
		return false
	}
	switch api, served := m.APIs().Kind(gvk); served {
	case presence.Present:
		return w.mirror.Synced(cluster, api.GroupVersionResource().GroupResource())
	case presence.Absent:
		return true
	default:
		return false
	}
}

// joined reports whether a cluster is a member.
func (w *writer) joined(cluster string) bool {
	_, joined := w.registry.Member(cluster)
	return joined
}

// asking reports whether a cluster of the binding is still being probed, as all are after a
// start. The status stays until the answer is known.
func (w *writer) asking(b *workv1alpha2.ResourceBinding) bool {
	return slices.ContainsFunc(b.Spec.Clusters, func(c workv1alpha2.TargetCluster) bool {
		m, joined := w.registry.Member(c.Name)
		if !joined {
			return w.clusters.joins(c.Name)
		}
		return !m.Reachable() && !m.Lost()
	})
}

// listing reports, soon after a start, whether a cluster of the binding that answers is not
// listed yet. The status stays until the clusters have been read, instead of changing after
// each of them.
func (w *writer) listing(b *workv1alpha2.ResourceBinding) bool {
	if time.Since(w.started) > startPatience {
		return false
	}
	kind := binding.Kind(b)
	return slices.ContainsFunc(b.Spec.Clusters, func(c workv1alpha2.TargetCluster) bool {
		m, joined := w.registry.Member(c.Name)
		return joined && m.Reachable() && !w.listed(c.Name, kind)
	})
}

// contact returns whether a cluster answers. Right after a start that is unsure.
func (w *writer) contact(m *member.Member, cluster string) contact {
	switch {
	case m == nil && w.clusters.left(cluster):
		return lost
	case m == nil:
		return unsure
	case m.Reachable():
		return answers
	case m.Lost():
		return lost
	default:
		return unsure
	}
}
