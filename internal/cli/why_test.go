package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

func TestWhy(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	placed := &fleetv1alpha1.PlacementExplanation{
		Of: fleetv1alpha1.ExplainedObject{Kind: "Deployment", Namespace: "shop", Name: "web"}, State: fleetv1alpha1.PlacementPlaced,
		Message: "it is placed in 1 cluster by PropagationPolicy shop/web", Current: true, Hidden: 2,
		Decision: &fleetv1alpha1.ExplainedDecision{Time: metav1.NewMicroTime(now.Add(-2 * time.Minute)), Current: true},
		Clusters: []fleetv1alpha1.ExplainedCluster{
			{Name: "ash", Verdicts: []fleetv1alpha1.PlacementVerdict{{Reason: "Tainted", Message: "taint a=b:NoSchedule is not tolerated"}, {Reason: "Unreachable", Message: "it does not answer"}}},
			{Name: "elm", Verdicts: []fleetv1alpha1.PlacementVerdict{{Reason: "NotSelected", Message: "clusterAffinity does not select it"}}},
			{Name: "oak", Placed: true, Replicas: new(int32(3)), Result: &fleetv1alpha1.PlacementResult{Reason: "Rejected", Message: "no\x1b[2J", Current: true}},
		},
		Waits: []fleetv1alpha1.PlacementWait{{For: fleetv1alpha1.WaitApply, Message: "no", Clusters: []string{"oak"}}},
		Lost:  []fleetv1alpha1.ExplainedPolicy{{Kind: "ClusterPropagationPolicy", Name: "all", Reason: "overruled by PropagationPolicy shop/web (its priority 5 is higher than 0)"}},
	}
	unclaimed := &fleetv1alpha1.PlacementExplanation{
		Of: fleetv1alpha1.ExplainedObject{Kind: "Namespace", Name: "shop"}, State: fleetv1alpha1.PlacementUnclaimed, Message: "no policy places it", Current: true,
		Near: []fleetv1alpha1.ExplainedPolicy{{Kind: "ClusterPropagationPolicy", Name: "all", Reason: "resourceSelectors[0].name: matches only \"store\""}},
	}
	evicted := &fleetv1alpha1.PlacementExplanation{
		Of: fleetv1alpha1.ExplainedObject{Kind: "ConfigMap", Namespace: "shop", Name: "web"}, State: fleetv1alpha1.PlacementPlaced, Message: "it is placed in 1 cluster", Current: true,
		Decision: &fleetv1alpha1.ExplainedDecision{
			Time: metav1.NewMicroTime(now.Add(-time.Minute)), Current: true, Message: "1 of 2 clusters; to leave oak because of taint a=b:NoExecute, waits: NoReplacement (no other cluster fits)",
		},
	}
	for name, c := range map[string]struct {
		explanation *fleetv1alpha1.PlacementExplanation
		wide        bool
		want        string
	}{
		"Placed": {placed, false, `Deployment shop/web: it is placed in 1 cluster by PropagationPolicy shop/web.
Decided 2m ago, for the current object and policy.

CLUSTER   PLACED   REPLICAS   WHY
ash       no       -          taint a=b:NoSchedule is not tolerated; it does not answer
oak       yes      3          no�[2J
Clusters that the policy does not select: 1 (-o wide lists them).
Clusters that you may not see: 2.

Waits for
  Apply in oak: no

Overruled
  ClusterPropagationPolicy all: overruled by PropagationPolicy shop/web (its priority 5 is higher than 0)
`},
		"EvictionWaits": {evicted, false, `ConfigMap shop/web: it is placed in 1 cluster.
Decided 60s ago, for the current object and policy.

Evictions that wait
  NoReplacement in oak, because of taint a=b:NoExecute: no other cluster fits
`},
		"Unclaimed": {unclaimed, false, `Namespace shop: no policy places it.

Near misses
  ClusterPropagationPolicy all: resourceSelectors[0].name: matches only "store"
`},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := printWhy(&out, c.explanation, c.wide, now); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, out.String()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	var out strings.Builder
	if err := printWhy(&out, placed, true, now); err != nil || !strings.Contains(out.String(), "\nelm       no       -          clusterAffinity does not select it\n") {
		t.Errorf("wide: %v\n%s", err, &out)
	}
}
