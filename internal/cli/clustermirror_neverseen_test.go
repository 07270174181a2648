package cli

import (
	"bytes"
	"strings"
	"testing"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// TestDescribeMirrorNeverSeen: of a cluster that the hub never reached no data is described as
// current. A cluster that answers and has no types is current.
func TestDescribeMirrorNeverSeen(t *testing.T) {
	for name, tc := range map[string]struct {
		mirror fleetv1alpha1.ClusterMirror
		want   string
	}{
		"NeverSeen": {fleetv1alpha1.ClusterMirror{}, "Mirror: 0 types, not read yet"},
		"Answers":   {fleetv1alpha1.ClusterMirror{Reachable: true}, "Mirror: 0 types, current"},
		"WasSeen": {
			fleetv1alpha1.ClusterMirror{LagSeconds: 90, Types: []fleetv1alpha1.MirroredType{{Resource: "pods", LagSeconds: 90}}},
			"Mirror: 1 types, the oldest was last seen 90s ago",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := describeMirror(&out, &tc.mirror); err != nil {
				t.Fatal(err)
			}
			if got, _, _ := strings.Cut(strings.TrimSpace(out.String()), "\n"); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
