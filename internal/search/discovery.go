package search

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
)

// aggregated is the media type of discovery in one document, with all groups, versions and types.
const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// verbs returns the verbs that the fleet supports for the types of a group. Collections and metrics
// cannot be watched.
func verbs(group string) []string {
	if group == collectionVersion.Group || group == metricsVersion.Group {
		return []string{"get", "list"}
	}
	return []string{"get", "list", "watch"}
}

// catalogue has types of the fleet by group and version, for discovery.
type catalogue map[string]map[string][]member.API

// catalogue returns the types that are mirrored from one cluster, or from any for "". A type that
// is namespaced in any of the clusters counts as namespaced, so that clients can request one
// namespace or all. A list of all namespaces has the objects of clusters in which the type is not
// namespaced, too, and a warning.
func (s *Search) catalogue(cluster string) catalogue { return catalogueOf(s.typesIn(cluster)) }

// typesIn returns the types that are mirrored from one cluster, or from any for "". The result may
// be changed.
func (s *Search) typesIn(cluster string) []mirror.Type {
	return slices.DeleteFunc(slices.Clone(s.Mirror.Types()), func(t mirror.Type) bool {
		return cluster != "" && !slices.Contains(t.Clusters, cluster)
	})
}

// catalogueOf returns mirrored types by group and version, each once and sorted by resource. A type
// that is namespaced in any cluster is namespaced.
func catalogueOf(mirrored []mirror.Type) catalogue {
	c := catalogue{}
	for _, t := range mirrored {
		gvk := t.GroupVersionKind
		if c[gvk.Group] == nil {
			c[gvk.Group] = map[string][]member.API{}
		}
		types := c[gvk.Group][gvk.Version]
		if i := slices.IndexFunc(types, func(a member.API) bool { return a.Resource == t.Resource }); i >= 0 {
			types[i].Namespaced = types[i].Namespaced || t.Namespaced
			continue
		}
		c[gvk.Group][gvk.Version] = append(types, t.API)
	}
	for _, versions := range c {
		for _, types := range versions {
			slices.SortFunc(types, func(a, b member.API) int { return cmp.Compare(a.Resource, b.Resource) })
		}
	}
	return c
}

// isOfKubernetes reports whether a group belongs to Kubernetes itself. Every user may know that the
// fleet has these types. Otherwise "kubectl get pods" would report that pods do not exist, and not
// that the caller may not list them.
func isOfKubernetes(group string) bool { return known.IsGroupRegistered(group) }

// mayName reports whether the caller may know that the fleet has a type. Every caller may know the
// types of Kubernetes. Other types are known to a caller that may list them in all namespaces, or
// in a namespace that may use a cluster with the type. The error means that a right could not be
// checked.
func (s *Search) mayName(ctx context.Context, t mirror.Type) (bool, error) {
	if isOfKubernetes(t.GroupVersionKind.Group) {
		return true, nil
	}
	seen, err := s.authorize(ctx, location{GroupVersionResource: t.GroupVersionResource()}, params{}, "list")
	switch {
	case apierrors.IsForbidden(err):
		return false, nil
	case err != nil:
		return false, err
	}
	return seen.fence == nil || slices.ContainsFunc(t.Clusters, func(c string) bool { return !seen.closed(c) }), nil
}

// mayListAll reports, by one check, whether the caller may list every type. If the hub has other
// authorizers than RBAC it is always false: such an authorizer may refuse one type to a caller that
// may list all others. Then each type must be checked.
func (s *Search) mayListAll(ctx context.Context) (bool, error) {
	if s.UntoldRights {
		return false, nil
	}
	err := s.Authorize(ctx, authorizationv1.ResourceAttributes{Verb: "list", Group: "*", Version: "*", Resource: "*"})
	if apierrors.IsForbidden(err) {
		return false, nil
	}
	return err == nil, err
}

// catalogueFor returns the types of one cluster, or of all for "", that the caller may know. With
// groups, only types of these groups are included. The error means that a right could not be
// checked.
func (s *Search) catalogueFor(ctx context.Context, cluster string, groups ...string) (catalogue, error) {
	types := slices.DeleteFunc(s.typesIn(cluster), func(t mirror.Type) bool {
		return len(groups) > 0 && !slices.Contains(groups, t.GroupVersionKind.Group)
	})
	if slices.ContainsFunc(types, func(t mirror.Type) bool { return !isOfKubernetes(t.GroupVersionKind.Group) }) {
		if all, err := s.mayListAll(ctx); err != nil {
			return nil, err
		} else if all {
			return catalogueOf(types), nil
		}
	}
	var visible []mirror.Type
	for _, t := range types {
		ok, err := s.mayName(ctx, t)
		if err != nil {
			return nil, err
		}
		if ok {
			visible = append(visible, t)
		}
	}
	return catalogueOf(visible), nil
}

