package apply

import (
	"context"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/presence"
)

func namespaceObject(name string) object {
	return object{resource: namespaceResource, name: name}
}

// ensureNamespace creates the namespace of a placed object where it is absent, with our
// mark, by which it is deleted when the hub's namespace is gone.
func (l *lane) ensureNamespace(ctx context.Context, name string) error {
	if name == "" || l.hasNamespace(name) {
		return nil
	}
	l.creating.Lock()
	defer l.creating.Unlock()
	if l.hasNamespace(name) {
		return nil // another worker created it
	}
	created, err := l.client.create(ctx, namespaceObject(name), map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{
			"name":   name,
			"labels": map[string]any{workv1alpha2.NamespaceLabel: l.applier.hubID},
		},
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("created namespace", "namespace", name)
	l.applier.mirror.Observe(l.name(), namespaceResource, created)
	return nil
}

func (l *lane) hasNamespace(name string) bool {
	is, _ := l.find(namespaceObject(name))
	return is == presence.Present
}

// ourNamespace is true for a namespace in the member that this hub created.
func (l *lane) ourNamespace(o object) bool {
	if o.resource.GroupResource() != namespaceResource.GroupResource() {
		return false
	}
	marked, _ := l.applier.mirror.Namespaces(l.name())
	return marked[o.name] == l.applier.hubID
}

// sweep deletes a namespace that this hub created in the member when the hub's own is
// gone and nothing placed remains in it.
func (l *lane) sweep(ctx context.Context, name string) again {
	if !l.member.Reachable() || !l.ourNamespace(namespaceObject(name)) {
		return settled
	}
	err := l.applier.hub.Get(ctx, client.ObjectKey{Name: name}, hubNamespace())
	if err == nil {
		return settled
	}
	if !apierrors.IsNotFound(err) {
		return soon
	}
	for _, o := range l.applier.mirror.PlacedIn(l.name()) {
		if o.Namespace == name {
			return settled // observed looks again when it is deleted
		}
	}
	if err := l.deleteNamespace(ctx, name); err != nil {
		logr.FromContextOrDiscard(ctx).V(1).Info("not deleted", "namespace", name, "error", err.Error())
		return soon
	}
	return settled
}

// deleteNamespace deletes a namespace if it still has our mark in the member.
func (l *lane) deleteNamespace(ctx context.Context, name string) error {
	found, err := l.client.get(ctx, namespaceObject(name))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if found.GetLabels()[workv1alpha2.NamespaceLabel] != l.applier.hubID || found.GetDeletionTimestamp() != nil {
		return nil
	}
	_, err = l.client.delete(ctx, namespaceObject(name), metav1.Preconditions{
		UID: new(found.GetUID()), ResourceVersion: new(found.GetResourceVersion()),
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		logr.FromContextOrDiscard(ctx).Info("deleted namespace", "namespace", name)
	}
	return err
}

// unmarkNamespace takes our mark off a namespace that this hub created.
func (l *lane) unmarkNamespace(ctx context.Context, name string) error {
	if !l.ourNamespace(namespaceObject(name)) {
		return nil
	}
	found, err := l.client.get(ctx, namespaceObject(name))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	left, err := l.client.unmark(ctx, namespaceObject(name), found.GetUID(), []string{workv1alpha2.NamespaceLabel}, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		l.applier.mirror.Observe(l.name(), namespaceResource, left)
	}
	return err
}
