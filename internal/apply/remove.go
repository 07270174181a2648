package apply

import (
	"context"
	"errors"
	"slices"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
)

// remove takes what a binding placed out of this cluster: deletes it, or only its marks.
func (l *lane) remove(ctx context.Context, b *workv1alpha2.ResourceBinding, orphan bool) again {
	if !l.member.Reachable() {
		return settled // everything is looked at when it answers again
	}
	complete := l.complete(b) // asked before the list that it vouches for
	next := settled
	for _, o := range l.placed(b) {
		var err error
		if orphan {
			// What is preserved must outlive the hub's namespace.
			err = errors.Join(l.orphan(ctx, o), l.unmarkNamespace(ctx, o.Namespace))
		} else {
			err = l.delete(ctx, o)
		}
		if err != nil {
			next = soon
		}
	}
	if next == soon || !complete || len(l.placed(b)) > 0 {
		return next // the mirror tells when the type is listed or an object is gone
	}
	if e, _ := l.applier.ledger.get(b.UID, l.name()); e.unsure {
		return l.settle(ctx, b)
	}
	l.update(b, func(e *entry) { *e = entry{gone: true} })
	l.applier.finalizing.look(b)
	return settled
}

// prune removes what a binding placed in this cluster when it does not name the cluster
// any more. A healthy copy stays until one is healthy where the binding wants it.
func (l *lane) prune(ctx context.Context, b *workv1alpha2.ResourceBinding) again {
	// A cluster that leaves is taken out of bindings, perhaps before its member knows that
	// it leaves. What it keeps is for Leave to say.
	c := &clusterv1alpha1.Cluster{}
	if err := l.applier.hub.Get(ctx, client.ObjectKey{Name: l.name()}, c); apierrors.IsNotFound(err) || !c.DeletionTimestamp.IsZero() {
		return settled
	} else if err != nil {
		return soon
	}
	l.update(b, func(e *entry) { e.held = true }) // before the look, so that no change is missed
	healthy := func(o mirror.Object) bool { return o.Health == workv1alpha2.ResourceHealthy }
	last, replaced := false, len(b.Spec.Clusters) == 0
	for _, o := range l.applier.mirror.Placed(b.UID) {
		if o.Cluster == l.name() {
			last = last || healthy(o)
		} else if _, wanted := binding.Target(b, o.Cluster); wanted && l.applier.reachable(o.Cluster) {
			replaced = replaced || healthy(o)
		}
	}
	if last && !replaced {
		return settled // lookAtHeld looks again when another copy changes
	}
	l.update(b, func(e *entry) { e.held = false })
	return l.remove(ctx, b, false)
}

// placed are the objects of a binding in this cluster.
func (l *lane) placed(b *workv1alpha2.ResourceBinding) []mirror.Object {
	var here []mirror.Object
	for _, o := range l.applier.mirror.Placed(b.UID) {
		if o.Cluster == l.name() {
			here = append(here, o)
		}
	}
	return here
}

// complete is true when the mirror knows every object that the binding may have in this
// cluster. Otherwise the binding is looked at when it does.
func (l *lane) complete(b *workv1alpha2.ResourceBinding) bool {
	if !l.member.Reachable() {
		return false
	}
	apis := l.member.APIs()
	api, served := apis.Kind(binding.Kind(b))
	switch served {
	case presence.Absent:
		// Nothing of a type can outlive it, but it may be served in another version.
		i := slices.IndexFunc(apis.All(), func(a member.API) bool { return a.GroupVersionKind.GroupKind() == binding.Kind(b).GroupKind() })
		if i < 0 {
			return true
		}
		api = apis.All()[i]
	case presence.Unknown:
		return false
	case presence.Present:
	}
	l.applier.mirror.Require(api.GroupVersionKind)
	gr := api.GroupVersionResource().GroupResource()
	if !l.applier.mirror.Synced(l.name(), gr) {
		l.await(gr, item{binding: binding.Name(b)})
		return false
	}
	return true
}

// settle finds out what became of an apply that was never answered.
func (l *lane) settle(ctx context.Context, b *workv1alpha2.ResourceBinding) again {
	api, served := l.member.APIs().Kind(binding.Kind(b))
	if served == presence.Present {
		o := object{resource: api.GroupVersionResource(), namespace: b.Namespace, name: b.Spec.Resource.Name}
		found, err := l.client.get(ctx, o)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return soon
		default:
			l.applier.mirror.Observe(l.name(), o.resource, found)
		}
	}
	l.update(b, func(e *entry) { e.unsure = false })
	return soon
}

// delete deletes a placed object.
func (l *lane) delete(ctx context.Context, o mirror.Object) error {
	if o.Deleting {
		return nil // its finalizers are at work
	}
	answer, err := l.client.delete(ctx, objectOf(o), metav1.Preconditions{UID: &o.UID})
	switch {
	case apierrors.IsNotFound(err):
		l.gone(o)
		return nil
	case err != nil:
		logr.FromContextOrDiscard(ctx).V(1).Info("not deleted", "object", objectOf(o).String(), "error", err.Error())
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("deleted", "object", objectOf(o).String())
	if answer.GetKind() == "Status" {
		l.gone(o) // the answer is the object while finalizers hold it
	} else if answer.GetDeletionTimestamp() != nil {
		l.applier.mirror.Observe(l.name(), o.Resource, answer)
	}
	return nil
}

func (l *lane) gone(o mirror.Object) {
	l.applier.mirror.ObserveDeleted(l.name(), o.Resource.GroupResource(), o.Namespace, o.Name, o.UID)
}

// orphan takes our marks off a placed object.
func (l *lane) orphan(ctx context.Context, o mirror.Object) error {
	left, err := l.client.unmark(ctx, objectOf(o), o.UID,
		[]string{workv1alpha2.BindingLabel}, []string{workv1alpha2.DigestAnnotation})
	switch {
	case apierrors.IsNotFound(err):
		l.gone(o)
		return nil
	case err != nil:
		logr.FromContextOrDiscard(ctx).V(1).Info("not orphaned", "object", objectOf(o).String(), "error", err.Error())
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("orphaned", "object", objectOf(o).String())
	l.applier.mirror.Observe(l.name(), o.Resource, left)
	return nil
}
