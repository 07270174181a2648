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

// Unjoin deletes the Cluster, so that it leaves the fleet. Placed objects stay in it, unless
// deleteWorkloads is true. WaitGone waits until it has left.
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

// WaitReady waits until a cluster is Ready. If ctx ends first, the error says why it is not.
func WaitReady(ctx context.Context, hub client.WithWatch, name string) (*clusterv1alpha1.Cluster, error) {
	cluster, err := await(ctx, hub, name, func(c *clusterv1alpha1.Cluster) bool {
		return c != nil && meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionReady)
	})
	if err != nil {
		return nil, fmt.Errorf("wait for cluster %s to be ready: %w", name, because(cluster, err))
	}
	return cluster, nil
}

// WaitGone waits until a cluster has left. It returns the last seen Cluster, whose condition
// WorkloadsLeft shows what happened to its workloads; nil: it was gone at the start. If ctx ends
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

// because adds the Ready condition of a Cluster to an error.
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

var errWatchEnded = errors.New("watch ended")

// await watches a Cluster until done accepts it, and returns the last seen one. The Cluster is
// nil if it does not exist.
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
