package search

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestListsAtAnExactVersion: a list at a version succeeds until an object that it selects
// changes. Other changes do not matter.
func TestListsAtAnExactVersion(t *testing.T) {
	f := threeClusters(t)
	then := f.version(t, "/api/v1/pods")
	list := func(query string, code int) {
		t.Helper()
		resp, body := f.ask(t, http.MethodGet, "/api/v1/pods?resourceVersionMatch=Exact&resourceVersion="+then+query, "")
		if version := (&unstructured.UnstructuredList{Object: body}).GetResourceVersion(); resp.StatusCode != code || code == http.StatusOK && version != then {
			t.Errorf("%q: %d, version %s, want %d of %s: %v", query, resp.StatusCode, version, code, then, body["message"])
		}
	}
	list("", http.StatusOK)
	f.put(t, "oak", "namespaces", newObject(namespaceKind, "", "blog")) // another type
	list("", http.StatusOK)
	list("&limit=1", http.StatusOK)
	f.put(t, "oak", "pods", newObject(podKind, "shop", "db", "label:app=db", "status.phase=Running"))
	list("", http.StatusGone)
	list("&labelSelector=app%3Ddb", http.StatusGone)
	list("&labelSelector=app%3Dweb", http.StatusOK)
	list("&fieldSelector=status.phase%3DPending", http.StatusGone) // no longer selected
	list("&fieldSelector=status.phase%3DRunning", http.StatusGone) // newly selected
	list("&clusters=elm", http.StatusOK)
	f.remove(t, "elm", "pods", "blog", "press")
	list("&clusters=elm", http.StatusGone)
	list("&labelSelector=app%3Dweb", http.StatusOK)
}

// TestWatchWithoutInitialEvents: a watch without initial events begins with the next change.
func TestWatchWithoutInitialEvents(t *testing.T) {
	f := threeClusters(t)
	for _, version := range []string{"", "&resourceVersion=0", "&resourceVersion=" + f.version(t, "/api/v1/pods")} {
		w := f.watch(t, "/api/v1/pods?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"+version)
		f.put(t, "oak", "pods", newObject(podKind, "shop", "new", "status.phase=Pending"))
		w.expect("ADDED oak/shop/new")
		f.remove(t, "oak", "pods", "shop", "new")
		w.expect("DELETED oak/shop/new")
	}
}

// TestOneObjectIsNoList: as in API servers, a request for one object ignores the options of
// lists and watches.
func TestOneObjectIsNoList(t *testing.T) {
	f := threeClusters(t)
	for _, query := range []string{"watch=true", "sendInitialEvents=true", "resourceVersionMatch=Exact"} {
		resp, body := f.ask(t, http.MethodGet, "/api/v1/namespaces/shop/pods/db?"+query, "")
		if name := (&unstructured.Unstructured{Object: body}).GetName(); resp.StatusCode != http.StatusOK || name != "db" {
			t.Errorf("%s: %d %v", query, resp.StatusCode, body)
		}
	}
}

// TestTokensOfOtherLists: a token is refused with the parameters of another list. If the
// clusters changed, the token has expired, so that the client lists again.
func TestTokensOfOtherLists(t *testing.T) {
	f := threeClusters(t)
	_, page := f.ask(t, http.MethodGet, "/api/v1/pods?limit=1&labelSelector=app%3Dweb", "")
	token := url.QueryEscape((&unstructured.UnstructuredList{Object: page}).GetContinue())
	got := map[string]int{}
	for _, query := range []string{"labelSelector=app%3Dweb", "labelSelector=app%3Ddb", "", "labelSelector=app%3Dweb&orderby=name", "labelSelector=app%3Dweb&fieldSelector=spec.nodeName%3D", "labelSelector=app%3Dweb&clusters=oak"} {
		resp, _ := f.ask(t, http.MethodGet, "/api/v1/pods?limit=1&continue="+token+"&"+query, "")
		got[query] = resp.StatusCode
	}
	if diff := cmp.Diff(map[string]int{
		"labelSelector=app%3Dweb": 200, "labelSelector=app%3Ddb": 400, "": 400, "labelSelector=app%3Dweb&orderby=name": 400, "labelSelector=app%3Dweb&fieldSelector=spec.nodeName%3D": 400,
		"labelSelector=app%3Dweb&clusters=oak": 410,
	}, got); diff != "" {
		t.Error(diff)
	}
}
