package search

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/query"
	"orrery.dev/orrery/internal/store"
)

var (
	serviceKind = schema.GroupVersionKind{Version: "v1", Kind: "Service"}
	eventKind   = schema.GroupVersionKind{Version: "v1", Kind: "Event"}
)

// anObject returns an object with random values in the fields that terms of q compare.
func anObject(random *rand.Rand, gvk schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	pick := func(of ...any) any { return of[random.IntN(len(of))] }
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(gvk)
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-time.Duration(random.IntN(100)) * time.Hour).Truncate(time.Second)))
	if app := pick("web", "db", "").(string); app != "" {
		o.SetLabels(map[string]string{"app": app, "team": pick("red", "blue").(string)})
	}
	if owner := pick("", "web-5d", "job").(string); owner != "" {
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: "u"}})
	}
	pod := map[string]any{"containers": []any{map[string]any{"name": "c", "image": pick("docker.io/nginx:1.25", "redis:7", `"odd" <image> & 'more'`)}}}
	if secret := pick("db-pass", "other", "").(string); secret != "" {
		pod["volumes"] = []any{map[string]any{"name": "v", "secret": map[string]any{"secretName": secret}}, map[string]any{"name": "w", "configMap": map[string]any{"name": pick("a", "b")}}}
	}
	o.SetAnnotations(map[string]string{"example.com/about": pick("it 5 web", "Été", "").(string)})
	switch gvk.Kind {
	case "Event":
		o.Object["reason"], o.Object["message"] = pick("BackOff", "Pulled"), pick("Back-off restarting failed container", "pulled nginx")
	case "Pod":
		pod["nodeName"] = pick("n1", "n2", "m1")
		o.Object["spec"] = pod
		o.Object["status"] = map[string]any{
			"phase": pick("Running", "Pending", "Failed"), "conditions": []any{map[string]any{"type": "Ready", "status": pick("True", "False")}},
			"containerStatuses": []any{map[string]any{"restartCount": int64(random.IntN(6))}},
		}
	case "Deployment":
		o.Object["spec"] = map[string]any{"replicas": int64(random.IntN(5)), "template": map[string]any{"spec": pod}}
	}
	return o
}

// everyKind returns a fleet with pods, deployments, services and events in three clusters, and
// the rows of its store.
func everyKind(t testing.TB) (*fleet, []store.Row) {
	t.Helper()
	f := newFleet(t, "ash", "elm", "oak")
	random := rand.New(rand.NewPCG(7, 8))
	types := map[string]schema.GroupVersionKind{"pods": podKind, "deployments": deploymentKind, "services": serviceKind, "events": eventKind}
	for resource, gvk := range types {
		f.mirror.serve(member.API{
			GroupVersionKind: gvk, Resource: resource, Singular: strings.ToLower(gvk.Kind), Namespaced: true,
			ShortNames: map[string][]string{"pods": {"po"}, "deployments": {"deploy"}}[resource],
		}, []string{"ash", "elm", "oak"})
	}
	f.serve(namespaceKind, "namespaces", false, "ash", "elm", "oak")
	var rows []store.Row
	for _, resource := range []string{"deployments", "events", "pods", "services"} {
		for _, cluster := range []string{"ash", "elm", "oak"} {
			var objects []*unstructured.Unstructured
			for i := range 40 {
				objects = append(objects, anObject(random, types[resource], []string{"shop", "blog"}[i%2], fmt.Sprintf("%s-%02d", []string{"web", "db"}[i%2], i)))
			}
			f.put(t, cluster, resource, objects...)
			page, err := f.store.List(t.Context(), store.Query{Group: types[resource].Group, Resource: resource, Clusters: []string{cluster}})
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, page.Rows...)
		}
	}
	return f, rows
}

