package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestConsoleLink: the link comes from the hub. If there is none, the error gives the reason.
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

// TestUnreachedHub: if the hub does not answer, refuses the user or is not configured, the
// error names the hub, the source of its address, and what to do.
func TestUnreachedHub(t *testing.T) {
	unauthorized := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized", "code": 401}`))
	}))
	defer unauthorized.Close()
	const down = "http://127.0.0.1:1" // nothing ever listens there
	kubeconfig := func(server string) string {
		return `{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: "` + server +
			`"}}], users: [{name: a, user: {token: x}}], contexts: [{name: a, context: {cluster: a, user: a}}]}`
	}
	for name, tc := range map[string]struct {
		kubeconfig string
		wants      []string
	}{
		"Down":    {kubeconfig(down), []string{down, "is it running?"}},
		"Expired": {kubeconfig(unauthorized.URL), []string{unauthorized.URL, "expired", "new kubeconfig"}},
		"Empty":   {"", []string{"has no cluster"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(path, []byte(tc.kubeconfig), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{
				{"console", "--print"},
				{"why", "deploy/web"},
				{"search", "web"},
				{"search", "--explain", "web"},
				{"search", "--group", "cluster", "web"},
				{"history", "deploy/web"},
				{"history", "--deleted"},
				{"diff", "--since", "1h"},
				{"graph", "deploy/web"},
				{"api-resources"},
				{"get", "pods"},
				{"describe", "pod/web"},
				{"top", "pods"},
				{"logs", "deploy/web"},
				{"exec", "web", "--", "ls"},
				{"cluster", "list"},
				{"cluster", "describe", "oak"},
				{"cluster", "unjoin", "oak"},
				{"rebalance", "deploy/web"},
				{"rerun", "job/migrate"},
			} {
				var out, errOut bytes.Buffer
				code := Main(slices.Insert(slices.Clone(args), 1, "--kubeconfig", path), strings.NewReader(""), &out, &errOut)
				said := errOut.String()
				for _, want := range append(tc.wants, path, "error: ") {
					if !strings.Contains(said, want) {
						t.Errorf("%v does not say %q: %s", args, want, said)
					}
				}
				if code != 1 || out.Len() > 0 || strings.Count(said, "\n") != 1 {
					t.Errorf("%v: %d, %q, %q", args, code, &out, said)
				}
			}
		})
	}
}
