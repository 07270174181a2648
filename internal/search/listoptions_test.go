package search

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestListsAtAnExactVersion: a list at a version is answered while nothing that it selects has changed since, whatever else has.
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
	f.put(t, "oak", "namespaces", newObject(namespaceKind, "", "blog")) // of another type
	list("", http.StatusOK)
	list("&limit=1", http.StatusOK)
	f.put(t, "oak", "pods", newObject(podKind, "shop", "db", "label:app=db", "status.phase=Running"))
	list("", http.StatusGone)
	list("&labelSelector=app%3Ddb", http.StatusGone)
	list("&labelSelector=app%3Dweb", http.StatusOK)
	list("&fieldSelector=status.phase%3DPending", http.StatusGone) // it was, and is not
	list("&fieldSelector=status.phase%3DRunning", http.StatusGone) // it is, and was not
	list("&clusters=elm", http.StatusOK)
	f.remove(t, "elm", "pods", "blog", "press")
	list("&clusters=elm", http.StatusGone)
	list("&labelSelector=app%3Dweb", http.StatusOK)
}

// TestWatchWithoutInitialEvents: a watch that wants none begins with what changes.
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

// TestOneObjectIsNoList: of one object API servers do not look at the options of lists and watches.
func TestOneObjectIsNoList(t *testing.T) {
	f := threeClusters(t)
	for _, query := range []string{"watch=true", "sendInitialEvents=true", "resourceVersionMatch=Exact"} {
		resp, body := f.ask(t, http.MethodGet, "/api/v1/namespaces/shop/pods/db?"+query, "")
		if name := (&unstructured.Unstructured{Object: body}).GetName(); resp.StatusCode != http.StatusOK || name != "db" {
			t.Errorf("%s: %d %v", query, resp.StatusCode, body)
		}
	}
}

// TestTokensOfOtherLists: a client that asks for something else with a token is told so, and one whose clusters changed lists again.
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
