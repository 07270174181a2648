package search

import (
	"bufio"
	"context"
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

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/store"
)

// tenancy is what one caller may see: everything, or some namespaces, each in all clusters
// except those that are closed to it.
type tenancy struct {
	f          *fleet
	everything bool
	closed     map[string][]string
}

// restrict gives the caller of the fleet rights in these namespaces only. The tenancy changes
// the rights.
func (f *fleet) restrict(namespaces ...string) *tenancy {
	r := &tenancy{f: f, closed: map[string][]string{}}
	f.denied = func(what authorizationv1.ResourceAttributes) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return !r.everything && !slices.Contains(f.some, what.Namespace)
	}
	f.fenced = func(namespace, cluster string) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.Contains(r.closed[namespace], cluster)
	}
	f.some, f.changes = namespaces, map[string]uint64{}
	return r
}

// change changes rights and reports the change, as the hub does.
func (r *tenancy) change(do func()) {
	r.f.mu.Lock()
	do()
	r.f.mu.Unlock()
	close(r.f.grants.Swap(make(chan struct{})).(chan struct{}))
}

// may sets the namespaces that the caller may see.
func (r *tenancy) may(namespaces ...string) {
	r.change(func() { r.everything, r.f.some = false, namespaces })
}

// close closes clusters to a namespace, and opens all others.
func (r *tenancy) close(namespace string, clusters ...string) {
	r.change(func() {
		r.closed[namespace] = clusters
		r.f.changes[namespace]++
	})
}

// resume starts a watch at a version. It returns the status code and, if that is 200, the
// watch.
func (f *fleet) resume(t *testing.T, path, version string) (int, *stream) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+path+"?watch=true&allowWatchBookmarks=true&resourceVersion="+version, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp.StatusCode, &stream{t: t, lines: bufio.NewScanner(resp.Body), header: resp.Header, stop: stop}
}

// TestResumeAfterRightsChanged: a client can continue from a version while it has the rights
// with which it got the version. With other rights it must list again.
func TestResumeAfterRightsChanged(t *testing.T) {
	const pods, shop = "/api/v1/pods", "/api/v1/namespaces/shop/pods"
	for name, c := range map[string]struct {
		path   string
		change func(f *fleet, r *tenancy)
		want   int
	}{
		"Nothing":                    {pods, func(*fleet, *tenancy) {}, 200},
		"LostANamespace":             {pods, func(_ *fleet, r *tenancy) { r.may("shop") }, 410},
		"GainedANamespace":           {pods, func(_ *fleet, r *tenancy) { r.may("shop", "blog", "news") }, 410},
		"GainedEverything":           {pods, func(_ *fleet, r *tenancy) { r.change(func() { r.everything = true }) }, 410},
		"LostAndGained":              {pods, func(_ *fleet, r *tenancy) { r.may("shop"); r.may("blog", "shop") }, 200},
		"LostAll":                    {pods, func(_ *fleet, r *tenancy) { r.may() }, 403},
		"LostACluster":               {pods, func(_ *fleet, r *tenancy) { r.close("shop", "elm") }, 410},
		"OneNamespaceLostACluster":   {shop, func(_ *fleet, r *tenancy) { r.close("shop", "elm") }, 410},
		"AnotherNamespaceLostOne":    {shop, func(_ *fleet, r *tenancy) { r.close("blog", "elm") }, 200},
		"ANamespaceThatIsNotAskedOf": {shop, func(_ *fleet, r *tenancy) { r.may("shop") }, 200},
		"AClusterJoined":             {pods, func(f *fleet, _ *tenancy) { f.serve(podKind, "pods", true, "yew") }, 200},
		"HubStartedAgain":            {pods, func(f *fleet, _ *tenancy) { f.search.predecessors = newPredecessors() }, 410},
	} {
		t.Run(name, func(t *testing.T) {
			f := threeClusters(t)
			r := f.restrict("blog", "shop")
			before := f.version(t, c.path)
			c.change(f, r)
			code, w := f.resume(t, c.path, before)
			if code != c.want {
				t.Fatalf("%d, want %d", code, c.want)
			}
			if code == http.StatusOK {
				f.put(t, "oak", "pods", newObject(podKind, "shop", "new"))
				w.expect("ADDED oak/shop/new")
			}
			if code != http.StatusGone {
				return
			}
			// Nothing was written since. The next list is as old, but its version has the
			// present rights.
			if code, _ := f.resume(t, c.path, f.version(t, c.path)); code != http.StatusOK {
				t.Errorf("from a list of now: %d", code)
			}
		})
	}
}

