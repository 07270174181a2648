package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/render"
)

const (
	// driftMemory is how long a repair of drift is held against the next one: whoever
	// keeps changing an object back is not answered in kind.
	driftMemory       = 10 * time.Minute
	firstRepairPause  = time.Second
	longestRepairWait = 5 * time.Minute
)

// look does what there is to do for a binding in this cluster.
func (l *lane) look(ctx context.Context, name types.NamespacedName) again {
	b, ok := l.applier.bindings.Get(name)
	if !ok {
		return settled
	}
	defer func() {
		if _, ok := l.applier.bindings.ByUID(b.UID); !ok {
			l.applier.ledger.forget(b.UID) // it went while we worked
		}
	}()
	ctx = logr.NewContext(ctx, logr.FromContextOrDiscard(ctx).WithValues("binding", name.String()))
	wanted, placed := binding.Target(b, l.name())
	switch {
	case !b.DeletionTimestamp.IsZero():
		return l.remove(ctx, b, b.Spec.PreserveResourcesOnDeletion)
	case !placed:
		return l.prune(ctx, b)
	default:
		return l.place(ctx, b, wanted)
	}
}

// task is one manifest to be brought to a cluster.
type task struct {
	binding  *workv1alpha2.ResourceBinding
	manifest *unstructured.Unstructured
	digest   string
	object   object
}

// place has the cluster hold the binding's object as rendered.
func (l *lane) place(ctx context.Context, b *workv1alpha2.ResourceBinding, wanted workv1alpha2.TargetCluster) again {
	a := l.applier
	source, state := a.template(b)
	if state != presence.Present {
		return settled // Unknown is not Absent, and an absent template ends its binding
	}
	gvk := binding.Kind(b)
	api, served := l.member.APIs().Kind(gvk)
	reachable := l.member.Reachable()
	if reachable {
		switch served {
		case presence.Absent:
			return l.report(b, Result{
				Reason:  workv1alpha2.ReasonAPINotServed,
				Message: fmt.Sprintf("%s does not serve %s %s", l.name(), b.Spec.Resource.APIVersion, gvk.Kind),
			}, settled)
		case presence.Unknown:
			return l.report(b, Result{
				Reason:  workv1alpha2.ReasonClusterUnreachable,
				Message: fmt.Sprintf("%s cannot say whether it serves %s %s", l.name(), b.Spec.Resource.APIVersion, gvk.Kind),
			}, settled)
		case presence.Present:
		}
		a.mirror.Require(gvk)
		if gr := api.GroupVersionResource().GroupResource(); !a.mirror.Synced(l.name(), gr) {
			l.await(gr, item{binding: binding.Name(b)})
			return settled
		}
	}

	manifest, digest, err := render.Render(render.Input{
		Template: source, Cluster: l.member.Cluster(), Target: wanted, Divided: binding.Divided(b), Binding: b.UID,
		Overrides: render.Overrides(a.overrides.in(b.Namespace), source),
	})
	if err != nil {
		return l.report(b, Result{Reason: workv1alpha2.ReasonRenderFailed, Message: err.Error()}, settled)
	}
	if !reachable {
		return l.absent(b, digest)
	}
	return l.compare(ctx, task{
		binding: b, manifest: manifest, digest: digest,
		object: object{api.GroupVersionResource(), manifest.GetNamespace(), manifest.GetName()},
	})
}

// compare finds out from the mirror what is to be done and has it done.
func (l *lane) compare(ctx context.Context, t task) again {
	a := l.applier
	known, _ := a.ledger.get(t.binding.UID, l.name())
	is, o := l.find(t.object)
	switch is {
	case presence.Unknown:
		l.await(t.object.resource.GroupResource(), item{binding: binding.Name(t.binding)})
		return settled
	case presence.Absent:
		if known.unsure {
			return l.ask(ctx, t)
		}
		return l.send(ctx, t, false)
	case presence.Present:
		if !o.Placed() {
			return l.foreign(ctx, t)
		}
		if o.Binding == t.binding.UID {
			break
		}
		if other, ok := a.bindings.ByUID(o.Binding); ok && !other.DeletionTimestamp.IsZero() {
			return soon // it is about to go
		} else if ok {
			return l.conflict(t)
		}
		return l.foreign(ctx, t) // placed by a hub that is gone, or by another one
	}
	switch {
	case o.Deleting:
		return l.report(t.binding, Result{
			Reason:  workv1alpha2.ReasonApplying,
			Message: fmt.Sprintf("%s is being deleted; it is placed again when it is gone", t.object),
		}, settled)
	case o.Digest != t.digest:
		return l.send(ctx, t, true)
	case known.digest == t.digest && known.fields != o.Fields:
		return l.repair(ctx, t, known)
	}
	l.record(t, o.Fields)
	return l.tidy(ctx, t, o.UID)
}

