package placement

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DeletionWaitsFor returns the finalizers for which the deletion of a template waits, in the order
// of the object. It omits the two finalizers that the garbage collector of the hub removes by
// itself. It returns none for an object that is not being deleted. While there are any, the copies
// in the clusters stay.
func DeletionWaitsFor(o metav1.Object) []string {
	if o.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
}

// DeletionWaits returns a message for users about the finalizers for which the deletion of a
// template waits, as DeletionWaitsFor returns them. It panics if the object is not being deleted.
func DeletionWaits(o metav1.Object) string {
	return fmt.Sprintf("the object was deleted on the hub at %s, and its copies stay until these finalizers are removed: %s; their controllers remove them; where a controller is gone, remove its finalizer with kubectl edit",
		o.GetDeletionTimestamp().UTC().Format("2006-01-02T15:04:05Z"), strings.Join(DeletionWaitsFor(o), ", "))
}
