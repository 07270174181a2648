package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"orrery.dev/orrery/internal/testenv"
)

// failures counts the requests without an answer.
type failures struct {
	next  http.RoundTripper
	count *atomic.Int32
}

func (f failures) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := f.next.RoundTrip(req)
	if err != nil && req.Context().Err() == nil {
		f.count.Add(1)
	}
	return resp, err
}

// TestWorkGoesOnAfterOutages kills the API server so often that client-go would wait for a
// minute before it lists again. A write after each kill must be seen as soon as possible.
func TestWorkGoesOnAfterOutages(t *testing.T) {
	kills := testenv.Count(t, "KILLS", 2, 5)
	// Checked under Soak only. A loaded machine needs a few seconds. The delay of client-go is
	// at least 12 s at the last kill.
	const soon = 8 * time.Second
	server := testenv.StartServer(t)
	direct := kubernetes.NewForConfigOrDie(server.Config())
	var failed atomic.Int32
	cfg := server.Config()
	// This wrapper is closer to the server than the next one.
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return failures{rt, &failed} })
	barrier := &outage{ctx: t.Context(), config: server.Config(), log: logr.Discard()}
	cfg.Wrap(barrier.wrap)
	patientClient := kubernetes.NewForConfigOrDie(cfg)

	maps := patientClient.CoreV1().ConfigMaps("default")
	// begun counts how often the reflector starts again, always after a delay. It then watches
	// with initial events, or its list has options. The informer's list within a watch has
	// none.
	var begun atomic.Int32
	informer := NewInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o != (metav1.ListOptions{}) {
				begun.Add(1)
			}
			return maps.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				begun.Add(1)
			}
			return maps.Watch(ctx, o)
		},
	}, patientClient), &corev1.ConfigMap{}, 0, cache.Indexers{})
	seen := make(chan string, 100)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		seen <- o.(*corev1.ConfigMap).Name
	}}); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	defer stop()
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer has not synced")
	}

	if n := begun.Load(); n != 1 {
		t.Fatalf("the reflector began %d times before the first kill: the test does not see how it begins", n)
	}
	for i := range kills {
		// Other clients write meanwhile, so that the API server forgets the version from which
		// the watch would continue.
		if _, err := direct.CoreV1().Secrets("default").Create(t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "other-"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		before := failed.Load()
		server.Signal(t, syscall.SIGKILL)
		// A write during the outage waits, too.
		name := fmt.Sprintf("map-%d", i)
		written := make(chan error, 1)
		go func() {
			create := func() error {
				_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				return err
			}
			err := create()
			// A write on an old connection, whose end was not noticed yet, fails. Whether it
			// was applied is unknown.
			if errors.Is(err, syscall.EPIPE) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) || utilnet.IsHTTP2ConnectionLost(err) {
				err = create()
			}
			written <- err
		}()
		server.Restart(t)
		answered := time.Now()
		if err := <-written; err != nil {
			t.Fatalf("after kill %d: %v", i+1, err)
		}
		deadline := time.After(testenv.Patience)
		for got := ""; got != name; {
			select {
			case got = <-seen:
			case <-deadline:
				t.Fatalf("after kill %d nothing was seen for %s", i+1, testenv.Patience)
			}
		}
		if n := begun.Load(); n != 1 {
			t.Errorf("kill %d made the reflector begin again, after a wait: it has begun %d times", i+1, n)
		}
		if took := time.Since(answered); testenv.Soak() && took > soon {
			t.Errorf("after kill %d what was written was seen after %s", i+1, took)
		}
		// Waiting requests are not sent. Only requests that were under way fail, once each.
		if n := failed.Load() - before; n > 4 {
			t.Errorf("kill %d made %d requests fail, want those under way alone", i+1, n)
		}
	}
}

func TestOutageEndsWithItsContext(t *testing.T) {
	server := testenv.StartServer(t)
	hub, stop := context.WithCancel(t.Context())
	barrier := &outage{ctx: hub, config: server.Config(), log: logr.Discard()}
	cfg := server.Config()
	cfg.Wrap(barrier.wrap)
	client := kubernetes.NewForConfigOrDie(cfg)
	server.Signal(t, syscall.SIGKILL)

	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err == nil || ctx.Err() == nil {
		t.Errorf("list: %v, want it to wait until its context ends", err)
	}
	time.AfterFunc(100*time.Millisecond, stop)
	if _, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a list succeeded on a hub that has stopped")
	}
}

// answers is an API server that answers successive requests with texts.
type answers struct {
	texts []string // empty: 200
	asked int
}

func (a *answers) RoundTrip(req *http.Request) (*http.Response, error) {
	text := a.texts[a.asked%len(a.texts)]
	a.asked++
	r := httptest.NewRecorder()
	if text != "" {
		r.Header().Set("Retry-After", "1")
		r.WriteHeader(http.StatusTooManyRequests)
		_, _ = r.WriteString(text)
	}
	resp := r.Result()
	resp.Request = req
	return resp, nil
}

