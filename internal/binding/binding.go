// Package binding is the one view of the hub's bindings: both scopes as one type, found by
// name, UID, cluster and template. It decides nothing; placement writes bindings' specs,
// status writes their statuses, and apply reads them.
package binding

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Template names a template. The version is not part of it: an object is the same in all of
// them. Cluster-scoped templates have no namespace.
type Template struct {
	schema.GroupKind

	Namespace, Name string
}

// String is Kind namespace/name, as messages have it.
func (t Template) String() string {
	if t.Namespace == "" {
		return t.Kind + " " + t.Name
	}
	return t.Kind + " " + t.Namespace + "/" + t.Name
}

// TemplateOf names the template of a binding.
func TemplateOf(b *workv1alpha2.ResourceBinding) Template {
	return Template{GroupKind: Kind(b).GroupKind(), Namespace: b.Namespace, Name: b.Spec.Resource.Name}
}

// Kind is the kind of a binding's template.
func Kind(b *workv1alpha2.ResourceBinding) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(b.Spec.Resource.APIVersion, b.Spec.Resource.Kind)
}

// Name is the name by which a binding is found; that of a ClusterResourceBinding has no
// namespace.
func Name(b *workv1alpha2.ResourceBinding) types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}

// DropManagedFields has a patch from before, which it returns, to updated empty the binding's managedFields. The API server does
// not fill them again. It ignores them in a write of the status and of a binding that is created, so they are dropped only by
// patches that are sent anyway: see docs/design/0024-hub-writes.md.
func DropManagedFields(b, updated *workv1alpha2.ResourceBinding) (before *workv1alpha2.ResourceBinding) {
	copied := *b
	copied.ManagedFields = nil
	updated.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	return &copied
}

// Object is a binding as the kind that it is on the hub. It shares b's memory.
func Object(b *workv1alpha2.ResourceBinding) client.Object {
	if b.Namespace == "" {
		return (*workv1alpha2.ClusterResourceBinding)(b)
	}
	return b
}

// Of is an object of the hub as a binding; nil for any other object.
func Of(o any) *workv1alpha2.ResourceBinding {
	if b, ok := o.(interface {
		Binding() *workv1alpha2.ResourceBinding
	}); ok {
		return b.Binding()
	}
	return nil
}

// Clusters are the clusters that a binding names: those that it is placed in, those that it
// moves out of, and those that its status still speaks of because they may hold something
// of it.
func Clusters(b *workv1alpha2.ResourceBinding) sets.Set[string] {
	clusters := make(sets.Set[string], len(b.Spec.Clusters))
	for _, c := range b.Spec.Clusters {
		clusters.Insert(c.Name)
	}
	for _, t := range b.Spec.GracefulEvictionTasks {
		clusters.Insert(t.FromCluster)
	}
	for _, s := range b.Status.AggregatedStatus {
		clusters.Insert(s.ClusterName)
	}
	return clusters
}

// Target is what a binding wants of a cluster; false when it wants nothing there.
func Target(b *workv1alpha2.ResourceBinding, cluster string) (workv1alpha2.TargetCluster, bool) {
	// Placement writes them by name. Somebody else may not have.
	if i, found := slices.BinarySearchFunc(b.Spec.Clusters, cluster, func(c workv1alpha2.TargetCluster, name string) int {
		return strings.Compare(c.Name, name)
	}); found {
		return b.Spec.Clusters[i], true
	}
	for _, c := range b.Spec.Clusters {
		if c.Name == cluster {
			return c, true
		}
	}
	return workv1alpha2.TargetCluster{}, false
}

// NeededOverrides are the override policies without which nothing of a binding is written.
// Cluster-wide ones have no namespace.
func NeededOverrides(b *workv1alpha2.ResourceBinding) []types.NamespacedName {
	if len(b.Spec.DependentOverrides) == 0 {
		return nil
	}
	needed := make([]types.NamespacedName, 0, len(b.Spec.DependentOverrides))
	for _, o := range b.Spec.DependentOverrides {
		name := types.NamespacedName{Name: o.Name}
		if o.Kind == "OverridePolicy" {
			name.Namespace = b.Namespace
		}
		needed = append(needed, name)
	}
	return needed
}

// RequiredByOrphans reports whether a template that was deleted with propagation Orphan left in a
// cluster what needs the copy of a binding there.
func RequiredByOrphans(b *workv1alpha2.ResourceBinding, cluster string) bool {
	return slices.ContainsFunc(b.Spec.RequiredByOrphans, func(o workv1alpha2.OrphaningTemplate) bool { return slices.Contains(o.Clusters, cluster) })
}

// Divided is true when the clusters' replicas are shares of the template's.
func Divided(b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.ReplicaSchedulingType == policyv1alpha1.Divided
}
