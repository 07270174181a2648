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

// tombstoneLife is how long the hub remembers, in a ConfigMap (tombstone), that a cluster with
// agents has left the fleet.
const tombstoneLife = 365 * 24 * time.Hour

// labelLeft is the label of the ConfigMaps that record clusters that have left (tombstones).
const labelLeft = "agent.orrery.dev/left"

// Leave records, by the UID of its Cluster, that a cluster with agents leaves the fleet. From then
// on its agents are refused with tunnel.ErrGone, after which they remove themselves. It is a phase
// of the departure, called when nothing more must be done in the cluster. It may be called again.
// For a cluster whose hub has no Secret NAME.agent it does nothing: the cluster never had agents.
func (e *Enrollment) Leave(ctx context.Context, c *clusterv1alpha1.Cluster) error {
	if c.Spec.SyncMode != clusterv1alpha1.Pull {
		// The cluster may have had agents before.
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

// forget deletes the records (tombstones) of clusters that left more than tombstoneLife ago. It
// ends at the first error.
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
