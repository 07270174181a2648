package search

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// stream is a watch as a client sees it.
type stream struct {
	t      *testing.T
	lines  *bufio.Scanner
	header http.Header
	last   string // the latest resourceVersion
	stop   context.CancelFunc
}

// watch opens a watch, and fails the test if the request is refused.
func (f *fleet) watch(t *testing.T, path string) *stream {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	s := &stream{t: t, lines: bufio.NewScanner(resp.Body), header: resp.Header, stop: stop}
	s.lines.Buffer(nil, 1<<24)
	if resp.StatusCode != http.StatusOK {
		s.lines.Scan()
		t.Fatalf("%s: %d %s", path, resp.StatusCode, s.lines.Text())
	}
	return s
}

// next returns the next event, as TYPE cluster/namespace/name; "" if the watch ended.
func (s *stream) next() string {
	s.t.Helper()
	// An event that never comes fails the test long before the server ends the watch.
	defer time.AfterFunc(testenv.Patience, s.stop).Stop()
	if !s.lines.Scan() {
		return ""
	}
	var event struct {
		Type   string
		Object unstructured.Unstructured
	}
	var raw struct {
		Type   string
		Object map[string]any
	}
	if err := json.Unmarshal(s.lines.Bytes(), &raw); err != nil {
		s.t.Fatalf("%s: %v", s.lines.Text(), err)
	}
	event.Type, event.Object.Object = raw.Type, raw.Object
	if event.Type == "ERROR" {
		return fmt.Sprintf("ERROR %v %v", raw.Object["code"], raw.Object["reason"])
	}
	o := event.Object
	s.last = o.GetResourceVersion()
	line := event.Type
	if o.GetName() != "" {
		line += " " + o.GetAnnotations()[fleetv1alpha1.ClusterAnnotation] + "/" + o.GetNamespace() + "/" + o.GetName()
	}
	if o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
		line += " all"
	}
	return line
}

// expect reads events, which must be these in this order.
func (s *stream) expect(want ...string) {
	s.t.Helper()
	got := make([]string, 0, len(want))
	for range want {
		got = append(got, s.next())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Fatalf("events (-want, +got):\n%s", diff)
	}
}

// remove deletes objects as the mirror does.
func (f *fleet) remove(t *testing.T, cluster, resource, namespace, name string) {
	t.Helper()
	if err := f.store.Write(t.Context(), []store.Change{{Delete: true, Row: store.Row{
		Cluster: cluster, Resource: resource, Namespace: namespace, Name: name,
	}}}); err != nil {
		t.Fatal(err)
	}
}

// version returns the version of a list.
func (f *fleet) version(t testing.TB, path string) string {
	t.Helper()
	_, body := f.ask(t, http.MethodGet, path, "")
	list := unstructured.UnstructuredList{Object: body}
	return list.GetResourceVersion()
}

// TestWatch: from the version of a list on, each change is sent once and in order. An object
// that the selector no longer selects is sent as DELETED.
func TestWatch(t *testing.T) {
	f := threeClusters(t)
	all := f.watch(t, "/api/v1/pods?watch=1&resourceVersion="+f.version(t, "/api/v1/pods"))
	running := f.watch(t, "/api/v1/pods?watch=true&fieldSelector=status.phase%3DRunning&resourceVersion="+f.version(t, "/api/v1/pods"))
	oak := f.watch(t, "/clusters/oak/api/v1/namespaces/shop/pods?watch=true&resourceVersion="+f.version(t, "/api/v1/pods"))
	byPath := f.watch(t, "/api/v1/watch/pods?resourceVersion="+f.version(t, "/api/v1/pods"))

	f.put(t, "oak", "pods", newObject(podKind, "shop", "db", "label:app=db", "status.phase=Running"))
	f.put(t, "elm", "pods", newObject(podKind, "blog", "press", "status.phase=Failed"))
	f.put(t, "ash", "pods", newObject(podKind, "shop", "new", "status.phase=Pending"))
	f.put(t, "oak", "namespaces", newObject(namespaceKind, "", "other"))
	f.remove(t, "oak", "pods", "shop", "web")
	if err := f.store.DropCluster(t.Context(), "elm"); err != nil {
		t.Fatal(err)
	}
	f.put(t, "oak", "pods", newObject(podKind, "shop", "last", "status.phase=Running"))

	everything := []string{
		"MODIFIED oak/shop/db", "MODIFIED elm/blog/press", "ADDED ash/shop/new", "DELETED oak/shop/web", "DELETED elm/blog/press", "DELETED elm/shop/web",
		"ADDED oak/shop/last",
	}
	all.expect(everything...)
	byPath.expect(everything...)
	running.expect("ADDED oak/shop/db", "DELETED elm/blog/press", "DELETED oak/shop/web")
	// Only the names are known of the objects of a dropped cluster.
	for range 2 {
		if got := running.next(); !strings.HasPrefix(got, "DELETED elm/") {
			t.Error(got)
		}
	}
	running.expect("ADDED oak/shop/last")
	oak.expect("MODIFIED oak/shop/db", "DELETED oak/shop/web", "ADDED oak/shop/last")
	if all.last != f.version(t, "/api/v1/pods") {
		t.Errorf("the last event has version %s, and a list after it %s", all.last, f.version(t, "/api/v1/pods"))
	}
}

