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

// do computes and writes the status of the binding with the name and of its template. The result
// says when the queue calls do again without an event. While clusters of the binding are probed, or
// listed after a start, it writes nothing.
func (w *writer) do(ctx context.Context, name types.NamespacedName) queue.Next {
	b, ok := w.bindings.Get(name)
	if !ok {
		return queue.Next{}
	}
	if b.DeletionTimestamp.IsZero() {
		if w.asking(b) {
			return queue.Next{} // the event of each probed cluster queues the binding again
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
		return queue.Next{After: settle} // the cache will have the newer version soon
	default:
		log.Error(err, "write status")
		return queue.Next{Backoff: true}
	}
}

// write writes the status of the binding b, and then that of its template, if they changed. next is
// the delay after which to call it again without an event; 0: not necessary. While the pacer delays
// the status of the binding, it writes neither.
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
			// The record is about another cluster, which had the same name. The work will begin in this
			// cluster.
			views[i].run = nil
		}
	}
	states, err := judge(b, of, views)
	if err != nil {
		return 0, err
	}
	status := compute(b, of, outcome, states, marks, time.Now())
	if !equality.Semantic.DeepEqual(status, b.Status) {
		due := slices.ContainsFunc(states, func(s clusterState) bool { return s.placed && (s.applied == waiting || s.applied == unknown) })
		if wait := w.pacer.wait(b, due); wait > 0 {
			return wait, nil
		}
		if err := w.writeBinding(ctx, b, status); err != nil {
			return 0, err
		}
	}
	if o != nil {
		if err := w.writeTemplate(ctx, b, o, of, states); err != nil {
			return 0, err
		}
	}
	return watching, nil
}

// template returns the template of the binding b from the cache, read-only. It is nil if the
// template is not known, or another object has its name now.
func (w *writer) template(b *workv1alpha2.ResourceBinding) *unstructured.Unstructured {
	o, state := w.templates.Get(binding.Kind(b), b.Namespace, b.Spec.Resource.Name)
	if state != presence.Present || b.Spec.Resource.UID != "" && o.GetUID() != b.Spec.Resource.UID {
		return nil
	}
	return o
}

// subjectOf returns the facts about a template on which the status depends; the zero value for nil.
func subjectOf(o *unstructured.Unstructured) subject {
	if o == nil {
		return subject{}
	}
	// observedGeneration is 0 here if it is absent or not a whole number.
	observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	s := subject{version: template.Version(o), generation: o.GetGeneration(), observed: observed, nodePorts: interpreter.NodePorts(o)}
	if len(placement.DeletionWaitsFor(o)) > 0 {
		s.deletion, s.waitReason = placement.DeletionWaits(o), workv1alpha2.ReasonFinalizersRemain
	}
	return s
}

// writeRemoval writes into the status of the binding b, which is in deletion, which clusters still
// have a copy, and why. It removes the conditions DeletionWaits and Contested, which are about the
// template. It writes nothing if no cluster is known to have a copy.
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

// writeBinding writes the status of the binding b, and then records Events for conditions that
// turned bad. The error is a conflict if the hub has a newer version of b.
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

// writeTemplate writes the status of the template o, aggregated from the statuses of its copies. It
// writes nothing if the kind has no such status, the status is the same, or too little is known. A
// status that the hub refuses as invalid is only logged. The error is a conflict if the hub has a
// newer version of o.
func (w *writer) writeTemplate(
	ctx context.Context, b *workv1alpha2.ResourceBinding, o *unstructured.Unstructured, of subject, states []clusterState,
) error {
	reports, ok := reported(of, states)
	if !ok {
		return nil
	}
	wanted, ok := interpreter.Aggregate(o, placing(b), reports)
	if !ok || interpreter.Equal(wanted, o.Object["status"]) {
		return nil
	}
	// The whole status is written, and only to the version of the template from which it was computed.
	// A status that was computed from an older version could undo a later write.
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
	case apierrors.IsNotFound(err): // the template is gone, or its kind has no status subresource
	case apierrors.IsInvalid(err):
		// The hub enforces rules for a change of a status, which the combined statuses of several
		// clusters may break, for example if a pod was created again. The binding has the true status.
		logr.FromContextOrDiscard(ctx).Info("the hub refuses the status of the template",
			"template", binding.TemplateOf(b).String(), "reason", err.Error())
	case err != nil:
		return fmt.Errorf("update status of %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// placing returns how the replicas of a binding are placed, for interpreter.Aggregate.
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

// views returns what is known of the binding b in each cluster that it names or that may still have
// a copy, in no order. If b is in deletion, no view has placed set.
func (w *writer) views(b *workv1alpha2.ResourceBinding) []view {
	// The results of writes, and whether the type is listed, are read before the objects. Otherwise an
	// object that is written or listed in between would count as absent.
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
		// The cluster is known only by the copy in it. So its result was not read above.
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

// listed reports whether the mirror knows every object of a kind in a cluster, so that an object
// that it does not have is absent. It is true if the cluster does not serve the kind.
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

// asking reports whether a cluster that the binding b names has not been probed yet since the
// start. The status stays as it is until that is done.
func (w *writer) asking(b *workv1alpha2.ResourceBinding) bool {
	return slices.ContainsFunc(b.Spec.Clusters, func(c workv1alpha2.TargetCluster) bool {
		m, joined := w.registry.Member(c.Name)
		if !joined {
			return w.clusters.joins(c.Name)
		}
		return !m.Reachable() && !m.Lost()
	})
}

// listing reports whether, within startPatience after the start, a cluster that the binding b names
// answers but is not listed yet. The status stays until all clusters are listed, instead of
// changing after each of them.
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

// contact returns whether a cluster answers. m is nil for a cluster that is not a member. The
// result is unsure while the cluster was not probed since the start, and lost for a cluster that
// the hub does not have.
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