// groups returns the names of the groups, sorted. The core group is left out: it has a path of its
// own, /api.
func (c catalogue) groups() []string {
	groups := slices.Sorted(maps.Keys(c))
	return slices.DeleteFunc(groups, func(g string) bool { return g == "" })
}

// versions returns the versions of a group, the preferred one first: the most stable version, and
// of those the newest. It is empty for an unknown group.
func (c catalogue) versions(group string) []string {
	return slices.SortedFunc(maps.Keys(c[group]), func(a, b string) int {
		return -version.CompareKubeAwareVersionStrings(a, b)
	})
}

// discover answers a request of discovery, for the whole fleet or one cluster. The types are the
// mirrored ones that the caller may know, those that conversions show, metrics and collections. A
// group or version without types is a NotFound error.
func (s *Search) discover(w http.ResponseWriter, r *http.Request, at location) error {
	var groups []string // groups of the document; nil: all
	if at.Version != "" || at.Group != "" {
		groups = shownAs(at.Group)
	}
	c, err := s.catalogueFor(r.Context(), at.cluster, groups...)
	if err != nil {
		return err
	}
	c.addConverted()
	c.addLive(s, at.cluster)
	c.addCollections()
	root := at.Group == "" && at.Version == ""
	w.Header().Set("Vary", "Accept")
	switch {
	case root && wantsAggregated(r):
		groups := c.groups()
		if at.document == "api" {
			groups = slices.DeleteFunc([]string{""}, func(string) bool { return c[""] == nil })
		}
		return answer.Tagged(w, r, aggregated, c.groupDiscoveryList(groups))
	case root && at.document == "api":
		return answer.JSON(w, http.StatusOK, metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: c.versions(""),
		})
	case root:
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}}
		for _, g := range c.groups() {
			list.Groups = append(list.Groups, c.group(g))
		}
		return answer.JSON(w, http.StatusOK, list)
	case at.Version == "":
		if c[at.Group] == nil {
			return notFound(at.Group)
		}
		group := c.group(at.Group)
		group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		return answer.JSON(w, http.StatusOK, group)
	default:
		types, ok := c[at.Group][at.Version]
		if !ok {
			return notFound(at.GroupVersion().String())
		}
		return answer.JSON(w, http.StatusOK, resourceList(at.GroupVersion(), types))
	}
}

// wantsAggregated reports whether the client accepts discovery in one document (aggregated).
func wantsAggregated(r *http.Request) bool {
	for _, m := range accepted(r) {
		if m.params["g"] == apidiscoveryv2.GroupName && m.params["v"] == "v2" && m.params["as"] == "APIGroupDiscoveryList" {
			return true
		}
	}
	return false
}

// group returns a group with its versions, as discovery shows it. c must have the group.
func (c catalogue) group(name string) metav1.APIGroup {
	g := metav1.APIGroup{Name: name}
	for _, v := range c.versions(name) {
		gv := schema.GroupVersion{Group: name, Version: v}
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v})
	}
	g.PreferredVersion = g.Versions[0]
	return g
}

func resourceList(gv schema.GroupVersion, types []member.API) metav1.APIResourceList {
	list := metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: gv.String(), APIResources: []metav1.APIResource{},
	}
	for _, t := range types {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: t.Resource, SingularName: singular(t), Namespaced: t.Namespaced, Kind: t.GroupVersionKind.Kind,
			Verbs: verbs(gv.Group), ShortNames: t.ShortNames, Categories: t.Categories,
		})
	}
	return list
}

func (c catalogue) groupDiscoveryList(groups []string) apidiscoveryv2.APIGroupDiscoveryList {
	list := apidiscoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: apidiscoveryv2.SchemeGroupVersion.String()},
		Items:    []apidiscoveryv2.APIGroupDiscovery{},
	}
	for _, name := range groups {
		g := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, v := range c.versions(name) {
			d := apidiscoveryv2.APIVersionDiscovery{Version: v, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
			for _, t := range c[name][v] {
				scope := apidiscoveryv2.ScopeCluster
				if t.Namespaced {
					scope = apidiscoveryv2.ScopeNamespace
				}
				kind := metav1.GroupVersionKind(t.GroupVersionKind)
				d.Resources = append(d.Resources, apidiscoveryv2.APIResourceDiscovery{
					Resource: t.Resource, SingularResource: singular(t), Scope: scope, ResponseKind: &kind,
					Verbs: verbs(name), ShortNames: t.ShortNames, Categories: t.Categories,
				})
			}
			g.Versions = append(g.Versions, d)
		}
		list.Items = append(list.Items, g)
	}
	return list
}

// singular returns the singular name of a type, or else its kind in lower case. It is never empty,
// because users name types by it.
func singular(t member.API) string {
	return cmp.Or(t.Singular, strings.ToLower(t.GroupVersionKind.Kind))
}