// foreign deals with an object that is there and not ours.
func (l *lane) foreign(ctx context.Context, t task) again {
	if t.binding.Spec.ConflictResolution == policyv1alpha1.ConflictOverwrite || l.ourNamespace(t.object) {
		return l.send(ctx, t, true)
	}
	// Nobody tells when it goes away, but a look costs no call.
	return l.conflict(t)
}

func (l *lane) conflict(t task) again {
	return l.report(t.binding, Result{
		Reason:  workv1alpha2.ReasonConflict,
		Message: fmt.Sprintf("%s exists and was not placed by this hub", t.object),
	}, soon)
}

// ask finds out what became of a request that was never answered.
func (l *lane) ask(ctx context.Context, t task) again {
	found, err := l.client.get(ctx, t.object)
	switch {
	case apierrors.IsNotFound(err):
		return l.send(ctx, t, false)
	case err != nil:
		return l.failed(ctx, t, err)
	}
	l.update(t.binding, func(e *entry) { e.unsure = false })
	l.applier.mirror.Observe(l.name(), t.object.resource, found)
	return l.compare(ctx, t)
}

// repair takes back what somebody else changed. Whoever keeps changing it is met with
// growing patience, so that two controllers do not fight at full speed.
func (l *lane) repair(ctx context.Context, t task, known entry) again {
	now := time.Now()
	if now.Sub(known.drifted) > driftMemory {
		known.repairs = 0
	}
	if known.repairs > 0 {
		pause := min(firstRepairPause<<min(known.repairs-1, 16), longestRepairWait)
		if wait := known.drifted.Add(pause).Sub(now); wait > 0 {
			l.queue.AddAfter(item{binding: binding.Name(t.binding)}, wait)
			return queued
		}
	}
	logr.FromContextOrDiscard(ctx).Info("repairing drift", "object", t.object.String())
	l.update(t.binding, func(e *entry) { e.repairs, e.drifted = known.repairs+1, now })
	return l.send(ctx, t, true)
}

// send applies the manifest. Without force it is for an object that is absent: one that
// turns out to exist is left as it was.
func (l *lane) send(ctx context.Context, t task, force bool) again {
	known, _ := l.applier.ledger.get(t.binding.UID, l.name())
	if known.refused == t.digest && time.Now().Before(known.retry) {
		return queued
	}
	l.update(t.binding, func(e *entry) { e.busy = true })
	next := l.transmit(ctx, t, force)
	l.update(t.binding, func(e *entry) { e.busy = false })

	// What others did meanwhile was taken for our own doing.
	known, _ = l.applier.ledger.get(t.binding.UID, l.name())
	if _, o := l.find(t.object); known.result.Applied && (o.Digest != known.digest || o.Fields != known.fields) {
		l.queue.Add(item{binding: binding.Name(t.binding)})
	}
	return next
}

func (l *lane) transmit(ctx context.Context, t task, force bool) again {
	if err := l.ensureNamespace(ctx, t.object.namespace); err != nil {
		return l.failed(ctx, t, err)
	}
	l.update(t.binding, func(e *entry) { e.unsure = true })
	applied, created, err := l.client.apply(ctx, t.object, t.manifest.Object, force)
	if err != nil {
		return l.failed(ctx, t, err)
	}
	if !force && !created && foreignManager(applied) {
		return l.takeBack(ctx, t)
	}
	logr.FromContextOrDiscard(ctx).V(1).Info("applied", "object", t.object.String(), "created", created)
	l.applier.mirror.Observe(l.name(), t.object.resource, applied)
	_, o := l.find(t.object)
	if !o.Placed() || o.Digest != t.digest || o.Binding != t.binding.UID {
		l.update(t.binding, func(e *entry) { e.unsure = false })
		return soon // it was changed or deleted while we wrote
	}
	l.record(t, o.Fields)
	return l.tidy(ctx, t, o.UID)
}

// find asks the mirror for an object.
func (l *lane) find(o object) (presence.Presence, mirror.Object) {
	return l.applier.mirror.Lookup(l.name(), o.resource.GroupResource(), o.namespace, o.name)
}

// foreignManager is true when somebody else wrote the object before us. A subresource,
// such as status, is written by the cluster's own controllers.
func foreignManager(o *unstructured.Unstructured) bool {
	for _, f := range o.GetManagedFields() {
		if f.Manager != workv1alpha2.FieldManager && f.Subresource == "" {
			return true
		}
	}
	return false
}

