package fleetapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/scheduler"
	"orrery.dev/orrery/internal/search"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// mirrored is a mirror whose types exist in every cluster.
type mirrored struct {
	apis     []member.API
	clusters []string
}

func (m mirrored) Types() (out []mirror.Type) {
	for _, api := range m.apis {
		out = append(out, mirror.Type{API: api, Clusters: slices.Clone(m.clusters)})
	}
	return out
}
func (mirrored) Stored(string, schema.GroupResource) bool { return true }
func (mirrored) Lost(string, schema.GroupResource) bool   { return false }
func (mirrored) Stale(string) (time.Time, bool)           { return time.Time{}, false }

func (mirrored) Incomplete(string, schema.GroupResource) (int, int) { return 0, 0 }

func (mirrored) Silence(string, schema.GroupResource) (string, bool) { return "", true }

func (mirrored) Freshness(string, schema.GroupResource) (time.Time, bool) { return time.Time{}, false }
func (mirrored) Partial(string, schema.GroupResource) bool                { return false }
func (mirrored) WithoutData(string) bool                                  { return false }

// fenced is the fence of random ClusterAccesses.
type fenced struct {
	set      *access.Set
	clusters map[string]*scheduler.Cluster
}

func (f fenced) Allowed(namespace, cluster string) bool {
	return f.set.Allowed(namespace, f.clusters[cluster])
}

// person is the user of a request.
type person struct {
	name   string
	groups []string
}

// TestEverybodySeesWhatTheyMay compares, for random roles, bindings, fences and users, what
// users are shown with what they may see. They ask for every type, namespace and cluster: in
// whole lists, in pages and one by one. The hub's access reviews and the fence define the
// rights for each object.
func TestEverybodySeesWhatTheyMay(t *testing.T) {
	random := testenv.Rand(t)
	some := func(most int, of ...string) []string {
		picked := slices.Clone(of)
		random.Shuffle(len(picked), func(i, j int) { picked[i], picked[j] = picked[j], picked[i] })
		return picked[:1+random.IntN(most)]
	}
	cfg := testenv.Config(0)
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	followed, err := cache.New(cfg, cache.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	known, err := newRoles(t.Context(), followed, func([]access.Subject) {})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- followed.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	hub, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}

	// The objects: each cluster has the same ones of each type in each namespace.
	var namespaces []string
	for range 4 {
		namespaces = append(namespaces, testenv.Namespace(t, cfg))
	}
	slices.Sort(namespaces)
	clusters := map[string]*scheduler.Cluster{
		"ash": {Name: "ash", Labels: labels.Set{"env": "prod"}}, "elm": {Name: "elm", Labels: labels.Set{"env": "test"}}, "oak": {Name: "oak"},
	}
	fleet := []string{"ash", "elm", "oak"}
	apis := []member.API{
		{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: "pods", Namespaced: true},
		{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, Resource: "secrets", Namespaced: true},
		{GroupVersionKind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Resource: "deployments", Namespaced: true},
		{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Node"}, Resource: "nodes"},
	}
	names := []string{"db", "web"}
	db, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	var rows []store.Row
	var changes []store.Change
	for _, api := range apis {
		in := namespaces
		if !api.Namespaced {
			in = []string{""}
		}
		for _, cluster := range fleet {
			for _, namespace := range in {
				for _, name := range names {
					rows = append(rows, store.Row{
						Cluster: cluster, Group: api.GroupVersionKind.Group, Version: api.GroupVersionKind.Version, Resource: api.Resource, Kind: api.GroupVersionKind.Kind,
						Namespace: namespace, Name: name, ResourceVersion: "1", Body: fmt.Appendf(nil, `{"metadata":{"namespace":%q,"name":%q}}`, namespace, name),
					})
					changes = append(changes, store.Change{Row: rows[len(rows)-1]})
				}
			}
		}
	}
	if err := db.Write(t.Context(), changes); err != nil {
		t.Fatal(err)
	}

	// The users, and their rights.
	people := []person{
		{"alice", []string{"devs", "system:authenticated"}},
		{"bob", []string{"ops", "devs"}},
		{"carol", []string{"ops"}},
		{"dave", nil},
		{"system:serviceaccount:" + namespaces[0] + ":robot", []string{"system:serviceaccounts"}},
		{"erin", nil},
	}
	subjects := func() (out []rbacv1.Subject) {
		for _, name := range some(2, "alice", "bob", "carol", "devs", "ops", "robot") {
			switch name {
			case "devs", "ops":
				out = append(out, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name})
			case "robot":
				out = append(out, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespaces[0], Name: name})
			default:
				out = append(out, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name})
			}
		}
		return out
	}
	// With any random roles, one user may list something.
	everyone := metav1.ObjectMeta{Name: "differs-pods"}
	made := []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: everyone, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"pods"}}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: everyone, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: everyone.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "erin"}},
		},
	}
	const roles = 8
	for i := range roles {
		rule := rbacv1.PolicyRule{
			Verbs: some(2, "get", "list", "watch", "*"), APIGroups: some(2, "", "apps", "*"), Resources: some(2, "pods", "secrets", "deployments", "nodes", "*"),
		}
		if random.IntN(4) == 0 {
			rule.ResourceNames = some(1, names...)
		}
		made = append(made, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("differs-%d", i)}, Rules: []rbacv1.PolicyRule{rule}})
	}
	for i := range 14 {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("differs-%d", i)}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: fmt.Sprintf("differs-%d", random.IntN(roles))}
		if i < 3 {
			made = append(made, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects()[:1]})
			continue
		}
		meta.Namespace = some(1, namespaces...)[0]
		made = append(made, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects()})
	}
	for _, o := range made {
		create(t, c, o)
		t.Cleanup(func() { remove(context.Background(), t, c, o) })
	}
	for round := range 4 {
		byDefault := access.All
		if random.IntN(2) == 0 {
			byDefault = access.None
		}
		rules := access.NewRules(byDefault)
		for _, n := range namespaces {
			rules.Namespace(n, labels.Set{"team": some(1, "a", "b", "none")[0]})
		}
		for i := range random.IntN(4) {
			a := &policyv1alpha1.ClusterAccess{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Spec: policyv1alpha1.ClusterAccessSpec{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": some(1, "a", "b")[0]}},
				ClusterAffinity:   &policyv1alpha1.ClusterAffinity{ClusterNames: some(2, fleet...)},
			}}
			if random.IntN(3) == 0 {
				a.Spec.ClusterAffinity = &policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}
			}
			if _, err := rules.Access(a); err != nil {
				t.Fatal(err)
			}
		}
		fence := fenced{rules.Set(), clusters}
		testenv.Eventually(t, fmt.Sprintf("everybody sees what they may (round %d)", round), testenv.Patience, func() error {
			d := &differential{
				t: t, hub: hub, authorizer: newAuthorizer(hub.AuthorizationV1().SubjectAccessReviews(), known, true), fence: fence,
				rows: rows, fleet: fleet, namespaces: namespaces, names: names, reviews: map[string]bool{},
			}
			d.search = search.New(search.Options{
				Mirror: mirrored{apis, fleet}, Store: db, Ready: func() bool { return true }, Made: func(string) (time.Time, bool) { return time.Time{}, true }, Clusters: func() []string { return fleet },
				Authorize: d.authorizer.resource, Namespaces: d.authorizer.namespaces, Fence: func() (search.Fence, error) { return fence, nil },
				Version: hub.Discovery().ServerVersion,
			})
			for _, who := range people {
				for _, api := range apis {
					if err := d.compare(who, api); err != nil {
						return err
					}
				}
			}
			if d.shown == 0 || d.withheld == 0 {
				return fmt.Errorf("%d objects were shown and %d were not: nothing was compared", d.shown, d.withheld)
			}
			return nil
		})
	}
}

