package search

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/query"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

var (
	deploymentKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	replicaSetKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}
	nodeKind       = schema.GroupVersionKind{Version: "v1", Kind: "Node"}
)

// putOwned stores an object with a creation time, an owner and containers.
func (f *fleet) putOwned(t testing.TB, cluster, resource string, gvk schema.GroupVersionKind, name, owner string, created int64, images ...string) {
	t.Helper()
	o := newObject(gvk, "shop", name, "label:app=web")
	o.SetUID(types.UID(cluster + "-" + name))
	o.SetCreationTimestamp(metav1.Unix(created, 0))
	var containers []any
	for i, image := range images {
		containers = append(containers, map[string]any{"name": fmt.Sprint("c", i), "image": image, "tty": i == 0})
	}
	if containers != nil {
		o.Object["spec"] = map[string]any{"containers": containers}
	}
	body, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if owner != "" {
		owner = cluster + "-" + owner
	}
	if err := f.store.Write(t.Context(), []store.Change{{Row: store.Row{
		Cluster: cluster, Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Resource: resource, Namespace: "shop", Name: name, UID: o.GetUID(),
		OwnerUID: types.UID(owner), ResourceVersion: "7", Created: time.Unix(created, 0).UTC(), Labels: o.GetLabels(), Body: body,
	}}}); err != nil {
		t.Fatal(err)
	}
}

// owned adds to two clusters a Deployment web, its two ReplicaSets with a pod each, and a pod
// lone.
func owned(t testing.TB, f *fleet) *fleet {
	t.Helper()
	f.serve(podKind, "pods", true, "elm", "oak")
	f.serve(deploymentKind, "deployments", true, "elm", "oak")
	f.serve(replicaSetKind, "replicasets", true, "elm", "oak")
	f.serve(nodeKind, "nodes", false, "elm", "oak")
	for i, cluster := range []string{"elm", "oak"} {
		at := int64(1_700_000_000 + 100*i)
		f.putOwned(t, cluster, "deployments", deploymentKind, "web", "", at)
		f.putOwned(t, cluster, "replicasets", replicaSetKind, "web-5f6d", "web", at+1)
		f.putOwned(t, cluster, "replicasets", replicaSetKind, "web-77ab", "web", at+2)
		f.putOwned(t, cluster, "pods", podKind, "web-5f6d-a", "web-5f6d", at+3, "nginx:1", "sidecar")
		f.putOwned(t, cluster, "pods", podKind, "web-77ab-b", "web-77ab", at+4, "nginx:2", "sidecar")
		f.putOwned(t, cluster, "pods", podKind, "lone", "", at+5)
	}
	return f
}

