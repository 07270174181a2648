package member

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

// Departure is a phase of the work that is done before a Cluster leaves the fleet and is deleted.
// It has either Inside or Outside. The phases of Options.Departures run in order, first all Inside
// and then all Outside. Each is repeated until it returns nil. A phase may run again after success,
// so it must be idempotent.
//
// If the error of a phase is an outcome of package reconciler, it becomes the condition Ready of
// the Cluster. With any other error the Cluster waits with Reason, and the phase is retried.
type Departure struct {
	// Name is the state that the phase reaches, such as "the hosts are undone".
	Name string
	// Reason of the condition Ready while the phase fails with an error that is no outcome of package
	// reconciler.
	Reason string
	// Inside is set for a phase that works in the cluster itself. These phases run first, while
	// the cluster is reachable and is the one that was joined, and until the condition
	// WorkloadsLeft is True. They are skipped for a Cluster that never was a member, and for an
	// unreachable one whose workloads stay. A phase returns an error if the cluster cannot be reached.
	Inside func(ctx context.Context, m *Member) error
	// Outside is set for any other phase.
	Outside func(ctx context.Context, o *clusterv1alpha1.Cluster) error
}

// leave is the finalizer of a Cluster that is being deleted. It runs the phases of
// Options.Departures, in the background, and removes the member. nil means that the Cluster may be
// deleted. Before that, each call returns an outcome of package reconciler (an error that becomes a
// condition) with which the Cluster waits, or another error.
func (c *clusters) leave(ctx context.Context, o *clusterv1alpha1.Cluster) error {
	if (o.Status.ID != "" || c.accepted(o)) && !emptied(o) {
		if err := c.empty(ctx, o); err != nil {
			return err
		}
		// The status with the condition WorkloadsLeft is written before anything else is deleted, so that
		// later runs do not connect to the cluster.
		return reconciler.Waiting(clusterv1alpha1.ReasonUnjoining, leaveRetry, "nothing more is done in the cluster; what the hub has of it is next")
	}
	err := c.departures.run(o, "forgetting the cluster", func(ctx context.Context, o *clusterv1alpha1.Cluster) error {
		for _, phase := range c.registry.options.Departures {
			if phase.Outside == nil {
				continue
			}
			if err := phase.waits(phase.Outside(ctx, o)); err != nil {
				return err
			}
		}
		c.closeAccount(ctx, o)
		return nil
	})
	if err != nil {
		return err
	}
	c.departures.forget(o.UID)
	c.registry.remove(o.Name)
	return nil
}

// accepted reports whether this process has admitted the cluster as a member and it is reachable,
// even if the status does not have its ID yet. The hub may then have created objects in the
// cluster.
func (c *clusters) accepted(o *clusterv1alpha1.Cluster) bool {
	m, ok := c.registry.Member(o.Name)
	return ok && m.Cluster().UID == o.UID && m.ID() != ""
}

// waits converts err, the error of the phase, to an outcome for the condition Ready. It returns nil
// and outcomes of package reconciler as they are. For any other error, the outcome says that the
// Cluster waits and the phase is retried.
func (d Departure) waits(err error) error {
	if err == nil || reconciler.IsOutcome(err) {
		return err
	}
	return reconciler.Waiting(d.Reason, leaveRetry, "until %s: %v", d.Name, err)
}

// emptied reports whether the cleanup in a cluster that leaves is done or was given up, which is
// the condition WorkloadsLeft.
func emptied(o *clusterv1alpha1.Cluster) bool {
	return meta.IsStatusConditionTrue(o.Status.Conditions, clusterv1alpha1.ConditionWorkloadsLeft)
}

