package apply

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/testenv"
)

// TestAHubThatIsOlderThanItsRecordsRemovesNothing: the only copy that shows that the hub was
// restored is of a type that its cluster cannot list, and has not for long. The records of what was
// applied there show it all the same, once, until it is confirmed.
func TestAHubThatIsOlderThanItsRecordsRemovesNothing(t *testing.T) {
	later := func(change func(*records.Result)) func(f *fleet, b *workv1alpha2.ResourceBinding) {
		return func(f *fleet, b *workv1alpha2.ResourceBinding) {
			r := f.records.results[b.UID]["sick"]
			r.Time = time.Now()
			change(&r)
			f.records.Applied(r)
		}
	}
	for name, tc := range map[string]struct {
		lost func(f *fleet, b *workv1alpha2.ResourceBinding)
		says string
	}{
		"ThePlacementChanged": {later(func(r *records.Result) { r.Generation += 3 }), "has the generation"},
		"TheTemplateChanged": {later(func(r *records.Result) {
			parts := strings.Split(r.Template, "/")
			parts[1] = "9999999999"
			r.Template = strings.Join(parts, "/")
		}), "resourceVersion of the template"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.clock = func() time.Time { return time.Now().Add(failurePatience) }
			f.start()
			f.join("ash", testenv.Kubeconfig(oakServer))
			var refuses atomic.Bool
			f.join("sick", f.ill(elmServer, func(w http.ResponseWriter, _ *http.Request) bool {
				if refuses.Load() {
					http.Error(w, "etcd: damaged", http.StatusInternalServerError)
				}
				return refuses.Load()
			}))
			ash := f.client(testenv.Config(oakServer))
			ns := testenv.Namespace(t, testenv.Config(hubServer))
			removed := f.bind(configMap(ns, "removed", "1"), nil, "ash")
			template := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "shows"}}
			f.must(f.hub.Create(t.Context(), template))
			o := configMap(ns, "shows", "1")
			o.SetUID(template.UID)
			shows := f.bind(o, nil, "sick")
			f.result(removed, "ash", workv1alpha2.ReasonFullyApplied)
			f.result(shows, "sick", workv1alpha2.ReasonFullyApplied)

			f.stop()
			tc.lost(f, shows)
			refuses.Store(true)
			deletes := f.calls("delete")
			f.start()
			f.eventually("sick refuses a list", func() error {
				if f.mirror.Problem("sick", schema.GroupResource{Resource: "configmaps"}) == nil {
					return errors.New("it does not")
				}
				return nil
			})
			f.must(f.hub.Delete(t.Context(), removed))
			f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(removed), removed))
			f.result(removed, "ash", workv1alpha2.ReasonHubRestored)
			f.data(ash, ns, "removed", "1")
			if made := f.calls("delete") - deletes; made != 0 {
				t.Errorf("%v deletions were made", made)
			}
			state := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: RestoreConfigMap}}
			f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(state), state))
			if !strings.Contains(state.Data[restoreReason], tc.says) || !strings.Contains(state.Data[restoreReason], "sick") {
				t.Errorf("the hub says %v", state.Data)
			}
			state.Data["state"] = RestoreConfirmed
			f.must(f.hub.Update(t.Context(), state))
			f.gone(f.hub, removed)

			// What was confirmed shows nothing to the next process either, though the record stays
			// while the cluster is ill.
			f.stop()
			f.records.mu.Lock()
			r := f.records.results[shows.UID]["sick"]
			r.Generation, r.Time = r.Generation+3, state.CreationTimestamp.Add(-time.Minute)
			f.records.results[shows.UID]["sick"] = r
			f.records.mu.Unlock()
			f.start()
			f.eventually("ash is reachable", func() error { return f.reachable("ash") })
			again := f.bind(configMap(ns, "again", "1"), nil, "ash")
			f.result(again, "ash", workv1alpha2.ReasonFullyApplied)
			f.must(f.hub.Delete(t.Context(), again))
			f.gone(f.hub, again)
			f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(state), state))
			if state.Data["state"] != RestoreConfirmed {
				t.Errorf("the hub says %v", state.Data)
			}
			refuses.Store(false)
			f.must(f.hub.Delete(t.Context(), state))
			f.unjoin("ash")
			f.unjoin("sick")
		})
	}
}
