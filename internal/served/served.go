// Package served sums up which types the clusters of a fleet serve, in which versions and scopes, and which of these versions a later Kubernetes serves
// no more. It is pure.
package served

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// Type is a type as a cluster serves it: in one version.
type Type struct {
	schema.GroupVersionKind

	Resource   string
	Namespaced bool
}

// Cluster is what a cluster serves.
type Cluster struct {
	Name  string
	Minor int // of its Kubernetes 1.x; 0: it is not known
	Types []Type
}

// Resource is a type as the fleet serves it.
type Resource struct {
	Group    string `json:"group,omitempty"`
	Resource string `json:"resource"`
	Kind     string `json:"kind"`
	// Versions are the clusters by the version that they serve; those that serve several are there several times.
	Versions map[string][]string `json:"versions"`
	// Namespaced and ClusterScoped are the clusters in which it is in namespaces, and is not.
	Namespaced    []string `json:"namespaced,omitempty"`
	ClusterScoped []string `json:"clusterScoped,omitempty"`
	// Missing are the clusters that do not have it.
	Missing []string `json:"missing,omitempty"`
	// Conflicts say what goes wrong where clusters differ.
	Conflicts []Conflict `json:"conflicts,omitempty"`
}

// Conflict is a difference between clusters because of which one manifest does not fit all.
type Conflict string

// Conflicts.
const (
	NoCommonVersion Conflict = "NoCommonVersion" // no version is served by every cluster that has the type
	OtherScope      Conflict = "OtherScope"      // it is in namespaces here and not there
	OtherKind       Conflict = "OtherKind"       // its kind has another name
)

// Clusters are those that have the type.
func (r *Resource) Clusters() []string {
	all := slices.Concat(r.Namespaced, r.ClusterScoped)
	slices.Sort(all)
	return slices.Compact(all)
}

// VersionNames are the versions that are served, the preferred first.
func (r *Resource) VersionNames() []string {
	return slices.SortedFunc(maps.Keys(r.Versions), func(a, b string) int { return -version.CompareKubeAwareVersionStrings(a, b) })
}

// Resources sums up what clusters serve, by group and resource.
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

// Removal says from which Kubernetes on a version of a kind is served no more.
type Removal struct {
	Minor       int                     // of Kubernetes 1.x
	Replacement schema.GroupVersionKind // empty: there is none
}

// Removals are the versions of kinds that Kubernetes removes, as the API's own types say, which are in a scheme.
func Removals(scheme *runtime.Scheme) map[schema.GroupVersionKind]Removal {
	out := map[schema.GroupVersionKind]Removal{}
	for gvk := range scheme.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal {
			continue
		}
		o, err := scheme.New(gvk)
		if err != nil {
			continue // it is known
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

// Leaving are the versions of a type's kind, by group and version, that Kubernetes removes in a minor that a cluster is still to come to.
func Leaving(removals map[schema.GroupVersionKind]Removal, kind schema.GroupKind, minor int) map[string]Removal {
	out := map[string]Removal{}
	for gvk, r := range removals {
		if gvk.GroupKind() == kind && r.Minor > minor {
			out[gvk.GroupVersion().String()] = r
		}
	}
	return out
}