// queries has each term of q, alone and combined.
var queries = []string{
	"", "web", "-web", "we*-0*", "kind:Pod", "kind:po,deploy", "-kind:Pod", "kind:apps/*", "kind:deployments.apps", "cluster:oak", "cluster:*k", "-cluster:a*", "cluster:ash,oak ns:shop",
	"ns:shop", "ns:sh*", "-ns:shop", "ns:shop,blog name:web-0*", "name:web-02", "name:web-02,db-03", "-name:web-02", "name:*-1*", `name:"web*"`,
	"app=web", "app!=web", "label:app", "-label:app", "app=w*", "-app=w*", "app=web,db team=red", "label:team=red,blue",
	"kind:Pod node:n1", "node:n*", "-node:n1", "phase:Pending", "phase:Pending,Failed", "-phase:Running", "phase:P*", "image:nginx", "image:NGINX:1", "image:io/nginx,*nothing*", "image:*nginx*", `image:"\"odd\" <image> &"`, "-image:redis", "image:nginx,redis",
	"text:web", "text:WEB-02", "text:we*", "-text:web", "text:nginx,redis", "text:nginx:1.25", `text:"5 web"`, `text:"\"odd\""`, "text:failed", "text:restarting*", "kind:Event text:back-off", "text:team-red text:web", "text:nothing",
	"owner:web-5d", "owner:ReplicaSet/web*", "-owner:job", "restarts>3", "restarts:0", "-restarts<2", "replicas>=3", "-replicas:0",
	"age<1d", "age>2d", "-age<1d", "created>2020-01-01", "created<2020-01-01", "has:owner", "-has:label", "has:node,image", "is:ready", "-is:ready", "is:terminating",
	"uses:secret/db-pass", "-uses:secret/db-pass", "uses:secret/*", "uses:cm/a,secrets/db-pass", "kind:Pod uses:configmaps/a app=web", "uses:sc/fast",
	"kind:Pod phase:Running node:n1 image:nginx app=web web", "kind:Service has:owner age<3d",
}

// TestAsked: lists of one kind, the search of all kinds and the counts return exactly the rows
// that match the query, for terms that the store evaluates and for all others.
func TestAsked(t *testing.T) {
	f, rows := everyKind(t)
	aliases := map[string][]string{"pods": {"pods", "pod", "po"}, "deployments": {"deployments", "deployment", "deploy"}, "services": {"services", "service"}, "events": {"events", "event"}}
	paths := map[string]string{"pods": "/api/v1/pods", "deployments": "/apis/apps/v1/deployments", "services": "/api/v1/services", "events": "/api/v1/events"}
	for _, text := range queries {
		t.Run(text, func(t *testing.T) {
			q, err := query.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			kinded := slices.ContainsFunc(q.Of(query.Kind), func(t query.Term) bool { return !t.Not })
			worded := slices.ContainsFunc(q.Of(query.Text), func(t query.Term) bool { return !t.Not })
			want := map[string][]string{}
			var all []string
			for _, r := range rows {
				if q.Matches(query.Object{
					Cluster: r.Cluster, Group: r.Group, Resource: r.Resource, Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, Aliases: aliases[r.Resource],
					Labels: r.Labels, Created: r.Created, Body: r.Body,
				}, time.Now()) {
					key := r.Cluster + "/" + r.Namespace + "/" + r.Name
					want[r.Resource] = append(want[r.Resource], key)
					if kinded || worded || r.Resource != "events" {
						all = append(all, r.Kind+" "+key)
					}
				}
			}
			for _, limit := range []string{"0", "7"} {
				got := f.pages(t, "/search", url.Values{"q": {text}, "limit": {limit}}, true)
				slices.Sort(got)
				slices.Sort(all)
				if diff := cmp.Diff(all, got); diff != "" {
					t.Errorf("search, limit %s: %s", limit, diff)
				}
				for resource, path := range paths {
					code, body := f.ask(t, http.MethodGet, path+"?"+url.Values{"q": {text}, "limit": {limit}}.Encode(), "")
					if code.StatusCode == http.StatusBadRequest && want[resource] == nil {
						continue // the error says why no object can match
					}
					if code.StatusCode != http.StatusOK {
						t.Fatalf("%s: %v", path, body["message"])
					}
					if diff := cmp.Diff(append([]string{}, want[resource]...), append([]string{}, f.pages(t, path, url.Values{"q": {text}, "limit": {limit}}, false)...)); diff != "" {
						t.Errorf("%s, limit %s: %s", path, limit, diff)
					}
				}
			}
			// The counts cover the same objects.
			_, body := f.ask(t, http.MethodGet, "/search?"+url.Values{"q": {text}, "group": {"kind,cluster"}}.Encode(), "")
			counts := map[string]int64{}
			for _, one := range all {
				kind, key, _ := strings.Cut(one, " ")
				counts[kind+" "+strings.Split(key, "/")[0]]++
			}
			if diff := cmp.Diff(counts, grouped(t, body)); diff != "" || body["total"] != float64(len(all)) {
				t.Errorf("counts of %v: %s", body["total"], diff)
			}
		})
	}
}