// empty runs the phases of leaving that work in the cluster (Departure.Inside). It returns nil if
// they are done, or if the cluster cannot be reached and was given up. The condition WorkloadsLeft
// in the status of o then shows what happened to the placed objects. Any other result is an outcome
// of package reconciler (an error that becomes a condition) with which the Cluster waits, or
// another error.
func (c *clusters) empty(ctx context.Context, o *clusterv1alpha1.Cluster) error {
	if awaitsAgent(o) { // its address or the reference to its credentials was removed
		return c.leftAsItIs(ctx, o, errAway)
	}
	m, _, err := c.member(o)
	if err != nil {
		return err
	}
	if !m.settled() {
		return reconciler.Waiting(clusterv1alpha1.ReasonUnjoining, leaveRetry, "the hub is reading the identity of the cluster")
	}
	// The Cluster is being deleted, so its reconcile steps do not run any more. But the identity of
	// the cluster must be checked before objects in it are deleted.
	why := c.reach(ctx, o)
	if reconciler.Succeeded(why) {
		why = c.join(ctx, o)
	}
	if !reconciler.Succeeded(why) {
		return c.leftAsItIs(ctx, o, why)
	}
	err = c.departures.run(o, "cleaning up in the cluster", func(ctx context.Context, o *clusterv1alpha1.Cluster) error {
		// The phases read the Cluster of the member, which may be newer than o.
		o.Spec.DeletionPolicy = m.Cluster().Spec.DeletionPolicy
		for _, phase := range c.registry.options.Departures {
			if phase.Inside == nil {
				continue
			}
			if err := phase.waits(phase.Inside(ctx, m)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	said := metav1.Condition{Type: clusterv1alpha1.ConditionWorkloadsLeft, Status: metav1.ConditionTrue, Reason: clusterv1alpha1.ReasonOrphaned}
	if c.departures.deleted(o.UID) { // and not what spec.deletionPolicy says now
		said.Reason = clusterv1alpha1.ReasonDeleted
	}
	reconciler.SetCondition(&o.Status.Conditions, said, o.Generation)
	return nil
}

// leftAsItIs gives up the cleanup of a cluster that cannot be reached because of why. It sets the
// condition WorkloadsLeft with the reason MarksLeft: Orrery's labels and annotations stay on the
// workloads. If abandon returns an error, leftAsItIs returns that error and sets nothing.
func (c *clusters) leftAsItIs(ctx context.Context, o *clusterv1alpha1.Cluster, why error) error {
	if err := c.abandon(ctx, o, why); err != nil {
		return err
	}
	reconciler.SetCondition(&o.Status.Conditions, metav1.Condition{
		Type: clusterv1alpha1.ConditionWorkloadsLeft, Status: metav1.ConditionTrue, Reason: clusterv1alpha1.ReasonMarksLeft, Message: marksLeft,
	}, o.Generation)
	return nil
}

// marksLeft is the message of the condition and the Event for a cluster that left without a
// cleanup.
const marksLeft = "left without cleaning up: the workloads keep running, and our labels and annotations stay on them"

// abandon decides whether the hub may give up the cleanup of a cluster that cannot be reached
// because of why. nil means yes; abandon then records an Event. If the user wants the placed
// objects deleted, it returns an outcome of package reconciler (an error that becomes a condition)
// with which the Cluster waits. It returns nil without an Event for a cluster that is deleted with
// its hosts.
func (c *clusters) abandon(ctx context.Context, o *clusterv1alpha1.Cluster, why error) error {
	if provisioned(o) && o.Spec.Provision.DeletionPolicy == clusterv1alpha1.DeletionDelete {
		return nil // it is deleted with all its contents
	}
	if o.Spec.DeletionPolicy == clusterv1alpha1.DeletionDelete {
		return reconciler.Waiting(clusterv1alpha1.ReasonLeavingWorkloads, 0,
			"waits until what was placed in the cluster can be deleted; to leave at once and keep it, set spec.deletionPolicy to Orphan (%v)", why)
	}
	ctrl.LoggerFrom(ctx).Info(marksLeft, "cluster", o.Name, "cause", why.Error())
	c.recorder.Eventf(o, nil, corev1.EventTypeWarning, "MarksLeft", "Unjoin", "%s (%v)", marksLeft, why)
	return nil
}