// differential compares what users are shown with what they may see.
type differential struct {
	t                        *testing.T
	hub                      kubernetes.Interface
	authorizer               *authorizer
	search                   *search.Search
	fence                    fenced
	rows                     []store.Row
	fleet, namespaces, names []string
	reviews                  map[string]bool
	shown, withheld          int
}

// may returns the answer of the hub's access review, which is cached in reviews.
func (d *differential) may(who person, api member.API, verb, namespace, name string) (bool, error) {
	what := authorizationv1.ResourceAttributes{
		Verb: verb, Group: api.GroupVersionKind.Group, Version: api.GroupVersionKind.Version, Resource: api.Resource, Namespace: namespace, Name: name,
	}
	key := fmt.Sprint(who, what)
	if known, ok := d.reviews[key]; ok {
		return known, nil
	}
	answer, err := d.hub.AuthorizationV1().SubjectAccessReviews().Create(d.t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: who.name, Groups: who.groups, ResourceAttributes: &what},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	d.reviews[key] = answer.Status.Allowed
	return answer.Status.Allowed, nil
}

// ask sends a GET to the fleet API as a user.
func (d *differential) ask(who person, path string) (int, map[string]any, error) {
	w := httptest.NewRecorder()
	ctx := request.WithUser(d.t.Context(), &user.DefaultInfo{Name: who.name, Groups: who.groups})
	(&api{authorizer: d.authorizer, search: d.search}).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, fleetv1alpha1.FleetPath+path, nil))
	var body map[string]any
	err := json.Unmarshal(w.Body.Bytes(), &body)
	return w.Code, body, err
}

