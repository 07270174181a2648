package search

import (
	"net/http"
	"testing"
	"time"
)

// TestNeverReached: the warning about a cluster that was never reached names no time.
func TestNeverReached(t *testing.T) {
	f := threeClusters(t)
	f.mirror.stale["elm"] = time.Time{}
	const want = `299 - "cluster elm was never reached: none of its objects are known"`
	if code, header, body := f.plain(t, http.MethodGet, f.url+"/clusters/elm/readyz"); code != http.StatusOK || header.Get("Warning") != want {
		t.Errorf("%d %q %q", code, header.Get("Warning"), body)
	}
}
