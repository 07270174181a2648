package lab

import (
	"maps"
	"net/http"
	"path"
	"sync"
)

// mirror is the HTTP server of release files. It counts the GET requests and can refuse requests,
// both by path.
type mirror struct {
	files http.Handler

	mu       sync.Mutex
	requests map[string]int
	refused  map[string]int // number of requests still to refuse
}

// newMirror returns a mirror of the files in dir.
func newMirror(dir string) *mirror {
	return &mirror{files: http.FileServer(http.Dir(dir)), requests: map[string]int{}, refused: map[string]int{}}
}

// ServeHTTP implements http.Handler.
func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m.count(r.Method, path.Clean(r.URL.Path)) {
		http.Error(w, "the test refuses this path", http.StatusServiceUnavailable)
		return
	}
	m.files.ServeHTTP(w, r)
}

// count counts a request, if it is a GET, and reports whether it must be refused. name is the path.
func (m *mirror) count(method, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if method == http.MethodGet {
		m.requests[name]++
	}
	if m.refused[name] == 0 {
		return false
	}
	m.refused[name]--
	return true
}

// Requests returns the number of GET requests to the mirror for a path, including those that were
// refused.
func (l *Lab) Requests(name string) int { return l.AllRequests()[path.Clean(name)] }

// AllRequests returns the number of GET requests to the mirror by path, including those that were
// refused.
func (l *Lab) AllRequests() map[string]int {
	m := l.served.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.requests)
}

// Refuse makes the mirror answer the next n requests for a path with status 503.
func (l *Lab) Refuse(name string, n int) {
	m := l.served.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused[path.Clean(name)] = n
}
