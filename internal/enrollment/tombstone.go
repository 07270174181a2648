package enrollment

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// tombstoneLife is how long it is remembered that a cluster has left.
const tombstoneLife = 365 * 24 * time.Hour

// labelLeft is on tombstones.
const labelLeft = "agent.orrery.dev/left"

// Leave remembers, by the UID of its Cluster, that a cluster leaves which has agents: they are told to remove themselves. It is for when
// nothing more is to be done in the cluster.
func (e *Enrollment) Leave(ctx context.Context, c *clusterv1alpha1.Cluster) error {
	if c.Spec.SyncMode != clusterv1alpha1.Pull {
		// It may have had agents before.
		had, err := e.get(ctx, client.ObjectKeyFromObject(secretOf(c.Name, agentSuffix)), &corev1.Secret{})
		if err != nil || !had {
			return err
		}
	}
	err := e.hub.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: leftPrefix + string(c.UID), Labels: map[string]string{labelLeft: "true"}},
		Data:       map[string]string{"cluster": c.Name},
	})
	if client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("remember that cluster %s leaves: %w", c.Name, err)
	}
	e.queue.Add(c.Name)
	return nil
}

// forget drops the tombstones that are old.
func (e *Enrollment) forget(ctx context.Context) error {
	list := &corev1.ConfigMapList{}
	if err := e.reader.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{labelLeft: "true"}); err != nil {
		return fmt.Errorf("list clusters that have left: %w", err)
	}
	for i := range list.Items {
		if m := &list.Items[i]; e.now().Sub(m.CreationTimestamp.Time) > tombstoneLife {
			if err := client.IgnoreNotFound(e.hub.Delete(ctx, m)); err != nil {
				return fmt.Errorf("forget that cluster %s has left: %w", m.Data["cluster"], err)
			}
		}
	}
	return nil
}
