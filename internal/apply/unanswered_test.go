package apply

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

// forward sends a request to a server, as its administrator, and returns the answer.
func (f *fleet) forward(server int, r *http.Request) (*http.Response, error) {
	through, err := rest.TransportFor(testenv.Config(server))
	if err != nil {
		return nil, err
	}
	ask, err := http.NewRequestWithContext(r.Context(), r.Method, testenv.Config(server).Host+r.URL.RequestURI(), r.Body)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"Accept", "Content-Type"} {
		ask.Header.Set(name, r.Header.Get(name))
	}
	return through.RoundTrip(ask)
}

// leaderless returns the kubeconfig of an API server that stores what is applied in a namespace,
// and answers 500 while loses is true, as API servers do while etcd elects a leader. Before
// watched returns, nobody learns what a list or watch of ConfigMaps or Jobs answers.
func (f *fleet) leaderless(server int, ns string, loses *atomic.Bool, watched func()) []byte {
	return f.door(server, func(w http.ResponseWriter, r *http.Request) bool {
		lost := r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/namespaces/"+ns+"/") && loses.Load()
		lists := r.Method == http.MethodGet && (strings.HasSuffix(r.URL.Path, "/configmaps") || strings.HasSuffix(r.URL.Path, "/jobs"))
		if !lost && !lists {
			return false
		}
		answer, err := f.forward(server, r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return true
		}
		defer func() { _ = answer.Body.Close() }()
		w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
		if lost {
			_, _ = io.Copy(io.Discard, answer.Body)
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"message":"etcdserver: leader changed"}`)
			return true
		}
		w.WriteHeader(answer.StatusCode)
		const size = 32 << 10
		for part := make([]byte, size); err == nil; {
			var n int
			n, err = answer.Body.Read(part)
			if n > 0 {
				watched()
			}
			_, _ = w.Write(part[:n])
			_ = http.NewResponseController(w).Flush()
		}
		return true
	})
}

// The API server stores a copy and answers 500. A binding that is deleted then, before the watch
// has the copy, is there until the copy is gone.
func TestAnInternalErrorIsNoAnswer(t *testing.T) {
	f := newFleet(t)
	f.start()
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	var loses, holds atomic.Bool
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	f.join("elm", f.leaderless(elmServer, ns, &loses, func() {
		if holds.Load() {
			<-released
		}
	}))
	t.Cleanup(release) // before the server closes, which waits for its requests
	elm := f.client(testenv.Config(elmServer))
	first := f.bind(configMap(ns, "first", "1"), nil, "elm")
	f.result(first, "elm", workv1alpha2.ReasonFullyApplied)

	holds.Store(true)
	loses.Store(true)
	b := f.bind(configMap(ns, "a", "1"), nil, "elm")
	if r := f.result(b, "elm", workv1alpha2.ReasonRejected); r.Message != "etcdserver: leader changed" {
		t.Errorf("it is said %q", r.Message)
	}
	stored := f.data(elm, ns, "a", "1")
	f.must(f.hub.Delete(t.Context(), b))
	f.gone(f.hub, b)
	if err := elm.Get(t.Context(), client.ObjectKeyFromObject(stored), stored); !apierrors.IsNotFound(err) {
		t.Fatalf("the copy outlives its binding: %v", err)
	}
	release()
	f.gone(elm, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}})
	f.unjoin("elm")
}

// The API server stores a Job and answers 500. The run does not count as one without a copy, and
// the Job that is there is the copy.
func TestAnInternalErrorSaysNothingOfARun(t *testing.T) {
	f := newFleet(t)
	f.start()
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	var loses, holds atomic.Bool
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	f.join("elm", f.leaderless(elmServer, ns, &loses, func() {
		if holds.Load() {
			<-released
		}
	}))
	t.Cleanup(release) // before the server closes, which waits for its requests
	elm := f.client(testenv.Config(elmServer))
	job := func(name string) *unstructured.Unstructured {
		return f.manifestOf(ns, fmt.Sprintf(`{apiVersion: batch/v1, kind: Job, metadata: {name: %[1]s, namespace: NAMESPACE, uid: template-%[1]s},
  spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`, name))
	}
	first := f.bind(job("first"), nil, "elm")
	f.result(first, "elm", workv1alpha2.ReasonFullyApplied)
	holds.Store(true)
	loses.Store(true)
	template := job("j")
	b := f.bind(template, nil, "elm")
	f.result(b, "elm", workv1alpha2.ReasonRejected)
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b))
	if mark := binding.RunIn(b.Status.Runs, template.GetUID(), "elm"); mark == nil || mark.Phase != workv1alpha2.RunBegan {
		t.Errorf("the binding says %+v", mark)
	}
	if s, _ := f.applier.results.get(b.UID, "elm"); s.run.unmade != "" {
		t.Errorf("no copy was made for %q", s.run.unmade)
	}
	stored := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "j"}}
	f.must(elm.Get(t.Context(), client.ObjectKeyFromObject(stored), stored))
	uid := stored.UID
	loses.Store(false)
	release()
	f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
	f.must(elm.Get(t.Context(), client.ObjectKeyFromObject(stored), stored))
	if stored.UID != uid {
		t.Error("the Job was created twice")
	}
	f.unjoin("elm")
}

// Somebody creates an object after the plan that found none. The cluster lets the hub do nothing
// after its first apply. The object is as it was, also when the template is gone.
func TestAnObjectThatAppearsMeanwhileIsNeverOurs(t *testing.T) {
	f := newFleet(t)
	f.start()
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	var applies atomic.Int64
	f.join("elm", f.door(elmServer, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "/namespaces/"+ns+"/configmaps/") || applies.Add(1) == 1 {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no more"}`)
		return true
	}))
	elm := f.client(testenv.Config(elmServer))
	f.must(elm.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}, Data: map[string]string{"key": "1"}}
	f.must(elm.Create(t.Context(), theirs))
	f.eventually("the mirror has it", func() error { return f.presence("elm", ns, "a", presence.Present) })
	f.outdated.hide("elm", ns, "a")
	b := f.bind(configMap(ns, "a", "1"), nil, "elm")
	f.eventually("it is not placed", func() error {
		if r, ok := f.applier.Result(b.UID, "elm"); !ok || r.Reason == "" || applies.Load() == 0 {
			return fmt.Errorf("it is %+v after %d applies", r, applies.Load())
		}
		return nil
	})
	f.must(f.hub.Delete(t.Context(), b))
	f.gone(f.hub, b)
	now := &corev1.ConfigMap{}
	f.must(elm.Get(t.Context(), client.ObjectKeyFromObject(theirs), now))
	if now.UID != theirs.UID || now.ResourceVersion != theirs.ResourceVersion {
		t.Errorf("it was written: %v", now)
	}
	f.unjoin("elm")
}