// TestGrammar: each parameter works by its name in the URL and by its key in labelSelector.
func TestGrammar(t *testing.T) {
	f := owned(t, newFleet(t, "elm", "oak"))
	a, b, lone := "/shop/web-5f6d-a", "/shop/web-77ab-b", "/shop/lone"
	all := []string{"elm" + lone, "elm" + a, "elm" + b, "oak" + lone, "oak" + a, "oak" + b}
	label := func(selector string) string { return "labelSelector=" + url.QueryEscape(selector) }
	fields := func(selector string) string { return "fieldSelector=" + url.QueryEscape(selector) }
	const key = "search.clusterpedia.io/"
	for name, c := range map[string]struct {
		query string
		want  []string
	}{
		"Names":              {"names=lone,none", []string{"elm" + lone, "oak" + lone}},
		"NamesByLabel":       {label(key + "names in (lone, none)"), []string{"elm" + lone, "oak" + lone}},
		"ClustersByLabel":    {label(key + "clusters=oak"), all[3:]},
		"NamespacesByLabel":  {label(key + "namespaces=shop,app=web," + key + "clusters=elm"), all[:3]},
		"NamespacesOfNobody": {label(key + "namespaces=blog"), nil},
		"LabelsRemain":       {label("app!=web," + key + "clusters=oak"), nil},
		"Since":              {"since=1700000104", []string{"oak" + lone, "oak" + b}},
		"SinceMillis":        {"since=1700000104000", []string{"oak" + lone, "oak" + b}},
		"SinceRFC3339":       {"since=" + url.QueryEscape(time.Unix(1700000104, 0).UTC().Format(time.RFC3339)), []string{"oak" + lone, "oak" + b}},
		"SinceByLabel":       {label(key + "since=1700000104"), []string{"oak" + lone, "oak" + b}},
		"SinceDate":          {"since=2023-11-14", all},
		"SinceLaterDate":     {"since=2023-11-15", nil},
		"Before":             {"before=1700000004", []string{"elm" + a}},
		"BeforeByLabel":      {label(key + "before=2023-11-15"), all},
		"Between":            {"since=1700000004&before=1700000104", []string{"elm" + lone, "elm" + b, "oak" + a}},
		"OrderByName":        {"orderby=name", []string{"elm" + lone, "oak" + lone, "elm" + a, "oak" + a, "elm" + b, "oak" + b}},
		"OrderByNameDesc":    {"orderby=name+desc", []string{"oak" + b, "elm" + b, "oak" + a, "elm" + a, "oak" + lone, "elm" + lone}},
		"OrderByTwo":         {"orderby=cluster+desc,name", []string{"oak" + lone, "oak" + a, "oak" + b, "elm" + lone, "elm" + a, "elm" + b}},
		"OrderByTwoLabels":   {label(key + "orderby in (name_desc, cluster)"), []string{"elm" + b, "oak" + b, "elm" + a, "oak" + a, "elm" + lone, "oak" + lone}},
		"OrderByCreated":     {"orderby=created_at+desc", []string{"oak" + lone, "oak" + b, "oak" + a, "elm" + lone, "elm" + b, "elm" + a}},
		"OrderByNamespace":   {"orderby=namespace,created", []string{"elm" + a, "elm" + b, "elm" + lone, "oak" + a, "oak" + b, "oak" + lone}},
		"OwnerUID":           {"ownerUID=elm-web-5f6d", []string{"elm" + a}},
		"OwnerUIDSenior":     {"ownerUID=elm-web&ownerSeniority=1&clusters=elm", []string{"elm" + a, "elm" + b}},
		"OwnerOfAnother":     {"ownerUID=elm-web&ownerSeniority=1&clusters=oak", nil},
		"OwnerName":          {"ownerName=web-77ab&ownerGR=replicasets.apps&clusters=oak", []string{"oak" + b}},
		"OwnerNameSenior":    {"ownerName=web&ownerGR=deployments.apps&ownerSeniority=1&clusters=oak", []string{"oak" + a, "oak" + b}},
		"OwnerNameByLabel":   {label(key + "owner-name=web," + key + "owner-gr=deployments.apps," + key + "owner-seniority=1," + key + "clusters=oak"), []string{"oak" + a, "oak" + b}},
		"OwnerOfNobody":      {"ownerName=none&ownerGR=deployments.apps&clusters=oak", nil},
		"OwnerTooHigh":       {"ownerUID=elm-web&ownerSeniority=2&clusters=elm", nil},
		"Fuzzy":              {"fuzzyName=77ab", []string{"elm" + b, "oak" + b}},
		"FuzzyShort":         {"fuzzyName=e", all},
		"FuzzyTwo":           {"fuzzyName=5f,b-5", []string{"elm" + a, "oak" + a}},
		"FuzzyByLabel":       {label("internalstorage.clusterpedia.io/fuzzy-name=77ab"), []string{"elm" + b, "oak" + b}},
		"FuzzyWildcards":     {"fuzzyName=" + url.QueryEscape("%"), nil},
		"Offset":             {"offset=4", all[4:]},
		"OffsetByLabel":      {label(key + "offset=2," + key + "limit=3"), all[2:5]},
		"LimitOfKubectl":     {label(key+"limit=2") + "&limit=500", all[:2]},
		"SizeByLabel":        {label(key + "size=2"), all[:2]},
		"ContinueAsOffset":   {"continue=4&limit=1", all[4:5]},
		"FieldIn":            {fields("metadata.name in (lone, other)"), []string{"elm" + lone, "oak" + lone}},
		"FieldNotIn":         {fields("metadata.name notin (lone),metadata.namespace=shop"), []string{"elm" + a, "elm" + b, "oak" + a, "oak" + b}},
		"FieldExists":        {fields("spec.containers"), []string{"elm" + a, "elm" + b, "oak" + a, "oak" + b}},
		"FieldExistsNot":     {fields("!spec.containers"), []string{"elm" + lone, "oak" + lone}},
		"FieldOfList":        {fields("spec.containers[].image=nginx:2"), []string{"elm" + b, "oak" + b}},
		"FieldOfListIn":      {fields("spec.containers[].image in (nginx:1,nginx:3)"), []string{"elm" + a, "oak" + a}},
		"FieldOfListNot":     {fields("spec.containers[].image!=sidecar"), []string{"elm" + lone, "oak" + lone}},
		"FieldOfElement":     {fields("spec.containers[1].image=sidecar"), []string{"elm" + a, "elm" + b, "oak" + a, "oak" + b}},
		"FieldOfElementNone": {fields("spec.containers[0].image=sidecar"), nil},
		"FieldBool":          {fields("spec.containers[0].tty=true"), []string{"elm" + a, "elm" + b, "oak" + a, "oak" + b}},
		"FieldKey":           {fields("metadata.annotations['note']=a <b>"), all},
		"FieldKeyOneLetter":  {fields("metadata.labels['app']==web"), all},
		"InjectNoEvents":     {"injectEvents=false", all},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.ask(t, http.MethodGet, "/api/v1/pods?"+c.query, "")
			if diff := cmp.Diff(c.want, found(body), cmpopts.EquateEmpty()); diff != "" || resp.StatusCode != http.StatusOK {
				t.Errorf("%d %v (-want, +got):\n%s", resp.StatusCode, body["message"], diff)
			}
		})
	}
	t.Run("OnlyMetadata", func(t *testing.T) {
		_, body := f.ask(t, http.MethodGet, "/api/v1/pods?onlyMetadata=true&limit=1", "")
		items, _ := body["items"].([]any)
		if body["kind"] != "PartialObjectMetadataList" || len(items) != 1 || items[0].(map[string]any)["spec"] != nil {
			t.Error(body)
		}
	})
}

