// Package served summarizes the types that the clusters of a fleet serve: versions, scopes and
// conflicts. It also knows which versions later Kubernetes releases remove. It does no I/O.
package served

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// Type is a resource type that a cluster serves in one version.
type Type struct {
	schema.GroupVersionKind

	Resource   string
	Namespaced bool
}

// Cluster has the resource types that a cluster serves. Types is empty if they are unknown.
type Cluster struct {
	Name  string
	Minor int // minor version of its Kubernetes 1.x; 0: unknown
	Types []Type
}

// Resource summarizes one resource type: in which clusters it is served, with which versions and
// scopes, and how these clusters differ. Lists of clusters have no duplicates.
type Resource struct {
	Group    string `json:"group,omitempty"`
	Resource string `json:"resource"`
	Kind     string `json:"kind"`
	// Versions has the clusters by served version. A cluster with several versions is in several
	// lists.
	Versions map[string][]string `json:"versions"`
	// Namespaced and ClusterScoped are the clusters that serve the type in that scope.
	Namespaced    []string `json:"namespaced,omitempty"`
	ClusterScoped []string `json:"clusterScoped,omitempty"`
	// Missing are the clusters that do not serve the type, or whose types are unknown.
	Missing []string `json:"missing,omitempty"`
	// Conflicts are the differences between the clusters that serve the type.
	Conflicts []Conflict `json:"conflicts,omitempty"`
}

// Conflict is a difference between the clusters that serve a type. It prevents one manifest from
// fitting all of them.
type Conflict string

// Conflicts.
const (
	// NoCommonVersion: no version is served by every cluster that has the type.
	NoCommonVersion Conflict = "NoCommonVersion"
	// OtherScope: the type is namespaced in some clusters and cluster-scoped in others.
	OtherScope Conflict = "OtherScope"
	// OtherKind: clusters have different kinds for the same group and resource.
	OtherKind Conflict = "OtherKind"
)

// Clusters returns the sorted names of the clusters that serve the type in any version and
// scope.
func (r *Resource) Clusters() []string {
	all := slices.Concat(r.Namespaced, r.ClusterScoped)
	slices.Sort(all)
	return slices.Compact(all)
}

// VersionNames returns the versions that at least one cluster serves, the preferred one first:
// stable before beta before alpha, then the newest.
func (r *Resource) VersionNames() []string {
	return slices.SortedFunc(maps.Keys(r.Versions), func(a, b string) int { return -version.CompareKubeAwareVersionStrings(a, b) })
}

// Resources returns a summary of each resource type that one of the clusters serves, sorted by
// group and resource. If clusters differ in the Kind, it is that of the first one. A cluster
// without Types is in Missing of every resource.
func Resources(clusters []Cluster) []*Resource {
	found, kinds := map[schema.GroupResource]*Resource{}, map[schema.GroupResource]map[string]bool{}
	add := func(to *[]string, name string) {
		if !slices.Contains(*to, name) {
			*to = append(*to, name)
		}
	}
	for _, c := range clusters {
		for _, t := range c.Types {
			gr := schema.GroupResource{Group: t.Group, Resource: t.Resource}
			r := found[gr]
			if r == nil {
				r = &Resource{Group: t.Group, Resource: t.Resource, Kind: t.Kind, Versions: map[string][]string{}}
				found[gr], kinds[gr] = r, map[string]bool{}
			}
			kinds[gr][t.Kind] = true
			in := r.Versions[t.Version]
			add(&in, c.Name)
			r.Versions[t.Version] = in
			if t.Namespaced {
				add(&r.Namespaced, c.Name)
			} else {
				add(&r.ClusterScoped, c.Name)
			}
		}
	}
	out := slices.SortedFunc(maps.Values(found), func(a, b *Resource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
	for _, r := range out {
		have := r.Clusters()
		for _, c := range clusters {
			if !slices.Contains(have, c.Name) {
				r.Missing = append(r.Missing, c.Name)
			}
		}
		common := false
		for _, in := range r.Versions {
			common = common || len(in) == len(have)
		}
		if !common {
			r.Conflicts = append(r.Conflicts, NoCommonVersion)
		}
		if len(r.Namespaced) > 0 && len(r.ClusterScoped) > 0 {
			r.Conflicts = append(r.Conflicts, OtherScope)
		}
		if len(kinds[schema.GroupResource{Group: r.Group, Resource: r.Resource}]) > 1 {
			r.Conflicts = append(r.Conflicts, OtherKind)
		}
	}
	return out
}

// Removal describes a version of a kind that Kubernetes stops serving. Minor is the release, as
// 1.Minor, that no longer serves it. Replacement is the version and kind to use instead; empty:
// none.
type Removal struct {
	Minor       int                     // minor version of Kubernetes 1.x
	Replacement schema.GroupVersionKind // empty: none
}

// Removals returns all versions of kinds in scheme that a release of Kubernetes 1.x removes, as the
// API types in scheme declare it. That release may be past or future.
func Removals(scheme *runtime.Scheme) map[schema.GroupVersionKind]Removal {
	out := map[schema.GroupVersionKind]Removal{}
	for gvk := range scheme.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal {
			continue
		}
		o, err := scheme.New(gvk)
		if err != nil {
			continue // the kind is in the scheme, so New finds it
		}
		removed, ok := o.(interface{ APILifecycleRemoved() (major, minor int) })
		if !ok {
			continue
		}
		major, minor := removed.APILifecycleRemoved()
		if major != 1 {
			continue
		}
		r := Removal{Minor: minor}
		if replaced, ok := o.(interface {
			APILifecycleReplacement() schema.GroupVersionKind
		}); ok {
			r.Replacement = replaced.APILifecycleReplacement()
		}
		out[gvk] = r
	}
	return out
}

// Leaving returns those of removals that are versions of kind and that a release after Kubernetes
// 1.minor makes. The keys of the result are group and version, as in apiVersion.
func Leaving(removals map[schema.GroupVersionKind]Removal, kind schema.GroupKind, minor int) map[string]Removal {
	out := map[string]Removal{}
	for gvk, r := range removals {
		if gvk.GroupKind() == kind && r.Minor > minor {
			out[gvk.GroupVersion().String()] = r
		}
	}
	return out
}
