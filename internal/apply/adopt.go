package apply

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/queue"
)

// This file decides about objects that are in a cluster before the hub places them there: which
// of them are equal to their template, and how they become copies. See
// docs/design/0022-adoption.md.

// wasBefore reports whether an object was in the cluster before the hub placed it: it has
// OriginAnnotation. o may also be the manifest for such an object.
func wasBefore(o *unstructured.Unstructured) bool {
	return o.GetAnnotations()[workv1alpha2.OriginAnnotation] != ""
}

// adopt makes an unmanaged object a copy if it is equal to the manifest or may be taken over.
// Otherwise, or if its pods would violate the Pod Security level, it reports the reason and
// remembers the refusal. seen is the object in the mirror, live the object as just read. The
// results are those of act.
func (t *task) adopt(ctx context.Context, seen mirror.Object, live *unstructured.Unstructured) (queue.Next, bool, bool) {
	created, refusal, err := t.tryOn(ctx, live)
	if err != nil {
		return t.failed(ctx, err), false, false
	}
	origin, runs := workv1alpha2.OriginTakenOver, created
	var found difference
	if refusal == nil {
		if found = differences(t.wanted.Manifest, created, live); found.none() {
			origin, runs = workv1alpha2.OriginAdopted, live
		}
	}
	why := ""
	if runs != nil {
		why = t.queue.applier.standard.Violation(runs, t.wanted.Security)
	}
	seen.UID, seen.ResourceVersion = live.GetUID(), live.GetResourceVersion()
	switch {
	case origin == workv1alpha2.OriginTakenOver && t.wanted.Foreign != TakeOver:
		about := found.String()
		if refusal != nil {
			about = "whether it is equal is not known, for to create it there is refused: " + refusal.Error()
		}
		return t.judged(seen, workv1alpha2.ReasonConflict, notPlaced(t.wanted)+"; "+about+wayOut)
	case why != "":
		return t.judged(seen, workv1alpha2.ReasonPodSecurity, "what would run there: "+why)
	}
	t.log(ctx).Info("an object of others becomes the hub's", "origin", origin)
	return t.own(ctx, live, origin, everybodys)
}

// judged reports why an unmanaged object may not become a copy, and stores that in the state. The
// object is then not read again until it or the manifest changes. seen must have the UID and the
// resourceVersion of the object. The binding is planned again with backoff.
func (t *task) judged(seen mirror.Object, reason, message string) (queue.Next, bool, bool) {
	t.update(func(s *state) {
		s.acts.Judged, s.acts.JudgedReason, s.acts.JudgedMessage = judgement(t.wanted, seen), reason, message
	})
	t.report(reason, message)
	return queue.Next{Backoff: true}, false, false
}

// own makes our server-side apply the owner of the fields that the function selects returns, and
// applies the manifest. origin is the value for OriginAnnotation. It sets t.owned and
// t.at.Completions. If the hub stops between the two writes, it later finds an object without
// marks, which it judges again, or a copy that differs from the manifest. The results are those of
// act.
func (t *task) own(ctx context.Context, live *unstructured.Unstructured, origin string, selects takes) (queue.Next, bool, bool) {
	live, err := t.takeOwnership(ctx, t.wanted.Manifest, live, selects)
	if err != nil {
		return t.disowned(ctx, err)
	}
	t.owned, t.at.Completions = true, interpreter.CompletionsOf(live)
	if t.lowers(live) || live.GetAnnotations()[workv1alpha2.OrphanAnnotation] != "" {
		return t.sendMarked(ctx, live, origin)
	}
	return t.send(ctx, origin, true)
}

// signOwned adds OwnedAnnotation to a manifest in place, if the object was there before the hub and
// the hub now owns the fields that others owned (t.owned). It leaves other manifests as they are.
func (t *task) signOwned(manifest *unstructured.Unstructured) {
	annotations := manifest.GetAnnotations()
	if wasBefore(manifest) && t.owned {
		annotations[workv1alpha2.OwnedAnnotation] = "true"
		manifest.SetAnnotations(annotations)
	}
}

// disowned ends an action because of err. For errChanged, the binding is planned again at once. Any
// other error goes to failed, which reports it and says when to try again.
func (t *task) disowned(ctx context.Context, err error) (queue.Next, bool, bool) {
	if errors.Is(err, errChanged) {
		return queue.Next{}, true, false
	}
	return t.failed(ctx, err), false, false
}

// errChanged is returned if the object was changed, deleted or replaced during a write that
// depends on its state. The caller plans again.
var errChanged = errors.New("the object was changed meanwhile")

// takeOwnership makes our server-side apply the owner of the fields that the function selects
// returns for each manager, and returns the object after that. It returns live itself, without a
// request, if there is nothing to transfer. The next apply removes the fields that the manifest
// lacks. The error is errChanged if the object changed since live was read.
func (t *task) takeOwnership(ctx context.Context, manifest, live *unstructured.Unstructured, selects takes) (*unstructured.Unstructured, error) {
	entries, changed := handOver(manifest, live, selects, time.Now())
	if !changed {
		return live, nil
	}
	return t.setManagers(ctx, live, entries)
}

// inherit takes over the fields of a copy that an earlier version of the hub adopted without owning
// them, and returns the copy after that. It does so only if the template has changed (t.edited);
// otherwise it returns live. It sets t.owned to whether the hub owns the fields.
func (t *task) inherit(ctx context.Context, manifest, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.owned = t.owned || live.GetAnnotations()[workv1alpha2.OwnedAnnotation] != ""
	if !t.edited || t.owned || !wasBefore(live) {
		return live, nil
	}
	owned, err := t.takeOwnership(ctx, manifest, live, formerOwners)
	t.owned = err == nil
	return owned, err
}

