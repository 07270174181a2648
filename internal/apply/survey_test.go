package apply

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// ill is the kubeconfig of an API server whose lists and watches of ConfigMaps go to answer first; answer returns false for what
// the API server is to answer.
func (f *fleet) ill(server int, answer func(http.ResponseWriter, *http.Request) bool) []byte {
	f.t.Helper()
	return f.door(server, func(w http.ResponseWriter, r *http.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps") && answer(w, r)
	})
}

// TestAClusterThatCannotListATypeHoldsUpItsOwnRemovalsAlone: whatever a cluster answers to a list of a type, or if it answers nothing,
// what is to go from another cluster goes; what the ill cluster may have is waited for, with the reason, until the list succeeds.
func TestAClusterThatCannotListATypeHoldsUpItsOwnRemovalsAlone(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, healed <-chan struct{}){
		"Fails": func(w http.ResponseWriter, _ <-chan struct{}) {
			http.Error(w, "conversion webhook failed", http.StatusInternalServerError)
		},
		"Forbids": func(w http.ResponseWriter, _ <-chan struct{}) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"configmaps is forbidden"}`)
		},
		"IsSilent": func(_ http.ResponseWriter, healed <-chan struct{}) { <-healed },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.clock = func() time.Time { return time.Now().Add(failurePatience) }
			f.start()
			f.join("ash", testenv.Kubeconfig(oakServer))
			ash := f.client(testenv.Config(oakServer))
			ns := testenv.Namespace(t, testenv.Config(hubServer))
			one := f.bind(configMap(ns, "one", "1"), nil, "ash")
			f.result(one, "ash", workv1alpha2.ReasonFullyApplied)

			healed := make(chan struct{})
			heal := sync.OnceFunc(func() { close(healed) })
			asked, ask := make(chan struct{}), sync.Once{}
			f.join("sick", f.ill(elmServer, func(w http.ResponseWriter, r *http.Request) bool {
				select {
				case <-healed:
					return false
				default:
				}
				ask.Do(func() { close(asked) })
				answer(w, healed)
				return true
			}))
			t.Cleanup(heal) // before the server closes, which waits for its requests
			<-asked
			both := f.bind(configMap(ns, "both", "1"), nil, "ash", "sick")
			f.result(both, "ash", workv1alpha2.ReasonFullyApplied)
			f.result(both, "sick", workv1alpha2.ReasonListFails)
			if r, _ := f.applier.Result(both.UID, "sick"); !strings.Contains(r.Message, "cannot list configmaps") {
				t.Errorf("of the copy in the cluster that cannot list its type it is said %q", r.Message)
			}

			f.must(f.hub.Delete(t.Context(), one))
			f.gone(f.hub, one)
			f.gone(ash, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "one"}})
			f.eventually("an event names the cluster and the type", func() error {
				list := &eventsv1.EventList{}
				f.must(f.hub.List(t.Context(), list))
				if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
					return e.Reason == workv1alpha2.ReasonListFails && e.Regarding.Name == "sick" && strings.Contains(e.Note, "configmaps")
				}) {
					return fmt.Errorf("%d events, and none does", len(list.Items))
				}
				return nil
			})
			f.must(f.hub.Delete(t.Context(), both))
			f.gone(ash, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "both"}})
			f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(both), both)) // the ill cluster may have a copy
			if r := f.result(both, "sick", workv1alpha2.ReasonListFails); !strings.Contains(r.Message, "whether a copy is left is not known") {
				t.Errorf("of the deleted binding in the cluster that cannot list its type it is said %q", r.Message)
			}

			heal()
			f.gone(f.hub, both)
			f.unjoin("ash")
			f.unjoin("sick")
		})
	}
}

// TestAListThatFailsForAMomentIsWaitedFor: after a start, what shows that the hub was restored is
// in a type that one cluster refuses to list at first. Nothing is removed elsewhere until the
// cluster has listed the type, or has refused for failurePatience.
func TestAListThatFailsForAMomentIsWaitedFor(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("ash", testenv.Kubeconfig(oakServer))
	var refuses atomic.Bool
	f.join("sick", f.ill(elmServer, func(w http.ResponseWriter, _ *http.Request) bool {
		if refuses.Load() {
			http.Error(w, "the server is starting", http.StatusInternalServerError)
		}
		return refuses.Load()
	}))
	ash, sick := f.client(testenv.Config(oakServer)), f.client(testenv.Config(elmServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	removed := f.bind(configMap(ns, "removed", "1"), nil, "ash")
	shows := f.bind(configMap(ns, "shows", "1"), nil, "sick")
	f.result(removed, "ash", workv1alpha2.ReasonFullyApplied)
	f.result(shows, "sick", workv1alpha2.ReasonFullyApplied)

	f.stop()
	from, err := f.applier.key().Verify(f.data(sick, ns, "shows", "1").Annotations[workv1alpha2.SourceAnnotation])
	f.must(err)
	from.Version += 1 << 40
	f.rewrite(sick, f.data(sick, ns, "shows", "1"), func(o *corev1.ConfigMap) {
		o.Annotations[workv1alpha2.DigestAnnotation] = "later"
		o.Annotations[workv1alpha2.SourceAnnotation] = f.applier.key().Sign(from)
	})
	refuses.Store(true)
	started := time.Now()
	f.clock = func() time.Time { return started }
	deletes := f.calls("delete")
	f.start()
	f.eventually("sick refuses a list", func() error {
		if since, problem := f.mirror.Failing("sick", schema.GroupResource{Resource: "configmaps"}); problem == nil || since.Before(started) {
			return errors.New("it does not")
		}
		return nil
	})
	f.eventually("ash is listed", func() error {
		if _, open := f.applier.queue("ash"); !open || !f.mirror.Synced("ash", schema.GroupResource{Resource: "configmaps"}) {
			return errors.New("it is not")
		}
		return nil
	})
	f.must(f.hub.Delete(t.Context(), removed))
	if f.applier.survey.done(t.Context()) {
		t.Error("removals do not wait for a list that has just failed")
	}
	refuses.Store(false)
	f.result(shows, "sick", workv1alpha2.ReasonHubRestored)
	f.data(ash, ns, "removed", "1")
	if made := f.calls("delete") - deletes; made != 0 {
		t.Errorf("%v deletions were made", made)
	}

	state := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: RestoreConfigMap}}
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(state), state))
	state.Data["state"] = RestoreConfirmed
	f.must(f.hub.Update(t.Context(), state))
	f.gone(f.hub, removed)
	f.must(f.hub.Delete(t.Context(), state))
	f.unjoin("ash")
	f.unjoin("sick")
}

// TestCopiesOfATypeThatCannotBeDeleted: a type without the verb delete is placed like any other, so
// that what a cluster has of it is known only once the type is listed.
func TestCopiesOfATypeThatCannotBeDeleted(t *testing.T) {
	f := newFleet(t)
	f.start()
	var refuses atomic.Bool
	f.join("fir", f.door(oakServer, func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/api":
			f.withoutDelete(oakServer, w, r)
			return true
		case refuses.Load() && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps"):
			http.Error(w, "etcd: damaged", http.StatusInternalServerError)
			return true
		default:
			return false
		}
	}))
	fir := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	b := f.bind(configMap(ns, "a", "1"), nil, "fir")
	f.result(b, "fir", workv1alpha2.ReasonFullyApplied)
	m, _ := f.registry.Member("fir")
	if api, _ := m.APIs().Kind(corev1.SchemeGroupVersion.WithKind("ConfigMap")); slices.Contains(api.Verbs, "delete") {
		t.Fatalf("the cluster serves %v", api.Verbs)
	}

	f.stop()
	refuses.Store(true)
	f.start()
	f.eventually("fir refuses a list", func() error {
		if f.mirror.Problem("fir", schema.GroupResource{Resource: "configmaps"}) == nil {
			return errors.New("it does not")
		}
		return nil
	})
	q, ok := f.applier.queue("fir")
	if !ok || q.complete(b) {
		t.Errorf("what the cluster has is taken to be known, though it was not listed (queue: %t)", ok)
	}
	f.must(f.hub.Delete(t.Context(), b))
	refuses.Store(false)
	f.gone(f.hub, b)
	f.gone(fir, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}})
	f.unjoin("fir")
}

var verbsOfConfigMaps = regexp.MustCompile(`("resource":"configmaps",[^\[]*"verbs":\[[^\]]*?)"delete",`)

// withoutDelete answers with the list of the core API of a server, in which ConfigMaps have no verb
// delete.
func (f *fleet) withoutDelete(server int, w http.ResponseWriter, r *http.Request) {
	through, err := rest.TransportFor(testenv.Config(server))
	if err != nil {
		f.t.Error(err)
		return
	}
	ask, err := http.NewRequestWithContext(r.Context(), http.MethodGet, testenv.Config(server).Host+"/api", nil)
	if err != nil {
		f.t.Error(err)
		return
	}
	ask.Header.Set("Accept", r.Header.Get("Accept"))
	answer, err := through.RoundTrip(ask)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	body, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(verbsOfConfigMaps.ReplaceAll(body, []byte("$1")))
}
