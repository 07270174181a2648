package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
)

// namedInErrors is how many of the objects that are left an error names.
const namedInErrors = 3

// Leave takes what is ours out of a cluster that leaves the fleet, as its deletionPolicy
// says: Orphan takes our marks off, Delete deletes what this hub placed and the namespaces
// that it created. It returns nil when nothing is left, and otherwise an error that says
// what is; it is to be called again then. A cluster that cannot be reached is left as it
// is if its workloads are to stay anyway.
func (a *Applier) Leave(ctx context.Context, m *member.Member) error {
	orphan := m.Cluster().Spec.DeletionPolicy != clusterv1alpha1.DeletionDelete
	if !m.Reachable() {
		if orphan {
			return nil
		}
		return fmt.Errorf("delete workloads in cluster %s: it cannot be reached; set spec.deletionPolicy to Orphan to leave them there", m.Name())
	}
	l, ok := a.lane(m.Name())
	if !ok {
		return fmt.Errorf("leave cluster %s: the applier has not started", m.Name())
	}
	// Whoever started before the cluster began to leave ends first.
	l.working.Lock()
	l.working.Unlock() //nolint:staticcheck // nothing is protected: this waits

	if err := l.known(); err != nil {
		return err
	}
	ctx = logr.NewContext(ctx, logr.FromContextOrDiscard(ctx).WithName("apply").WithValues("cluster", m.Name()))
	if err := l.empty(ctx, orphan); err != nil {
		return err
	}
	return l.leaveNamespaces(ctx, orphan)
}

// known returns an error unless the mirror knows everything that was placed in the cluster.
func (l *lane) known() error {
	for _, name := range l.applier.bindings.In(l.name()) {
		if b, ok := l.applier.bindings.Get(name); ok && !l.complete(b) {
			return fmt.Errorf("leave cluster %s: it is not known yet which %s %s it has", l.name(), b.Spec.Resource.APIVersion, b.Spec.Resource.Kind)
		}
	}
	if _, synced := l.applier.mirror.Namespaces(l.name()); !synced {
		return fmt.Errorf("leave cluster %s: it is not known yet which namespaces it has", l.name())
	}
	return nil
}

// ours are the objects in the cluster that bindings of this hub placed.
func (l *lane) ours() []mirror.Object {
	return slices.DeleteFunc(l.applier.mirror.PlacedIn(l.name()), func(o mirror.Object) bool {
		_, ok := l.applier.bindings.ByUID(o.Binding)
		return !ok
	})
}

// empty orphans or deletes every placed object.
func (l *lane) empty(ctx context.Context, orphan bool) error {
	var group errgroup.Group
	group.SetLimit(workers)
	for _, o := range l.ours() {
		group.Go(func() error {
			if orphan {
				return l.orphan(ctx, o)
			}
			return l.delete(ctx, o)
		})
	}
	failure := group.Wait()
	left := l.ours()
	if failure == nil && len(left) == 0 {
		return nil
	}
	names := make([]string, 0, namedInErrors)
	for _, o := range left[:min(len(left), namedInErrors)] {
		names = append(names, objectOf(o).String())
	}
	return errors.Join(fmt.Errorf("leave cluster %s: %d objects are left: %s", l.name(), len(left), strings.Join(names, ", ")), failure)
}

// leaveNamespaces takes our mark off the namespaces that this hub created, or deletes
// them; what else is in them the cluster itself deletes then.
func (l *lane) leaveNamespaces(ctx context.Context, orphan bool) error {
	leave := l.deleteNamespace
	if orphan {
		leave = l.unmarkNamespace
	}
	marked, _ := l.applier.mirror.Namespaces(l.name())
	var failure error
	for name, hub := range marked {
		if hub != l.applier.hubID {
			continue
		}
		if err := leave(ctx, name); err != nil {
			failure = errors.Join(failure, fmt.Errorf("leave cluster %s: namespace %s: %w", l.name(), name, err))
		}
	}
	return failure
}