// TestWatchFromAnywhere: a client that continues after any event or any page misses no change.
func TestWatchFromAnywhere(t *testing.T) {
	f := threeClusters(t)
	start := f.version(t, "/api/v1/pods")
	_, page := f.ask(t, http.MethodGet, "/api/v1/pods?limit=2", "")
	token := (&unstructured.UnstructuredList{Object: page}).GetContinue()
	for i := range 5 {
		f.put(t, "oak", "pods", newObject(podKind, "shop", fmt.Sprint("web-", i)))
	}
	events := []string{"ADDED oak/shop/web-0", "ADDED oak/shop/web-1", "ADDED oak/shop/web-2", "ADDED oak/shop/web-3", "ADDED oak/shop/web-4"}
	from := start
	for i := range events {
		w := f.watch(t, "/api/v1/pods?watch=true&resourceVersion="+from)
		w.expect(events[i])
		from = w.last
	}
	if second := f.version(t, "/api/v1/pods?limit=2&continue="+token); second != start {
		t.Errorf("the second page has version %s: who watches from there misses what changed since the first, %s", second, start)
	}
	w := f.watch(t, "/api/v1/pods?watch=true&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion="+from)
	w.expect("BOOKMARK", "")
	if w.last != f.version(t, "/api/v1/pods") {
		t.Errorf("bookmark of %s", w.last)
	}
}

// TestWatchList: a watch can begin with the existing objects.
func TestWatchList(t *testing.T) {
	f := threeClusters(t)
	there := []string{"ADDED elm/blog/press", "ADDED elm/shop/web", "ADDED oak/shop/db", "ADDED oak/shop/web"}
	streams := make([]*stream, 0, 3)
	for _, query := range []string{"", "&resourceVersion=0", "&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"} {
		w := f.watch(t, "/api/v1/pods?watch=true"+query)
		w.expect(there...)
		streams = append(streams, w)
	}
	streams[2].expect("BOOKMARK all")
	f.put(t, "oak", "pods", newObject(podKind, "shop", "new"))
	for _, w := range streams {
		w.expect("ADDED oak/shop/new")
	}
}

// TestWatchForms: events have the forms that lists have.
func TestWatchForms(t *testing.T) {
	f := threeClusters(t)
	for accept, want := range map[string]string{
		"application/json;as=Table;v=v1;g=meta.k8s.io":                 "Table",
		"application/json;as=Table;v=v1beta1;g=meta.k8s.io":            "Table",
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io": "PartialObjectMetadata",
		"application/json": "Pod",
	} {
		_, event := f.ask(t, http.MethodGet, "/api/v1/pods?watch=true&timeoutSeconds=1", accept)
		o, _ := event["object"].(map[string]any)
		if version, _ := o["apiVersion"].(string); o["kind"] != want || strings.HasSuffix(version, "v1beta1") != strings.Contains(accept, "v1beta1") {
			t.Errorf("%s: %v", accept, event)
		}
		if rows, ok := o["rows"].([]any); want == "Table" && (!ok || len(rows) != 1) {
			t.Errorf("a table of %v", o["rows"])
		}
	}
}