// grouped returns the counts of an answer. The keys are the values of a group, joined by
// blanks.
func grouped(t testing.TB, body map[string]any) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	groups, ok := body["groups"].([]any)
	if !ok {
		t.Fatalf("no counts: %v", body)
	}
	for _, g := range groups {
		var values []string
		for _, v := range g.(map[string]any)["values"].([]any) {
			values = append(values, v.(string))
		}
		out[strings.Join(values, " ")] = int64(g.(map[string]any)["objects"].(float64))
	}
	return out
}

// pages returns the objects of all pages as CLUSTER/NAMESPACE/NAME, and with kinds as KIND
// CLUSTER/NAMESPACE/NAME.
func (f *fleet) pages(t testing.TB, path string, parameters url.Values, kinds bool) (out []string) {
	t.Helper()
	for {
		code, body := f.ask(t, http.MethodGet, path+"?"+parameters.Encode(), "")
		if code.StatusCode != http.StatusOK {
			t.Fatalf("%s?%s: %v", path, parameters.Encode(), body["message"])
		}
		names := found(body)
		if kinds {
			for i, item := range body["items"].([]any) {
				names[i] = item.(map[string]any)["kind"].(string) + " " + names[i]
			}
		}
		out = append(out, names...)
		next, _ := body["metadata"].(map[string]any)["continue"].(string)
		if next == "" {
			return out
		}
		parameters.Set("continue", next)
	}
}

func TestFilter(t *testing.T) {
	f, rows := everyKind(t)
	count := func(resource string, of func(r store.Row, o map[string]any) bool) (n int) {
		for _, r := range rows {
			var o map[string]any
			if err := json.Unmarshal(r.Body, &o); err != nil {
				t.Fatal(err)
			}
			if r.Resource == resource && of(r, o) {
				n++
			}
		}
		return n
	}
	replicas := func(o map[string]any) float64 { return o["spec"].(map[string]any)["replicas"].(float64) }
	for text, want := range map[string]int{
		`object.spec.replicas > 3`:                                           count("deployments", func(_ store.Row, o map[string]any) bool { return replicas(o) > 3 }),
		`object.metadata.name == "web-02"`:                                   count("deployments", func(r store.Row, _ map[string]any) bool { return r.Name == "web-02" }),
		`cluster == "oak" && object.spec.replicas == 0`:                      count("deployments", func(r store.Row, o map[string]any) bool { return r.Cluster == "oak" && replicas(o) == 0 }),
		`cluster == "none"`:                                                  0,
		`object.metadata.namespace == "shop" || cluster == "elm"`:            count("deployments", func(r store.Row, _ map[string]any) bool { return r.Namespace == "shop" || r.Cluster == "elm" }),
		`object.metadata.labels.app == "web"`:                                count("deployments", func(r store.Row, _ map[string]any) bool { return r.Labels["app"] == "web" }),
		`object.metadata.labels.app == "not a value of a label"`:             0,
		`object.spec.template.spec.containers.exists(c, c.image=="redis:7")`: count("deployments", func(r store.Row, _ map[string]any) bool { return strings.Contains(string(r.Body), `"redis:7"`) }),
	} {
		for _, limit := range []string{"0", "3"} {
			if got := f.pages(t, "/apis/apps/v1/deployments", url.Values{"filter": {text}, "limit": {limit}}, false); len(got) != want {
				t.Errorf("%s, limit %s: %d, want %d", text, limit, len(got), want)
			}
			if got := f.pages(t, "/search", url.Values{"filter": {text}, "q": {"kind:Deployment"}, "limit": {limit}}, true); len(got) != want {
				t.Errorf("search %s, limit %s: %d, want %d", text, limit, len(got), want)
			}
		}
	}
}

