package search

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// kindly returns the objects of a list, as kind:cluster/namespace/name.
func kindly(body map[string]any) []string {
	items, _ := body["items"].([]any)
	names := found(body)
	for i, item := range items {
		names[i] = item.(map[string]any)["kind"].(string) + ":" + names[i]
	}
	return names
}

// TestCollections: a collection has the objects of its types, one type after the other, in the
// order of the list of each type.
func TestCollections(t *testing.T) {
	f := owned(t, newFleet(t, "elm", "oak"))
	f.serve(gadgetV1, "gadgets", true, "oak")
	f.serve(gadgetV2, "gadgets", true, "elm")
	f.put(t, "oak", "gadgets", newObject(gadgetV1, "shop", "old"))
	f.put(t, "elm", "gadgets", newObject(gadgetV2, "shop", "new"))
	pods := []string{"Pod:elm/shop/lone", "Pod:elm/shop/web-5f6d-a", "Pod:elm/shop/web-77ab-b", "Pod:oak/shop/lone", "Pod:oak/shop/web-5f6d-a", "Pod:oak/shop/web-77ab-b"}
	deployments := []string{"Deployment:elm/shop/web", "Deployment:oak/shop/web"}
	sets := []string{"ReplicaSet:elm/shop/web-5f6d", "ReplicaSet:elm/shop/web-77ab", "ReplicaSet:oak/shop/web-5f6d", "ReplicaSet:oak/shop/web-77ab"}
	gadgets := []string{"Gadget:elm/shop/new", "Gadget:oak/shop/old"}
	for name, c := range map[string]struct {
		path string
		want []string
	}{
		"Workloads":      {"workloads", deployments},
		"Kubernetes":     {"kuberesources", slices.Concat(pods, deployments, sets)},
		"AnyGroup":       {"any?groups=example.org", gadgets},
		"AnyVersion":     {"any?groups=example.org/v1", gadgets[1:]},
		"AnyResource":    {"any?resources=example.org/gadgets,deployments.apps", slices.Concat(deployments, gadgets)},
		"AnyFull":        {"any?resources=apps/v1/replicasets,core/v1/pods", slices.Concat(pods, sets)},
		"AnyCore":        {"any?resources=v1/pods&clusters=oak", pods[3:]},
		"Selected":       {"kuberesources?fuzzyName=77ab&clusters=oak", []string{"Pod:oak/shop/web-77ab-b", "ReplicaSet:oak/shop/web-77ab"}},
		"ByLabel":        {"kuberesources?labelSelector=internalstorage.clusterpedia.io/fuzzy-name%3D77ab,search.clusterpedia.io/clusters%3Doak", []string{"Pod:oak/shop/web-77ab-b", "ReplicaSet:oak/shop/web-77ab"}},
		"Owned":          {"kuberesources?ownerUID=oak-web", []string{"ReplicaSet:oak/shop/web-5f6d", "ReplicaSet:oak/shop/web-77ab"}},
		"OwnedByName":    {"kuberesources?ownerName=web&ownerGR=deployments.apps&ownerSeniority=1&clusters=oak", []string{"Pod:oak/shop/web-5f6d-a", "Pod:oak/shop/web-77ab-b"}},
		"NothingAtAll":   {"kuberesources?names=nobody", nil},
		"ClusterWithout": {"any?groups=example.org/v1&clusters=elm,oak", gadgets[1:]},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.ask(t, http.MethodGet, collectionPath+c.path, "")
			if diff := cmp.Diff(c.want, kindly(body), cmpopts.EquateEmpty()); diff != "" || resp.StatusCode != http.StatusOK || body["kind"] != "CollectionResource" {
				t.Errorf("%d %v %v (-want, +got):\n%s", resp.StatusCode, body["kind"], body["message"], diff)
			}
		})
	}
	t.Run("OneCluster", func(t *testing.T) {
		_, body := f.ask(t, http.MethodGet, "/clusters/oak"+collectionPath+"workloads", "")
		if diff := cmp.Diff(deployments[1:], kindly(body)); diff != "" {
			t.Error(diff)
		}
	})
	for limit := 1; limit < 14; limit++ {
		t.Run(fmt.Sprint("Pages", limit), func(t *testing.T) {
			var got []string
			for next := ""; ; {
				resp, body := f.ask(t, http.MethodGet, fmt.Sprintf("%skuberesources?limit=%d&continue=%s", collectionPath, limit, next), "")
				page := kindly(body)
				if got = append(got, page...); len(page) > limit || resp.StatusCode != http.StatusOK {
					t.Fatalf("%d %v", resp.StatusCode, page)
				}
				next, _, _ = unstructured.NestedString(body, "metadata", "continue")
				rest, _ := body["remainingItemCount"].(float64)
				if next != body["continue"] && next != "" || int(rest) != 12-len(got) {
					t.Errorf("%v %v after %d", body["continue"], rest, len(got))
				}
				if next == "" {
					break
				}
			}
			if diff := cmp.Diff(slices.Concat(pods, deployments, sets), got); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("OtherVersion", func(t *testing.T) {
		for path, says := range map[string]bool{
			"groups=apps/v9,core/v1": true, "resources=apps/v9/deployments,pods": true, "groups=apps/v1": false, "groups=core/v1": false, "clusters=oak&groups=apps/v9,core": true,
		} {
			resp, _ := f.ask(t, http.MethodGet, collectionPath+"any?"+path, "")
			warned := strings.Join(resp.Header.Values("Warning"), "\n")
			if strings.Contains(warned, "deployments.apps of ") != says || strings.Contains(warned, "left out: they are in version v1") != says || resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %d %s", path, resp.StatusCode, warned)
			}
		}
	})
	t.Run("Stale", func(t *testing.T) {
		f.mirror.stale["elm"] = time.Now().Add(-time.Hour)
		defer delete(f.mirror.stale, "elm")
		_, body := f.ask(t, http.MethodGet, collectionPath+"any?groups=example.org,apps", "application/json;as=Table;v=v1;g=meta.k8s.io")
		definitions, _ := body["columnDefinitions"].([]any)
		rows, _ := body["rows"].([]any)
		if len(rows) != 8 || len(definitions) != 7 {
			t.Fatal(body)
		}
		for _, row := range rows {
			if cells := row.(map[string]any)["cells"].([]any); len(cells) != 7 || (cells[0] == "oak") != (cells[6] == "now") {
				t.Error(cells)
			}
		}
	})
	for name, c := range map[string]struct {
		path string
		code int
		says string
	}{
		"Unknown":     {"others", 404, "others"},
		"AnyOfNone":   {"any", 400, "groups="},
		"AnyOfNobody": {"any?groups=nobody.example", 404, "groups and resources"},
		"Parameters":  {"workloads?groups=apps", 400, "any"},
		"Watch":       {"workloads?watch=true", 400, "one by one"},
		"Order":       {"workloads?orderby=name", 400, "order one type"},
		"Offset":      {"workloads?offset=2", 400, "continue"},
		"Token":       {"workloads?continue=abc", 400, "continue"},
		"Cluster":     {"workloads?clusters=ash", 400, "ash"},
		"Field":       {"kuberesources?fieldSelector=spec.nodeName%3Dx", 400, "spec.nodeName"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.ask(t, http.MethodGet, collectionPath+c.path, "")
			if message, _ := body["message"].(string); resp.StatusCode != c.code || !strings.Contains(message, c.says) {
				t.Errorf("%d %v", resp.StatusCode, body)
			}
		})
	}
}

