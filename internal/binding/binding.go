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

// Template names an object on the hub that a policy can place. It has no API version, because an
// object is the same in all versions. Namespace is "" for cluster-scoped objects.
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

// Kind returns the kind of the template of a binding, in the version that the binding names.
func Kind(b *workv1alpha2.ResourceBinding) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(b.Spec.Resource.APIVersion, b.Spec.Resource.Kind)
}

// Name returns the name by which Cache.Get finds a binding. Its namespace is "" for a
// ClusterResourceBinding.
func Name(b *workv1alpha2.ResourceBinding) types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}

// DropManagedFields changes updated, a copy of b, so that a patch from the returned object (before)
// to updated empties the managedFields of the binding. The API server does not fill managedFields
// again. It ignores this change when a status is written or a binding is created, so only patches
// that are sent anyway make it: see docs/design/0024-hub-writes.md.
func DropManagedFields(b, updated *workv1alpha2.ResourceBinding) (before *workv1alpha2.ResourceBinding) {
	copied := *b
	copied.ManagedFields = nil
	updated.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	return &copied
}

// Object returns a binding as the kind that it has on the hub: a ClusterResourceBinding if it has
// no namespace, else a ResourceBinding. It shares the memory of b.
func Object(b *workv1alpha2.ResourceBinding) client.Object {
	if b.Namespace == "" {
		return (*workv1alpha2.ClusterResourceBinding)(b)
	}
	return b
}

// Of returns a ResourceBinding or ClusterResourceBinding of the hub as the one type that this
// project uses for both; nil for any other object. It shares the memory of o.
func Of(o any) *workv1alpha2.ResourceBinding {
	if b, ok := o.(interface {
		Binding() *workv1alpha2.ResourceBinding
	}); ok {
		return b.Binding()
	}
	return nil
}

// Clusters returns the clusters that a binding names: those that it is placed in, those that
// it moves out of, and those that its status still lists because they may hold a copy. It is a
// new set.
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

// Target returns the entry of the placement for a cluster, with its share of the replicas; false if
// the binding does not place its template there. It ignores whether the binding is being deleted.
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

// NeededOverrides returns the names of the override policies that a binding requires; nil: none.
// While one of them is missing, nothing of the binding is written to members. The namespace of a
// ClusterOverridePolicy is "".
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

// RequiredByOrphans reports whether a cluster has an orphan that depends on the copy of a binding
// there. The template of such an orphan was deleted with propagation Orphan, so the orphan stays.
func RequiredByOrphans(b *workv1alpha2.ResourceBinding, cluster string) bool {
	return slices.ContainsFunc(b.Spec.RequiredByOrphans, func(o workv1alpha2.OrphaningTemplate) bool { return slices.Contains(o.Clusters, cluster) })
}

// Divided reports whether the replicas of the template are divided among the clusters of a binding.
// Otherwise each cluster has all replicas.
func Divided(b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.ReplicaSchedulingType == policyv1alpha1.Divided
}
