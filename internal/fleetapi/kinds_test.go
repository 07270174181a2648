package fleetapi

import (
	"context"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/search"
)

// TestKindsAreComplete: each entry of the list has all its parts, and no verb that generic
// controllers of the hub look for.
func TestKindsAreComplete(t *testing.T) {
	verbs := slices.Collect(maps.Values(methods))
	roles := rolesOfTheHub(t)
	documented := packageComment(t)
	if !slices.IsSortedFunc(kinds, func(a, b kind) int { return strings.Compare(a.resource, b.resource) }) {
		t.Error("the list is not sorted by resource")
	}
	for i, k := range kinds {
		t.Run(k.resource, func(t *testing.T) {
			resource, subresource, named := strings.Cut(k.resource, "/")
			for part, lacks := range map[string]bool{
				"resource": resource == "" || named && subresource == "", "kind": k.kind == "", "about": k.about == "", "verbs": len(k.verbs) == 0,
				"role": k.role == "", "menu (or none)": k.menu == nil, "part": k.part == "", "serve": k.serve == nil,
				"line in the comment of the package": !strings.Contains(documented, strings.TrimSuffix(k.resource, "/proxy")) &&
					!strings.Contains(documented, resource+"/NAME/"+subresource),
			} {
				if lacks {
					t.Errorf("it has no %s", part)
				}
			}
			if i > 0 && (kinds[i-1].resource == k.resource || kinds[i-1].kind == k.kind) {
				t.Error("two entries have its resource or its kind")
			}
			for _, v := range k.verbs {
				if !slices.Contains(verbs, v) {
					t.Errorf("no HTTP method has verb %s", v)
				}
				for _, right := range k.rights(v, "") {
					if !roles.give(k.role, right) {
						t.Errorf("ClusterRole %s does not give %+v", k.role, right)
					}
				}
			}
			for _, v := range k.menu {
				if !slices.Contains(k.verbs, v) {
					t.Errorf("its menu asks for verb %s, which it does not have", v)
				}
			}
			if !slices.IsSorted(k.verbs) {
				t.Errorf("verbs are not sorted: %v", k.verbs)
			}
			if !k.below && (k.foreign || k.authorizes) || k.foreign && k.authorizes || k.below && !named {
				t.Errorf("below %t, foreign %t, authorizes %t, a name %t: they contradict each other", k.below, k.foreign, k.authorizes, named)
			}
		})
	}
}

// rolesGiven are the rules of the hub's ClusterRoles by name. Those of the built-in role view are
// the rules that Orrery adds to it.
type rolesGiven map[string][]rbacv1.PolicyRule

// rolesOfTheHub reads the roles that the hub installs.
func rolesOfTheHub(t *testing.T) rolesGiven {
	t.Helper()
	installed, err := os.ReadFile("../hub/install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	roles := rolesGiven{}
	for document := range strings.SplitSeq(string(installed), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind != "ClusterRole" {
			continue
		}
		roles[role.Name] = role.Rules
		if role.Labels["rbac.authorization.k8s.io/aggregate-to-view"] == "true" {
			roles["view"] = append(roles["view"], role.Rules...)
		}
	}
	return roles
}

// give reports whether a role gives a right.
func (r rolesGiven) give(role string, right authorizationv1.ResourceAttributes) bool {
	resource := strings.TrimSuffix(right.Resource+"/"+right.Subresource, "/")
	has := func(all []string, one string) bool { return slices.Contains(all, one) || slices.Contains(all, "*") }
	return slices.ContainsFunc(r[role], func(p rbacv1.PolicyRule) bool {
		return has(p.APIGroups, right.Group) && has(p.Resources, resource) && has(p.Verbs, right.Verb)
	})
}

// packageComment returns the comment of this package.
func packageComment(t *testing.T) string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "server.go", nil, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return f.Doc.Text()
}

