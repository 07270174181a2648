package binding

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Owner returns the owner reference to its template for a binding with this spec. It blocks the
// deletion of the owner: a template that is deleted with propagation Foreground stays until its
// binding, and so its copies, are gone.
func Owner(s *workv1alpha2.BindingSpec) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: s.Resource.APIVersion, Kind: s.Resource.Kind, Name: s.Resource.Name, UID: s.Resource.UID, BlockOwnerDeletion: new(true),
	}
}

// Propagation returns the propagation with which the template of a binding was deleted: Orphan,
// Foreground, or "" if it is Background or unknown. seen is what was observed of the deletion
// (template.Cache.Deletion); "" for Background, or if it was not observed. The garbage collector
// shows Orphan by removing the owner reference of the binding, before the template is gone. Call
// Propagation only for a template that is gone or being deleted.
func Propagation(b *workv1alpha2.ResourceBinding, seen metav1.DeletionPropagation) metav1.DeletionPropagation {
	known := cmp.Or(b.Spec.DeletionPropagation, seen)
	if known == "" && b.Spec.OwnerReferenced && !slices.ContainsFunc(b.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.UID == b.Spec.Resource.UID
	}) {
		return metav1.DeletePropagationOrphan
	}
	return known
}
