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
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
)

// Leave removes what is ours from a cluster that leaves the fleet, as its deletionPolicy says.
// Orphan removes our marks. Delete deletes what this hub placed and the namespaces that it created,
// except where others have objects in them. Leave returns nil when nothing is left. Otherwise the
// error says what is left, and the caller calls Leave again.
//
// A cluster that cannot be reached is an error: the caller decides whether it is given up. With
// Delete it is also an error that the hub seems to be restored, or that this is not known yet.
// Orphan leaves our marks on types that the cluster does not list within listPatience, and where
// the profile of its agent forbids the removal; Events name these. Leave first waits for the items
// that are being reconciled. It must not be called concurrently for one cluster.
func (a *Applier) Leave(ctx context.Context, m *member.Member) error {
	orphan := m.Cluster().Spec.DeletionPolicy != clusterv1alpha1.DeletionDelete
	if !m.Reachable() {
		if orphan {
			return fmt.Errorf("leave cluster %s: it cannot be reached", m.Name())
		}
		return fmt.Errorf("delete workloads in cluster %s: it cannot be reached; set spec.deletionPolicy to Orphan to leave them there", m.Name())
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
	if !orphan {
		if err := q.checkRestore(ctx); err != nil {
			return err
		}
	}
	beyond := q.beyond()
	if len(beyond) > 0 && !orphan {
		return fmt.Errorf("leave cluster %s: the profile of its agent does not let the hub delete %s; set spec.deletionPolicy to Orphan to leave them there, or give it another profile",
			q.name(), some(beyond))
	}
	if err := q.settle(ctx, orphan, len(unlisted) > 0); err != nil {
		return err
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

// checkRestore returns nil if no copy in any cluster shows that the hub was restored from a backup.
// Otherwise Leave must not delete. The items of a leaving cluster are skipped, so no plan compares
// its copies with the hub: without this check, a restored hub would delete copies that are newer
// than itself.
func (q *clusterQueue) checkRestore(ctx context.Context) error {
	a := q.applier
	for _, gvk := range a.bindings.Kinds() {
		a.mirror.Require(gvk) // the check waits for the list of each kind
	}
	checked := a.restoreCheck.done(ctx)
	switch {
	case a.restore.Suspected(): // the check itself may have found that
		return fmt.Errorf("delete workloads in cluster %s: %s", q.name(), restoredMessage)
	case !checked:
		return fmt.Errorf("delete workloads in cluster %s: it is not known yet whether the hub was restored from a backup; "+
			"that is found out from the copies in all clusters that answer", q.name())
	}
	return nil
}

// beyond returns the names of the copies that the hub may not change or delete, because the profile
// of the cluster's agent does not include their namespaces.
func (q *clusterQueue) beyond() []string {
	var names []string
	for _, o := range q.ours() {
		if q.bounds(o.Namespace) != "" {
			names = append(names, objectOf(o).String())
		}
	}
	return names
}

// defaultListPatience is how long a leaving cluster with deletionPolicy Orphan may take to list its
// copies.
const defaultListPatience = 30 * time.Second

// waited returns how long this process has waited for the lists of a leaving cluster, since the
// first call of waited; the first call returns about 0. Only Leave calls it.
func (q *clusterQueue) waited() time.Duration {
	if q.unlistedSince.IsZero() {
		q.unlistedSince = time.Now()
	}
	return time.Since(q.unlistedSince)
}

// unlisted returns, sorted, the types of the cluster's bindings, and Namespace, whose objects the
// mirror has not listed completely. Each is a text such as "apps/v1 Deployment".
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

// ours returns the objects in the cluster that this hub placed: those with the mark of a
// binding that the hub has, or with a mark that this hub signed.
func (q *clusterQueue) ours() []mirror.Object {
	return slices.DeleteFunc(q.applier.mirror.PlacedIn(q.name()), func(o mirror.Object) bool {
		_, known := q.applier.bindings.ByUID(o.Binding)
		_, err := q.applier.key().Verify(o.Source)
		return !known && err != nil
	})
}

// settle reads the object of each request that the cluster has not answered, and gives it to the
// mirror. Such a request may have written a copy that the mirror does not show yet. No item reads
// it, because the items of a leaving cluster are skipped. settle returns an error for objects that
// cannot be read, unless orphan is set: a copy then stays anyway, at most with our marks. It skips
// objects that the profile of the agent excludes and, with partly, those whose type the cluster
// cannot list: empty does not wait for them either.
func (q *clusterQueue) settle(ctx context.Context, orphan, partly bool) error {
	a := q.applier
	var group errgroup.Group
	group.SetLimit(workers)
	for _, uid := range a.results.unsureIn(q.name(), q.uid) {
		b, known := a.bindings.ByUID(uid)
		if !known {
			continue
		}
		api, _ := apiOf(q.member, b)
		gvr := api.GroupVersionResource()
		if api.Resource == "" || q.bounds(b.Namespace) != "" || partly && !a.mirror.Synced(q.name(), gvr.GroupResource()) {
			continue
		}
		group.Go(func() error {
			o := Object{Resource: gvr, Namespace: b.Namespace, Name: b.Spec.Resource.Name}
			found, err := q.client.Get(ctx, o)
			switch {
			case apierrors.IsNotFound(err):
			case err != nil && orphan:
				logr.FromContextOrDiscard(ctx).Info("a copy may be left with our marks: it cannot be read", "cluster", q.name(), "object", o.String(), "error", err.Error())
				return nil
			case err != nil:
				return fmt.Errorf("leave cluster %s: a request for %s was not answered, and the object cannot be read: %w", q.name(), o, err)
			default:
				a.mirror.Observe(q.name(), gvr, found)
			}
			a.results.update(binding.Name(b), uid, q.name(), func(s *state) { s.acts.Unsure = false })
			return nil
		})
	}
	return group.Wait()
}

// empty removes the marks of every placed object (orphan) or deletes it, and returns nil once the
// mirror shows no placed object. Otherwise the error names what is left, such as objects whose
// deletion has just begun. Objects from an earlier join, or that were there before the hub, only
// lose their marks. Objects that the profile of the agent excludes stay. With partly, empty does
// not wait for objects whose type the cluster cannot list.
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

// leaveNamespaces removes our mark from the namespaces that this hub created (orphan), or deletes
// them. A namespace in which others have objects is kept and only loses the mark. It skips
// namespaces that the profile of the agent excludes. The error joins those of all namespaces. A
// namespace whose objects are about to go is also an error.
func (q *clusterQueue) leaveNamespaces(ctx context.Context, orphan bool) error {
	marked, _ := q.applier.mirror.Namespaces(q.name())
	nothingEnters := func() bool { return false } // no worker places anything in a cluster that leaves
	var failure error
	for name, hub := range marked {
		if hub != q.applier.hubID || q.bounds(name) != "" {
			continue
		}
		var err error
		if orphan {
			err = q.unmarkNamespace(ctx, name)
		} else if done, problem := q.deleteNamespace(ctx, name, nothingEnters); problem != nil || !done {
			err = errors.Join(problem, errors.New("something in it is about to go"))
		}
		if err != nil {
			failure = errors.Join(failure, fmt.Errorf("leave cluster %s: namespace %s: %w", q.name(), name, err))
		}
	}
	return failure
}