// TestRoutesDiscoveryAndOpenAPIAreEqual: discovery, the OpenAPI document and the routes have the
// same paths with the same verbs. The server refuses all other methods of these paths.
func TestRoutesDiscoveryAndOpenAPIAreEqual(t *testing.T) {
	a := served(false)
	document := func(path string, into any) {
		t.Helper()
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if err := json.Unmarshal(w.Body.Bytes(), into); w.Code != http.StatusOK || err != nil {
			t.Fatalf("%s: %d %v", path, w.Code, err)
		}
	}
	var resources metav1.APIResourceList
	document(groupPath, &resources)
	discovered := map[string][]string{}
	for _, r := range resources.APIResources {
		discovered[r.Name] = r.Verbs
	}

	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	document("/openapi/v3", &index)
	var api struct {
		Paths map[string]map[string]json.RawMessage
	}
	document(index.Paths["apis/fleet.orrery.dev/v1alpha1"].ServerRelativeURL, &api)
	described := map[string][]string{}
	for path, operations := range api.Paths {
		resource := strings.NewReplacer(groupPath+"/", "", "/{name}", "").Replace(path)
		for method := range operations {
			if verb := methods[strings.ToUpper(method)]; verb != "" {
				described[resource] = append(described[resource], verb)
			}
		}
		slices.Sort(described[resource])
	}
	if diff := cmp.Diff(discovered, described); diff != "" {
		t.Errorf("-discovery +OpenAPI:\n%s", diff)
	}

	routed := map[string][]string{}
	for path, resource := range samples() {
		ends := []string{""}
		if k, _, _ := match(path); k.authorizes { // the root itself needs no right
			ends = []string{"/api/v1/pods", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}
		}
		for _, end := range ends {
			for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost, http.MethodPut} {
				switch code := codeFor(a, method, path+end); code {
				case http.StatusForbidden:
					routed[resource] = append(routed[resource], methods[method])
				case http.StatusMethodNotAllowed:
				default:
					t.Errorf("%s %s: %d", method, path+end, code)
				}
			}
		}
	}
	for resource := range routed {
		slices.Sort(routed[resource])
		routed[resource] = slices.Compact(routed[resource])
	}
	if diff := cmp.Diff(discovered, routed); diff != "" {
		t.Errorf("-discovery +routes:\n%s", diff)
	}
	for path := range paths {
		if strings.HasPrefix(path, groupPath+"/") && path != metricsThroughHub {
			t.Errorf("%s is a path of the group without a kind", path)
		}
	}
}

// samples returns paths of all kinds, with their resources.
func samples() map[string]string {
	all := map[string]string{}
	for _, k := range kinds {
		resource, subresource, named := strings.Cut(k.resource, "/")
		switch {
		case !named:
			all[groupPath+"/"+resource] = k.resource
		case resource == "resources":
			for root := range roots {
				all[groupPath+"/resources/"+root+"/"+subresource] = k.resource
			}
		default:
			all[groupPath+"/"+resource+"/oak/"+subresource] = k.resource
		}
	}
	return all
}

// codeFor returns the status code of the answer to a request of a user without rights.
func codeFor(a *api, method, target string) int {
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequestWithContext(request.WithUser(context.Background(), &user.DefaultInfo{Name: "ann"}), method, target, nil))
	return w.Code
}