// TestGrammarRefusals: requests that cannot be answered are refused. The error names the
// parameter and an alternative.
func TestGrammarRefusals(t *testing.T) {
	f := owned(t, newFleet(t, "elm", "oak"))
	label := func(selector string) string { return "labelSelector=" + url.QueryEscape(selector) }
	const key = "search.clusterpedia.io/"
	for name, c := range map[string]struct{ query, says, out string }{
		"NotNames":        {label(key + "names!=x"), "search.clusterpedia.io/names", "fieldSelector=metadata.name!="},
		"NamesGreater":    {label(key + "limit>3"), "search.clusterpedia.io/limit", "takes ="},
		"NamesExist":      {label(key + "names"), "search.clusterpedia.io/names", "takes ="},
		"UnknownKey":      {label(key + "sort=name"), "search.clusterpedia.io/sort", "search.clusterpedia.io/orderby"},
		"Twice":           {label(key+"offset=1") + "&offset=2", "offset", "twice"},
		"SizeAndLimit":    {label(key + "limit=1," + key + "size=2"), "limit", "twice"},
		"OrderOfUnknown":  {"orderby=resource_version", "orderby", "created_at"},
		"OrderBySQL":      {"orderby=" + url.QueryEscape("name;DROP TABLE object"), "orderby", "only by name"},
		"OrderTwice":      {"orderby=name,name", "orderby", "twice"},
		"Since":           {"since=yesterday", "since", "2026-11-20"},
		"SinceZero":       {"since=0000000000", "since", "1970"},
		"OffsetFar":       {"offset=1000001", "offset", "continue"},
		"OffsetBelow":     {"offset=-1", "offset", "from 0"},
		"OffsetTwice":     {"offset=3&continue=4", "continue", "offset"},
		"OwnerNoType":     {"ownerName=web", "ownerName", "ownerGR"},
		"OwnerNoName":     {"ownerGR=deployments.apps", "ownerGR", "ownerName"},
		"OwnerBoth":       {"ownerName=web&ownerGR=deployments.apps&ownerUID=x", "ownerUID", "or by"},
		"OwnerNoCluster":  {"ownerName=web&ownerGR=deployments.apps", "ownerName", "clusters"},
		"OwnerNoClusters": {"ownerUID=x&ownerSeniority=1", "ownerSeniority", "clusters"},
		"OwnerUnknown":    {"ownerName=web&ownerGR=deployment.apps&clusters=elm", "ownerGR", "plural"},
		"Seniority":       {"ownerUID=x&ownerSeniority=11&clusters=elm", "ownerSeniority", "at most 10"},
		"SeniorityAlone":  {"ownerSeniority=1", "ownerSeniority", "ownerUID"},
		"InjectEvents":    {"injectEvents=true", "injectEvents", "involvedObject.uid"},
		"InjectByLabel":   {label(key + "inject-events=true"), "inject-events", "involvedObject.uid"},
		"WhereSQL":        {"whereSQL=1", "whereSQL", "fieldSelector"},
		"Forward":         {label(key + "forward=true"), "forward", "own context"},
		"Groups":          {"groups=apps", "groups", "collectionresources/any"},
		"FieldGreater":    {"fieldSelector=" + url.QueryEscape("metadata.name>3"), "fieldSelector", "notin"},
		"FieldUnclosed":   {"fieldSelector=" + url.QueryEscape("metadata.name in (a"), "fieldSelector", "not closed"},
		"FieldNoList":     {"fieldSelector=" + url.QueryEscape("metadata.name[]=a"), "fieldSelector", "not a list"},
		"FieldEmptyList":  {"fieldSelector=" + url.QueryEscape("spec.containers[].image="), "field spec.containers[].image", "exists"},
		"WatchOrder":      {"watch=true&orderby=name", "orderby", "lists"},
		"WatchOwner":      {"watch=true&ownerUID=a&ownerSeniority=1", "ownerSeniority", "ownerUID"},
		"Remaining":       {"withRemainingCount=maybe", "withRemainingCount", "true or false"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.ask(t, http.MethodGet, "/api/v1/pods?"+c.query, "")
			message, _ := body["message"].(string)
			if resp.StatusCode != http.StatusBadRequest || body["reason"] != "BadRequest" || !strings.Contains(message, c.says) || !strings.Contains(message, c.out) {
				t.Errorf("%d %v, want a BadRequest that says %q and %q", resp.StatusCode, body, c.says, c.out)
			}
		})
	}
}

