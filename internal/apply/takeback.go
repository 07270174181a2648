package apply

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/queue"
)

// Objects that become copies: orphans of this hub, and objects with more replicas than the
// share of their cluster. See docs/design/0022-adoption.md.

// isRecreated reports whether live is not the orphan itself: somebody deleted the orphan and
// created another object with its name and annotations. The hub owns the annotation of an orphan,
// and the creator that of another object. API servers can lose managedFields, as in a migration of
// the stored version. If the annotation has no owner, or only one from before the API server began
// to track owners, verified decides: whether this hub signed the source of the orphan.
func isRecreated(live *unstructured.Unstructured, verified bool) bool {
	by := owners(live, "f:metadata", "f:annotations", "f:"+workv1alpha2.OrphanAnnotation)
	if len(by) == 0 || slices.Contains(by, beforeFirstApply) {
		return !verified
	}
	return !slices.Contains(by, workv1alpha2.FieldManager)
}

// beforeFirstApply is the manager that an API server names for the fields of an object without
// managedFields.
const beforeFirstApply = "before-first-apply"

// takeBackOrphan makes an orphan of this hub a copy again and applies the manifest. An orphan that
// was applied in another version of its API only gets the marks, and is planned again as any other
// copy. The results are those of act.
func (t *task) takeBackOrphan(ctx context.Context, live *unstructured.Unstructured, orphan mark.Orphan) (queue.Next, bool, bool) {
	t.log(ctx).Info("taking back what was orphaned")
	t.edited, t.at.Completions = t.isEdited(mirror.Object{Source: orphan.Source}), interpreter.CompletionsOf(live)
	if err := t.reclaim(ctx, live, orphan.Origin); err != nil {
		return t.failed(ctx, err), false, false
	}
	if ownSet(live, t.wanted.Manifest.GetAPIVersion()) == nil {
		// Applied in another version of its API: plan it as any other copy.
		return queue.Next{}, true, false
	}
	return t.sendAsCopy(ctx, orphan.Origin)
}

// lowers reports whether the manifest asks for fewer replicas than an object has, because the
// replicas are divided among clusters.
func (t *task) lowers(live *unstructured.Unstructured) bool {
	has, asked := interpreter.Replicas(live), interpreter.Replicas(t.wanted.Manifest)
	return binding.Divided(t.binding) && has != nil && asked != nil && *asked < *has && !interpreter.KeepsReplicas(t.wanted.Manifest)
}

// sendMarked marks an object as a copy before it applies the manifest. Replicas of the object above
// the share of the cluster then count as those of a copy. The results are those of act.
func (t *task) sendMarked(ctx context.Context, live *unstructured.Unstructured, origin string) (queue.Next, bool, bool) {
	if err := t.remark(ctx, live, origin); err != nil {
		return t.failed(ctx, err), false, false
	}
	return t.sendAsCopy(ctx, origin)
}

// sendAsCopy applies the manifest to an object that has just been marked as a copy. It first
// determines the wanted state again, so that replicas above the share of the cluster stay
// until as many are available elsewhere. again is true, without a request, if there is nothing
// to apply now.
func (t *task) sendAsCopy(ctx context.Context, origin string) (queue.Next, bool, bool) {
	if t.want(ctx, t.queue.applier.revision(t.binding)); t.wanted.Intent != Place || !t.wanted.Decided || t.wanted.Manifest == nil {
		return queue.Next{}, true, false
	}
	return t.send(ctx, origin, true)
}

// remark writes our marks on an object, without applying the manifest, and gives the object to the
// mirror as a copy. origin is the value for OriginAnnotation; "" leaves the annotation as it is.
func (t *task) remark(ctx context.Context, live *unstructured.Unstructured, origin string) error {
	q, o := t.queue, t.wanted.Object
	annotations := map[string]any{
		workv1alpha2.OrphanAnnotation: nil,
		workv1alpha2.SourceAnnotation: q.applier.key().Sign(t.wanted.Source),
	}
	if origin != "" {
		annotations[workv1alpha2.OriginAnnotation] = origin
	}
	marked, err := q.client.Mark(ctx, o, live.GetUID(), map[string]any{workv1alpha2.BindingLabel: string(t.binding.UID)}, annotations)
	if err != nil {
		return err
	}
	q.applier.mirror.Observe(q.name(), o.Resource, marked)
	return nil
}