// TestMatch: a path has the kind whose path it is, and no other. The paths that clients use are
// those of kinds.
func TestMatch(t *testing.T) {
	for path, want := range map[string]string{
		fleetv1alpha1.AccessPath:                                  "access  ",
		fleetv1alpha1.ConsoleLinksPath:                            "consolelinks  ",
		fleetv1alpha1.PlacementsPath:                              "placements  ",
		fleetv1alpha1.PlacementReviewsPath:                        "placementreviews  ",
		fleetv1alpha1.WorksPath:                                   "works  ",
		fleetv1alpha1.FleetPath:                                   "resources/proxy fleet ",
		fleetv1alpha1.FleetPath + "/clusters/oak/proxy":           "resources/proxy fleet /clusters/oak/proxy",
		fleetv1alpha1.QualifiedPath + "/api":                      "resources/proxy qualified /api",
		fleetv1alpha1.ClustersPath + "/oak/mirror":                "clusters/mirror oak ",
		fleetv1alpha1.ClustersPath + "/mirror/mirror":             "clusters/mirror mirror ",
		fleetv1alpha1.ClustersPath + "/mirror/proxy/mirror":       "clusters/proxy mirror /mirror",
		fleetv1alpha1.ClustersPath + "/oak/proxy/":                "clusters/proxy oak /",
		fleetv1alpha1.ClustersPath + "/o%2Fk/proxy//a%2Fb/%2e%2e": "clusters/proxy o%2Fk //a%2Fb/%2e%2e",
		fleetv1alpha1.ClustersPath:                                "",
		fleetv1alpha1.ClustersPath + "/oak":                       "",
		fleetv1alpha1.ClustersPath + "/oak/":                      "",
		fleetv1alpha1.ClustersPath + "//mirror":                   "",
		fleetv1alpha1.ClustersPath + "//proxy/api":                "",
		fleetv1alpha1.ClustersPath + "/mirror":                    "",
		fleetv1alpha1.ClustersPath + "/oak/mirror/":               "",
		fleetv1alpha1.ClustersPath + "/oak/mirror/x":              "",
		fleetv1alpha1.ClustersPath + "/a/b/mirror":                "",
		fleetv1alpha1.ClustersPath + "/oak/proxyx":                "",
		fleetv1alpha1.AccessPath + "/":                            "",
		fleetv1alpha1.WorksPath + "/web":                          "",
		"/apis/fleet.orrery.dev/v1alpha1":                         "",
		"/apis/fleet.orrery.dev/v1/access":                        "",
		"/access":                                                 "",
	} {
		got := ""
		if k, name, rest := match(path); k != nil {
			got = fmt.Sprint(k.resource, " ", name, " ", rest)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if code := codeFor(served(true), http.MethodGet, groupPath+"/resources/other/proxy/api"); code != http.StatusNotFound {
		t.Errorf("an unknown root: %d", code)
	}
}

// TestMirrorRequiresTwoRights: to read clusters/mirror, a caller must be allowed to get that and
// the Cluster, also without the hub's kube-apiserver. Only callers with both rights have the menu.
func TestMirrorRequiresTwoRights(t *testing.T) {
	const path = fleetv1alpha1.ClustersPath + "/oak/mirror"
	mirror, cluster := "fleet.orrery.dev clusters/mirror", "cluster.orrery.dev clusters/"
	for name, c := range map[string]struct {
		rights []string
		code   int
		menu   bool
	}{
		// The mirror of this test has no cluster.
		"Both":        {[]string{mirror, cluster}, http.StatusNotFound, true},
		"MirrorOnly":  {[]string{mirror}, http.StatusForbidden, false},
		"ClusterOnly": {[]string{cluster}, http.StatusForbidden, false},
		"Neither":     {nil, http.StatusForbidden, false},
	} {
		for _, verbs := range [][]string{{"get"}, {"get", "*"}} {
			a := servedBy(verdict{may: func(r authorizationv1.ResourceAttributes) bool {
				return slices.Contains(c.rights, r.Group+" "+r.Resource+"/"+r.Subresource) && slices.Contains(verbs, r.Verb)
			}})
			if code := codeFor(a, http.MethodGet, path); code != c.code {
				t.Errorf("%s, verbs %v: %d, want %d", name, verbs, code, c.code)
			}
			i := slices.IndexFunc(a.menus, func(m menu) bool { return m.resource == "clusters/mirror" })
			ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "ann"})
			if shown, err := a.verbs(ctx, a.menus[i], false); err != nil || (len(shown) > 0) != c.menu {
				t.Errorf("%s, verbs %v: the menu has %v, %v", name, verbs, shown, err)
			}
		}
	}
	if code := codeFor(served(true), http.MethodGet, path+"?a="+strings.Repeat("a", search.LongestURL)); code != http.StatusBadRequest {
		t.Errorf("a long request: %d", code)
	}
}

// TestMenus: clients get the menus by group and resource, each once. The menu of a kind asks for
// the rights that its requests need.
func TestMenus(t *testing.T) {
	var names []string
	for _, m := range newMenus() {
		names = append(names, m.group+" "+m.resource)
		i := slices.IndexFunc(kinds, func(k kind) bool { return m.group == fleetv1alpha1.GroupVersion.Group && k.resource == m.resource })
		for _, v := range m.verbs {
			if i >= 0 && !reflect.DeepEqual(m.rights(v), kinds[i].rights(v, "")) {
				t.Errorf("the menu of %s asks for %+v", m.resource, m.rights(v))
			}
		}
	}
	if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("menus: %q", names)
	}
}