func (d *differential) compare(who person, api member.API) error {
	root := "/api/v1"
	if g := api.GroupVersionKind.Group; g != "" {
		root = "/apis/" + g + "/v1"
	}
	all, err := d.may(who, api, "list", "", "")
	if err != nil {
		return err
	}
	// Lists of all namespaces and of each, whole and in pages, of all clusters and of each.
	in := append([]string{""}, d.namespaces...)
	if !api.Namespaced {
		in = in[:1]
	}
	for _, namespace := range in {
		listable := map[string]bool{}
		for _, n := range d.namespaces {
			if listable[n], err = d.may(who, api, "list", n, ""); err != nil {
				return err
			}
		}
		var want []string
		for _, r := range d.rows {
			if r.Resource != api.Resource || namespace != "" && r.Namespace != namespace {
				continue
			}
			if all || listable[r.Namespace] && d.fence.Allowed(r.Namespace, r.Cluster) {
				want = append(want, r.Cluster+"/"+r.Namespace+"/"+r.Name)
			}
		}
		refused := !all && !slices.ContainsFunc(d.namespaces, func(n string) bool { return api.Namespaced && listable[n] && (namespace == "" || namespace == n) })
		path := root + "/" + api.Resource
		if namespace != "" {
			path = root + "/namespaces/" + namespace + "/" + api.Resource
		}
		for _, limit := range []int{0, 3} {
			if err := d.compareList(who, path, limit, refused, want); err != nil {
				return err
			}
		}
		for _, cluster := range d.fleet {
			var here []string
			for _, name := range want {
				if name[:len(cluster)] == cluster {
					here = append(here, name)
				}
			}
			code, body, err := d.ask(who, "/clusters/"+cluster+path)
			if err != nil {
				return err
			}
			visible := code == http.StatusOK // else refused, or as if there were no such cluster
			if diff := cmp.Diff(here, listedNames(body), cmpopts.EquateEmpty()); diff != "" || !visible && len(here) > 0 || refused && code != http.StatusForbidden && code != http.StatusNotFound {
				return fmt.Errorf("%v lists %s of %s: %d %v:\n%s", who, path, cluster, code, body["message"], diff)
			}
		}
	}
	// Each object by its name, of each cluster.
	for _, r := range d.rows {
		if r.Resource != api.Resource {
			continue
		}
		may, err := d.may(who, api, "get", r.Namespace, r.Name)
		if err != nil {
			return err
		}
		everywhere, err := d.may(who, api, "get", "", r.Name)
		if err != nil {
			return err
		}
		path := "/clusters/" + r.Cluster + root
		if r.Namespace != "" {
			path += "/namespaces/" + r.Namespace
		}
		code, body, err := d.ask(who, path+"/"+api.Resource+"/"+r.Name)
		if err != nil {
			return err
		}
		want := http.StatusOK
		switch {
		case !may:
			want = http.StatusForbidden
		case !everywhere && !d.fence.Allowed(r.Namespace, r.Cluster):
			want = http.StatusNotFound
		}
		if code != want {
			return fmt.Errorf("%v gets %s/%s of %s: %d %v, want %d", who, api.Resource, r.Name, r.Cluster, code, body, want)
		}
		if code == http.StatusOK {
			d.shown++
		} else {
			d.withheld++
		}
	}
	return nil
}

// compareList compares a list, in pages if there is a limit.
func (d *differential) compareList(who person, path string, limit int, refused bool, want []string) error {
	var got []string
	for next := ""; ; {
		code, body, err := d.ask(who, fmt.Sprintf("%s?limit=%d&continue=%s", path, limit, next))
		if err != nil {
			return err
		}
		if refused != (code == http.StatusForbidden) || !refused && code != http.StatusOK {
			return fmt.Errorf("%v lists %s: %d %v; refused must be %v", who, path, code, body["message"], refused)
		}
		page := listedNames(body)
		if limit > 0 && len(page) > limit {
			return fmt.Errorf("%v lists %s: %d on a page of %d", who, path, len(page), limit)
		}
		got = append(got, page...)
		if next, _, _ = unstructured.NestedString(body, "metadata", "continue"); next == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("%v lists %s by %d (-may +sees):\n%s", who, path, limit, diff)
	}
	return nil
}

// listedNames returns the objects of a list, as cluster/namespace/name.
func listedNames(body map[string]any) (out []string) {
	items, _ := body["items"].([]any)
	for _, i := range items {
		o := unstructured.Unstructured{Object: i.(map[string]any)}
		out = append(out, o.GetAnnotations()[fleetv1alpha1.ClusterAnnotation]+"/"+o.GetNamespace()+"/"+o.GetName())
	}
	return out
}
