package fleetapi

import (
	"net/http"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/search"
)

// kind is a virtual kind of the group fleet.orrery.dev: the server computes its objects for each
// request. Routes, authorization, discovery, OpenAPI, metrics and menus are derived from its
// fields.
type kind struct {
	// resource is the plural name in URLs and roles, with the subresource after a slash. The path of
	// access is .../access, and that of clusters/mirror is .../clusters/NAME/mirror.
	resource string
	// singular is the singular name in discovery; "" for kinds that users do not name.
	singular string
	// kind is the name of the kind in discovery and in objects.
	kind string
	// about says in OpenAPI what is answered.
	about string
	// verbs are the verbs in discovery: get, create, update, patch or delete. A verb that is missing
	// is refused. list and watch are not allowed: with them, generic controllers of the hub, such as
	// the garbage collector, would read the kind.
	verbs []string
	// role is the ClusterRole of the hub that gives the verbs.
	role string
	// of is the type of the hub that the kind describes: the caller also needs the verb on the object
	// of that type and name. nil: only the right on the kind itself is needed.
	of *schema.GroupVersionResource
	// below is true if paths below that of the kind are its own, too: those of a proxy.
	below bool
	// foreign is true if a member parses the request, with limits of its own. Otherwise the server
	// limits the size of the request.
	foreign bool
	// authorizes is true if serve itself checks the method and the rights, because they depend on the
	// path below.
	authorizes bool
	// menu are the verbs that user interfaces need to know about, see serveAccess; none: no verb.
	menu []string
	// part is the value of the label "part" of the metric of requests.
	part string
	// serve answers a request of an authorized caller. name is the NAME in the path, and rest is the
	// path below that of the kind; both are escaped, and "" if there is none.
	serve func(a *api, w http.ResponseWriter, r *http.Request, name, rest string) error
}

// none is the menu of a kind that has no menu.
var none = []string{}

// searchRole is the ClusterRole of the hub for users that search and ask why.
const searchRole = "orrery:search"

// clusters is the type of the hub's Clusters.
var clusters = clusterv1alpha1.GroupVersion.WithResource("clusters")

// kinds are all virtual kinds, sorted by resource. A new kind is one entry here.
var kinds = []kind{
	{
		resource: "access", kind: "FleetAccess", about: "what the caller may see and change",
		verbs: []string{"get"}, role: searchRole, menu: none, part: "explanation", serve: (*api).serveAccess,
	},
	{
		resource: "clusters/mirror", kind: "ClusterMirror", about: "what is mirrored from the cluster, and how old it is",
		verbs: []string{"get"}, role: "view", of: &clusters, menu: []string{"get"}, part: "proxy", serve: (*api).serveMirror,
	},
	{
		resource: "clusters/proxy", kind: "ClusterProxyOptions", about: "passed to the API server of the cluster",
		verbs: []string{"create", "delete", "get", "patch", "update"}, role: "orrery:proxy", below: true, foreign: true,
		menu: []string{"get", "create"}, part: "proxy", serve: (*api).serveProxy,
	},
	{
		resource: "consolelinks", singular: "consolelink", kind: "ConsoleLink", about: "a link that opens the console as the caller",
		verbs: []string{"create"}, role: "orrery:console", menu: none, part: "other", serve: (*api).serveConsoleLinks,
	},
	{
		resource: "placementreviews", kind: "PlacementReview", about: "where an object would be placed, or what a change would move",
		verbs: []string{"create"}, role: searchRole, menu: none, part: "explanation", serve: (*api).serveReview,
	},
	{
		resource: "placements", kind: "PlacementExplanation", about: "why an object is placed where it is",
		verbs: []string{"get"}, role: searchRole, menu: none, part: "explanation", serve: (*api).servePlacement,
	},
	{
		resource: "resources/proxy", kind: "FleetProxyOptions", about: "the mirrored objects of all clusters",
		verbs: []string{"create", "get"}, role: searchRole, below: true, authorizes: true, menu: none, part: "search", serve: (*api).serveFleet,
	},
	{
		resource: "works", kind: "WorkList", about: "the state of an object in its clusters",
		verbs: []string{"get"}, role: searchRole, menu: none, part: "explanation", serve: (*api).serveWorks,
	},
}

// groupPath is the root of the paths of all kinds.
var groupPath = "/apis/" + fleetv1alpha1.GroupVersion.String()

// match returns the kind that has the path of a request, the NAME in the path, and the path below
// that of the kind. The results are escaped as path is. The kind is nil if no kind has the path.
func match(path string) (_ *kind, name, rest string) {
	for i := range kinds {
		resource, subresource, named := strings.Cut(kinds[i].resource, "/")
		name := ""
		rest, ok := below(path, groupPath+"/"+resource)
		if ok && named {
			name, rest, _ = strings.Cut(strings.TrimPrefix(rest, "/"), "/")
			rest, ok = below("/"+rest, "/"+subresource)
			ok = ok && name != ""
		}
		if ok && (rest == "" || kinds[i].below) {
			return &kinds[i], name, rest
		}
	}
	return nil, "", ""
}

