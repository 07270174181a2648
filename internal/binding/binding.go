// Package binding gives one view of the hub's bindings: both scopes as one type, found by name,
// UID, cluster and template. It decides nothing. The package placement writes the specs of
// bindings, status and apply write their statuses, and apply applies them.
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

// Template names a template. It has no version, as an object is the same in all of them.
// Cluster-scoped templates have no namespace.
type Template struct {
	schema.GroupKind

	Namespace, Name string
}

// String returns the kind and NAMESPACE/NAME, or only NAME without a namespace, as messages
// have it.
func (t Template) String() string {
	if t.Namespace == "" {
		return t.Kind + " " + t.Name
	}
	return t.Kind + " " + t.Namespace + "/" + t.Name
}

// TemplateOf returns the name of the template of a binding.
func TemplateOf(b *workv1alpha2.ResourceBinding) Template {
	return Template{GroupKind: Kind(b).GroupKind(), Namespace: b.Namespace, Name: b.Spec.Resource.Name}
}

// Kind returns the kind of the template of a binding.
func Kind(b *workv1alpha2.ResourceBinding) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(b.Spec.Resource.APIVersion, b.Spec.Resource.Kind)
}

// Name returns the key by which a binding is found. The key of a ClusterResourceBinding has no
// namespace.
func Name(b *workv1alpha2.ResourceBinding) types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}

// DropManagedFields prepares updated, a copy of b, for a patch that empties the managedFields
// of the binding, and returns the object from which to compute that patch. The API server does
// not fill managedFields again. It ignores this change when a status is written or a binding is
// created, so only patches that are sent anyway make it: see docs/design/0024-hub-writes.md.
func DropManagedFields(b, updated *workv1alpha2.ResourceBinding) (before *workv1alpha2.ResourceBinding) {
	copied := *b
	copied.ManagedFields = nil
	updated.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	return &copied
}

// Object returns a binding as the kind that it has on the hub. It shares the memory of b.
func Object(b *workv1alpha2.ResourceBinding) client.Object {
	if b.Namespace == "" {
		return (*workv1alpha2.ClusterResourceBinding)(b)
	}
	return b
}

// Of returns an object of the hub as a binding; nil for any other object.
func Of(o any) *workv1alpha2.ResourceBinding {
	if b, ok := o.(interface {
		Binding() *workv1alpha2.ResourceBinding
	}); ok {
		return b.Binding()
	}
	return nil
}

// Clusters returns the clusters that a binding names: those that it is placed in, those that it
// moves out of, and those that its status still lists because they may hold a copy.
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

// Target returns what a binding wants of a cluster; false if it wants nothing there.
func Target(b *workv1alpha2.ResourceBinding, cluster string) (workv1alpha2.TargetCluster, bool) {
	// Placement writes the clusters sorted by name, but other clients may not.
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

// NeededOverrides returns the override policies without which nothing of a binding is written
// to members. Cluster-wide policies have no namespace.
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

// RequiredByOrphans reports whether a cluster has an object that needs the copy of a binding
// there and whose template was deleted with propagation Orphan.
func RequiredByOrphans(b *workv1alpha2.ResourceBinding, cluster string) bool {
	return slices.ContainsFunc(b.Spec.RequiredByOrphans, func(o workv1alpha2.OrphaningTemplate) bool { return slices.Contains(o.Clusters, cluster) })
}

// Divided reports whether the replicas of the clusters are shares of those of the template.
func Divided(b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.ReplicaSchedulingType == policyv1alpha1.Divided
}
