package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

// TestRequestsAreParsedInLinearTime: a session's request that is twice as long costs at most about
// twice as much to parse, before the hub authorizes it. The listener takes headers of at most 16
// KiB.
func TestRequestsAreParsedInLinearTime(t *testing.T) {
	numbered := func(format string) func(n int) string {
		return func(n int) string {
			var out strings.Builder
			for i := 0; out.Len() < n; i++ {
				fmt.Fprintf(&out, format, i)
			}
			return out.String()
		}
	}
	for name, query := range map[string]func(n int) string{
		"InvalidValues": func(n int) string { return "labelSelector=k+in+(" + numbered("-%d,")(n) + "-)" },
		"Requirements":  func(n int) string { return "labelSelector=" + numbered("!k%d,")(n) + "k" },
		"Fields":        func(n int) string { return "fieldSelector=" + numbered("a%d!%%3Db,")(n) + "metadata.name%3Da" },
		"Parameters":    func(n int) string { return numbered("a%d=b&")(n) },
	} {
		cost := func(n int) uint64 {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/?"+query(n), nil)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			info, err := infoOf(r, "/api/v1/namespaces/shop/pods")
			runtime.ReadMemStats(&after)
			if err != nil || info.Namespace != "shop" || info.Verb != "list" {
				t.Errorf("%s: %v %v", name, info, err)
			}
			return after.TotalAlloc - before.TotalAlloc
		}
		const noise = 64 << 10
		if once, twice := cost(4000), cost(8000); twice > 5*once/2+noise {
			t.Errorf("%s: %d bytes for 4000, %d for 8000", name, once, twice)
		}
	}
}