// TestWatchRights: objects that the client may not see any more are sent as DELETED, and
// objects that it may see now as ADDED. A client that may see nothing any more gets an error.
func TestWatchRights(t *testing.T) {
	f := threeClusters(t)
	denied, closed := func(authorizationv1.ResourceAttributes) bool { return false }, map[string][]string{}
	f.denied = func(what authorizationv1.ResourceAttributes) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return denied(what)
	}
	f.fenced = func(namespace, cluster string) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.Contains(closed[namespace], cluster)
	}
	f.some = []string{"shop"}
	change := func(do func()) {
		f.mu.Lock()
		do()
		f.mu.Unlock()
		close(f.grants.Swap(make(chan struct{})).(chan struct{}))
	}
	w := f.watch(t, "/api/v1/pods?watch=true&resourceVersion="+f.version(t, "/api/v1/pods"))
	change(func() { // only some namespaces
		denied = func(what authorizationv1.ResourceAttributes) bool { return what.Namespace == "" }
	})
	w.expect("DELETED elm/blog/press")
	f.put(t, "elm", "pods", newObject(podKind, "blog", "secret"))
	f.put(t, "elm", "pods", newObject(podKind, "shop", "seen"))
	w.expect("ADDED elm/shop/seen")
	change(func() { closed["shop"] = []string{"elm"} })
	w.expect("DELETED elm/shop/seen", "DELETED elm/shop/web")
	f.put(t, "elm", "pods", newObject(podKind, "shop", "unseen"))
	f.put(t, "oak", "pods", newObject(podKind, "shop", "seen"))
	w.expect("ADDED oak/shop/seen")
	change(func() { closed["shop"] = nil })
	w.expect("ADDED elm/shop/seen", "ADDED elm/shop/unseen", "ADDED elm/shop/web")
	change(func() { denied, f.some = func(authorizationv1.ResourceAttributes) bool { return true }, nil })
	w.expect("DELETED elm/shop/seen", "DELETED elm/shop/unseen", "DELETED elm/shop/web", "DELETED oak/shop/db", "DELETED oak/shop/seen",
		"DELETED oak/shop/web", "ERROR 403 Forbidden", "")
	f.mu.Lock()
	defer f.mu.Unlock()
	if last := f.asked[len(f.asked)-1]; last.Verb != "watch" {
		t.Errorf("asked for %+v, and watching is a right of its own", last)
	}
}

// TestWatchOfANewCluster: a namespace may use all clusters, and then a cluster joins that it
// may not use.
func TestWatchOfANewCluster(t *testing.T) {
	f := threeClusters(t)
	f.denied = func(what authorizationv1.ResourceAttributes) bool { return what.Namespace == "" }
	f.closed = map[string][]string{"shop": {"iron"}} // it has not joined yet
	w := f.watch(t, "/api/v1/namespaces/shop/pods?watch=true&resourceVersion="+f.version(t, "/api/v1/namespaces/shop/pods"))
	f.put(t, "iron", "pods", newObject(podKind, "shop", "secret"))
	f.put(t, "oak", "pods", newObject(podKind, "shop", "seen"))
	w.expect("ADDED oak/shop/seen")
}