// TestRemaining: a page has the number of objects after it, if the number costs nothing or is
// requested.
func TestRemaining(t *testing.T) {
	f := owned(t, newFleet(t, "elm", "oak"))
	remaining := func(query string) (any, string) {
		t.Helper()
		_, body := f.ask(t, http.MethodGet, "/api/v1/pods?"+query, "")
		meta, _ := body["metadata"].(map[string]any)
		next, _ := meta["continue"].(string)
		return meta["remainingItemCount"], next
	}
	for query, want := range map[string]any{
		"":                                 nil,
		"limit=2":                          4.0,
		"limit=2&offset=3":                 1.0,
		"limit=6":                          nil,
		"limit=1&clusters=oak":             2.0,
		"limit=1&labelSelector=app%3Dweb":  nil,
		"limit=1&withRemainingCount=false": nil,
		"limit=1&fuzzyName=web&withRemainingCount=true":                 4.0 - 1,
		"limit=1&labelSelector=app%3Dweb&withRemainingCount=true":       5.0,
		"limit=1&withRemainingCount=true&fieldSelector=spec.containers": 3.0,
	} {
		if got, _ := remaining(query); got != want {
			t.Errorf("%q: %v, want %v", query, got, want)
		}
	}
	_, next := remaining("limit=2")
	if got, again := remaining("limit=3&continue=" + next); got != 1.0 || again == "" {
		t.Error(got, again)
	}
	if _, next := remaining("limit=2&withContinue=false"); next != "" {
		t.Error(next)
	}
}

