package placement

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DeletionWaitsFor returns the finalizers for which the deletion of a template waits, in the
// template's order. It returns none for a template that is not being deleted, and omits those
// that the hub's garbage collector removes by itself. The copies stay until the template is
// gone.
func DeletionWaitsFor(o metav1.Object) []string {
	if o.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
}

// DeletionWaits returns a message about the finalizers of DeletionWaitsFor, for users.
func DeletionWaits(o metav1.Object) string {
	return fmt.Sprintf("the object was deleted on the hub at %s, and its copies stay until these finalizers are removed: %s; their controllers remove them; where a controller is gone, remove its finalizer with kubectl edit",
		o.GetDeletionTimestamp().UTC().Format("2006-01-02T15:04:05Z"), strings.Join(DeletionWaitsFor(o), ", "))
}
