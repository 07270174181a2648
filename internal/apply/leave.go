package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
)

// Leave removes what is ours from a cluster that leaves the fleet, as its deletionPolicy says.
// Orphan removes our marks. Delete deletes what this hub placed and the namespaces that it
// created, except where others have objects in them. Leave returns nil when nothing is left;
// otherwise the error says what is left, and the caller calls Leave again. A cluster that
// cannot be reached is left as it is if its workloads stay anyway.
func (a *Applier) Leave(ctx context.Context, m *member.Member) error {
	orphan := m.Cluster().Spec.DeletionPolicy != clusterv1alpha1.DeletionDelete
	if !m.Reachable() {
		if orphan {
			return nil
		}
		return fmt.Errorf("delete workloads in cluster %s: it cannot be reached; set spec.deletionPolicy to Orphan to leave them there", m.Name())
	}
	if !orphan && a.restore.Suspected() {
		return fmt.Errorf("delete workloads in cluster %s: %s", m.Name(), restoredMessage)
	}
	q, ok := a.queue(m.Name())
	if !ok {
		return fmt.Errorf("leave cluster %s: the applier has not started", m.Name())
	}
	// Items that began before the cluster started to leave end first.
	q.working.Lock()
	q.working.Unlock() //nolint:staticcheck // nothing is protected: this waits

	ctx = logr.NewContext(ctx, a.log.WithValues("cluster", m.Name()))
	unlisted := q.unlisted()
	if len(unlisted) > 0 {
		if waited := q.waited(); !orphan || waited < a.listPatience {
			return fmt.Errorf("leave cluster %s: it is not known yet which of these it has: %s", q.name(), some(unlisted))
		}
		a.log.Info("a cluster leaves that cannot list everything", "cluster", q.name(), "types", unlisted)
	}
	beyond := q.beyond()
	if len(beyond) > 0 && !orphan {
		return fmt.Errorf("leave cluster %s: the profile of its agent does not let the hub delete %s; set spec.deletionPolicy to Orphan to leave them there, or give it another profile",
			q.name(), some(beyond))
	}
	if err := q.empty(ctx, orphan, len(unlisted) > 0); err != nil {
		return err
	}
	if err := q.leaveNamespaces(ctx, orphan); err != nil {
		return err
	}
	if len(unlisted) > 0 {
		a.recorder.Eventf(m.Cluster(), nil, corev1.EventTypeWarning, "MarksLeft", "Unjoin",
			"the cluster could not list these, so what was placed of them keeps running with our labels and annotations: %s", some(unlisted))
	}
	if len(beyond) > 0 {
		a.recorder.Eventf(m.Cluster(), nil, corev1.EventTypeWarning, "MarksLeft", "Unjoin",
			"the profile of the cluster's agent does not let the hub take its labels and annotations off these, which keep running: %s", some(beyond))
	}
	return nil
}

// beyond names the copies where the profile of the cluster's agent no longer lets the hub do
// anything.
func (q *clusterQueue) beyond() []string {
	var names []string
	for _, o := range q.ours() {
		if q.bounds(o.Namespace) != "" {
			names = append(names, objectOf(o).String())
		}
	}
	return names
}

// defaultListPatience is how long a leaving cluster whose workloads stay may take to list its
// copies.
const defaultListPatience = 30 * time.Second

// waited returns how long this process has waited for the lists of a leaving cluster. A mirror
// that has just started lists everything again.
func (q *clusterQueue) waited() time.Duration {
	if q.unlistedSince.IsZero() {
		q.unlistedSince = time.Now()
	}
	return time.Since(q.unlistedSince)
}

// unlisted names the types of placed objects that the mirror does not list completely.
func (q *clusterQueue) unlisted() []string {
	var types []string
	for _, name := range q.applier.bindings.In(q.name()) {
		if b, ok := q.applier.bindings.Get(name); ok && !q.complete(b) {
			types = append(types, b.Spec.Resource.APIVersion+" "+b.Spec.Resource.Kind)
		}
	}
	if _, synced := q.applier.mirror.Namespaces(q.name()); !synced {
		types = append(types, "v1 Namespace")
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// ours returns the objects in the cluster that this hub placed.
func (q *clusterQueue) ours() []mirror.Object {
	return slices.DeleteFunc(q.applier.mirror.PlacedIn(q.name()), func(o mirror.Object) bool {
		_, known := q.applier.bindings.ByUID(o.Binding)
		_, err := q.applier.key().Verify(o.Source)
		return !known && err != nil
	})
}

// empty orphans or deletes every placed object. Objects from an earlier join, or that were
// there before, are only orphaned. With partly, it does not wait for objects whose type the
// cluster cannot list.
func (q *clusterQueue) empty(ctx context.Context, orphan, partly bool) error {
	waitsFor := func(o mirror.Object) bool {
		return q.bounds(o.Namespace) == "" && (!partly || q.applier.mirror.Synced(q.name(), o.Resource.GroupResource()))
	}
	var group errgroup.Group
	group.SetLimit(workers)
	for _, o := range q.ours() {
		if q.bounds(o.Namespace) != "" {
			continue
		}
		group.Go(func() error {
			b, known := q.applier.bindings.ByUID(o.Binding)
			from, err := q.applier.key().Verify(o.Source)
			if !known {
				b = &workv1alpha2.ResourceBinding{}
				b.Spec.Resource.UID = from.Template
			}
			if orphan || !known || err != nil || from.Cluster != q.uid || o.Origin != "" {
				if err := q.unmark(ctx, o, b.Spec.Resource.UID, q.uid); err != nil && waitsFor(o) {
					return err
				}
				return nil
			}
			return q.delete(ctx, b, o, false, b.Spec.DeletionPropagation)
		})
	}
	failure := group.Wait()
	left := slices.DeleteFunc(q.ours(), func(o mirror.Object) bool { return !waitsFor(o) })
	if failure == nil && len(left) == 0 {
		return nil
	}
	names := make([]string, 0, len(left))
	for _, o := range left {
		names = append(names, objectOf(o).String())
	}
	return errors.Join(fmt.Errorf("leave cluster %s: %d objects are left: %s", q.name(), len(left), some(names)), failure)
}

// leaveNamespaces removes our mark from the namespaces that this hub created, or deletes those
// in which others have no objects.
func (q *clusterQueue) leaveNamespaces(ctx context.Context, orphan bool) error {
	marked, _ := q.applier.mirror.Namespaces(q.name())
	var failure error
	for name, hub := range marked {
		if hub != q.applier.hubID || q.bounds(name) != "" {
			continue
		}
		var err error
		if orphan {
			err = q.unmarkNamespace(ctx, name)
		} else if done, problem := q.deleteNamespace(ctx, name); problem != nil || !done {
			err = errors.Join(problem, errors.New("something in it is about to go"))
		}
		if err != nil {
			failure = errors.Join(failure, fmt.Errorf("leave cluster %s: namespace %s: %w", q.name(), name, err))
		}
	}
	return failure
}
