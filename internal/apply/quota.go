package apply

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"orrery.dev/orrery/internal/binding"
)

// watchQuotas records a Warning event on each ResourceQuota that a user creates or changes on
// the hub: the quota limits nothing there. Quotas that existed at the start get no event.
// synced reports whether they were read.
func (a *Applier) watchQuotas(ctx context.Context, informers cache.Informers) (synced toolscache.InformerSynced, err error) {
	kind := &metav1.PartialObjectMetadata{}
	kind.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ResourceQuota"))
	metadata := func(o any) *metav1.PartialObjectMetadata {
		quota, _ := o.(*metav1.PartialObjectMetadata)
		return quota
	}
	synced, err = binding.Watch(ctx, informers, kind, metadata, func(before, after *metav1.PartialObjectMetadata) {
		switch {
		case after == nil || !after.DeletionTimestamp.IsZero():
		case before == nil && !synced(): // the quota existed at the start
		case before != nil && before.ResourceVersion == after.ResourceVersion:
		default:
			a.recorder.Eventf(after, nil, corev1.EventTypeWarning, "QuotaNotEnforced", "Create", "%s",
				"the hub runs no pods: this quota limits nothing on the hub, and no sum over the clusters; "+
					"in each cluster in which a PropagationPolicy places it, it limits the namespace there")
		}
	})
	if err != nil {
		return nil, fmt.Errorf("watch the hub's resource quotas: %w", err)
	}
	return synced, nil
}