// TestOwnerRequiresRights: a caller that may not list a type cannot learn what its objects own.
func TestOwnerRequiresRights(t *testing.T) {
	f := owned(t, newFleet(t, "elm", "oak"))
	f.denied = func(what authorizationv1.ResourceAttributes) bool { return what.Resource == "deployments" }
	resp, body := f.ask(t, http.MethodGet, "/api/v1/pods?ownerName=web&ownerGR=deployments.apps&ownerSeniority=1&clusters=oak", "")
	if resp.StatusCode != http.StatusForbidden {
		t.Error(resp.StatusCode, body)
	}

	// A caller that may list the type in some namespaces can use owners there, if the request
	// names these namespaces.
	f.denied = func(what authorizationv1.ResourceAttributes) bool {
		return what.Resource == "deployments" && what.Namespace != "blog"
	}
	f.some = []string{"blog"}
	for query, want := range map[string]int{"": http.StatusForbidden, "&namespaces=shop": http.StatusForbidden, "&namespaces=blog": http.StatusOK} {
		resp, body := f.ask(t, http.MethodGet, "/api/v1/pods?ownerName=web&ownerGR=deployments.apps&ownerSeniority=1&clusters=oak"+query, "")
		if resp.StatusCode != want {
			t.Errorf("%q: %d %v", query, resp.StatusCode, body)
		}
	}
}

// TestSlowQueries: a query that no index supports ends at a time limit. The error names the
// slow parts and how to narrow the query.
func TestSlowQueries(t *testing.T) {
	f := owned(t, newFleet(t, "elm", "oak"))
	f.search.longest = time.Nanosecond
	resp, body := f.ask(t, http.MethodGet, "/api/v1/pods?fuzzyName=we&orderby=namespace&fieldSelector=spec.nodeName!%3Dx", "")
	message, _ := body["message"].(string)
	if resp.StatusCode != http.StatusGatewayTimeout || body["reason"] != "Timeout" {
		t.Error(resp.StatusCode, body)
	}
	for _, says := range []string{`"we"`, "that order", "spec.nodeName", "name clusters, namespaces"} {
		if !strings.Contains(message, says) {
			t.Errorf("%q does not say %s", message, says)
		}
	}
}

