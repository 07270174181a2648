package search

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// filler returns a text of about n bytes.
type filler func(n int) string

// repeated returns texts that repeat one piece.
func repeated(piece string) filler {
	return func(n int) string { return strings.Repeat(piece, n/len(piece)+1) }
}

// numberedText returns texts of numbered pieces between begin and end.
func numberedText(begin, piece, end string) filler {
	return func(n int) string {
		var out strings.Builder
		out.WriteString(begin)
		for i := 0; out.Len() < n; i++ {
			fmt.Fprintf(&out, piece, i)
		}
		return strings.TrimSuffix(out.String(), ",") + end
	}
}

// token returns continue tokens: begin and an encoded text.
func token(begin string, inside filler) filler {
	return func(n int) string { return begin + base64.RawURLEncoding.EncodeToString([]byte(inside(3*n/4))) }
}

var (
	junk       = []filler{repeated("1"), repeated("a"), repeated("-")}
	nameLists  = []filler{numberedText("", "n%d,", ""), repeated("a,"), repeated(","), repeated("a")}
	moments    = []filler{repeated("1"), repeated("1h"), repeated("2026-"), repeated(" ")}
	groupLists = []filler{numberedText("", "apps/v%d,", ""), numberedText("", "v1/r%d,", ""), repeated("/"), repeated("a,")}
	graphLists = []filler{numberedText("", "r%d,", ""), repeated("all,"), repeated(",")}
)

