package search

import (
	"fmt"
	"net/http"
	"time"

	"orrery.dev/orrery/internal/answer"
)

// serveHealth answers healthz, livez and readyz as API servers do, for user interfaces that ask them of each cluster. The answer is
// about the fleet API: an error says that nothing can be read, and a warning that what is read of a cluster is old.
func (s *Search) serveHealth(w http.ResponseWriter, r *http.Request, at location) error {
	if at.document != "livez" {
		if _, err := s.now(r.Context()); err != nil {
			return err
		}
	}
	if at.cluster != "" {
		if since, stale := s.Mirror.Stale(at.cluster); stale {
			tell(w, []string{fmt.Sprintf("cluster %s is unreachable since %s: its objects are the last known", at.cluster, since.UTC().Format(time.RFC3339))})
		}
	}
	text := "ok"
	if r.URL.Query().Has("verbose") {
		text = fmt.Sprintf("[+]fleet ok\n%s check passed\n", at.document)
	}
	return answer.Text(w, text)
}