// TestWatchRightsWhileChanging: if rights change, the watch reads lists. Changes between the
// version of the watch and these lists are sent once, and correctly.
func TestWatchRightsWhileChanging(t *testing.T) {
	f := threeClusters(t)
	denied := func(what authorizationv1.ResourceAttributes) bool { return what.Namespace == "" }
	f.denied, f.some = func(what authorizationv1.ResourceAttributes) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return denied(what)
	}, []string{"shop", "blog"}
	meanwhile := &listening{Store: f.store}
	f.search.Store = meanwhile
	change := func(namespaces ...string) {
		f.mu.Lock()
		f.some = namespaces
		f.mu.Unlock()
		close(f.grants.Swap(make(chan struct{})).(chan struct{}))
	}
	f.put(t, "oak", "pods", newObject(podKind, "blog", "goes"))
	f.put(t, "oak", "pods", newObject(podKind, "blog", "changes"))
	w := f.watch(t, "/api/v1/pods?watch=true&resourceVersion="+f.version(t, "/api/v1/pods"))
	meanwhile.once(func() { // before the first list with the new rights
		f.remove(t, "oak", "pods", "blog", "goes")
		f.remove(t, "oak", "pods", "shop", "db")
		f.put(t, "oak", "pods", newObject(podKind, "blog", "changes"))
		f.put(t, "oak", "pods", newObject(podKind, "blog", "comes"))
	})
	change("shop")
	w.expect("DELETED elm/blog/press", "DELETED oak/blog/goes", "DELETED oak/shop/db", "DELETED oak/blog/changes")
	f.put(t, "oak", "pods", newObject(podKind, "blog", "goes"))
	f.put(t, "oak", "pods", newObject(podKind, "shop", "db"))
	w.expect("ADDED oak/shop/db")
	meanwhile.once(func() {
		f.put(t, "oak", "pods", newObject(podKind, "blog", "changes"))
		f.remove(t, "oak", "pods", "blog", "comes")
		f.remove(t, "oak", "pods", "shop", "db")
	})
	change("shop", "blog")
	w.expect("ADDED elm/blog/press", "ADDED oak/blog/goes", "ADDED oak/blog/changes", "DELETED oak/shop/db")
	meanwhile.once(func() {
		f.put(t, "oak", "pods", newObject(podKind, "blog", "changes"))
		f.put(t, "oak", "pods", newObject(podKind, "blog", "unseen"))
	})
	f.mu.Lock()
	denied = func(authorizationv1.ResourceAttributes) bool { return true }
	f.mu.Unlock()
	change()
	w.expect("DELETED elm/blog/press", "DELETED elm/shop/web", "DELETED oak/blog/goes", "DELETED oak/shop/web", "DELETED oak/blog/changes", "ERROR 403 Forbidden", "")
}

// listening is a store that calls a function before it answers a list.
type listening struct {
	*store.Store

	mu sync.Mutex
	do func()
}

func (l *listening) once(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.do = do
}

func (l *listening) List(ctx context.Context, q store.Query) (store.Page, error) {
	l.mu.Lock()
	do := l.do
	l.do = nil
	l.mu.Unlock()
	if do != nil {
		do()
	}
	return l.Store.List(ctx, q)
}

// TestWatchWithoutHistory: for a type without history, an object that is not selected is sent
// as DELETED at most once, however often it changes.
func TestWatchWithoutHistory(t *testing.T) {
	f := threeClusters(t)
	lease := schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}
	f.serve(lease, "leases", true, "oak")
	put := func(name, holder string) {
		t.Helper()
		f.put(t, "oak", "leases", newObject(lease, "shop", name, "spec.holderIdentity="+holder))
	}
	const path = "/apis/coordination.k8s.io/v1/leases"
	put("other", "y")
	w := f.watch(t, path+"?watch=true&filter="+url.QueryEscape("object.spec.holderIdentity == 'x'")+"&resourceVersion="+f.version(t, path))
	for range 3 {
		put("other", "y")
	}
	put("other", "x")
	put("other", "x")
	for range 3 {
		put("other", "y")
	}
	if err := f.store.Write(t.Context(), []store.Change{{Delete: true, Row: store.Row{
		Cluster: "oak", Group: lease.Group, Resource: "leases", Namespace: "shop", Name: "other",
	}}}); err != nil {
		t.Fatal(err)
	}
	put("new", "x")
	w.expect("DELETED oak/shop/other", "ADDED oak/shop/other", "MODIFIED oak/shop/other", "DELETED oak/shop/other", "ADDED oak/shop/new")
}