// TestAskedRefused: requests that cannot be answered get an error that says what to do. A
// continue token is only valid for the query that returned it.
func TestAskedRefused(t *testing.T) {
	f, _ := everyKind(t)
	_, body := f.ask(t, http.MethodGet, "/api/v1/pods?limit=1&q=is:ready", "")
	token := body["metadata"].(map[string]any)["continue"].(string)
	_, body = f.ask(t, http.MethodGet, "/search?limit=1&q=web", "")
	searchToken := body["metadata"].(map[string]any)["continue"].(string)
	escape := url.QueryEscape
	for name, tc := range map[string]struct {
		path, says string
	}{
		"Kind":               {"/api/v1/pods?q=kind:Deployment", "is not pods"},
		"NotTheKind":         {"/api/v1/pods?q=-kind:Pod", "is not pods"},
		"UnknownKey":         {"/api/v1/pods?q=knd:Pod", "did you mean kind"},
		"UnknownCluster":     {"/api/v1/pods?q=cluster:none", `\"none\" is not a cluster`},
		"NoSuchField":        {"/api/v1/services?q=node:n1", "services have no node"},
		"NoImages":           {"/api/v1/services?q=image:x", "services have no images"},
		"NoRestarts":         {"/api/v1/services?q=restarts:0", "only pods are"},
		"LabelKey":           {"/api/v1/pods?q=" + escape("a/b/c=d"), "label"},
		"NoKind":             {"/search?q=kind:Nothing", "no kind is mirrored"},
		"Filter":             {"/api/v1/pods?filter=" + escape("object."), "expression is not valid"},
		"FilterOfNoTruth":    {"/api/v1/pods?filter=" + escape("object.spec"), "must be true or false"},
		"One":                {"/api/v1/namespaces/shop/pods/web-00?q=web", "one object"},
		"OneCounted":         {"/api/v1/namespaces/shop/pods/web-00?group=cluster", "one object"},
		"SearchWatch":        {"/search?watch=true", "watch the list of one"},
		"SearchFields":       {"/search?fieldSelector=a%3Db", "use q or filter"},
		"SearchVersion":      {"/search?resourceVersion=5", "lists of one kind"},
		"CountsWatch":        {"/api/v1/pods?group=cluster&watch=true", "counts have no watch"},
		"CountsWatchPath":    {"/api/v1/watch/pods?group=cluster", "counts have no watch"},
		"CountsLimit":        {"/api/v1/pods?group=cluster&limit=5", "counts have no"},
		"CountsBy":           {"/api/v1/pods?group=uid", "is not counted by"},
		"CountsTwice":        {"/api/v1/pods?group=ns,namespace", "named twice"},
		"CountsLabel":        {"/api/v1/pods?group=label:" + escape(`a"b`), "no key of a label"},
		"CountsTwoFields":    {"/api/v1/pods?group=node,phase", "one field at a time"},
		"CountsNoField":      {"/api/v1/services?group=node", "parameter group: services have no node"},
		"AskedNoField":       {"/api/v1/services?q=node:n1", "parameter q: services have no node"},
		"CountsExplained":    {"/search?group=kind&explain=true", "not for counts"},
		"ExplainOfAList":     {"/api/v1/pods?explain=true", "/search"},
		"TokenOfAnother":     {"/api/v1/pods?q=-is:ready&continue=" + token, "another q or filter"},
		"TokenOfNoQuery":     {"/api/v1/pods?continue=" + token, "continue"},
		"SearchToken":        {"/search?q=db&continue=" + searchToken, "not a token of this search"},
		"SearchTokenOfAList": {"/search?q=is:ready&continue=" + token, "not a token of this search"},
		"ForgedToken":        {"/search?continue=1.s.e30", "not a token of this search"},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := f.ask(t, http.MethodGet, tc.path, "")
			raw, _ := json.Marshal(body["message"])
			if code.StatusCode != http.StatusBadRequest || !strings.Contains(string(raw), tc.says) {
				t.Errorf("%d %s, want one that says %q", code.StatusCode, raw, tc.says)
			}
		})
	}
	if code, _ := f.ask(t, http.MethodPost, "/search", ""); code.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code.StatusCode)
	}
	if code, _ := f.ask(t, http.MethodGet, "/clusters/none/search", ""); code.StatusCode != http.StatusNotFound {
		t.Errorf("a cluster that is not there: %d", code.StatusCode)
	}
}

