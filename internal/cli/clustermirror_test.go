package cli

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
)

// TestDescribeMirror: the hub's report on the mirror of a cluster is shown by type, with the
// types that are not mirrored and the settings that are not honoured.
func TestDescribeMirror(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/fleet.orrery.dev/v1alpha1/clusters/oak/mirror" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"ClusterMirror","apiVersion":"fleet.orrery.dev/v1alpha1","cluster":"oak","reachable":true,"lagSeconds":90,
"types":[{"group":"","version":"v1","resource":"events","life":"1h0m0s","reason":"the default","state":"Current","lagSeconds":0},
{"group":"apps","version":"v1","resource":"deployments","objects":"namespaces shop","reason":"selected by MirrorPolicy a","state":"Stale","message":"the cluster is unreachable","lagSeconds":90}],
"refused":[{"group":"","resource":"secrets","reason":"excluded by MirrorPolicy b"}],
"problems":["MirrorPolicy a selects gears.example.org, which the cluster does not serve"]}`))
	}))
	defer server.Close()
	m, err := clusterMirror(context.Background(), &rest.Config{Host: server.URL}, "oak")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := describeMirror(&out, m); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"", "Mirror: 2 types, the oldest was last seen 90s ago", "", "MIRRORED VERSION STATE LAG OBJECTS WHY",
		"events v1 Current 0s all for 1h0m0s the default",
		"deployments.apps v1 Stale (the cluster is unreachable) 90s namespaces shop selected by MirrorPolicy a",
		"", "NOT MIRRORED WHY", "secrets excluded by MirrorPolicy b",
		"", "SETTINGS WITHOUT EFFECT", "MirrorPolicy a selects gears.example.org, which the cluster does not serve",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := clusterMirror(context.Background(), &rest.Config{Host: server.URL}, "elm"); err == nil {
		t.Error("a cluster that there is not is described")
	}
}