// TestHostileValues: every value of a parameter gets an answer or a refusal, and the rows stay
// unchanged.
func TestHostileValues(t *testing.T) {
	hostile := []string{
		"'", `"`, "'; DROP TABLE object; --", `" OR 1=1 --`, "x' OR '1'='1", `\`, `\'`, "%", "_", "%' ESCAPE '!", "name desc; DELETE FROM object", "1) UNION SELECT 1 --",
		"$1", "?", ":a", "@@version", "{{", "\x00", "\xff\xfe", "’", strings.Repeat("a", 3000), strings.Repeat("(", 200), "a OR b", `"a" NOT "b"`, "name : x", "NEAR(a b)", "*", "-1", "9223372036854775808",
		"2026-11-20' OR created > '0", "metadata.name in ('a', \"b\")", "metadata.labels['a\\'] OR 1=1 --']=x", "metadata.annotations['$.a']=x", "spec.containers[0].image=' OR ''='", "spec.containers[].image in (', \")",
	}
	on := func(t *testing.T, s *store.Store) {
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		f := owned(t, fleetOf(t, s, "", "elm", "oak"))
		_, before := f.ask(t, http.MethodGet, "/api/v1/pods", "")
		ask := func(query url.Values) {
			t.Helper()
			for _, path := range []string{"/api/v1/pods?", "/clusters/oak/api/v1/pods?", collectionPath + "any?resources=pods&"} {
				if strings.Contains(path, "any") && (query.Has("resources") || query.Has("watch")) || strings.Contains(path, "pods?") && query.Has("watch") {
					continue
				}
				resp, body := f.ask(t, http.MethodGet, path+query.Encode(), "")
				if resp.StatusCode >= 500 || resp.StatusCode == http.StatusOK && len(found(body)) > 6 {
					t.Errorf("%s%v: %d %v", path, query, resp.StatusCode, body["message"])
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(parameters)) {
			for _, value := range hostile {
				query := url.Values{name: {value}}
				switch name {
				case "ownerName":
					query.Set("ownerGR", "deployments.apps")
					query.Set("clusters", "oak")
				case "ownerGR":
					query.Set("ownerName", "web")
					query.Set("clusters", "oak")
				case "ownerUID":
					query.Set("ownerSeniority", "2")
					query.Set("clusters", "oak")
				}
				ask(query)
			}
		}
		for key := range labelParameters {
			for _, value := range hostile {
				ask(url.Values{"labelSelector": {key + "=" + value}})
				ask(url.Values{"labelSelector": {key + " in (" + value + ")"}})
			}
		}
		for _, value := range hostile {
			for _, operator := range []string{"=%s", "!=%s", " in (%s)", " notin (%s)"} {
				ask(url.Values{"fieldSelector": {"metadata.name" + fmt.Sprintf(operator, value)}})
				ask(url.Values{"fieldSelector": {"spec.containers[].image" + fmt.Sprintf(operator, value)}})
				ask(url.Values{"fieldSelector": {"metadata.annotations['" + value + "']" + fmt.Sprintf(operator, "x")}})
			}
		}
		if _, after := f.ask(t, http.MethodGet, "/api/v1/pods", ""); !cmp.Equal(before, after) {
			t.Error(cmp.Diff(before, after))
		}
		if n, err := s.Count(t.Context(), store.Query{Resource: "pods"}); err != nil || n != 6 {
			t.Error(n, err)
		}
	}
	t.Run("SQLite", func(t *testing.T) {
		s, err := store.Open(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		on(t, s)
	})
	for _, d := range []*testenv.Database{testenv.PostgreSQL, testenv.MariaDB} {
		t.Run(d.Name, func(t *testing.T) {
			s, err := store.OpenDSN(t.Context(), d.Create(t))
			if err != nil {
				t.Fatal(err)
			}
			on(t, s)
		})
	}
}

func TestParseFields(t *testing.T) {
	one := func(path string, operator selection.Operator, value string) []store.FieldRequirement {
		return []store.FieldRequirement{{Path: path, Operator: operator, Value: value}}
	}
	for text, want := range map[string][]store.FieldRequirement{
		"":                       nil,
		",":                      nil,
		"a.b=c":                  one("a.b", "=", "c"),
		"a.b==c":                 one("a.b", "==", "c"),
		"a.b != c":               one("a.b", "!=", "c"),
		"a.b=":                   one("a.b", "=", ""),
		"a.b= c":                 one("a.b", "=", " c"),
		"a.b=c , d!= e":          {{Path: "a.b", Operator: "=", Value: "c "}, {Path: "d", Operator: "!=", Value: " e"}},
		`a.b=c\,d\=e\\`:          one("a.b", "=", `c,d=e\`),
		"a['x.y/z,=!( ']=c":      one("a['x.y/z,=!( ']", "=", "c"),
		"a.b":                    one("a.b", "exists", ""),
		"!a.b":                   one("a.b", "!", ""),
		"in":                     one("in", "exists", ""),
		"notin=x":                one("notin", "=", "x"),
		"a in (b)":               {{Path: "a", Operator: "in", Values: []string{"b"}}},
		`a notin (b, c\,d ,e\))`: {{Path: "a", Operator: "notin", Values: []string{"b", "c,d", "e)"}}},
		"a[].b in(b),c=d":        {{Path: "a[].b", Operator: "in", Values: []string{"b"}}, {Path: "c", Operator: "=", Value: "d"}},
		"a[0].b=c,!d , e":        {{Path: "a[0].b", Operator: "=", Value: "c"}, {Path: "d", Operator: "!"}, {Path: "e", Operator: "exists"}},
	} {
		got, err := parseFields(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v %s", text, err, diff)
		}
	}
	for _, text := range []string{"=a", "a=b=c", "a>b", "a<b", "a b", "a in b", "a in (b", "a in (b) c", "!a=b", "!", "(a)", `a=\x`, "a!b", "a notin"} {
		if got, err := parseFields(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}

// FuzzParams: parameters are parsed, or refused with a Status. Parsed field paths are the same
// after they were formatted and parsed again.
func FuzzParams(f *testing.F) {
	for _, seed := range []string{
		"names=a,b&since=2026-11-20&orderby=name+desc,cluster", "fieldSelector=spec.containers[].image+in+(a,b),!c", "fieldSelector=a['b.c']%3D%3Dd&limit=5&offset=3",
		"labelSelector=search.clusterpedia.io/orderby+in+(name_desc,cluster),app%3Dweb", "continue=12", "ownerUID=a&ownerSeniority=2", "fuzzyName=a,%25&before=1700000000",
		"labelSelector=internalstorage.clusterpedia.io/fuzzy-name%3Dx", "fieldSelector=metadata.name%3Ea", "groups=apps/v1&resources=core/v1/pods",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		query, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		p, err := parseParams(query)
		if err != nil {
			if _, ok := err.(interface{ Status() metav1.Status }); !ok {
				t.Errorf("%q: %T is not typed", text, err)
			}
			return
		}
		requirements, _ := p.labels.Requirements()
		for _, r := range requirements {
			if strings.HasPrefix(r.Key(), searchLabels) {
				t.Errorf("%q: %s is taken for a label", text, r.Key())
			}
		}
		for _, r := range p.fields {
			if path, err := store.ParseFieldPath(r.Path); err == nil {
				if again, err := store.ParseFieldPath(path.String()); err != nil || !cmp.Equal(path, again) {
					t.Errorf("%q: %v is %v when it is written and read, %v", r.Path, path, again, err)
				}
			}
		}
	})
}

// TestRareStatesAreIndexed: for objects of every shape, the index of rare states selects what
// the same term selects by the object.
func TestRareStatesAreIndexed(t *testing.T) {
	for _, body := range []string{
		`{}`, `[]`, `{"status":{"conditions":[]}}`, `{"status":{"conditions":null}}`, `{"status":{"conditions":{"type":"Ready"}}}`, `{"status":"x"}`,
		`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`,
		`{"status":{"conditions":[{"type":"Available"}]}}`, `{"status":{"conditions":[{"type":"Ready","status":true}]}}`, `{"status":{"conditions":["x",{"type":"Ready","status":"Unknown"}]}}`,
		`{"status":{"conditions":[{"type":"Ready","status":"False"},{"type":"Available","status":"True"}]}}`, `{"status":{"conditions":[{"type":7,"status":"False"}]}}`,
		`{"status":{"Conditions":[{"type":"Ready","status":"False"}]}}`, `{"status":{"conditions":[{"type":"Progressing","status":"False"}]}}`,
		`{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}`, `{"metadata":{"deletionTimestamp":null}}`, `{"metadata":{"deletionTimestamp":7,"annotations":[]},"status":7}`,
	} {
		for _, text := range []string{"-is:ready", "is:terminating"} {
			var a asked
			if err := a.parse(text); err != nil {
				t.Fatal(err)
			}
			q := store.Query{Resource: "pods"}
			keep, err := a.refine(&q, kind{})
			if err != nil || keep != nil {
				t.Fatalf("%s is looked for in objects: %v", text, err)
			}
			want := a.query.Matches(query.Object{Resource: "pods", Body: []byte(body)}, time.Time{})
			if got := q.Selects(&store.Row{Resource: "pods", Name: "a", Body: []byte(body)}); got != want {
				t.Errorf("%s of %s: the index has %t, the object %t", text, body, got, want)
			}
		}
	}
}
