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

// Departure is a phase of leaving, before a Cluster is deleted. The phases of Options.Departures
// run in order, each until it returns nil. A phase may run again after success, so it must be
// idempotent. Its error becomes the condition Ready of the Cluster, as for a step of
// reconciler.Loop. Other errors are retried.
type Departure struct {
	// Name is the state that the phase reaches, such as "the hosts are undone".
	Name string
	// Reason of the condition Ready while the phase fails or waits without its own reason.
	Reason string
	// Inside is set for a phase that works in the cluster itself. These phases run first, while
	// the cluster is reachable and is the one that was joined, and until the condition
	// WorkloadsLeft is True. They are skipped for a Cluster that never was a member, and for an
	// unreachable one whose workloads stay.
	Inside func(ctx context.Context, m *Member) error
	// Outside is set for any other phase.
	Outside func(ctx context.Context, o *clusterv1alpha1.Cluster) error
}

// leave runs the phases and removes the member.
func (c *clusters) leave(ctx context.Context, o *clusterv1alpha1.Cluster) error {
	if (o.Status.ID != "" || c.accepted(o)) && !emptied(o) {
		if err := c.empty(ctx, o); err != nil {
			return err
		}
		// This is written before anything else is deleted, so that later runs do not connect to
		// the cluster.
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

// accepted reports whether this process has begun to work in the cluster, even if the status does
// not have that yet.
func (c *clusters) accepted(o *clusterv1alpha1.Cluster) bool {
	m, ok := c.registry.Member(o.Name)
	return ok && m.Cluster().UID == o.UID && m.ID() != ""
}

// waits returns the outcome of a phase that returned err.
func (d Departure) waits(err error) error {
	if err == nil || reconciler.IsOutcome(err) {
		return err
	}
	return reconciler.Waiting(d.Reason, leaveRetry, "until %s: %v", d.Name, err)
}

// emptied reports whether the work in a cluster that leaves is done.
func emptied(o *clusterv1alpha1.Cluster) bool {
	return meta.IsStatusConditionTrue(o.Status.Conditions, clusterv1alpha1.ConditionWorkloadsLeft)
}

// empty runs the phases in the cluster. The condition WorkloadsLeft then shows what happened to
// the placed objects.
func (c *clusters) empty(ctx context.Context, o *clusterv1alpha1.Cluster) error {
	if awaitsAgent(o) { // its address was removed
		return c.leftAsItIs(ctx, o, errAway)
	}
	m, _, err := c.member(o)
	if err != nil {
		return err
	}
	if !m.settled() {
		return reconciler.Waiting(clusterv1alpha1.ReasonUnjoining, leaveRetry, "the cluster is being asked who it is")
	}
	// The steps do not run any more, but the identity of the cluster must be checked before
	// objects are deleted.
	why := c.reach(ctx, o)
	if reconciler.Succeeded(why) {
		why = c.join(ctx, o)
	}
	said := metav1.Condition{Type: clusterv1alpha1.ConditionWorkloadsLeft, Status: metav1.ConditionTrue, Reason: clusterv1alpha1.ReasonOrphaned}
	if o.Spec.DeletionPolicy == clusterv1alpha1.DeletionDelete {
		said.Reason = clusterv1alpha1.ReasonDeleted
	}
	if !reconciler.Succeeded(why) {
		return c.leftAsItIs(ctx, o, why)
	}
	err = c.departures.run(o, "cleaning up in the cluster", func(ctx context.Context, _ *clusterv1alpha1.Cluster) error {
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
	reconciler.SetCondition(&o.Status.Conditions, said, o.Generation)
	return nil
}

// leftAsItIs gives up a cluster, and sets the condition for that.
func (c *clusters) leftAsItIs(ctx context.Context, o *clusterv1alpha1.Cluster, why error) error {
	if err := c.abandon(ctx, o, why); err != nil {
		return err
	}
	reconciler.SetCondition(&o.Status.Conditions, metav1.Condition{
		Type: clusterv1alpha1.ConditionWorkloadsLeft, Status: metav1.ConditionTrue, Reason: clusterv1alpha1.ReasonMarksLeft, Message: marksLeft,
	}, o.Generation)
	return nil
}

const marksLeft = "left without cleaning up: the workloads keep running, and our labels and annotations stay on them"

// abandon gives up a cluster that cannot be cleaned up. It returns an error, and so waits, if the
// user wants the placed objects deleted.
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
