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
	// Stale is true while the cluster cannot say whether it still serves the type: this
	// is what was last known.
	Stale bool
	// Within are the namespaces that alone the hub may read it in; nil: it may read all of it.
	Within []string
}

// GroupVersionResource of the API.
func (a API) GroupVersionResource() schema.GroupVersionResource {
	return a.GroupVersionKind.GroupVersion().WithResource(a.Resource)
}

// Readable says whether the hub may read any of it.
func (a API) Readable() bool { return a.Within == nil || len(a.Within) > 0 }

// HoldsCopies reports whether copies of the type can be in the cluster: the hub makes a copy only
// after it has listed and watched the type there. The verb delete says nothing: the hub does not
// ask for it before it makes a copy.
func (a API) HoldsCopies() bool {
	return slices.Contains(a.Verbs, "list") && slices.Contains(a.Verbs, "watch")
}

// APIs is a snapshot of what a cluster serves. The zero value knows nothing.
type APIs struct {
	all         []API
	kinds       map[schema.GroupVersionKind]int
	resources   map[schema.GroupVersionResource]int
	hash        string
	fingerprint [sha256.Size]byte     // of everything, staleness too
	known       bool                  // the list was read: a group that it does not name is not served
	stale       []schema.GroupVersion // versions that do not answer, such as metrics.k8s.io/v1beta1
	failure     string                // why the list as a whole is not trusted; "": it is
}

// newAPIs makes a snapshot. stale are the versions that do not answer; failure, unless it is
// "", is why the list as a whole is not trusted.
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

// incomplete is the same list, not trusted to be whole.
func (a *APIs) incomplete(cause string) *APIs {
	return newAPIs(slices.Clone(a.all), slices.Clone(a.stale), cause)
}

// Kind says whether the cluster serves a kind, and how.
func (a *APIs) Kind(gvk schema.GroupVersionKind) (API, presence.Presence) {
	i, ok := a.kinds[gvk]
	return a.at(i, ok, gvk.Group)
}

// Resource says whether the cluster serves a resource, and how.
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

// All types, by group, version and resource. The slice is shared: do not change it.
func (a *APIs) All() []API { return a.all }

// Hash of the list: it changes when and only when the list does.
func (a *APIs) Hash() string { return a.hash }

// Complete is false while some aggregated API of the cluster does not answer, or all of it.
func (a *APIs) Complete() bool { return a.known && a.failure == "" && len(a.stale) == 0 }

// CompleteIn says whether every type of a group is known: one that is not listed is not
// served, whatever other groups do.
func (a *APIs) CompleteIn(group string) bool {
	return a.known && a.failure == "" && !slices.ContainsFunc(a.stale, func(gv schema.GroupVersion) bool { return gv.Group == group })
}

// Unsure names what does not answer and may serve a type of which something is true: versions
// that served such a type when they last answered, and those of which nothing is known. It is empty
// when every such type is known.
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

// Silent says which versions of a group do not answer; empty: all do, or that is not known.
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

// unanswered names what does not answer.
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
