package lab

import (
	"maps"
	"net/http"
	"path"
	"sync"
)

// mirror serves release files and counts the requests.
type mirror struct {
	files http.Handler

	mu       sync.Mutex
	requests map[string]int
	refused  map[string]int
}

func newMirror(dir string) *mirror {
	return &mirror{files: http.FileServer(http.Dir(dir)), requests: map[string]int{}, refused: map[string]int{}}
}

func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m.count(r.Method, path.Clean(r.URL.Path)) {
		http.Error(w, "the test refuses this path", http.StatusServiceUnavailable)
		return
	}
	m.files.ServeHTTP(w, r)
}

// count records a request and reports whether it must be refused.
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

// Requests returns how often the mirror was asked for the content (GET) of a path.
func (l *Lab) Requests(name string) int { return l.AllRequests()[path.Clean(name)] }

// AllRequests returns the number of the mirror's GET requests by path.
func (l *Lab) AllRequests() map[string]int {
	m := l.served.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.requests)
}

// Refuse makes the mirror answer the next n requests for a path with 503.
func (l *Lab) Refuse(name string, n int) {
	m := l.served.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused[path.Clean(name)] = n
}
