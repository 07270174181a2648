package search

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"orrery.dev/orrery/internal/answer"
)

// serveHealth answers healthz, livez and readyz as API servers do, for user interfaces that request
// them for each cluster. The answer is about the fleet API. An error means that nothing can be read
// from the store, and a warning that the data of the cluster is old. livez does not ask the store.
//
// User interfaces ask often, so only one right is checked: to get the Cluster. A caller without
// that right gets the health of the fleet, for any name.
func (s *Search) serveHealth(w http.ResponseWriter, r *http.Request, at location) error {
	ofCluster := false
	if at.cluster != "" {
		err := s.authorizeGet(r.Context(), at.cluster)
		if ofCluster = err == nil; ofCluster {
			err = s.checkClusters(at, nil)
		}
		if err != nil && !apierrors.IsForbidden(err) {
			return err
		}
	}
	if at.document != "livez" {
		if _, err := s.now(r.Context()); err != nil {
			return err
		}
	}
	if ofCluster {
		if since, stale := s.Mirror.Stale(at.cluster); stale {
			tell(w, []string{unreachable(at.cluster, since)})
		}
	}
	text := "ok"
	if r.URL.Query().Has("verbose") {
		text = fmt.Sprintf("[+]fleet ok\n%s check passed\n", at.document)
	}
	return answer.Text(w, text)
}