// TestPagesOfOtherRights: a list whose pages would be read with different rights ends with 410.
// Its version would have the rights of the last page, and a watch from it would never correct
// the objects of the other pages.
func TestPagesOfOtherRights(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *tenancy)
		want   int
	}{
		"Nothing":          {func(*tenancy) {}, http.StatusOK},
		"LostANamespace":   {func(r *tenancy) { r.may("shop") }, http.StatusGone},
		"GainedANamespace": {func(r *tenancy) { r.may("shop", "blog", "news") }, http.StatusGone},
	} {
		t.Run(name, func(t *testing.T) {
			f := threeClusters(t)
			r := f.restrict("blog", "shop")
			code, body := f.ask(t, http.MethodGet, "/api/v1/pods?limit=1", "")
			next, _ := body["metadata"].(map[string]any)["continue"].(string)
			if code.StatusCode != http.StatusOK || next == "" {
				t.Fatalf("%d, continue %q", code.StatusCode, next)
			}
			c.change(r)
			if code, body := f.ask(t, http.MethodGet, "/api/v1/pods?limit=1&continue="+url.QueryEscape(next), ""); code.StatusCode != c.want {
				t.Errorf("%d %v, want %d", code.StatusCode, body["message"], c.want)
			}
		})
	}
}

// TestResumeOfWhoSeesEverything: callers that see everything get the versions of the store.
// Changes of the rights of others do not matter to them.
func TestResumeOfWhoSeesEverything(t *testing.T) {
	f := threeClusters(t)
	before := f.version(t, "/api/v1/pods")
	if now, err := f.store.Version(t.Context()); err != nil || now.String() != before {
		t.Errorf("version %s, and that of the store is %s: %v", before, now, err)
	}
	r := f.restrict("blog", "shop")
	r.everything = true
	r.close("shop", "elm")
	f.search.predecessors = newPredecessors()
	if code, _ := f.resume(t, "/api/v1/pods", before); code != http.StatusOK {
		t.Errorf("%d", code)
	}
	r.may("blog", "shop")
	if code, _ := f.resume(t, "/api/v1/pods", before); code != http.StatusGone {
		t.Errorf("who does not see everything any more: %d", code)
	}
}

// TestResumeFromAnotherRequest: a client can watch from a version that it got with another verb
// or from another path. Otherwise it would list without end.
func TestResumeFromAnotherRequest(t *testing.T) {
	f := threeClusters(t)
	f.restrict("blog", "shop")
	const pods, shop = "/api/v1/pods", "/api/v1/namespaces/shop/pods"
	// From this request on, changes belong to the present namespaces.
	f.version(t, pods)
	f.put(t, "oak", "pods", newObject(podKind, "shop", "db", "label:app=web"))
	_, one := f.ask(t, http.MethodGet, shop+"/db", "")
	object := fmt.Sprint(one["metadata"].(map[string]any)["resourceVersion"])
	for name, c := range map[string]struct{ path, version string }{
		"OfOneObject":         {shop, object},
		"OfAllNamespaces":     {shop, f.version(t, pods)},
		"OfSomeByName":        {shop, f.version(t, pods+"?namespaces=shop")},
		"OfAnotherOrder":      {pods, f.version(t, pods+"?namespaces=shop,blog")},
		"OfOneCluster":        {pods, f.version(t, "/clusters/oak"+pods)},
		"OfLabels":            {pods, f.version(t, pods+"?labelSelector=app%3Dweb")},
		"OfAPage":             {pods, f.version(t, pods+"?limit=1")},
		"OfANamespaceInWords": {shop, f.version(t, pods+"?q=namespace:shop")},
	} {
		if code, _ := f.resume(t, c.path, c.version); code != http.StatusOK {
			t.Errorf("%s: %d", name, code)
		}
	}
	// Not all that the caller may list may be watched.
	granted := map[string][]string{"list": {"blog", "shop"}, "watch": {"shop"}}
	f.granted = func(what authorizationv1.ResourceAttributes) []string { return granted[what.Verb] }
	code, w := f.resume(t, pods, f.version(t, pods))
	if code != http.StatusOK {
		t.Fatalf("of what may be listed: %d", code)
	}
	f.put(t, "oak", "pods", newObject(podKind, "shop", "new"))
	w.expect("ADDED oak/shop/new")
	if code, _ := f.resume(t, pods, w.last); code != http.StatusOK {
		t.Errorf("from an event: %d", code)
	}
}

// TestResumeDuringReview: a client that disconnects while a watch sends the changes of new
// rights has objects of both rights, and must list again.
func TestResumeDuringReview(t *testing.T) {
	f := threeClusters(t)
	r := f.restrict("blog", "shop")
	const path = "/api/v1/pods"
	code, w := f.resume(t, path, f.version(t, path))
	if code != http.StatusOK {
		t.Fatal(code)
	}
	r.may("blog")
	w.expect("DELETED elm/shop/web", "DELETED oak/shop/db")
	between := w.last
	w.expect("DELETED oak/shop/web", "BOOKMARK")
	settled := w.last
	r.may("blog", "shop") // the previous rights
	if code, _ := f.resume(t, path, between); code != http.StatusGone {
		t.Errorf("from between: %d", code)
	}
	r.may("blog")
	if code, _ := f.resume(t, path, settled); code != http.StatusOK {
		t.Errorf("from the bookmark after it: %d", code)
	}
	if code, _ := f.resume(t, path, between); code != http.StatusGone {
		t.Errorf("from between, with the rights of after: %d", code)
	}
}

