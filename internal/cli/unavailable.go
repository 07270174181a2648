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
	// serverWait limits how long all requests of a command together wait for orrery server, 15
	// seconds. The hub's API server forwards requests for the fleet to it. On a busy machine the API
	// server declares orrery server unavailable for a few seconds after one slow probe.
	serverWait = 15 * time.Second
	// serverInterval is the time between two attempts of a request while orrery server is unavailable:
	// half a second.
	serverInterval = 500 * time.Millisecond
	// mostOfReason limits the text of the API server that an error quotes, to 512 bytes.
	mostOfReason = 512
)

// serverOutage limits how long the requests of one command wait while orrery server is unavailable.
// The zero value is ready for use. It is safe for concurrent use.
type serverOutage struct {
	mu  sync.Mutex
	end time.Time // of the wait; zero while orrery server answers
}

// over reports whether the wait of serverWait is over. The first call after orrery server last
// answered begins the wait.
func (o *serverOutage) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end.IsZero() {
		o.end = time.Now().Add(serverWait)
	}
	return time.Now().After(o.end)
}

// answered records that orrery server has answered. The next call of over begins a new wait.
func (o *serverOutage) answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end = time.Time{}
}

// reached sends the request r and returns the response. If the hub's API server cannot forward r to
// orrery server, a GET or HEAD is sent again until the wait is over. After that, and at once for
// other methods, the error is an unreachedError that says what to do. If the context of r ends
// first, the error is its cause. host and path are the address and the kubeconfig, for the message.
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

// forServer reports whether the hub's API server forwards the request to orrery server, which
// serves the fleet API.
func forServer(r *http.Request) bool {
	return strings.Contains(r.URL.Path, "/apis/"+fleetv1alpha1.GroupVersion.Group+"/")
}

// notForwarded reports whether the API server itself answered a request that it should have
// forwarded to orrery server. It compares status and headers and does not read the body: such an
// answer is plain text, while orrery server and members answer with objects.
func notForwarded(answer *http.Response) bool {
	return answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get(fleetv1alpha1.ProxiedHeader) == "" &&
		strings.HasPrefix(answer.Header.Get("Content-Type"), "text/plain")
}
