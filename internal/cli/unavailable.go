package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

const (
	// serverWait limits how long a command waits, with all its requests, for orrery server
	// behind the hub's API server. The API server of a busy machine declares orrery server
	// unavailable for a few seconds after one slow probe.
	serverWait = 15 * time.Second
	// serverInterval is the time between two requests during that wait.
	serverInterval = 500 * time.Millisecond
	// mostOfReason limits the reason that an error quotes, in bytes.
	mostOfReason = 512
)

// serverOutage is the period in which all requests of one command wait for orrery server. It is
// safe for concurrent use.
type serverOutage struct {
	mu  sync.Mutex
	end time.Time // zero while the server answers
}

// over reports whether the wait is over. The wait begins with the first request that is not
// forwarded.
func (o *serverOutage) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end.IsZero() {
		o.end = time.Now().Add(serverWait)
	}
	return time.Now().After(o.end)
}

// answered ends the outage.
func (o *serverOutage) answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end = time.Time{}
}

// reached sends a request. If the hub's API server cannot forward it to orrery server, a request
// that only reads is sent again until the wait is over. The error names the server and what to
// do; the response of the API server has neither.
func (o *serverOutage) reached(r *http.Request, next http.RoundTripper, host, path string) (*http.Response, error) {
	for {
		answer, err := next.RoundTrip(r)
		if err != nil || !forServer(r) {
			return answer, err
		}
		if !notForwarded(answer) {
			o.answered()
			return answer, nil
		}
		text, _ := io.ReadAll(io.LimitReader(answer.Body, mostOfReason))
		_ = answer.Body.Close()
		if reads := r.Method == http.MethodGet || r.Method == http.MethodHead; !reads || o.over() {
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

// forServer reports whether the hub's API server forwards a request to orrery server.
func forServer(r *http.Request) bool {
	return strings.Contains(r.URL.Path, "/apis/"+fleetv1alpha1.GroupVersion.Group+"/")
}

// notForwarded reports whether a response is from the API server itself, although it should have
// forwarded the request. Responses of orrery server and of members are objects; those of the API
// server are text.
func notForwarded(answer *http.Response) bool {
	return answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get(fleetv1alpha1.ProxiedHeader) == "" &&
		strings.HasPrefix(answer.Header.Get("Content-Type"), "text/plain")
}