// takeBack undoes an apply to an object that was created by somebody else between our
// look and our apply: an apply of nothing gives up all that only we own.
func (l *lane) takeBack(ctx context.Context, t task) again {
	metadata := map[string]any{"name": t.object.name}
	if t.object.namespace != "" {
		metadata["namespace"] = t.object.namespace
	}
	nothing := map[string]any{"apiVersion": t.manifest.GetAPIVersion(), "kind": t.manifest.GetKind(), "metadata": metadata}
	left, _, err := l.client.apply(ctx, t.object, nothing, false)
	if err != nil {
		return l.failed(ctx, t, err)
	}
	l.update(t.binding, func(e *entry) { e.unsure = false })
	l.applier.mirror.Observe(l.name(), t.object.resource, left)
	return l.conflict(t)
}

// failed reports what a call ended with.
func (l *lane) failed(ctx context.Context, t task, err error) again {
	logr.FromContextOrDiscard(ctx).V(1).Info("not applied", "object", t.object.String(), "error", err.Error())
	i := item{binding: binding.Name(t.binding)}
	if unanswered(err) {
		if l.soon.NumRequeues(i) == 0 {
			return soon // it may pass before anybody looks
		}
		return l.report(t.binding, Result{Reason: workv1alpha2.ReasonClusterUnreachable, Message: silence(err)}, soon)
	}
	l.update(t.binding, func(e *entry) { e.unsure = false })
	rejected := Result{Reason: workv1alpha2.ReasonRejected, Message: err.Error()}
	switch {
	case apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		return l.conflict(t)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsConflict(err), apierrors.IsInternalError(err):
		return l.report(t.binding, rejected, soon)
	case apierrors.IsNotFound(err):
		// The namespace or the type has just gone.
		l.applier.registry.Rediscover(l.name())
		return l.report(t.binding, rejected, soon)
	}
	if known, _ := l.applier.ledger.get(t.binding.UID, l.name()); known.refused != t.digest {
		l.late.Forget(i) // another manifest: patience starts anew
	}
	wait := l.late.When(i)
	l.update(t.binding, func(e *entry) { e.refused, e.retry = t.digest, time.Now().Add(wait) })
	l.queue.AddAfter(i, wait)
	return l.report(t.binding, rejected, queued)
}

// unanswered is true for an error that says nothing about the request itself.
func unanswered(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsUnauthorized(err)
}

// silence says why there is no answer in words that do not change from one attempt to the
// next, as those of network errors do.
func silence(err error) string {
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		return err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the API server did not answer within %s", callTimeout)
	default:
		return "the API server cannot be reached"
	}
}

// record remembers that the cluster has the manifest, and which fields are ours there.
func (l *lane) record(t task, fields uint64) {
	l.update(t.binding, func(e *entry) {
		e.digest, e.fields, e.unsure, e.refused = t.digest, fields, false, ""
	})
	l.report(t.binding, Result{Applied: true, Reason: workv1alpha2.ReasonFullyApplied}, settled)
	l.applier.lookAtHeld(t.binding)
}

// tidy deletes what the binding placed in this cluster under another kind or name.
func (l *lane) tidy(ctx context.Context, t task, uid types.UID) again {
	next := settled
	for _, o := range l.placed(t.binding) {
		if objectOf(o).resource.GroupResource() == t.object.resource.GroupResource() &&
			o.Namespace == t.object.namespace && o.Name == t.object.name || o.UID == uid {
			continue // the object itself, perhaps seen through another group
		}
		if err := l.delete(ctx, o); err != nil {
			next = soon
		}
	}
	return next
}

func (l *lane) update(b *workv1alpha2.ResourceBinding, change func(*entry)) {
	l.applier.ledger.update(binding.Name(b), b.UID, l.name(), change)
}

// report sets the result and returns when to look again.
func (l *lane) report(b *workv1alpha2.ResourceBinding, r Result, next again) again {
	r.Generation = b.Generation
	l.update(b, func(e *entry) { e.result, e.known, e.gone, e.held = r, true, false, false })
	return next
}

// absent reports on a cluster that does not answer: what was applied stays applied, for
// all we know.
func (l *lane) absent(b *workv1alpha2.ResourceBinding, digest string) again {
	known, _ := l.applier.ledger.get(b.UID, l.name())
	written := slices.IndexFunc(b.Status.AggregatedStatus, func(i workv1alpha2.AggregatedStatusItem) bool {
		return i.ClusterName == l.name() && i.Applied
	})
	switch {
	case known.result.Applied && known.digest == digest:
		return l.report(b, known.result, settled)
	case known.digest == "" && written >= 0:
		return settled // an earlier process applied it; more is known when the cluster answers
	case l.lost():
		return l.report(b, Result{Reason: workv1alpha2.ReasonClusterUnreachable, Message: "the cluster cannot be reached"}, settled)
	default:
		return soon // it was not asked yet
	}
}
