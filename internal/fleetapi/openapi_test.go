package fleetapi

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/proxy/proxytest"
)

// TestDocumentsOfTheHubOnly: the documents are requested from the hub as an administrator. No
// path that could lead to anything but a document is sent to the hub.
func TestDocumentsOfTheHubOnly(t *testing.T) {
	var asked []string
	hub := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.RequestURI+" "+r.Header.Get("Authorization"))
	}))
	t.Cleanup(hub.Close)
	documents, err := newOpenAPI(&rest.Config{Host: hub.URL, BearerToken: "administrator"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{fleetv1alpha1.FleetPath, fleetv1alpha1.QualifiedPath, fleetv1alpha1.FleetPath + "/clusters/oak"} {
		for _, path := range []string{
			"/openapi/v3/%2e%2e/%2e%2e/api/v1/secrets", "/openapi/v3/../../api/v1/secrets", "/openapi/v3/..%2f..%2fapi/v1/secrets", "/openapi/v3/%252e%252e/api/v1/secrets",
			"/openapi/v3/..;/..;/api/v1/secrets", "/openapi/v3/..%5c..%5capi", "/openapi/v3/./api/v1", "/openapi/v3/api/v1/..",
		} {
			w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, root+path, nil)
			mount := fleetv1alpha1.FleetPath
			if strings.HasPrefix(root, fleetv1alpha1.QualifiedPath) {
				mount = fleetv1alpha1.QualifiedPath
			}
			cluster, document, ok := isOpenAPI(strings.TrimPrefix(r.URL.EscapedPath(), mount))
			if !ok {
				t.Fatalf("%s is no document", root+path)
			}
			if err := documents.serve(w, r, cluster, document); !apierrors.IsBadRequest(err) {
				t.Errorf("%s: %v", root+path, err)
			}
		}
	}
	if len(asked) > 0 {
		t.Errorf("the hub is asked for %q", asked)
	}
}

// TestDocumentsAreConfined: only the documents in the hub's answers reach a client.
func TestDocumentsAreConfined(t *testing.T) {
	hostile := proxytest.NewServer()
	hub := httptest.NewServer(hostile)
	t.Cleanup(hub.Close)
	documents, err := newOpenAPI(&rest.Config{Host: hub.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(documents.hub)
	t.Cleanup(front.Close)
	proxytest.Check(t, hostile, proxytest.Proxy{Path: "/openapi/v3", NoUpgrades: true, Dial: func() net.Conn {
		c, err := net.Dial("tcp", front.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}})
}
