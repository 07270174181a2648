package member

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestReaddress: a client that was created before a change of spec.apiEndpoint sends requests
// to the new address.
func TestReaddress(t *testing.T) {
	cases := map[string]struct{ from, to, request, want string }{
		"Host":        {"https://a:6443", "https://b:443", "https://a:6443/api/v1/pods?limit=5", "https://b:443/api/v1/pods?limit=5"},
		"PathAdded":   {"https://a", "https://b/k8s/c1", "https://a/apis", "https://b/k8s/c1/apis"},
		"PathRemoved": {"https://a/k8s/c1/", "https://b/", "https://a/k8s/c1/apis", "https://b/apis"},
		"PathChanged": {"https://a/k8s/c1", "https://a/k8s/c2", "https://a/k8s/c1/version", "https://a/k8s/c2/version"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			from, err := url.Parse(tc.from)
			if err != nil {
				t.Fatal(err)
			}
			to, err := url.Parse(tc.to)
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, tc.request, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			if got := readdress(req, from, to); got.URL.String() != tc.want || got.Host != "" {
				t.Errorf("request to %s with host %q, want %s", got.URL, got.Host, tc.want)
			}
			if req.URL.String() != tc.request {
				t.Errorf("the caller's request was changed to %s", req.URL)
			}
		})
	}
}