// costly has, for each parameter and header, texts that are especially expensive to parse.
var costly = map[string][]filler{
	"list/clusters": nameLists, "list/namespaces": nameLists, "list/names": nameLists, "list/fuzzyName": nameLists,
	"list/groups": groupLists, "list/resources": groupLists,
	"list/labelSelector": {
		numberedText("", "!k%d,", ""), numberedText("", "k%d!=v,", ""), repeated("a=b,"), repeated("!"), repeated("("), repeated(","), repeated("="), repeated("k"),
		numberedText("k in (", "v%d,", ")"), numberedText("k in (", "-%d,", ")"), numberedText("k notin (", "v%d,", ""), repeated("a in (b,c),"),
		numberedText("search.clusterpedia.io/orderby in (", "created_at_%d,", ")"), repeated(searchLabels + "orderby in (name),"), repeated(searchLabels + "x,"),
	},
	"list/fieldSelector": {
		repeated("spec.nodeName!=b,"), numberedText("", "status.phase!=v%d,", ""), numberedText("", "spec.f%d,", ""), repeated("metadata.annotations['a"), repeated("\\"), repeated("!"), repeated("("),
		repeated(","), repeated("['"), numberedText("metadata.name in (", "v%d,", ")"), numberedText("spec.nodeName in (", "v%d,", ""), repeated("spec.containers[].image,"), repeated("a."),
	},
	"list/q": {
		numberedText("", "name:a%d ", ""), numberedText("", "app=v%d ", ""), numberedText("label:app=", "v%d,", ""), repeated(`"`), repeated("-"), repeated("a*"), repeated("* "), repeated("phase:a "),
		repeated("k:"), repeated("a"), repeated(`text:"a b" `), numberedText("cluster:", "c%d,", ""), numberedText("ns:", "n%d,", ""), repeated(`\`), numberedText("", "uses:secret/s%d ", ""),
	},
	"list/filter": {
		func(n int) string { return "object" + repeated(".a")(n-10) + "==1" }, func(n int) string { return "dyn(cluster)" + repeated(".a")(n-20) + "==1" },
		func(n int) string { return "true" + numberedText("", "&&object.a%d==1", "")(n-10) }, func(n int) string { return "true" + repeated("&&object.metadata.labels.app=='a'")(n-40) },
		func(n int) string { return "true" + repeated("||cluster=='a'")(n-20) }, repeated("("), repeated("["), repeated("!"), repeated("-"), repeated("{"), numberedText("", "a%d+", "1"), repeated("a "), repeated("'"),
		func(n int) string { return "[" + repeated("1,")(n-10) + "1]==[]" }, func(n int) string { return "object.a.matches('" + repeated("(a*)")(n-30) + "')" },
	},
	"list/orderby": {repeated("name,"), repeated("name desc,"), repeated(","), repeated("_asc"), repeated(" desc")},
	"list/group":   {numberedText("", "label:k%d,", ""), repeated("kind,"), repeated(","), repeated("a")},
	"list/continue": {
		repeated("1"), repeated("A"), repeated("."), repeated("at-1."), token("", repeated("[")), token("", repeated(`{"t":`)), token("1.00000000~s.", repeated(`{"c":"a",`)), repeated("ended-1"),
	},
	"list/at": moments, "list/changedSince": moments, "list/since": moments, "list/before": moments,
	"list/limit": junk, "list/watch": junk, "list/includeObject": junk, "list/resourceVersion": junk, "list/resourceVersionMatch": junk, "list/sendInitialEvents": junk,
	"list/allowWatchBookmarks": junk, "list/timeoutSeconds": junk, "list/explain": junk, "list/history": junk, "list/deleted": junk, "list/allFields": junk,
	"list/ownerUID": junk, "list/ownerName": junk, "list/ownerGR": {repeated("a."), repeated(".")}, "list/ownerSeniority": junk, "list/offset": junk, "list/withContinue": junk,
	"list/withRemainingCount": junk, "list/onlyMetadata": junk, "list/injectEvents": junk, "list/whereSQL": junk, "list/whereSQLStatement": junk, "list/whereSQLParam": junk,
	"list/whereSQLJSONParams": junk, "list/x-clusterpedia-forward": junk, "list/timeout": junk, "list/pretty": junk,

	"graph/of":       {repeated("/"), repeated("secrets/"), func(n int) string { return "image:" + repeated("a:")(n) }, func(n int) string { return "pods/shop/" + repeated("a")(n) }, repeated("a")},
	"graph/clusters": nameLists, "graph/depth": junk, "graph/limit": junk, "graph/direction": junk, "graph/relations": graphLists, "graph/timeout": junk, "graph/pretty": junk,

	"header/Accept":          {repeated("*/*,"), repeated("application/yaml,"), repeated("a/b;q=0.1,"), numberedText("a/b", ";x%d=y", ""), repeated(`a/b;x="`), repeated(","), numberedText("a/b", ";x*%d=y", "")},
	"header/Accept-Encoding": {repeated("gzip;q=0.1,"), repeated(","), numberedText("", "e%d,", "")},
}

// parsing are the requests with parameters, each with the grammar of its parameters.
var parsing = map[string]struct{ method, path, grammar string }{
	"list":              {http.MethodGet, "/api/v1/pods", "list"},
	"namespace":         {http.MethodGet, "/api/v1/namespaces/shop/pods", "list"},
	"cluster":           {http.MethodGet, "/clusters/oak/api/v1/pods", "list"},
	"get":               {http.MethodGet, "/api/v1/namespaces/shop/pods/web", "list"},
	"watch":             {http.MethodGet, "/api/v1/watch/pods", "list"},
	"metrics":           {http.MethodGet, "/apis/metrics.k8s.io/v1beta1/pods", "list"},
	"collections":       {http.MethodGet, strings.TrimSuffix(collectionPath, "/"), "list"},
	"collection":        {http.MethodGet, collectionPath + "workloads", "list"},
	"any":               {http.MethodGet, collectionPath + "any", "list"},
	"search":            {http.MethodGet, searchPath, "list"},
	"searchOfACluster":  {http.MethodGet, "/clusters/oak" + searchPath, "list"},
	"graph":             {http.MethodGet, "/graph", "graph"},
	"graphOfACluster":   {http.MethodGet, "/clusters/oak/graph", "graph"},
	"versionOfACluster": {http.MethodGet, "/clusters/oak/version", ""},
	"apisOfACluster":    {http.MethodGet, "/clusters/oak/apis", ""},
	"rootOfACluster":    {http.MethodGet, "/clusters/oak", ""},
}

// free are the requests that every authenticated caller may make. Their parameters are not
// parsed.
var free = map[string]string{
	"version": "/version", "healthz": "/healthz", "livez": "/livez", "readyz": "/readyz", "apis": "/apis", "root": "/", "healthOfACluster": "/clusters/oak/healthz",
}

// TestEveryParameterIsInTheTables fails if a parameter or a document has no case in the tables
// of this file.
func TestEveryParameterIsInTheTables(t *testing.T) {
	want := sets.New("header/Accept", "header/Accept-Encoding")
	for name := range parameters {
		want.Insert("list/" + name)
	}
	for name := range graphParameters {
		want.Insert("graph/" + name)
	}
	if got := sets.KeySet(costly); !got.Equal(want) {
		t.Errorf("costly: missing %v, unknown %v", sets.List(want.Difference(got)), sets.List(got.Difference(want)))
	}
	for name := range documents {
		if parsing[name].path == "" && free[name] == "" {
			t.Errorf("document %s is neither in parsing nor in free", name)
		}
	}
}

// requestFor returns a request with a value for a parameter or a header.
func requestFor(ctx context.Context, method, path, parameter, value string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, method, fleetv1alpha1.FleetPath+path, nil)
	if header, ok := strings.CutPrefix(parameter, "header/"); ok {
		r.Header.Set(header, value)
	} else if _, name, ok := strings.Cut(parameter, "/"); ok {
		r.URL.RawQuery = url.Values{name: {value}}.Encode()
	}
	return r
}

// parametersOf returns the keys of costly that belong to a grammar, and the headers, sorted.
func parametersOf(grammar string) (names []string) {
	for name := range costly {
		if of, _, _ := strings.Cut(name, "/"); of == grammar || of == "header" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// bounded returns a fleet with one pod.
func bounded(t testing.TB) *fleet {
	t.Helper()
	f := newFleet(t, "ash", "elm", "oak")
	f.serve(podKind, "pods", true, "ash", "elm", "oak")
	f.serve(namespaceKind, "namespaces", false, "ash", "elm", "oak")
	f.put(t, "oak", "pods", newObject(podKind, "shop", "web", "label:app=web"))
	return f
}

// TestNothingIsParsedForWhoHasNoRights: a caller without rights gets the same refusal for every
// parameter, valid or not.
func TestNothingIsParsedForWhoHasNoRights(t *testing.T) {
	f := bounded(t)
	f.denied = func(authorizationv1.ResourceAttributes) bool { return true }
	for name, e := range parsing {
		t.Run(name, func(t *testing.T) {
			answer := func(parameter, value string) (int, string) {
				w := httptest.NewRecorder()
				f.server.Config.Handler.ServeHTTP(w, requestFor(t.Context(), e.method, e.path, parameter, value))
				return w.Code, w.Body.String()
			}
			code, refusal := answer("", "")
			if code != http.StatusForbidden {
				t.Fatalf("%d %s, want 403", code, refusal)
			}
			for _, parameter := range append(parametersOf(e.grammar), "list/unknown") {
				for i, value := range append(slices.Clone(costly[parameter]), func(int) string { return "\xff" }) {
					if code, body := answer(parameter, value(2000)); code != http.StatusForbidden || body != refusal {
						t.Errorf("%s, case %d: %d %.300s, want the refusal", parameter, i, code, body)
					}
				}
			}
		})
	}
	for name, path := range free {
		w := httptest.NewRecorder()
		f.server.Config.Handler.ServeHTTP(w, requestFor(t.Context(), http.MethodGet, path, "list/labelSelector", "((("))
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	for _, parameter := range parametersOf("list") {
		for i, value := range costly[parameter] {
			if _, name, ok := strings.Cut(parameter, "/"); ok && !strings.HasPrefix(parameter, "header") {
				_, _, err := f.search.Window(t.Context(), "/api/v1/pods", url.Values{name: {value(2000)}}, 0, 10)
				if !apierrors.IsForbidden(err) {
					t.Errorf("window, %s, case %d: %v", parameter, i, err)
				}
			}
		}
	}
}

// allocated returns how many bytes a request allocates until its answer is written: the minimum
// of three attempts.
func allocated(f *fleet, r func() *http.Request) uint64 {
	least := ^uint64(0)
	for range 3 {
		one := r()
		f.asked = nil // it grows with each request
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f.server.Config.Handler.ServeHTTP(httptest.NewRecorder(), one)
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

// TestParsersAreLinear: if the text of a parameter is twice as long, the request allocates at
// most about twice as much, for callers with all rights and with some.
func TestParsersAreLinear(t *testing.T) {
	f := bounded(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	some := func(what authorizationv1.ResourceAttributes) bool { return what.Namespace != "shop" }
	for rights, denied := range map[string]func(authorizationv1.ResourceAttributes) bool{"All": nil, "Some": some} {
		f.denied, f.some = denied, []string{"shop"}
		for name, e := range parsing {
			for _, parameter := range parametersOf(e.grammar) {
				for i, value := range costly[parameter] {
					ctx := t.Context()
					if name == "watch" || parameter == "list/watch" {
						ctx = gone // otherwise the watch does not end
					}
					cost := func(n int) uint64 {
						return allocated(f, func() *http.Request { return requestFor(ctx, e.method, e.path, parameter, value(n)) })
					}
					for _, n := range []int{1900, LongestURL / 8} {
						const noise = 2 << 20
						once, twice := cost(n), cost(2*n)
						if parameter == "list/filter" && n == 1900 {
							// The parser of CEL is not linear. Its limit of 4,096 bytes bounds
							// its cost.
							if twice > 64<<20 {
								t.Errorf("%s, %s, %s, case %d: %d bytes at %d", rights, name, parameter, i, twice, 2*n)
							}
							continue
						}
						if twice > 5*once/2+noise {
							t.Errorf("%s, %s, %s, case %d: %d bytes at %d, and %d at %d", rights, name, parameter, i, once, n, twice, 2*n)
						}
					}
				}
			}
		}
	}
}

// TestSizeIsBounded: requests above the documented limits are refused, and requests at the
// limits are not.
func TestSizeIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		path    string
		headers map[string]string
		refused bool
	}{
		"URL":            {"/" + strings.Repeat("a", LongestURL-1), nil, false},
		"LongURL":        {"/" + strings.Repeat("a", LongestURL), nil, true},
		"LongQuery":      {"/?a=" + strings.Repeat("a", LongestURL), nil, true},
		"LongEscapes":    {"/" + strings.Repeat("%25", LongestURL/3+1), nil, true},
		"Accept":         {"/", map[string]string{"Accept": strings.Repeat("a", LongestAccept)}, false},
		"LongAccept":     {"/", map[string]string{"Accept": strings.Repeat("a", LongestAccept+1)}, true},
		"LongEncodings":  {"/", map[string]string{"Accept-Encoding": strings.Repeat("a", LongestAccept+1)}, true},
		"AnythingElse":   {"/", map[string]string{"If-None-Match": strings.Repeat("a", LongestURL)}, false},
		"EscapedSlashes": {"/" + strings.Repeat("%2f", LongestURL/3-1), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, nil)
			for k, v := range c.headers {
				r.Header.Set(k, v)
			}
			if err := CheckSize(r); apierrors.IsBadRequest(err) != c.refused || (err != nil) != c.refused {
				t.Errorf("%v, refused: %t", err, c.refused)
			}
		})
	}
}

// TestSelectorIsBounded: a label selector is refused if it has too many requirements or values.
func TestSelectorIsBounded(t *testing.T) {
	list := func(n int) string { return "k in (" + strings.Join(slices.Repeat([]string{"v"}, n), ",") + ")" }
	for name, c := range map[string]struct {
		selector string
		says     string
	}{
		"Values": {list(mostLabelValues), ""}, "ManyValues": {list(mostLabelValues + 1), "501 values"},
		"Requirements": {strings.Repeat("a,", 99) + "a", ""}, "ManyRequirements": {strings.Repeat("a,", 1000) + "a", "1001 requirements"},
		"Both": {list(250) + "," + list(250), ""}, "ManyOfBoth": {list(250) + "," + list(251), "501 values"},
	} {
		if err := checkSelector(c.selector); (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// BenchmarkBounds measures the processor time of the most expensive request among those of the
// maximum size, for a caller without rights and for one with all rights.
func BenchmarkBounds(b *testing.B) {
	f := bounded(b)
	for name, denied := range map[string]func(authorizationv1.ResourceAttributes) bool{
		"Refused": func(authorizationv1.ResourceAttributes) bool { return true }, "Answered": nil,
	} {
		b.Run(name, func(b *testing.B) {
			f.denied = denied
			var most time.Duration
			of := ""
			for b.Loop() {
				most, of = 0, ""
				for _, e := range slices.Sorted(maps.Keys(parsing)) {
					for _, parameter := range parametersOf(parsing[e].grammar) {
						for i, value := range costly[parameter] {
							if took := costAtBound(b, f, parsing[e].method, parsing[e].path, parameter, value); took > most {
								most, of = took, fmt.Sprintf("%s, %s, case %d", e, parameter, i)
							}
						}
					}
				}
			}
			b.ReportMetric(most.Seconds()*1000, "cpu-ms/worst")
			b.Logf("the most costly request: %s", of)
		})
	}
}

// costAtBound returns the processor time of a request whose parameter has the maximum size: the
// median of three.
func costAtBound(b *testing.B, f *fleet, method, path, parameter string, value filler) time.Duration {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	if strings.Contains(path, "/watch/") || parameter == "list/watch" {
		cancel()
	}
	of, most := value(LongestURL), LongestURL
	if strings.HasPrefix(parameter, "header/") {
		of = of[:LongestAccept]
	}
	r := requestFor(ctx, method, path, parameter, of)
	for n := most; CheckSize(r) != nil; {
		n = n * 9 / 10
		r = requestFor(ctx, method, path, parameter, value(n))
	}
	var took []time.Duration
	for range 3 {
		before := used(b)
		f.server.Config.Handler.ServeHTTP(httptest.NewRecorder(), r.Clone(ctx))
		took = append(took, used(b)-before)
	}
	slices.Sort(took)
	return took[1]
}
