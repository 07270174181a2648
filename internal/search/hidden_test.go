package search

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// versions and instants match the parts that differ between the answers of two stores, and
// between two answers of one store.
var (
	versions = regexp.MustCompile(`"(resourceVersion|continue|milliseconds)":("[^"]*"|\d+)`)
	instants = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`)
)

// tenantsFleet returns a fleet with two clusters that the namespace shop may use. If hidden is
// true, it has a third cluster, pine, that is closed to shop: with objects of the same names,
// others, and one of a type that only pine has. pine is stale since the zero time.
func tenantsFleet(t *testing.T, hidden bool) *fleet {
	t.Helper()
	clusters := []string{"elm", "oak"}
	if hidden {
		clusters = append(clusters, "pine")
	}
	f := newFleet(t, clusters...)
	for _, kind := range []struct {
		name       string
		namespaced bool
	}{{"pods", true}, {"namespaces", false}, {"services", true}, {"events", true}} {
		gvk := podKind
		gvk.Kind = map[string]string{"pods": "Pod", "namespaces": "Namespace", "services": "Service", "events": "Event"}[kind.name]
		f.serve(gvk, kind.name, kind.namespaced, clusters...)
	}
	for _, cluster := range clusters {
		f.put(t, cluster, "namespaces", newObject(namespaceKind, "", "shop"))
		f.put(t, cluster, "pods",
			newObject(podKind, "shop", "web", "label:app=web", "status.phase=Running", "spec.nodeName="+cluster+"-1"),
			newObject(podKind, "shop", "only-"+cluster, "label:on="+cluster, "status.phase=Pending"))
		f.put(t, cluster, "services", newObject(serviceKind, "shop", "web"))
		f.put(t, cluster, "events", newObject(eventKind, "shop", "web."+cluster, "reason=Pulled", "message=image of "+cluster))
	}
	if hidden {
		f.serve(gadgetV1, "gadgets", true, "pine")
		f.put(t, "pine", "gadgets", newObject(gadgetV1, "shop", "one"))
		f.mirror.stale["pine"] = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		f.mirror.parts["pine/pods"] = true
	}
	f.denied = func(what authorizationv1.ResourceAttributes) bool { return what.Namespace != "shop" }
	f.some = []string{"shop"}
	f.fenced = func(namespace, cluster string) bool {
		return namespace == "shop" && cluster != "elm" && cluster != "oak"
	}
	return f
}

// said returns the answer to a request: status, headers and body, without versions and times.
func (f *fleet) said(t *testing.T, method, path, accept string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, f.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var headers []string
	for name, values := range resp.Header {
		if !slices.Contains([]string{"Date", "Content-Length", "Etag", "Audit-Id"}, name) {
			headers = append(headers, name+": "+strings.Join(values, " | "))
		}
	}
	slices.Sort(headers)
	return resp.Status + "\n" + strings.Join(headers, "\n") + "\n" + instants.ReplaceAllString(versions.ReplaceAllString(string(body), `"$1":`), "then")
}

// TestHiddenIsAbsent: answers to a tenant do not depend on whether a cluster that is closed to
// its namespace is in the fleet, nor on whether a name in the request is that of such a cluster
// or of none.
func TestHiddenIsAbsent(t *testing.T) {
	with, without := tenantsFleet(t, true), tenantsFleet(t, false)
	queries := []string{
		"", "?clusters=NAME", "?clusters=oak,NAME", "?limit=1", "?limit=1&withRemainingCount=true", "?orderby=cluster%20desc", "?offset=1&limit=2",
		"?labelSelector=on%3DNAME", "?labelSelector=on", "?names=only-NAME", "?fieldSelector=spec.nodeName%3DNAME-1", "?fieldSelector=metadata.name%3Donly-NAME",
		"?q=cluster:NAME", "?q=-cluster:NAME", "?q=cluster:NAME*", "?q=only-NAME", "?q=node:NAME-1", "?q=text:NAME", "?q=is:stale", "?q=is:unhealthy", "?q=kind:Pod",
		"?filter=" + url.QueryEscape(`cluster == "NAME"`), "?filter=" + url.QueryEscape(`object.metadata.name.endsWith("NAME")`), "?filter=" + url.QueryEscape(`cluster > "elm"`),
		"?group=cluster", "?group=namespace", "?group=phase", "?group=label:on", "?group=cluster&clusters=NAME", "?group=kind",
		"?history=true", "?history=true&clusters=NAME", "?history=true&names=only-NAME", "?deleted=true", "?deleted=true&clusters=NAME",
		"?watch=true&clusters=NAME", "?watch=true&q=cluster:NAME", "?ownerUID=NAME", "?clusters=NAME&ownerName=NAME", "?resourceVersion=0&clusters=NAME",
	}
	paths := []string{
		"/search?q=cluster:NAME", "/search?q=kind:Pod%20cluster:NAME", "/search?q=only-NAME", "/search?q=kind:Pod&clusters=NAME", "/search?q=kind:Pod&explain=true",
		"/search?q=-phase:zz&group=cluster", "/search?q=kind:Pod&group=cluster,kind", "/search?q=kind:Pod&limit=1", "/clusters/NAME/search?q=kind:Pod", "/search?q=text:NAME",
		"/graph?of=pods/shop/web", "/graph?of=pods/shop/only-NAME", "/graph?of=pods/shop/web&clusters=NAME", "/graph?of=services/shop/web&relations=all", "/graph?of=namespaces/shop",
		"/graph?of=nodes/NAME-1", "/graph?of=image:NAME",
		"/apis/clusterpedia.io/v1beta1/collectionresources/any?resources=pods,services", "/apis/clusterpedia.io/v1beta1/collectionresources/any?resources=pods&clusters=NAME",
		"/apis/clusterpedia.io/v1beta1/collectionresources/any?resources=example.org/gadgets", "/apis/clusterpedia.io/v1beta1/collectionresources/workloads",
		"/apis/example.org/v1/gadgets", "/apis/example.org/v1/namespaces/shop/gadgets", "/apis/example.org/v1/namespaces/shop/gadgets/one", "/apis/example.org/v2/namespaces/shop/gadgets",
		"/apis/example.org/v1/namespaces/shop/gadgets?watch=true&timeoutSeconds=1", "/apis/example.org/v1/namespaces/shop/gadgets?clusters=NAME",
		"/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods", "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods?clusters=NAME",
		"/clusters/NAME/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods",
		"/clusters/NAME", "/clusters/NAME/api", "/clusters/NAME/api/v1", "/clusters/NAME/apis", "/clusters/NAME/apis/apps/v1", "/clusters/NAME/version", "/clusters/NAME/nothing",
		"/clusters/NAME/api/v1/namespaces/shop/pods/web/log", "/api/v1/namespaces/shop/pods/only-NAME?history=true", "/api/v1/namespaces/shop/pods/only-NAME?includeObject=Object&history=true",
	}
	for _, root := range []string{
		"/api/v1/pods", "/api/v1/namespaces/shop/pods", "/api/v1/namespaces/shop/pods/web", "/api/v1/namespaces/shop/pods/only-NAME", "/api/v1/namespaces/shop", "/api/v1/namespaces/shop/events",
		"/api/v1/namespaces/shop/services", "/clusters/NAME/api/v1/namespaces/shop/pods", "/clusters/NAME/api/v1/pods", "/clusters/NAME/api/v1/namespaces/shop/pods/web",
		"/clusters/NAME/api/v1/namespaces/shop", "/clusters/oak/api/v1/namespaces/shop/pods",
	} {
		for _, query := range queries {
			paths = append(paths, root+query)
		}
	}
	accepts := []string{"application/json", "application/json;as=Table;v=v1;g=meta.k8s.io"}
	asked := 0
	for _, path := range paths {
		for _, accept := range accepts {
			ask := func(f *fleet, name string) string {
				return strings.ReplaceAll(f.said(t, http.MethodGet, strings.ReplaceAll(path, "NAME", name), accept), name, "NAME")
			}
			hidden := ask(with, "pine")
			for what, other := range map[string]string{"without the cluster": ask(without, "pine"), "of no cluster": ask(with, "yews")} {
				if diff := cmp.Diff(other, hidden); diff != "" {
					t.Errorf("%s (%s): -%s +hidden:\n%s", path, accept, what, diff)
				}
			}
			asked++
		}
	}
	for _, path := range []string{"/clusters/NAME/api/v1/namespaces/shop/pods/web", "/api/v1/namespaces/shop/pods?clusters=NAME"} {
		for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodPut} {
			hidden, absent := with.said(t, method, strings.ReplaceAll(path, "NAME", "pine"), ""), with.said(t, method, strings.ReplaceAll(path, "NAME", "yews"), "")
			if diff := cmp.Diff(strings.ReplaceAll(absent, "yews", "pine"), hidden); diff != "" {
				t.Errorf("%s %s: -absent +hidden:\n%s", method, path, diff)
			}
		}
	}
	if asked < 800 {
		t.Errorf("%d requests", asked)
	}
}