// TestCollectionRights: in a collection, each type is visible as in its own list. Types that
// the caller may not list are left out, with a warning.
func TestCollectionRights(t *testing.T) {
	f := owned(t, newFleet(t, "elm", "oak"))
	path := collectionPath + "kuberesources"
	f.denied = func(what authorizationv1.ResourceAttributes) bool {
		return what.Resource == "pods" || what.Resource == "nodes"
	}
	resp, body := f.ask(t, http.MethodGet, path, "")
	if warning := strings.Join(resp.Header.Values("Warning"), "\n"); len(kindly(body)) != 6 || !strings.Contains(warning, "left out") || !strings.Contains(warning, "nodes, pods") {
		t.Error(resp.Header, kindly(body))
	}
	f.denied = func(authorizationv1.ResourceAttributes) bool { return true }
	for _, path := range []string{path, path + "?clusters=oak", path + "?clusters=ash", "/clusters/oak" + path, "/clusters/ash" + path} {
		if resp, body := f.ask(t, http.MethodGet, path, ""); resp.StatusCode != http.StatusForbidden {
			t.Error(path, resp.StatusCode, body)
		}
	}
	// A right in one namespace shows its objects in the clusters that it may use.
	f.denied = func(what authorizationv1.ResourceAttributes) bool { return what.Namespace != "shop" }
	f.some, f.closed = []string{"shop"}, map[string][]string{"shop": {"elm"}}
	if _, body := f.ask(t, http.MethodGet, path, ""); len(kindly(body)) != 6 || slices.ContainsFunc(kindly(body), func(s string) bool { return !strings.Contains(s, "oak/") }) {
		t.Error(kindly(body))
	}
	_, closed := f.ask(t, http.MethodGet, "/clusters/elm"+path, "")
	_, absent := f.ask(t, http.MethodGet, "/clusters/ash"+path, "")
	if diff := cmp.Diff(strings.ReplaceAll(fmt.Sprint(closed), "elm", "ash"), fmt.Sprint(absent)); diff != "" {
		t.Errorf("a closed cluster is not as one that there is not: %s", diff)
	}
}

