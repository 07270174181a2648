package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// TestWhyPrintsWaitsOnce: a wait that the summary states is not printed again under "Waits for".
// Waits in clusters, and waits that the summary states in part only, are printed.
func TestWhyPrintsWaitsOnce(t *testing.T) {
	const undecided, lacks = "its clusters are chosen in a moment", "2 of 3 replicas fit in no cluster; oak: too little cpu"
	for name, tc := range map[string]struct {
		message string
		waits   []fleetv1alpha1.PlacementWait
		want    string
	}{
		"Undecided": {
			"PropagationPolicy shop/web selects it; " + undecided,
			[]fleetv1alpha1.PlacementWait{{For: fleetv1alpha1.WaitDecision, Message: undecided}},
			"Deployment shop/web: PropagationPolicy shop/web selects it; " + undecided + ".\n",
		},
		"Nowhere": {
			"it is not placed in any cluster by PropagationPolicy shop/web: " + lacks + "; its deletion waits",
			[]fleetv1alpha1.PlacementWait{{For: fleetv1alpha1.WaitRoom, Message: lacks}},
			"Deployment shop/web: it is not placed in any cluster by PropagationPolicy shop/web: " + lacks + "; its deletion waits.\n",
		},
		"NotInTheSummary": {
			"it is placed in 1 cluster by PropagationPolicy shop/web",
			[]fleetv1alpha1.PlacementWait{{For: fleetv1alpha1.WaitRoom, Message: lacks}, {For: fleetv1alpha1.WaitRoom, Message: lacks}},
			"Deployment shop/web: it is placed in 1 cluster by PropagationPolicy shop/web.\n\nWaits for\n  " + string(fleetv1alpha1.WaitRoom) + ": " + lacks + "\n",
		},
		"PartOfAClause": {
			"it is placed in 12 clusters",
			[]fleetv1alpha1.PlacementWait{{For: fleetv1alpha1.WaitApply, Message: "2 clusters"}},
			"Deployment shop/web: it is placed in 12 clusters.\n\nWaits for\n  " + string(fleetv1alpha1.WaitApply) + ": 2 clusters\n",
		},
		"InClusters": {
			"it is placed in 1 cluster: no answer",
			[]fleetv1alpha1.PlacementWait{{For: fleetv1alpha1.WaitCluster, Message: "no answer", Clusters: []string{"oak"}}},
			"Deployment shop/web: it is placed in 1 cluster: no answer.\n\nWaits for\n  " + string(fleetv1alpha1.WaitCluster) + " in oak: no answer\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			e := &fleetv1alpha1.PlacementExplanation{
				Of: fleetv1alpha1.ExplainedObject{Kind: "Deployment", Namespace: "shop", Name: "web"}, Message: tc.message, Waits: tc.waits,
			}
			if err := printWhy(&out, e, false, time.Now()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
