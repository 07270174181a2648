package member

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/presence"
)

// API is one resource type that a cluster serves.
type API struct {
	GroupVersionKind schema.GroupVersionKind
	// Resource is the plural name, Singular the singular one.
	Resource, Singular string
	Namespaced         bool
	Verbs              []string
	ShortNames         []string
	Categories         []string
	// Subresources are names such as status and scale.
	Subresources []string
	// Preferred is true in the version of the resource that the cluster prefers.
	Preferred bool
	// Stale is true while the cluster cannot tell whether it still serves the type. The rest is
	// then the last known state.
	Stale bool
	// Within are the only namespaces in which the hub may read the type; nil: all.
	Within []string
}

// GroupVersionResource returns that of the API.
func (a API) GroupVersionResource() schema.GroupVersionResource {
	return a.GroupVersionKind.GroupVersion().WithResource(a.Resource)
}

// Readable reports whether the hub may read objects of the type in any namespace.
func (a API) Readable() bool { return a.Within == nil || len(a.Within) > 0 }

// HoldsCopies reports whether the cluster can have copies of the type: the hub creates a copy
// only after it has listed and watched the type there. The verb delete does not matter, since the
// hub does not need it to create a copy.
func (a API) HoldsCopies() bool {
	return slices.Contains(a.Verbs, "list") && slices.Contains(a.Verbs, "watch")
}

// APIs is a snapshot of the types that a cluster serves. The zero value is unknown.
type APIs struct {
	all         []API
	kinds       map[schema.GroupVersionKind]int
	resources   map[schema.GroupVersionResource]int
	hash        string
	fingerprint [sha256.Size]byte     // of everything, including staleness
	known       bool                  // the list was read: groups that it lacks are not served
	stale       []schema.GroupVersion // versions that do not answer, such as metrics.k8s.io/v1beta1
	failure     string                // why the whole list may be incomplete; "": it is complete
}

// newAPIs returns a snapshot. stale are the versions that do not answer. failure is why the whole
// list may be incomplete; "": it is complete.
func newAPIs(all []API, stale []schema.GroupVersion, failure string) *APIs {
	slices.SortFunc(all, func(a, b API) int {
		return cmp.Or(
			strings.Compare(a.GroupVersionKind.Group, b.GroupVersionKind.Group),
			strings.Compare(a.GroupVersionKind.Version, b.GroupVersionKind.Version),
			strings.Compare(a.Resource, b.Resource),
		)
	})
	slices.SortFunc(stale, func(a, b schema.GroupVersion) int { return strings.Compare(a.String(), b.String()) })
	a := &APIs{
		all: all, known: true, stale: stale, failure: failure,
		kinds:     make(map[schema.GroupVersionKind]int, len(all)),
		resources: make(map[schema.GroupVersionResource]int, len(all)),
	}
	list, whole := sha256.New(), sha256.New()
	for i, api := range all {
		slices.Sort(api.Verbs)
		if _, taken := a.kinds[api.GroupVersionKind]; !taken {
			a.kinds[api.GroupVersionKind] = i
		}
		a.resources[api.GroupVersionResource()] = i
		// Writing to a hash cannot fail.
		_, _ = fmt.Fprintf(list, "%q %q %t %q\n", api.GroupVersionKind, api.Resource, api.Namespaced, api.Verbs)
		_, _ = fmt.Fprintf(whole, "%#v\n", api)
	}
	_, _ = fmt.Fprintf(whole, "%q %q", stale, failure)
	a.hash = hex.EncodeToString(list.Sum(nil)[:8])
	a.fingerprint = [sha256.Size]byte(whole.Sum(nil))
	return a
}

// incomplete returns the same list, marked as possibly incomplete.
func (a *APIs) incomplete(cause string) *APIs {
	return newAPIs(slices.Clone(a.all), slices.Clone(a.stale), cause)
}

// Kind returns the type of a kind, and whether the cluster serves it.
func (a *APIs) Kind(gvk schema.GroupVersionKind) (API, presence.Presence) {
	i, ok := a.kinds[gvk]
	return a.at(i, ok, gvk.Group)
}

// Resource returns the type of a resource, and whether the cluster serves it.
func (a *APIs) Resource(gvr schema.GroupVersionResource) (API, presence.Presence) {
	i, ok := a.resources[gvr]
	return a.at(i, ok, gvr.Group)
}

func (a *APIs) at(i int, ok bool, group string) (API, presence.Presence) {
	switch {
	case ok && a.all[i].Stale:
		return a.all[i], presence.Unknown
	case ok:
		return a.all[i], presence.Present
	case a.CompleteIn(group):
		return API{}, presence.Absent
	default:
		return API{}, presence.Unknown
	}
}

// All returns all types, sorted by group, version and resource. The slice is shared: do not
// change it.
func (a *APIs) All() []API { return a.all }

// Hash returns a hash of the types, their scopes and verbs. It does not depend on staleness.
func (a *APIs) Hash() string { return a.hash }

// Complete reports whether all APIs of the cluster, including aggregated ones, are known.
func (a *APIs) Complete() bool { return a.known && a.failure == "" && len(a.stale) == 0 }

// CompleteIn reports whether every type of a group is known: types that are not listed are not
// served. Other groups do not matter.
func (a *APIs) CompleteIn(group string) bool {
	return a.known && a.failure == "" && !slices.ContainsFunc(a.stale, func(gv schema.GroupVersion) bool { return gv.Group == group })
}

// Unsure returns the names of versions that do not answer and may serve a type that satisfies the
// predicate: versions that served such a type when they last answered, and versions without known
// types. It is empty if every such type is known.
func (a *APIs) Unsure(of func(API) bool) string {
	if !a.known || a.failure != "" {
		return cmp.Or(a.unanswered(), "its API list was not read yet")
	}
	sure := map[schema.GroupVersion]bool{}
	for _, api := range a.all {
		gv := api.GroupVersionKind.GroupVersion()
		before, seen := sure[gv]
		sure[gv] = (before || !seen) && !of(api)
	}
	var names []string
	for _, gv := range a.stale {
		if !sure[gv] {
			names = append(names, gv.String())
		}
	}
	return strings.Join(names, ", ")
}

// Silent returns a message with the versions of a group that do not answer; "": all answer, or
// that is unknown.
func (a *APIs) Silent(group string) string {
	var names []string
	for _, gv := range a.stale {
		if gv.Group == group {
			names = append(names, gv.String())
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "these do not answer: " + strings.Join(names, ", ")
}

// unanswered returns the names of the versions that do not answer, and the failure.
func (a *APIs) unanswered() string {
	names := make([]string, 0, len(a.stale)+1)
	for _, gv := range a.stale {
		names = append(names, gv.String())
	}
	if a.failure != "" {
		names = append(names, a.failure)
	}
	return strings.Join(names, ", ")
}
