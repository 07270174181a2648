package revision

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// deleteOrphans deletes the history objects of a workload (r.gone) that was deleted with
// propagation Orphan. The garbage collector leaves them on the hub without an owner, and nothing
// else would delete them. An object with another owner stays. waits is true if some objects still
// have the workload as owner: the caller must try again. The names come from the records: without
// records the objects stay.
func (k *keeper) deleteOrphans(ctx context.Context, r request) (waits bool, err error) {
	recorded, err := k.records.Revisions(ctx, r.gone)
	if err != nil {
		return false, fmt.Errorf("read the records: %w", err)
	}
	for _, revision := range recorded {
		var o client.Object = &appsv1.ControllerRevision{}
		if r.Kind == "Deployment" {
			o = &appsv1.ReplicaSet{}
		}
		name := objectName(r.Name, revision.Hash)
		err := k.live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, o)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("read %s: %w", name, err)
		}
		if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
			waits = waits || owner.UID == r.gone
			continue
		}
		err = k.hub.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID())}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("delete %s: %w", name, err)
		}
	}
	return waits, nil
}
