package mirror

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestFailing: Failing counts from the first of several consecutive failures, or from the time
// at which the cluster became reachable again.
func TestFailing(t *testing.T) {
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	refused := errors.New("refused")
	type step func(*table)
	fails := func(t *table) { t.attempted(refused, 0) }
	waits := func(*table) { time.Sleep(time.Second) }
	for name, tc := range map[string]struct {
		steps []step
		want  time.Duration // time since then; -1: the type does not fail
	}{
		"NotListedYet":      {nil, -1},
		"Once":              {[]step{fails}, 0},
		"AgainAndAgain":     {[]step{fails, waits, fails, waits}, 2 * time.Second},
		"SucceededBetween":  {[]step{fails, waits, func(t *table) { t.attempted(nil, 0) }, fails, waits}, time.Second},
		"AListThatIsSlow":   {[]step{waits, waits, func(t *table) { t.attempted(errSlowList, 2*time.Second) }}, 2 * time.Second},
		"TheClusterWasAway": {[]step{fails, waits, func(t *table) { t.cluster.since = time.Now() }, waits}, time.Second},
		"AWatchFailed":      {[]step{func(t *table) { t.synced = true }, fails, waits}, -1},
		"AListHangsAfterAWatchFailed": {[]step{
			func(t *table) { t.synced = true }, fails, waits, func(t *table) { t.synced = false },
			func(*table) { time.Sleep(slowList) }, func(t *table) { t.late() },
		}, slowList},
		"ItIsToBeListedAnew": {[]step{func(t *table) { t.synced = true }, fails, waits, func(t *table) { t.synced = false }}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMirror(nil, newFleet(), logr.Discard())
				c := newCluster(m, "oak", &testSource{reachable: true})
				m.replace("oak", c)
				one := &table{cluster: c}
				c.tables[widgets] = one
				for _, do := range tc.steps {
					do(one)
				}
				since, problem := m.Failing("oak", widgets)
				if (problem == nil) != (tc.want < 0) {
					t.Fatalf("its problem is %v", problem)
				}
				if got := time.Since(since); problem != nil && got != tc.want {
					t.Errorf("it has failed for %s, want %s", got, tc.want)
				}
			})
		})
	}
}
