package search

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// plain sends a request and returns the status code, the headers and the body.
func (f *fleet) plain(t *testing.T, method, url string) (code int, header http.Header, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(read)
}

// TestHealthEndpoints: the health endpoints, which user interfaces request for each cluster,
// exist below every root of the fleet.
func TestHealthEndpoints(t *testing.T) {
	f := threeClusters(t)
	f.mirror.stale["elm"] = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	qualified := strings.Replace(f.url, fleetv1alpha1.FleetPath, fleetv1alpha1.QualifiedPath, 1)
	for _, root := range []string{f.url, qualified, f.url + "/clusters/oak", qualified + "/clusters/oak"} {
		for _, document := range []string{"healthz", "livez", "readyz"} {
			code, header, body := f.plain(t, http.MethodGet, root+"/"+document)
			if code != http.StatusOK || body != "ok" || !strings.HasPrefix(header.Get("Content-Type"), "text/plain") || header.Get("Warning") != "" {
				t.Errorf("%s/%s: %d %v %q", root, document, code, header, body)
			}
			if _, _, body := f.plain(t, http.MethodGet, root+"/"+document+"?verbose"); body != "[+]fleet ok\n"+document+" check passed\n" {
				t.Errorf("%s/%s?verbose: %q", root, document, body)
			}
			if code, _, body := f.plain(t, http.MethodPost, root+"/"+document); code != http.StatusMethodNotAllowed {
				t.Errorf("POST %s/%s: %d %s", root, document, code, body)
			}
		}
	}
	if code, header, body := f.plain(t, http.MethodGet, f.url+"/clusters/elm/readyz"); code != http.StatusOK || body != "ok" ||
		header.Get("Warning") != `299 - "cluster elm is unreachable since 2026-01-02T03:04:05Z: its objects are the last known"` {
		t.Errorf("a cluster that is unreachable: %d %v %q", code, header, body)
	}
	if code, _, body := f.plain(t, http.MethodGet, f.url+"/clusters/none/healthz"); code != http.StatusNotFound {
		t.Errorf("a cluster that there is not: %d %s", code, body)
	}
	// A caller that may not get clusters learns nothing about them. Each request asks the hub
	// once.
	var asked []string
	f.denied = func(what authorizationv1.ResourceAttributes) bool {
		asked = append(asked, what.Verb+" "+what.Resource+" "+what.Name)
		return true
	}
	for _, cluster := range []string{"oak", "elm", "none"} {
		for _, document := range []string{"healthz", "livez", "readyz"} {
			asked = nil
			code, header, body := f.plain(t, http.MethodGet, f.url+"/clusters/"+cluster+"/"+document)
			if code != http.StatusOK || body != "ok" || header.Get("Warning") != "" {
				t.Errorf("%s of %s, of somebody who may see nothing: %d %v %s", document, cluster, code, header, body)
			}
			if diff := cmp.Diff([]string{"get clusters " + cluster}, asked); diff != "" {
				t.Errorf("%s of %s: the hub was asked (-want, +got): %s", document, cluster, diff)
			}
		}
	}
	f.denied, f.starting = nil, true
	if code, _, body := f.plain(t, http.MethodGet, f.url+"/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("while the hub begins: %d %s", code, body)
	}
}

// TestAmbiguousNameNamesCommandsThatWork: the commands in the error can be run as they are.
func TestAmbiguousNameNamesCommandsThatWork(t *testing.T) {
	f := threeClusters(t)
	role := schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}
	f.serve(role, "clusterroles", false, "elm", "oak")
	for _, cluster := range []string{"elm", "oak"} {
		f.put(t, cluster, "clusterroles", newObject(role, "", `it's, a "role"`))
	}
	for path, want := range map[string]string{
		"/api/v1/namespaces/shop/pods/web": `pods "web" is in 2 clusters (elm, oak): ask one of them (kubectl --context elm get pods web -n shop), ` +
			`or list them all (kubectl get pods -n shop --field-selector metadata.name=web)`,
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/it's%2C%20a%20%22role%22": `clusterroles.rbac.authorization.k8s.io "it's, a \"role\"" is in 2 clusters (elm, oak): ` +
			`ask one of them (kubectl --context elm get clusterroles.rbac.authorization.k8s.io 'it'\''s, a "role"'), ` +
			`or list them all (kubectl get clusterroles.rbac.authorization.k8s.io --field-selector 'metadata.name=it'\''s\, a "role"')`,
	} {
		resp, body := f.ask(t, http.MethodGet, path, "")
		said, _, err := unstructured.NestedString(body, "message")
		if diff := cmp.Diff(want, said); err != nil || resp.StatusCode != http.StatusConflict || diff != "" {
			t.Errorf("%s: %d %v (-want, +got):\n%s", path, resp.StatusCode, err, diff)
		}
	}
}
