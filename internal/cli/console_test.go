package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestConsoleLink: the link is the hub's, and where there is none the error says why.
func TestConsoleLink(t *testing.T) {
	for name, c := range map[string]struct {
		code       int
		answer     string
		url, error string
	}{
		"ALink":     {http.StatusCreated, `{"status": {"url": "https://x/console/#link=y", "expires": "2030-01-01T00:00:00Z"}}`, "https://x/console/#link=y", ""},
		"NoConsole": {http.StatusNotImplemented, `{"kind": "Status", "status": "Failure", "message": "start orrery server with --public-url", "reason": "NoConsole", "code": 501}`, "", "--public-url"},
		"OlderHub":  {http.StatusNotFound, `{"kind": "Status", "status": "Failure", "message": "the server could not find the requested resource", "reason": "NotFound", "code": 404}`, "", "older"},
		"NoRight":   {http.StatusForbidden, `{"kind": "Status", "status": "Failure", "message": "bob cannot create consolelinks", "reason": "Forbidden", "code": 403}`, "", "bob cannot create"},
		"Garbage":   {http.StatusCreated, `{}`, "", "its answer has none"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost || r.URL.Path != "/apis/fleet.orrery.dev/v1alpha1/consolelinks" {
					t.Errorf("%s %s", r.Method, r.URL)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.code)
				_, _ = w.Write([]byte(c.answer))
			}))
			defer server.Close()
			link, err := consoleLink(t.Context(), &rest.Config{Host: server.URL})
			if link.URL != c.url || (err == nil) != (c.error == "") || err != nil && !strings.Contains(err.Error(), c.error) {
				t.Errorf("%q, %v", link.URL, err)
			}
		})
	}
}
