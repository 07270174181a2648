package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

const (
	// serverWait bounds how long a command waits for orrery server behind the hub's API server. The
	// API server of a busy machine declares orrery server unavailable for a few seconds after one
	// probe that took too long.
	serverWait = 15 * time.Second
	// serverInterval is the time between two requests in that wait.
	serverInterval = 500 * time.Millisecond
	// mostOfReason limits the reason that an error quotes, in bytes.
	mostOfReason = 512
)

// serverReached sends a request. While the hub's API server cannot forward it to orrery server, a
// request that only reads is sent again, for serverWait. The error names the server and a way out:
// the API server's answer has neither.
func serverReached(r *http.Request, next http.RoundTripper, host, path string) (*http.Response, error) {
	end := time.Now().Add(serverWait)
	for {
		answer, err := next.RoundTrip(r)
		if err != nil || !notForwarded(r, answer) {
			return answer, err
		}
		text, _ := io.ReadAll(io.LimitReader(answer.Body, mostOfReason))
		_ = answer.Body.Close()
		if reads := r.Method == http.MethodGet || r.Method == http.MethodHead; !reads || time.Now().After(end) {
			return nil, unreachedError{fmt.Errorf("the hub's API server at %s (from %s) cannot reach orrery server: %s; is orrery server running? "+
				"kubectl get apiservices shows its state", host, path, cmp.Or(strings.TrimSpace(string(text)), answer.Status))}
		}
		select {
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		case <-time.After(serverInterval):
		}
	}
}

// notForwarded reports whether an answer is the API server's own, about a request that it should
// have forwarded. Answers of orrery server and of members are objects; the API server's are text.
func notForwarded(r *http.Request, answer *http.Response) bool {
	return answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get(fleetv1alpha1.ProxiedHeader) == "" &&
		strings.HasPrefix(answer.Header.Get("Content-Type"), "text/plain") &&
		strings.Contains(r.URL.Path, "/apis/"+fleetv1alpha1.GroupVersion.Group+"/")
}