// TestWatchesOfATypeThatIsBeingLoaded: a watch begins as soon as the API server has filled the
// watch cache of its type, although the API server asks to wait for a second. Every other
// refusal reaches the client.
func TestWatchesOfATypeThatIsBeingLoaded(t *testing.T) {
	const filling, busy = `{"kind":"Status","message":"storage is (re)initializing","code":429}`, "Too many requests, please try again later."
	for name, tc := range map[string]struct {
		query   string
		answers []string
		asked   int
		code    int
		text    string
		within  time.Duration
	}{
		"Filling":        {"?watch=true", []string{filling, filling, ""}, 3, http.StatusOK, "", 2 * fillPause},
		"NeverFilled":    {"?watch=true", []string{filling}, fillAttempts + 1, http.StatusTooManyRequests, filling, fillAttempts * fillPause},
		"Busy":           {"?watch=true", []string{busy}, 1, http.StatusTooManyRequests, busy, 0},
		"AListIsNone":    {"", []string{filling}, 1, http.StatusTooManyRequests, filling, 0},
		"FillingAndBusy": {"?watch=true", []string{filling, busy}, 2, http.StatusTooManyRequests, busy, fillPause},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &answers{texts: tc.answers}
				barrier := &outage{ctx: t.Context(), log: logr.Discard()}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://hub/apis/policy.orrery.dev/v1alpha1/overridepolicies"+tc.query, nil)
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				resp, err := barrier.wrap(server).RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != tc.code || string(text) != tc.text || server.asked != tc.asked {
					t.Errorf("%s %q (%v) after %d requests, want %d %q after %d", resp.Status, text, err, server.asked, tc.code, tc.text, tc.asked)
				}
				if took := time.Since(start); took != tc.within {
					t.Errorf("it took %s, want %s", took, tc.within)
				}
			})
		})
	}
}

// scripted is an API server with a list, and one function for each watch. It forgets versions.
type scripted struct {
	list    corev1.ConfigMapList
	watches []func() (watch.Interface, error)
}

func (s *scripted) List(metav1.ListOptions) (runtime.Object, error) { return s.list.DeepCopy(), nil }

func (s *scripted) Watch(metav1.ListOptions) (watch.Interface, error) {
	next := s.watches[0]
	s.watches = s.watches[1:]
	return next()
}

func (s *scripted) IsWatchListSemanticsUnSupported() bool { return true }

func configMap(name, version string) corev1.ConfigMap {
	return corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: version}}
}

// passedOn is an object that belongs to its receiver. A later read by another goroutine would
// be a data race.
type passedOn struct {
	corev1.ConfigMap

	owned, readAfterwards atomic.Bool
}

func (p *passedOn) GetNamespace() string         { p.read(); return p.Namespace }
func (p *passedOn) GetName() string              { p.read(); return p.Name }
func (p *passedOn) GetResourceVersion() string   { p.read(); return p.ResourceVersion }
func (p *passedOn) GetObjectMeta() metav1.Object { return p }

func (p *passedOn) read() {
	if p.owned.Load() {
		p.readAfterwards.Store(true)
	}
}

// TestEventsAreTheReceiversOwn: an object is not read any more after its event was received.
// Transforms change it at once, and a concurrent read of a map would end the process.
func TestEventsAreTheReceiversOwn(t *testing.T) {
	const events = 200
	source := watch.NewFakeWithChanSize(events, false)
	server := &scripted{watches: []func() (watch.Interface, error){func() (watch.Interface, error) { return source, nil }}}
	r := &relister{lw: cache.ToListerWatcherWithContext(server), example: &corev1.ConfigMap{}, versions: map[string]string{}}
	w, err := r.Watch(metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var sent []*passedOn
	for i := range events {
		o := &passedOn{ConfigMap: configMap(fmt.Sprintf("map-%d", i), fmt.Sprint(i))}
		sent = append(sent, o)
		source.Add(o)
	}
	for _, o := range sent {
		if e := <-w.ResultChan(); e.Object != o {
			t.Fatalf("got %v, want %s", e.Object, o.Name)
		}
		o.owned.Store(true)
	}
	for _, o := range sent[:events-1] {
		if o.readAfterwards.Load() {
			t.Fatalf("%s was read after it was received", o.Name)
		}
	}
}

// TestForgottenVersion: if the API server has forgotten the version, the watch lists and sends
// only the changes.
func TestForgottenVersion(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old resource version")
	status := expired.Status()
	for name, forgotten := range map[string]func() (watch.Interface, error){
		"Refused": func() (watch.Interface, error) { return nil, expired },
		"Told": func() (watch.Interface, error) {
			w := watch.NewFakeWithChanSize(1, false)
			w.Action(watch.Error, &status)
			return w, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			last := watch.NewFakeWithChanSize(1, false)
			kept, gone, old := configMap("kept", "1"), configMap("gone", "2"), configMap("changed", "3")
			server := &scripted{
				list:    corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "3"}, Items: []corev1.ConfigMap{kept, gone, old}},
				watches: []func() (watch.Interface, error){forgotten, func() (watch.Interface, error) { return last, nil }},
			}
			informer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
			r := &relister{lw: cache.ToListerWatcherWithContext(server), example: &corev1.ConfigMap{}, known: informer}
			if _, err := r.List(metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			gone.Data = map[string]string{"last": "known"}
			if err := informer.Add(&gone); err != nil {
				t.Fatal(err)
			}
			server.list = corev1.ConfigMapList{
				ListMeta: metav1.ListMeta{ResourceVersion: "9"},
				Items:    []corev1.ConfigMap{kept, configMap("changed", "7"), configMap("new", "8")},
			}
			w, err := r.Watch(metav1.ListOptions{ResourceVersion: "3"})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			afterwards := configMap("afterwards", "10")
			last.Add(&afterwards)
			var got []string
			for range 5 {
				e := <-w.ResultChan()
				o := e.Object.(*corev1.ConfigMap)
				got = append(got, fmt.Sprintf("%s %s %s %s", e.Type, o.Name, o.ResourceVersion, o.Data["last"]))
			}
			want := []string{"MODIFIED changed 7 ", "ADDED new 8 ", "DELETED gone 9 known", "BOOKMARK  9 ", "ADDED afterwards 10 "}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}