// TestWatchFromAnywhereWithRights: for random changes of objects and rights, before and during
// a watch, the client has in the end the objects of a list.
func TestWatchFromAnywhereWithRights(t *testing.T) {
	f := threeClusters(t)
	r := f.restrict("blog", "shop")
	const path = "/api/v1/pods"
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	has, last := map[string]bool{}, ""
	list := func() (map[string]bool, string) {
		_, body := f.ask(t, http.MethodGet, path, "")
		there := map[string]bool{}
		for _, name := range found(body) {
			there[name] = true
		}
		return there, fmt.Sprint(body["metadata"].(map[string]any)["resourceVersion"])
	}
	change := func() {
		cluster, namespace := []string{"elm", "oak"}[random.IntN(2)], []string{"blog", "shop"}[random.IntN(2)]
		switch name := fmt.Sprint("web-", random.IntN(5)); random.IntN(8) {
		case 0:
			r.may([][]string{{"blog"}, {"shop"}, {"blog", "shop"}}[random.IntN(3)]...)
		case 1:
			r.close(namespace, [][]string{nil, {"elm"}, {"oak"}}[random.IntN(3)]...)
		case 2, 3:
			f.remove(t, cluster, "pods", namespace, name)
		default:
			f.put(t, cluster, "pods", newObject(podKind, namespace, name, fmt.Sprint("status.phase=", random.IntN(1000))))
		}
	}
	lists := 0
	for range 60 {
		if last == "" {
			has, last = list()
			lists++
		}
		for range random.IntN(4) {
			change() // while the client is disconnected
		}
		code, w := f.resume(t, path, last)
		if code == http.StatusGone {
			last = ""
			continue
		}
		if code != http.StatusOK {
			t.Fatal(code)
		}
		for range random.IntN(3) {
			change() // while it watches
		}
		// The client reads until it has the objects of a list, and then disconnects.
		there, _ := list()
		for !equal(has, there) {
			line := w.next()
			kind, name, _ := strings.Cut(line, " ")
			switch kind {
			case "ADDED", "MODIFIED":
				has[name] = true
			case "DELETED":
				delete(has, name)
			case "BOOKMARK":
			default:
				t.Fatalf("%q; the client lacks (-) or has too much (+):\n%s", line, cmp.Diff(there, has))
			}
			last = w.last
		}
	}
	if lists == 1 {
		t.Error("no version expired")
	}
}

func equal(a, b map[string]bool) bool { return cmp.Equal(a, b) }

// TestWatchWithAnotherClock: a hub whose clock is ahead has just created a namespace. Changes
// in the namespace are sent.
func TestWatchWithAnotherClock(t *testing.T) {
	f := threeClusters(t)
	f.restrict("shop")
	f.made = map[string]time.Time{"shop": time.Now().Add(time.Hour)}
	const path = "/api/v1/pods"
	code, w := f.resume(t, path, f.version(t, path))
	if code != http.StatusOK {
		t.Fatal(code)
	}
	f.put(t, "oak", "pods", newObject(podKind, "shop", "new"))
	w.expect("ADDED oak/shop/new")
	// The hub creates the namespace again. Later changes belong to the new namespace and are
	// sent; earlier changes are not.
	stale := w.last
	f.put(t, "oak", "pods", newObject(podKind, "shop", "secret"))
	f.mu.Lock()
	f.made["shop"] = time.Now().Add(2 * time.Hour)
	f.changes["shop"]++
	f.mu.Unlock()
	if code, _ := f.resume(t, path, stale); code != http.StatusGone {
		t.Errorf("from a version of the former one: %d", code)
	}
	now, err := store.ParseVersion(f.version(t, path))
	if err != nil {
		t.Fatal(err)
	}
	// A version from before, as if the caller had got it then.
	f.watch(t, path+"?watch=true&resourceVersion="+(now-1).String()).expect("ERROR 410 Expired", "")
	code, w = f.resume(t, path, f.version(t, path))
	if code != http.StatusOK {
		t.Fatal(code)
	}
	f.put(t, "oak", "pods", newObject(podKind, "shop", "newer"))
	w.expect("ADDED oak/shop/newer")
}

// TestQualifiedVersions: the versions for programs have the tag as well.
func TestQualifiedVersions(t *testing.T) {
	f := threeClusters(t)
	r := f.restrict("blog", "shop")
	f.url = strings.Replace(f.url, fleetv1alpha1.FleetPath, fleetv1alpha1.QualifiedPath, 1)
	const path = "/api/v1/pods"
	before := f.version(t, path)
	r.may("shop")
	if code, _ := f.resume(t, path, before); code != http.StatusGone {
		t.Errorf("%d", code)
	}
}