// TestHostileQueries: SQL, its wildcards and the operators of its full-text search are plain
// text in q. They match nothing and change nothing.
func TestHostileQueries(t *testing.T) {
	f, _ := everyKind(t)
	for _, text := range []string{`%`, `_`, `"' OR 1=1 --"`, `name:"'; DROP TABLE object; --"`, `name:"web%"`, `name:web_00`, `phase:"Running\"],[\""`, `text:"' OR 1=1 --"`, `text:"NEAR(web db)"`, `text:"web db*"`, `text:"web" text:AND text:OR`, `text:"^ {words} : web - db"`, `text:"%web" text:"_2"`, `image:"%x"`, `label:app="x"`, `ns:"[a-z]*"`, `node:"?1"`, `"\u0000"`} {
		if got := f.pages(t, "/search", url.Values{"q": {text}}, true); len(got) != 0 {
			t.Errorf("%s: %d found", text, len(got))
		}
	}
	if got := f.pages(t, "/search", url.Values{"q": {"kind:Pod"}}, true); len(got) != 120 {
		t.Errorf("%d pods are left", len(got))
	}
}

// TestAskedRights: a caller that may list a kind in one namespace finds and counts only objects
// of this namespace, in the clusters that it may use. Other kinds are not found.
func TestAskedRights(t *testing.T) {
	f, rows := everyKind(t)
	f.some = []string{"shop"}
	f.denied = func(what authorizationv1.ResourceAttributes) bool {
		return what.Namespace != "shop" || what.Resource == "services"
	}
	f.closed = map[string][]string{"shop": {"elm"}}
	search := f.search.Namespaces
	f.search.Namespaces = func(ctx context.Context, what authorizationv1.ResourceAttributes) ([]string, error) {
		if what.Resource == "services" {
			return nil, nil
		}
		return search(ctx, what)
	}
	want := map[string]int{}
	for _, r := range rows {
		if r.Namespace == "shop" && r.Cluster != "elm" && (r.Resource == "pods" || r.Resource == "deployments") {
			want[r.Kind]++
		}
	}
	for _, path := range []string{"/search", "/search?q=ns:shop", "/search?q=-ns:blog", "/search?q=ns:*", "/search?filter=true", "/search?namespaces=shop"} {
		at, _ := url.Parse(path)
		got := map[string]int{}
		for _, one := range f.pages(t, at.Path, at.Query(), true) {
			kind, key, _ := strings.Cut(one, " ")
			got[kind]++
			if !strings.HasPrefix(key, "ash/shop/") && !strings.HasPrefix(key, "oak/shop/") {
				t.Errorf("%s shows %s", path, one)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	for path, want := range map[string]map[string]int64{
		"/search?group=kind,namespace":                         {"Deployment shop": 40, "Pod shop": 40},
		"/search?group=kind,namespace&q=has:owner,label,image": {"Deployment shop": 40, "Pod shop": 40},
		"/search?group=cluster&q=kind:Pod":                     {"ash": 20, "oak": 20},
		"/api/v1/pods?group=cluster,namespace":                 {"ash shop": 20, "oak shop": 20},
	} {
		_, body := f.ask(t, http.MethodGet, path, "")
		if diff := cmp.Diff(want, grouped(t, body)); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	for _, path := range []string{"/search?q=kind:Service", "/search?q=kind:Service&group=cluster", "/api/v1/services?q=web", "/api/v1/pods?group=cluster&q=ns:blog"} {
		if code, body := f.ask(t, http.MethodGet, path, ""); code.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d %v", path, code.StatusCode, body)
		}
	}
	if code, body := f.ask(t, http.MethodGet, "/search?q=cluster:elm", ""); code.StatusCode != http.StatusBadRequest {
		t.Errorf("a cluster that is closed: %d %v", code.StatusCode, body)
	}
	if code, _ := f.ask(t, http.MethodGet, "/clusters/elm/search", ""); code.StatusCode != http.StatusNotFound {
		t.Errorf("a path of a cluster that is closed: %d", code.StatusCode)
	}
	code, body := f.ask(t, http.MethodGet, "/search?explain=true&q=is:ready", "")
	if raw := fmt.Sprint(body); code.StatusCode != http.StatusOK || strings.Contains(raw, "elm") || strings.Contains(raw, "blog") {
		t.Errorf("the explanation: %s", raw)
	}
}

// TestKindsDiffer: a search leaves out a kind in clusters where the caller may not see it, and
// still returns the other kinds there. A token is only valid for the search that returned it.
func TestKindsDiffer(t *testing.T) {
	f, _ := everyKind(t)
	f.some = []string{"shop"}
	f.denied = func(what authorizationv1.ResourceAttributes) bool {
		return what.Resource == "services" && what.Namespace != "shop"
	}
	f.closed = map[string][]string{"shop": {"elm"}}
	for _, path := range []string{"/search?q=cluster:elm", "/search?clusters=elm", "/clusters/elm/search"} {
		code, body := f.ask(t, http.MethodGet, path, "")
		if raw := fmt.Sprint(body); code.StatusCode != http.StatusOK || !strings.Contains(raw, "Pod") || strings.Contains(raw, "kind:Service ") {
			t.Errorf("%s: %d %s", path, code.StatusCode, raw)
		}
	}
	if code, body := f.ask(t, http.MethodGet, "/search?q=cluster:elm+kind:Service", ""); code.StatusCode != http.StatusBadRequest {
		t.Errorf("a cluster that is closed: %d %v", code.StatusCode, body)
	}
	_, body := f.ask(t, http.MethodGet, "/search?namespaces=shop&limit=1", "")
	token := fmt.Sprint(body["metadata"].(map[string]any)["continue"])
	for path, want := range map[string]int{
		"/search?namespaces=shop&limit=7&continue=": http.StatusOK,
		"/search?namespaces=blog&limit=1&continue=": http.StatusBadRequest,
		"/search?limit=1&continue=":                 http.StatusBadRequest,
	} {
		if code, body := f.ask(t, http.MethodGet, path+url.QueryEscape(token), ""); code.StatusCode != want {
			t.Errorf("%s: %d %v", path, code.StatusCode, body)
		}
	}
}

// TestCandidates: a request reads at most mostCandidates objects to evaluate a filter. With a
// limit the answer comes in pages, some of which may be empty. Without a limit the request is
// refused. A filter that costs too much is refused as well.
func TestCandidates(t *testing.T) {
	f := newFleet(t, "oak")
	f.serve(podKind, "pods", true, "oak")
	changes := make([]store.Change, 0, mostCandidates+10)
	for i := range mostCandidates + 10 {
		changes = append(changes, store.Change{Row: store.Row{
			Cluster: "oak", Version: "v1", Kind: "Pod", Resource: "pods", Namespace: "shop", Name: fmt.Sprintf("pod-%05d", i),
			Body: fmt.Appendf(nil, `{"metadata":{"name":"pod-%05d","namespace":"shop"},"spec":{"priority":%d}}`, i, i),
		}})
	}
	for chunk := range slices.Chunk(changes, 500) {
		if err := f.store.Write(t.Context(), chunk); err != nil {
			t.Fatal(err)
		}
	}
	last := fmt.Sprintf("object.spec.priority == %d", mostCandidates+5)
	for _, path := range []string{"/api/v1/pods", "/search"} {
		code, body := f.ask(t, http.MethodGet, path+"?limit=5&filter="+url.QueryEscape(last), "")
		if code.StatusCode != http.StatusOK || len(found(body)) != 0 || body["metadata"].(map[string]any)["continue"] == nil {
			t.Errorf("%s: the first page: %d %v", path, code.StatusCode, body)
		}
		if got := f.pages(t, path, url.Values{"limit": {"5"}, "filter": {last}}, false); len(got) != 1 {
			t.Errorf("%s: all pages have %v", path, got)
		}
	}
	for _, path := range []string{"/api/v1/pods?filter=" + url.QueryEscape(last), "/api/v1/pods?limit=5&withContinue=false&filter=" + url.QueryEscape(last), "/api/v1/pods?q=has:owner", "/search?group=cluster&q=has:owner"} {
		if code, body := f.ask(t, http.MethodGet, path, ""); code.StatusCode != http.StatusBadRequest || !strings.Contains(fmt.Sprint(body["message"]), "set a limit") {
			t.Errorf("%s: %d %v", path, code.StatusCode, body)
		}
	}
	bomb := `[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, a+b+c+d > 0))))`
	for _, path := range []string{"/api/v1/pods", "/search", "/api/v1/pods?limit=5"} {
		sep := map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")]
		if code, body := f.ask(t, http.MethodGet, path+sep+"filter="+url.QueryEscape(bomb), ""); code.StatusCode != http.StatusBadRequest || !strings.Contains(fmt.Sprint(body["message"]), "costs too much") {
			t.Errorf("%s: %d %v", path, code.StatusCode, body)
		}
	}
}

// TestSearchOfLargeObjects: a page of a search of every kind ends after mostRead bytes of objects,
// also if one kind has more. The next page continues there.
func TestSearchOfLargeObjects(t *testing.T) {
	f := newFleet(t, "oak")
	f.serve(podKind, "pods", true, "oak")
	fill := strings.Repeat("x", mostRead/pageSize+1)
	changes := make([]store.Change, 0, pageSize+10)
	for i := range pageSize + 10 {
		changes = append(changes, store.Change{Row: store.Row{
			Cluster: "oak", Version: "v1", Kind: "Pod", Resource: "pods", Namespace: "shop", Name: fmt.Sprintf("pod-%03d", i),
			Body: fmt.Appendf(nil, `{"metadata":{"name":"pod-%03d","namespace":"shop"},"spec":{"fill":%q}}`, i, fill),
		}})
	}
	if err := f.store.Write(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	const path = "/search?limit=1000&onlyMetadata=true"
	_, body := f.ask(t, http.MethodGet, path, "")
	next, _ := body["metadata"].(map[string]any)["continue"].(string)
	if got := len(found(body)); got != pageSize || next == "" {
		t.Fatalf("the first page has %d objects and continues with %q, want %d", got, next, pageSize)
	}
	_, body = f.ask(t, http.MethodGet, path+"&continue="+url.QueryEscape(next), "")
	if got := len(found(body)); got != 10 || body["metadata"].(map[string]any)["continue"] != nil {
		t.Errorf("the second page has %d objects: %v", got, body["metadata"])
	}
}

// TestAskedWatch: a watch with q or filter sends ADDED when an object begins to match, and
// DELETED when it no longer matches.
func TestAskedWatch(t *testing.T) {
	f := threeClusters(t)
	version := "&resourceVersion=" + f.version(t, "/api/v1/pods")
	byQuery := f.watch(t, "/api/v1/pods?watch=true&q="+url.QueryEscape("cluster:o* -phase:Pending")+version)
	byFilter := f.watch(t, "/api/v1/pods?watch=true&filter="+url.QueryEscape(`object.status.phase == "Failed"`)+version)
	begins := f.watch(t, "/api/v1/pods?watch=true&q=-is:terminating+web")
	for _, want := range []string{"ADDED elm/shop/web", "ADDED oak/shop/web"} {
		// Wait here for these events: a watch without resourceVersion reads the existing
		// objects after the header of its answer was sent.
		if got := begins.next(); got != want {
			t.Fatalf("begins: %s, want %s", got, want)
		}
	}
	f.put(t, "oak", "pods", newObject(podKind, "shop", "db", "label:app=db", "status.phase=Running"))
	f.put(t, "elm", "pods", newObject(podKind, "blog", "press", "status.phase=Failed"))
	f.put(t, "oak", "pods", newObject(podKind, "shop", "web", "label:app=web", "status.phase=Pending"))
	f.put(t, "elm", "pods", newObject(podKind, "blog", "press", "status.phase=Running"))
	f.remove(t, "oak", "pods", "shop", "db")
	for _, s := range []struct {
		name string
		*stream
		want []string
	}{
		{"query", byQuery, []string{"ADDED oak/shop/db", "DELETED oak/shop/web", "DELETED oak/shop/db"}},
		{"filter", byFilter, []string{"ADDED elm/blog/press", "DELETED elm/blog/press"}},
		{"begins", begins, []string{"MODIFIED oak/shop/web"}},
	} {
		for _, want := range s.want {
			if got := s.next(); got != want {
				t.Errorf("%s: %s, want %s", s.name, got, want)
			}
		}
	}
}

// TestSearchForms: the answer to a search can be a table with the kind and the state of each
// object, metadata, an explanation or counts.
func TestSearchForms(t *testing.T) {
	f := threeClusters(t)
	_, body := f.ask(t, http.MethodGet, "/search?q=db", "application/json;as=Table;v=v1;g=meta.k8s.io")
	cells := body["rows"].([]any)[0].(map[string]any)["cells"].([]any)
	if diff := cmp.Diff([]any{"Pod", "oak", "shop", "db", "<unknown>", "Pending", "v1", ""}, cells); diff != "" {
		t.Error(diff)
	}
	_, body = f.ask(t, http.MethodGet, "/search?q=db", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
	if got := found(body); body["kind"] != "PartialObjectMetadataList" || !slices.Equal(got, []string{"oak/shop/db"}) {
		t.Errorf("%v", body)
	}
	_, body = f.ask(t, http.MethodGet, "/search?explain=true&q=db+-phase:Running&filter=true", "")
	terms := body["terms"].([]any)
	kinds := body["kinds"].([]any)
	if body["query"] != "db -phase:Running" || len(terms) != 3 || len(kinds) != 2 || kinds[1].(map[string]any)["found"] != float64(1) {
		t.Errorf("%v", body)
	}
	_, body = f.ask(t, http.MethodGet, "/search?explain=true&q=image:x", "")
	if left, ok := body["leftOut"].([]any); !ok || len(left) != 1 || left[0].(map[string]any)["why"] != "namespaces have no images" {
		t.Errorf("%v", body)
	}
	_, body = f.ask(t, http.MethodGet, "/api/v1/pods?group=phase,cluster", "application/json;as=Table;v=v1;g=meta.k8s.io")
	if rows := body["rows"].([]any); len(rows) != 3 || body["kind"] != "Table" {
		t.Errorf("%v", body)
	}
	_, body = f.ask(t, http.MethodGet, "/api/v1/pods?group=label:app", "")
	if diff := cmp.Diff(map[string]int64{"web": 2, "db": 1, "": 1}, grouped(t, body)); diff != "" {
		t.Error(diff)
	}
}