// answer checks the size of a request for k, its method, and the rights of the caller, and then
// serves it. It parses nothing of the request before. The hub's kube-apiserver checks the right on
// the kind, too, but requests with a client certificate do not come through that server. The error
// is for the client.
func (k *kind) answer(a *api, w http.ResponseWriter, r *http.Request, name, rest string) error {
	if !k.foreign {
		if err := search.CheckSize(r); err != nil {
			return err
		}
	}
	if k.authorizes {
		return k.serve(a, w, r, name, rest)
	}
	verb := methods[r.Method]
	if !slices.Contains(k.verbs, verb) || r.Method == http.MethodOptions && !k.below {
		return apierrors.NewMethodNotSupported(schema.GroupResource{Group: fleetv1alpha1.GroupVersion.Group, Resource: k.resource}, r.Method)
	}
	for _, right := range k.rights(verb, name) {
		if err := a.authorizer.resource(r.Context(), right); err != nil {
			return err
		}
	}
	if k.below { // an answer can be a stream
		return k.serve(a, w, r, name, rest)
	}
	compressed(answer.Func(func(w http.ResponseWriter, r *http.Request) error { return k.serve(a, w, r, name, rest) })).ServeHTTP(w, r)
	return nil
}

// rights returns the rights that a caller needs for a verb on k with the NAME in the path. The
// first is the right that the hub's kube-apiserver derives from the URL: a GET without a name is a
// list.
func (k *kind) rights(verb, name string) []authorizationv1.ResourceAttributes {
	if verb == "get" && !strings.Contains(k.resource, "/") {
		verb = "list"
	}
	return rightsTo(verb, fleetv1alpha1.GroupVersion.WithResource(k.resource), k.of, name)
}

// rightsTo returns the rights to a verb on objects of a type and on those of the type of, which may
// be nil. name restricts them to objects of that name; "": all. A subresource follows the resource
// of a type after a slash.
func rightsTo(verb string, on schema.GroupVersionResource, of *schema.GroupVersionResource, name string) []authorizationv1.ResourceAttributes {
	right := authorizationv1.ResourceAttributes{Verb: verb, Group: on.Group, Version: on.Version, Name: name}
	right.Resource, right.Subresource, _ = strings.Cut(on.Resource, "/")
	all := []authorizationv1.ResourceAttributes{right}
	if of != nil {
		all = append(all, rightsTo(verb, *of, nil, name)...)
	}
	return all
}

// methods has the verbs that a kube-apiserver derives from the HTTP method of a request to a
// subresource. Other methods are refused.
var methods = map[string]string{
	http.MethodGet: "get", http.MethodHead: "get", http.MethodOptions: "get", http.MethodPost: "create", http.MethodPut: "update",
	http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// RoleFor returns the ClusterRole of the hub that gives the verbs on a resource of the group
// fleet.orrery.dev, such as clusters/proxy. It is "" for an unknown resource.
func RoleFor(resource string) string {
	if groupPath+"/"+resource == metricsThroughHub {
		return "orrery:metrics"
	}
	for _, k := range kinds {
		if k.resource == resource {
			return k.role
		}
	}
	return ""
}

// apiGroup returns the entry of the group fleet.orrery.dev in discovery documents.
func apiGroup() metav1.APIGroup {
	v := metav1.GroupVersionForDiscovery{
		GroupVersion: fleetv1alpha1.GroupVersion.String(), Version: fleetv1alpha1.GroupVersion.Version,
	}
	return metav1.APIGroup{
		Name: fleetv1alpha1.GroupVersion.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v,
	}
}

// apiResources returns the discovery document with the resources of the group fleet.orrery.dev.
func apiResources() metav1.APIResourceList {
	list := metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: fleetv1alpha1.GroupVersion.String(),
	}
	for _, k := range kinds {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: k.resource, SingularName: k.singular, Kind: k.kind, Verbs: k.verbs})
	}
	return list
}

// documentPath is the path of openAPIDocument.
var documentPath = "/openapi/v3/" + pathOf(fleetv1alpha1.GroupVersion)

// openAPIDocument returns the OpenAPI v3 document of the group fleet.orrery.dev: the paths of its
// kinds and their methods, without schemas. Paths below a proxy are in the documents of members.
func openAPIDocument() map[string]any {
	paths := map[string]any{}
	for _, k := range kinds {
		path, subresource, named := strings.Cut(k.resource, "/")
		operations := map[string]any{}
		if named {
			path += "/{name}/" + subresource
			operations["parameters"] = []any{map[string]any{"name": "name", "in": "path", "required": true, "schema": map[string]any{"type": "string"}}}
		}
		for method, verb := range methods {
			if slices.Contains(k.verbs, verb) && method != http.MethodHead && method != http.MethodOptions {
				operations[strings.ToLower(method)] = map[string]any{
					"responses":                       map[string]any{"default": map[string]any{"description": k.about}},
					"x-kubernetes-group-version-kind": map[string]any{"group": fleetv1alpha1.GroupVersion.Group, "version": fleetv1alpha1.GroupVersion.Version, "kind": k.kind},
				}
			}
		}
		paths[groupPath+"/"+path] = operations
	}
	return map[string]any{
		"openapi": "3.0.0", "info": map[string]any{"title": "Orrery fleet", "version": fleetv1alpha1.GroupVersion.Version},
		"paths": paths, "components": map[string]any{"schemas": map[string]any{}},
	}
}