// TestKubectlGrammar: kubectl can use the grammar in labels, and beside its own pagination.
func TestKubectlGrammar(t *testing.T) {
	f := owned(t, newFleet(t, "elm", "oak"))
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"Limit":   {[]string{"-l", "search.clusterpedia.io/limit=2"}, []string{"elm lone", "elm web-5f6d-a"}},
		"Offset":  {[]string{"-l", "search.clusterpedia.io/offset=3", "--chunk-size=2"}, []string{"oak lone", "oak web-5f6d-a", "oak web-77ab-b"}},
		"OrderBy": {[]string{"-l", "search.clusterpedia.io/orderby in (name_desc, cluster),search.clusterpedia.io/size=2"}, []string{"elm web-77ab-b", "oak web-77ab-b"}},
		"Fields":  {[]string{"--field-selector", "spec.containers[].image in (nginx:1,nginx:3),!spec.nodeName"}, []string{"elm web-5f6d-a", "oak web-5f6d-a"}},
		"Fuzzy":   {[]string{"-l", "internalstorage.clusterpedia.io/fuzzy-name=77ab", "--chunk-size=1"}, []string{"elm web-77ab-b", "oak web-77ab-b"}},
		"Owner":   {[]string{"-l", "search.clusterpedia.io/owner-name=web,search.clusterpedia.io/owner-gr=deployments.apps,search.clusterpedia.io/owner-seniority=1,search.clusterpedia.io/clusters=oak"}, []string{"oak web-5f6d-a", "oak web-77ab-b"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, err := f.kubectl(t, append([]string{"get", "pods", "-n", "shop", "--no-headers"}, c.args...)...)
			var got []string
			for line := range strings.Lines(out) {
				if cells := strings.Fields(line); len(cells) > 1 {
					got = append(got, cells[0]+" "+cells[1])
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("%v %s\n%s", err, errs, diff)
			}
		})
	}
}

// TestKubectlCollections: kubectl prints collections.
func TestKubectlCollections(t *testing.T) {
	f := owned(t, newFleet(t, "elm", "oak"))
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"List":      {[]string{"get", "collectionresources"}, []string{"any", "kuberesources", "workloads"}},
		"Workloads": {[]string{"get", "collectionresources", "workloads"}, []string{"CLUSTER", "elm       shop        Deployment   web", "oak       shop        Deployment   web"}},
		"Wide":      {[]string{"get", "collectionresource", "kuberesources", "-o", "wide"}, []string{"API VERSION", "apps/v1", "web-77ab-b"}},
		"JSON":      {[]string{"get", "collectionresources", "workloads", "-o", "json"}, []string{`"kind": "List"`, `"kind": "Deployment"`}},
		"Raw":       {[]string{"get", "--raw", collectionPath + "any?resources=pods&fuzzyName=77ab"}, []string{"web-77ab-b"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, err := f.kubectl(t, c.args...)
			for _, want := range c.want {
				if err != nil || !strings.Contains(out, want) {
					t.Errorf("%v: %s\n%s\nhas no %q", err, out, errs, want)
				}
			}
		})
	}
}
