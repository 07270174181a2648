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
// restored has a type that its cluster has not been able to list for failurePatience. The
// records of the applies there show the restore instead, until it is confirmed.
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

			// Records from before the confirmation prove nothing to the next process either.
			// They stay while the cluster is ill.
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

// The largest generation and the largest version count, each with its own cluster and time, in
// any order of the results. A result from before a confirmed restore hides no later one.
func TestTheLatestRecordsCount(t *testing.T) {
	confirmed := time.Unix(1000, 0)
	before, after, later := confirmed.Add(-time.Minute), confirmed.Add(time.Minute), confirmed.Add(2*time.Minute)
	at := func(cluster string, generation int64, template string, at time.Time) records.Result {
		return records.Result{Binding: "b", Cluster: cluster, Generation: generation, Template: template, Time: at}
	}
	for name, tc := range map[string]struct {
		results    [2]records.Result
		generation latest[int64]
		version    latest[uint64] // of the template t
	}{
		"OneHasBoth": {
			[2]records.Result{at("oak", 2, "t/20/x", later), at("elm", 1, "t/10/x", after)},
			latest[int64]{2, "oak", later},
			latest[uint64]{20, "oak", later},
		},
		"EachHasOne": {
			[2]records.Result{at("oak", 2, "t/10/x", after), at("elm", 1, "t/20/x", later)},
			latest[int64]{2, "oak", after},
			latest[uint64]{20, "elm", later},
		},
		"OfAKindWithStatusButNoGeneration": {
			[2]records.Result{at("oak", 2, "t/d5/x/10", after), at("elm", 1, "t/d9/x/20", later)},
			latest[int64]{2, "oak", after},
			latest[uint64]{20, "elm", later},
		},
		"TheLargerIsFromBeforeTheRestore": {
			[2]records.Result{at("oak", 9, "t/90/x", before), at("elm", 1, "t/10/x", after)},
			latest[int64]{1, "elm", after},
			latest[uint64]{10, "elm", after},
		},
		"OfAnEarlierTemplate": {
			[2]records.Result{at("oak", 1, "s/90/x", after), at("elm", 1, "t/20/x", after)},
			latest[int64]{1, "", after},
			latest[uint64]{20, "elm", after},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, order := range [][2]int{{0, 1}, {1, 0}} {
				p := &past{applier: &Applier{restore: &restore{since: confirmed}}}
				for _, i := range order {
					p.add(tc.results[i])
				}
				one := p.newest["b"]
				one = one.after(confirmed)
				if tc.generation.cluster == "" {
					one.generation.cluster = "" // either of the two
				}
				if one.generation != tc.generation || one.of("t") != tc.version {
					t.Errorf("in the order %v the generation is %+v and the version %+v, want %+v and %+v",
						order, one.generation, one.of("t"), tc.generation, tc.version)
				}
			}
		})
	}
}

// A worker does not wait while another one compares with the hub. Its removal is planned again.
func TestComparingBlocksNoOtherWorker(t *testing.T) {
	p := &past{applier: &Applier{restore: &restore{}}}
	p.add(records.Result{Binding: "b", Cluster: "oak", Generation: 1, Time: time.Now()})
	p.comparing.Lock()
	compared, err := p.compared(t.Context())
	p.comparing.Unlock()
	if compared || err != nil {
		t.Errorf("it is compared: %t, %v", compared, err)
	}
	p.drop("b")
	if compared, err = p.compared(t.Context()); !compared || err != nil {
		t.Errorf("nothing is left to compare, and it is compared: %t, %v", compared, err)
	}
}
