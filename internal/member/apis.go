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

// API is one resource type that a cluster serves in one version.
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
	// Stale is true while it is unknown whether the cluster still serves the type. The rest is
	// then the last known state.
	Stale bool
	// Within are the only namespaces, sorted, in which the hub may read objects of the type. nil
	// means all namespaces, and an empty slice means none.
	Within []string
}

// GroupVersionResource returns the group, version and plural name of the type.
func (a API) GroupVersionResource() schema.GroupVersionResource {
	return a.GroupVersionKind.GroupVersion().WithResource(a.Resource)
}

// Readable reports whether the hub may read objects of the type in at least one namespace.
func (a API) Readable() bool { return a.Within == nil || len(a.Within) > 0 }

// HoldsCopies reports whether the cluster can have copies of the type, which are the objects that
// Orrery creates from templates. The verbs list and watch decide, because the hub creates a copy
// only after it has listed and watched the type there. The verb delete does not matter.
func (a API) HoldsCopies() bool {
	return slices.Contains(a.Verbs, "list") && slices.Contains(a.Verbs, "watch")
}

// APIs is a snapshot of the types that a cluster serves, as far as they are known. It does not
// change, so several goroutines may use it. In the zero value, everything is unknown.
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

// newAPIs returns a snapshot of a cluster's types. It keeps and sorts all, the verbs in it, and
// stale, so the caller must not use these slices any more. stale are the group versions that do not
// answer. failure is why the list as a whole may be incomplete; "": it is complete.
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

// incomplete returns a copy of the list that is marked as possibly incomplete. cause is the reason,
// for messages. The copy counts as read, even if a was not.
func (a *APIs) incomplete(cause string) *APIs {
	return newAPIs(slices.Clone(a.all), slices.Clone(a.stale), cause)
}

// Kind returns the served type of a kind, and whether the cluster serves it: Present, Absent or
// Unknown. With Unknown, the API is the last known one and is marked Stale, or empty if no earlier
// one is known. With Absent, the API is empty. If several resources have the kind, Kind returns the
// first by name.
func (a *APIs) Kind(gvk schema.GroupVersionKind) (API, presence.Presence) {
	i, ok := a.kinds[gvk]
	return a.at(i, ok, gvk.Group)
}

// Resource returns the served type of a resource, and whether the cluster serves it: Present,
// Absent or Unknown. With Unknown, the API is the last known one and is marked Stale, or empty if
// no earlier one is known. With Absent, the API is empty.
func (a *APIs) Resource(gvr schema.GroupVersionResource) (API, presence.Presence) {
	i, ok := a.resources[gvr]
	return a.at(i, ok, gvr.Group)
}

// at returns the type with index i in the list, and whether the cluster serves it. ok means that
// the list has such a type. Without it, the result is Absent if every type of the group is known,
// else Unknown.
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

// All returns all known types of the cluster, sorted by group, version and resource. The slice is
// shared: do not change it.
func (a *APIs) All() []API { return a.all }

// Hash returns a hash of the cluster's types with their scopes and verbs, as 16 hexadecimal digits.
// It does not depend on whether the versions answer at present. It is "" if the list was never
// read.
func (a *APIs) Hash() string { return a.hash }

// Complete reports whether every type of the cluster is known, also those of aggregated API
// servers. It is false if the list was never read.
func (a *APIs) Complete() bool { return a.known && a.failure == "" && len(a.stale) == 0 }

// CompleteIn reports whether every type of the API group is known, so that the cluster does not
// serve other types of this group. It is false if the list was never read.
func (a *APIs) CompleteIn(group string) bool {
	return a.known && a.failure == "" && !slices.ContainsFunc(a.stale, func(gv schema.GroupVersion) bool { return gv.Group == group })
}

// Unsure returns why the cluster may serve a type that satisfies the predicate of and is not
// reliably known. The text has group versions that do not answer, joined by ", ": those that served
// such a type when they last answered, and those without known types. If the whole list may be
// incomplete or was not read, the text is that reason, for any predicate. "" means that every such
// type is known.
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

// Silent returns a message with the versions of the API group that do not answer. It is "" if all
// answer, and also if the API list was never read.
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

// unanswered returns, for messages, the group versions that do not answer, and why the whole list
// may be incomplete, joined by ", ". It is "" if all answer and the list is complete.
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
