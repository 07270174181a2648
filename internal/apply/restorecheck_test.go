package apply

import (
	"context"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/testenv"
)

// ill returns the kubeconfig of an API server that passes lists and watches of ConfigMaps to
// answer first. answer returns false for requests that the API server has to answer.
func (f *fleet) ill(server int, answer func(http.ResponseWriter, *http.Request) bool) []byte {
	f.t.Helper()
	return f.door(server, func(w http.ResponseWriter, r *http.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps") && answer(w, r)
	})
}

// TestAClusterThatCannotListATypeHoldsUpItsOwnRemovalsAlone: a list of a type fails, is
// forbidden, or is never answered in one cluster. Removals in other clusters go on. The removal
// in the ill cluster waits, with the reason in its result, until the list succeeds.
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
			// The ill cluster may have a copy.
			f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(both), both))
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

// TestAListThatFailsForAMomentIsWaitedFor: after a start, the copy that shows a restore of the
// hub has a type that one cluster refuses to list at first. Nothing is removed elsewhere until
// the cluster has listed the type, or has refused for failurePatience.
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
	if f.applier.restoreCheck.done(t.Context()) {
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

// TestCopiesOfATypeThatCannotBeDeleted: a type without the verb delete is placed like any
// other. The copies in a cluster are therefore known only once the type is listed.
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
		if _, open := f.applier.queue("fir"); !open {
			return errors.New("the applier has not started")
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

// withoutDelete answers with the discovery document of a server's core API, without the verb
// delete of ConfigMaps.
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

// shownMirror is a mirror in which a cluster has only the copy shows, and does not list types until
// listed is true.
type shownMirror struct {
	observer
	shows  mirror.Object
	listed bool
	asked  func() // called when the copies of a cluster are read
}

func (m *shownMirror) PlacedIn(string) []mirror.Object {
	m.asked()
	return []mirror.Object{m.shows}
}

func (m *shownMirror) Synced(string, schema.GroupResource) bool { return m.listed }

func (m *shownMirror) Failing(string, schema.GroupResource) (time.Time, error) {
	return time.Time{}, errors.New("the list fails")
}

// readerOf is a client.Reader whose Get is a function.
type readerOf struct {
	client.Reader
	get func(context.Context, client.ObjectKey, client.Object) error
}

func (r readerOf) Get(ctx context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	return r.get(ctx, key, o)
}

// creatorOf is a client.Client whose Create is a function.
type creatorOf struct {
	client.Client
	create func(context.Context) error
}

func (c creatorOf) Create(ctx context.Context, _ client.Object, _ ...client.CreateOption) error {
	return c.create(ctx)
}

// TestTheRestoreCheckBlocksNobody: while the check reads from the hub, for a bounded time, other
// workers do not wait, and neither do the subscribers that say what changed. The record of a
// suspicion has its own time. A type that is listed meanwhile is checked.
func TestTheRestoreCheckBlocksNobody(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("ash", testenv.Kubeconfig(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	one := f.bind(configMap(ns, "one", "1"), nil, "ash")
	f.result(one, "ash", workv1alpha2.ReasonFullyApplied)

	// An applier that does not run has the clusters and bindings of the one that does.
	q, _ := f.applier.queue("ash")
	shown := &shownMirror{observer: f.mirror, listed: true, asked: func() {}}
	reader := readerOf{}
	a := &Applier{
		dependencies: f.applier.dependencies, recorder: f.applier.recorder, log: f.applier.log, marks: f.applier.key(),
		queues: map[string]*clusterQueue{"ash": q},
	}
	a.mirror = shown
	a.past = &past{applier: a}
	a.restore = &restore{reader: &reader, key: a.key, log: a.log}
	c := &restoreCheck{applier: a, now: time.Now, looked: map[types.UID]leftOut{}}
	for _, o := range f.mirror.PlacedIn("ash") {
		from, err := a.key().Verify(o.Source)
		f.must(err)
		from.Version += 1 << 40
		shown.shows = o
		shown.shows.Source = a.key().Sign(from)
	}

	busy := func() bool {
		if !c.mu.TryLock() {
			return true
		}
		c.mu.Unlock()
		return false
	}
	reads := 0
	reader.get = func(ctx context.Context, _ client.ObjectKey, _ client.Object) error {
		reads++
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("the check reads from the hub without a deadline")
		}
		if busy() {
			t.Error("subscribers wait until the hub answers")
		} else if c.done(t.Context()) {
			t.Error("a removal does not wait for the check of another worker")
		}
		return errors.New("the hub does not answer")
	}
	if c.done(t.Context()) || reads != 1 {
		t.Errorf("with %d reads of a hub that does not answer, a cluster counts as checked", reads)
	}

	// The time that the reads took is not taken from the write.
	var readUntil time.Time
	reader.get = func(ctx context.Context, key client.ObjectKey, o client.Object) error {
		if readUntil.IsZero() {
			readUntil, _ = ctx.Deadline()
		}
		return f.applier.reader.Get(ctx, key, o)
	}
	writes := 0
	a.restore.hub = creatorOf{create: func(ctx context.Context) error {
		writes++
		if until, bounded := ctx.Deadline(); !bounded || !until.After(readUntil) {
			t.Errorf("the write ends at %v, and the reads at %v", until, readUntil)
		}
		return errors.New("the hub does not answer")
	}}
	if c.done(t.Context()) || writes != 1 {
		t.Errorf("with %d failed writes of a suspicion, a cluster counts as checked", writes)
	}

	// The type is listed while its cluster is checked without it.
	shown.shows, shown.listed = mirror.Object{}, false
	looks := 0
	shown.asked = func() {
		if looks++; looks > 1 {
			return
		}
		if shown.listed = true; busy() {
			t.Error("subscribers wait for the check")
		} else {
			c.listed(q.uid, schema.GroupResource{Resource: "configmaps"})
		}
	}
	if c.done(t.Context()) {
		t.Error("a type that was listed during the check counts as checked")
	}
	if !c.done(t.Context()) || looks != 2 || len(c.looked[q.uid]) > 0 {
		t.Errorf("after %d checks, the cluster is checked without %v", looks, c.looked[q.uid])
	}
	f.must(f.hub.Delete(t.Context(), one))
	f.gone(f.hub, one)
	f.unjoin("ash")
}