// TestVersionsOfRequests: an unknown version is refused, as clients expect of an API server.
func TestVersionsOfRequests(t *testing.T) {
	f := threeClusters(t)
	now, err := store.ParseVersion(f.version(t, "/api/v1/pods"))
	if err != nil {
		t.Fatal(err)
	}
	other := (now + 10_000_000_000_000).String()
	_, page := f.ask(t, http.MethodGet, "/api/v1/pods?limit=1", "")
	token := (&unstructured.UnstructuredList{Object: page}).GetContinue()
	for path, want := range map[string]struct {
		code   int
		reason string
	}{
		"?resourceVersion=" + now.String():                                       {200, ""},
		"?resourceVersion=" + (now - 1).String():                                 {200, ""},
		"?resourceVersionMatch=Exact&resourceVersion=" + now.String():            {200, ""},
		"?resourceVersionMatch=Exact&resourceVersion=" + (now - 1).String():      {410, "Expired"},
		"?resourceVersion=" + (now + 1000).String():                              {504, "Timeout"},
		"?resourceVersion=12":                                                    {410, "Expired"},
		"?resourceVersion=" + other:                                              {410, "Expired"},
		"?resourceVersion=-1":                                                    {400, "BadRequest"},
		"?resourceVersionMatch=Exact":                                            {422, "Invalid"},
		"?resourceVersionMatch=Exact&resourceVersion=0":                          {422, "Invalid"},
		"?resourceVersionMatch=Newest&resourceVersion=0":                         {422, "Invalid"},
		"?limit=1&continue=" + token + "&resourceVersion=" + now.String():        {400, "BadRequest"},
		"?limit=1&continue=" + strings.Replace(token, now.String(), other, 1):    {410, "Expired"},
		"?limit=1&continue=" + token[strings.IndexByte(token, '.')+1:]:           {400, "BadRequest"},
		"?sendInitialEvents=true":                                                {422, "Invalid"},
		"?watch=true&resourceVersion=12":                                         {410, "Expired"},
		"?watch=true&resourceVersion=" + other:                                   {410, "Expired"},
		"?watch=true&resourceVersion=" + now.At(0).String():                      {410, "Expired"},
		"?watch=true&resourceVersion=" + (now + 1000).String():                   {504, "Timeout"},
		"?watch=true&sendInitialEvents=true":                                     {422, "Invalid"},
		"?watch=true&resourceVersionMatch=Exact&resourceVersion=" + now.String(): {422, "Invalid"},
		"?watch=true&limit=5":                                                    {400, "BadRequest"},
		"/db?watch=true":                                                         {404, "NotFound"},
	} {
		resp, body := f.ask(t, http.MethodGet, "/api/v1/pods"+path, "")
		if reason, _ := body["reason"].(string); resp.StatusCode != want.code || reason != want.reason {
			t.Errorf("%s: %d %v, want %d %s", path, resp.StatusCode, body, want.code, want.reason)
		}
	}
	_, body := f.ask(t, http.MethodGet, "/api/v1/pods?resourceVersion="+(now+1000).String(), "")
	if details := fmt.Sprint(body["details"]); !strings.Contains(details, string(metav1.CauseTypeResourceVersionTooLarge)) {
		t.Errorf("clients know by the cause that they shall ask again: %s", details)
	}
}

// TestDiscoveryIsNews: a client that already has the current discovery document gets 304, until
// the document changes.
func TestDiscoveryIsNews(t *testing.T) {
	f := threeClusters(t)
	ask := func(tag string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/apis", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", aggregated)
		req.Header.Set("If-None-Match", tag)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	first := ask("none")
	if first.StatusCode != http.StatusOK || first.Header.Get("ETag") == "" {
		t.Fatalf("%d %v", first.StatusCode, first.Header)
	}
	if again := ask(first.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
		t.Errorf("the same again: %d", again.StatusCode)
	}
	f.serve(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, "deployments", true, "oak")
	if news := ask(first.Header.Get("ETag")); news.StatusCode != http.StatusOK {
		t.Errorf("with another type: %d", news.StatusCode)
	}
}