// isEdited reports whether a copy was made from another state of the template than the current one,
// or has no mark that this hub signed. For a kind without generations any write of the template
// counts, also of its status: of the content the mark has only the resourceVersion.
func (t *task) isEdited(seen mirror.Object) bool {
	from, err := t.queue.applier.key().Verify(seen.Source)
	now := t.wanted.Source
	switch {
	case err != nil || from.Template != now.Template:
		return true
	case now.Generation != 0:
		return from.Generation != now.Generation
	default:
		return from.Version != now.Version
	}
}

// applyOwned applies a manifest. If the template has changed and somebody restored the copy with
// its marks from a backup, that client owns fields of the copy. Then applyOwned takes over these
// fields, sets t.owned and applies the manifest again, also if the first apply was refused as
// invalid. The results are those of applyManifest for the last apply. The error is errChanged if
// the object changes while its fields are taken over.
func (t *task) applyOwned(
	ctx context.Context, manifest *unstructured.Unstructured, force bool,
) (sent, applied *unstructured.Unstructured, created bool, err error) {
	sent, applied, created, err = t.applyManifest(ctx, manifest, force)
	if !t.edited || t.owned || err != nil && !apierrors.IsInvalid(err) {
		return sent, applied, created, err
	}
	live := applied
	if err != nil {
		var unread error
		if live, unread = t.queue.client.Get(ctx, t.wanted.Object); unread != nil {
			return sent, applied, created, err
		}
	}
	owned, problem := t.takeOwnership(ctx, manifest, live, restorers)
	switch {
	case problem != nil:
		return sent, nil, false, problem
	case owned == live:
		return sent, applied, created, err
	}
	t.owned = true
	return t.applyManifest(ctx, manifest, force)
}

// tryOn returns, by dry run, what creating the manifest in the cluster would give, under a free
// name. That is refused if the kind has fixed names or a value may exist only once. Then tryOn
// returns what the object live would become if the manifest replaced it. If the replacement is
// refused, too, created and err are nil, and refusal is the error of the creation. err is an error
// that says nothing about the manifest, such as a missing answer: the caller tries again later.
func (t *task) tryOn(ctx context.Context, live *unstructured.Unstructured) (created *unstructured.Unstructured, refusal, err error) {
	const random = 5
	manifest := withStorageOf(withoutKept(t.marked(workv1alpha2.OriginAdopted), live), live)
	trial := manifest.DeepCopy()
	trial.SetName(freeName(t.wanted.Object.Name, rand.String(random)))
	withoutNodePorts(trial)
	created, err = t.queue.client.TryCreate(ctx, t.wanted.Object, trial.Object)
	if err == nil || !refusesWrite(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return created, nil, err
	}
	refusal = err
	instead := manifest.DeepCopy()
	instead.SetUID(live.GetUID())
	instead.SetResourceVersion(live.GetResourceVersion())
	created, err = t.queue.client.TryReplace(ctx, t.wanted.Object, instead.Object)
	switch {
	case err == nil:
		return created, nil, nil
	case !refusesWrite(err) || apierrors.IsConflict(err):
		return nil, nil, err
	}
	return nil, refusal, nil
}

// withoutNodePorts removes the node ports from a Service in place. A dry run that creates a second
// Service would otherwise fail, because the existing Service has these ports.
func withoutNodePorts(o *unstructured.Unstructured) {
	if len(interpreter.NodePorts(o)) == 0 {
		return
	}
	ports, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "ports")
	list, _ := ports.([]any)
	for _, p := range list {
		if port, isMap := p.(map[string]any); isMap {
			delete(port, "nodePort")
		}
	}
}

// noteOf returns a message on how the object live differs from the applied manifest: fields that
// the cluster changed or added. For an object that an earlier version of the hub adopted, it also
// names the fields that the next change of the template removes. It is "" if there is nothing to
// say.
func (t *task) noteOf(manifest, live *unstructured.Unstructured) string {
	var notes []string
	for _, note := range []string{mutation(mutated(manifest, live)), addition(added(manifest, live))} {
		if note != "" {
			notes = append(notes, note)
		}
	}
	if wasBefore(live) && live.GetAnnotations()[workv1alpha2.OwnedAnnotation] == "" {
		if paths := toGo(manifest, live); len(paths) > 0 {
			notes = append(notes, "an earlier version of the hub adopted it with more than the template has; this goes with the next change of the template: "+some(paths))
		}
	}
	return strings.Join(notes, "; ")
}

// inspect reads an object that was in the cluster before the hub placed it, and stores the message
// of noteOf. That message names, for example, the fields that the next change of the template
// removes. again is true if the message changed. A failed read is tried again with backoff.
func (t *task) inspect(ctx context.Context) (queue.Next, bool, bool) {
	live, err := t.queue.client.Get(ctx, t.wanted.Object)
	if apierrors.IsNotFound(err) {
		return queue.Next{}, false, true // the mirror reports that the object is gone
	}
	if err != nil {
		return t.unread(ctx, err), false, true
	}
	note, said := t.noteOf(retained(t.wanted.Manifest, live), live), false
	t.update(func(s *state) {
		said = s.acts.Note == note
		s.acts.Inspected, s.acts.Note = true, note
	})
	return queue.Next{}, !said, true
}

// isCopied reports whether a controller may have copied the marks on an object from its owner,
// as from a Deployment to its ReplicaSets.
func isCopied(live *unstructured.Unstructured) bool { return metav1.GetControllerOf(live) != nil }
