package cli

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// TestServerUnavailable: a command that reads waits while the hub's API server cannot forward its
// requests. A command that writes fails at once, and its request is sent once.
func TestServerUnavailable(t *testing.T) {
	const fails = -1 // for ever
	for name, tc := range map[string]struct {
		method, path string
		after        int // the requests that fail
		answer       string
		sent         int
		waits        time.Duration
		says         string
	}{
		"Reads":    {http.MethodGet, fleetv1alpha1.ClustersPath + "/oak/mirror", 3, "text/plain; charset=utf-8", 4, 3 * serverInterval, ""},
		"ForEver":  {http.MethodGet, fleetv1alpha1.ClustersPath + "/oak/mirror", fails, "text/plain; charset=utf-8", 32, serverWait + serverInterval, "cannot reach orrery server: service unavailable; is orrery server running?"},
		"Writes":   {http.MethodPost, fleetv1alpha1.ClustersPath + "/oak/mirror", fails, "text/plain; charset=utf-8", 1, 0, "cannot reach orrery server"},
		"OfServer": {http.MethodGet, fleetv1alpha1.ClustersPath + "/oak/mirror", fails, "application/json", 1, 0, ""},
		"OfHub":    {http.MethodGet, "/api/v1/pods", fails, "text/plain; charset=utf-8", 1, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sent := 0
				wrapped := telling("https://hub", "/k")(roundTripper(func(*http.Request) (*http.Response, error) {
					sent++
					w := httptest.NewRecorder()
					if tc.after == fails || sent <= tc.after {
						w.Header().Set("Content-Type", tc.answer)
						w.WriteHeader(http.StatusServiceUnavailable)
						_, _ = io.WriteString(w, "service unavailable\n")
					}
					return w.Result(), nil
				}))
				r := httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, nil)
				began := time.Now()
				answer, err := wrapped.RoundTrip(r)
				if took := time.Since(began); took != tc.waits || sent != tc.sent {
					t.Errorf("%d requests in %s, want %d in %s", sent, took, tc.sent, tc.waits)
				}
				if err == nil {
					_ = answer.Body.Close()
				}
				if _, unreached := errors.AsType[unreachedError](err); unreached != (tc.says != "") || unreached && !strings.Contains(err.Error(), tc.says) {
					t.Errorf("it says %v, want %q", err, tc.says)
				}
			})
		})
	}
}

// TestRequestsWaitTogether: a command with several requests waits only once for a server that
// does not come back. After the server has answered, it waits again.
func TestRequestsWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		wrapped := telling("https://hub", "/k")(roundTripper(func(*http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			if down {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return w.Result(), nil
		}))
		waited := func() time.Duration {
			began := time.Now()
			answer, err := wrapped.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, fleetv1alpha1.ClustersPath+"/oak/mirror", nil))
			if err == nil {
				_ = answer.Body.Close()
			}
			if _, unreached := errors.AsType[unreachedError](err); unreached != down {
				t.Errorf("it says %v", err)
			}
			return time.Since(began)
		}
		whole := serverWait + serverInterval
		if first, second := waited(), waited(); first != whole || second != 0 {
			t.Errorf("the first request waits %s and the second %s, want %s and 0", first, second, whole)
		}
		down = false
		waited()
		down = true
		if again := waited(); again != whole {
			t.Errorf("after an answer a request waits %s, want %s", again, whole)
		}
	})
}