// TestQualified: for programs, objects with the same name in two clusters have different names.
func TestQualified(t *testing.T) {
	f := threeClusters(t)
	f.url = strings.Replace(f.url, fleetv1alpha1.FleetPath, fleetv1alpha1.QualifiedPath, 1)
	web := []string{"oak/shop@oak/web"}
	for path, want := range map[string][]string{
		"pods":                     {"elm/blog@elm/press", "elm/shop@elm/web", "oak/shop@oak/db", "oak/shop@oak/web"},
		"namespaces/shop@oak/pods": {"oak/shop@oak/db", "oak/shop@oak/web"},
		"namespaces/shop@oak/pods?labelSelector=app=web":                       web,
		"pods?fieldSelector=metadata.namespace%3Dshop@oak,metadata.name%3Dweb": web,
		"namespaces": {"oak//shop@oak"},
		"namespaces?fieldSelector=metadata.name%3Dshop@oak": {"oak//shop@oak"},
	} {
		if _, body := f.ask(t, http.MethodGet, "/api/v1/"+path, ""); !slices.Equal(found(body), want) {
			t.Errorf("%s: %v, want %v", path, body, want)
		}
	}
	for path, want := range map[string]string{"/api/v1/namespaces/shop@oak/pods/web": "web", "/api/v1/namespaces/shop@oak": "shop@oak"} {
		_, body := f.ask(t, http.MethodGet, path, "")
		if o := (unstructured.Unstructured{Object: body}); o.GetName() != want {
			t.Errorf("%s: %v", path, body)
		}
	}
	for path, code := range map[string]int{
		"/api/v1/namespaces/shop/pods": 404, "/api/v1/namespaces/shop": 404, "/api/v1/namespaces/shop@none/pods": 404, "/api/v1/namespaces/@oak/pods": 404,
		"/clusters/elm/api/v1/namespaces/shop@oak/pods": 404, "/api/v1/pods?fieldSelector=metadata.namespace%3Dshop": 400,
		"/api/v1/pods?fieldSelector=metadata.namespace!%3Dshop@oak": 400,
	} {
		if resp, body := f.ask(t, http.MethodGet, path, ""); resp.StatusCode != code {
			t.Errorf("%s: %d %v", path, resp.StatusCode, body)
		}
	}
	w := f.watch(t, "/api/v1/pods?watch=true&resourceVersion="+f.version(t, "/api/v1/pods"))
	f.put(t, "oak", "pods", newObject(podKind, "shop", "new"))
	w.expect("ADDED oak/shop@oak/new")
}

// TestInformer: client-go's informer has in the end all existing objects, after many changes, a
// cluster that leaves and broken connections.
func TestInformer(t *testing.T) {
	f := threeClusters(t)
	random := rand.New(rand.NewPCG(5, 6))
	config := &rest.Config{Host: strings.Replace(f.url, fleetv1alpha1.FleetPath, fleetv1alpha1.QualifiedPath, 1)}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	informer := dynamicinformer.NewDynamicSharedInformerFactory(client, 0).ForResource(pods).Informer()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	defer stop()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("not synced")
	}
	for step := range 400 {
		cluster, name := []string{"ash", "elm", "oak"}[random.IntN(3)], fmt.Sprint("web-", random.IntN(20))
		switch random.IntN(40) {
		case 0:
			if err := f.store.DropCluster(t.Context(), cluster); err != nil {
				t.Fatal(err)
			}
		case 1, 2, 3, 4, 5, 6, 7, 8:
			f.remove(t, cluster, "pods", "shop", name)
		default:
			f.put(t, cluster, "pods", newObject(podKind, "shop", name, fmt.Sprint("status.phase=", step)))
		}
		if step == 200 {
			f.server.CloseClientConnections()
		}
	}
	testenv.Eventually(t, "the informer has what there is", testenv.Patience, func() error {
		have, there := map[string]string{}, map[string]string{}
		for _, o := range informer.GetStore().List() {
			u := o.(*unstructured.Unstructured)
			have[u.GetNamespace()+"/"+u.GetName()] = u.GetResourceVersion()
		}
		list, err := client.Resource(pods).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, u := range list.Items {
			there[u.GetNamespace()+"/"+u.GetName()] = u.GetResourceVersion()
		}
		if !maps.Equal(have, there) {
			return fmt.Errorf("the informer differs (-there, +has):\n%s", cmp.Diff(there, have))
		}
		return nil
	})
}
