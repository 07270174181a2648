package member

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Unjoin deletes the Cluster, so that it leaves the fleet. It does not wait until the Cluster has
// left; WaitGone does. Before the deletion it sets spec.deletionPolicy: placed objects stay in the
// cluster, or are deleted if deleteWorkloads is true. A Cluster that does not exist is an error
// that satisfies apierrors.IsNotFound.
func Unjoin(ctx context.Context, hub client.Client, name string, deleteWorkloads bool) error {
	cluster := &clusterv1alpha1.Cluster{}
	if err := hub.Get(ctx, client.ObjectKey{Name: name}, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("cluster %s is not joined: %w", name, err)
		}
		return fmt.Errorf("get cluster %s: %w", name, err)
	}
	policy := clusterv1alpha1.DeletionOrphan
	if deleteWorkloads {
		policy = clusterv1alpha1.DeletionDelete
	}
	if cluster.Spec.DeletionPolicy != policy {
		old := cluster.DeepCopy()
		cluster.Spec.DeletionPolicy = policy
		if err := hub.Patch(ctx, cluster, client.MergeFrom(old)); err != nil {
			return fmt.Errorf("set spec.deletionPolicy of cluster %s: %w", name, err)
		}
	}
	err := hub.Delete(ctx, cluster, client.Preconditions{UID: &cluster.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete cluster %s: %w", name, err)
	}
	return nil
}

// WaitReady waits until the Cluster with this name is Ready, and returns it. The Cluster need not
// exist yet. If ctx ends first, the error says why the Cluster is not Ready.
func WaitReady(ctx context.Context, hub client.WithWatch, name string) (*clusterv1alpha1.Cluster, error) {
	cluster, err := await(ctx, hub, name, func(c *clusterv1alpha1.Cluster) bool {
		return c != nil && meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionReady)
	})
	if err != nil {
		return nil, fmt.Errorf("wait for cluster %s to be ready: %w", name, because(cluster, err))
	}
	return cluster, nil
}

// WaitGone waits until a cluster has left the fleet, so that its Cluster is gone. It returns the
// last seen Cluster, also with an error. The condition WorkloadsLeft of that Cluster shows what
// happened to its workloads. The result is nil if the Cluster was gone at the start. If ctx ends
// first, the error says what the departure waits for.
func WaitGone(ctx context.Context, hub client.WithWatch, name string) (*clusterv1alpha1.Cluster, error) {
	var seen *clusterv1alpha1.Cluster
	cluster, err := await(ctx, hub, name, func(c *clusterv1alpha1.Cluster) bool {
		if c != nil {
			seen = c
		}
		return c == nil
	})
	if err != nil {
		return seen, fmt.Errorf("wait for cluster %s to leave: %w", name, because(cluster, err))
	}
	return seen, nil
}

// because returns err with the reason and the message of the Ready condition of c, which say why a
// wait did not end. It returns err itself if c is nil.
func because(c *clusterv1alpha1.Cluster, err error) error {
	if c == nil {
		return err
	}
	ready := meta.FindStatusCondition(c.Status.Conditions, clusterv1alpha1.ConditionReady)
	if ready == nil {
		return fmt.Errorf("%w: it has no status yet; is orrery server running?", err)
	}
	return fmt.Errorf("%w: %s: %s", err, ready.Reason, ready.Message)
}

// errWatchEnded is the error of follow when a watch has ended or failed, so that it must be started
// again.
var errWatchEnded = errors.New("watch ended")

// await watches the Cluster with this name until done returns true for it, and returns the last
// seen one. done is called with nil, and the result is nil, if the Cluster does not exist. An error
// means that ctx has ended, or that a list or the start of a watch failed. Watches that end are
// started again.
func await(ctx context.Context, hub client.WithWatch, name string, done func(*clusterv1alpha1.Cluster) bool) (*clusterv1alpha1.Cluster, error) {
	var last *clusterv1alpha1.Cluster
	only := &client.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name)}
	for {
		list := &clusterv1alpha1.ClusterList{}
		if err := hub.List(ctx, list, only); err != nil {
			return last, fmt.Errorf("list clusters: %w", errors.Join(err, ctx.Err()))
		}
		if last = nil; len(list.Items) > 0 {
			last = &list.Items[0]
		}
		if done(last) {
			return last, nil
		}
		w, err := hub.Watch(ctx, &clusterv1alpha1.ClusterList{}, only,
			&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
		if err != nil {
			return last, fmt.Errorf("watch clusters: %w", errors.Join(err, ctx.Err()))
		}
		last, err = follow(ctx, w, last, done)
		w.Stop()
		if !errors.Is(err, errWatchEnded) {
			return last, err
		}
	}
}

// follow reads events of the watch w until done returns true for the Cluster in an event. last is
// the Cluster before the first event. It returns the last seen Cluster, which is nil after its
// deletion. The error is errWatchEnded if the watch has ended or failed, or that of ctx.
func follow(ctx context.Context, w watch.Interface, last *clusterv1alpha1.Cluster, done func(*clusterv1alpha1.Cluster) bool) (*clusterv1alpha1.Cluster, error) {
	for {
		select {
		case <-ctx.Done():
			return last, ctx.Err()
		case event, open := <-w.ResultChan():
			if !open || event.Type == watch.Error {
				return last, errWatchEnded
			}
			cluster, ok := event.Object.(*clusterv1alpha1.Cluster)
			if !ok {
				continue
			}
			if last = cluster; event.Type == watch.Deleted {
				last = nil
			}
			if done(last) {
				return last, nil
			}
		}
	}
}
