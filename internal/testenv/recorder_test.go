package testenv

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMain(m *testing.M) { Main(m, 1) }

func recorded(t *testing.T) (*Recorder, *API) {
	t.Helper()
	r, err := NewRecorder(Config(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	api, err := NewAPI(r.Config())
	if err != nil {
		t.Fatal(err)
	}
	return r, api
}

func configMap(ns, name, value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: " + ns + "}\ndata: {key: " + value + "}\n"
}

func TestRecorderKeepsTheSequenceOfWrites(t *testing.T) {
	ns := Namespace(t, Config(0))
	r, api := recorded(t)
	api.Apply(t, configMap(ns, "a", "one"))
	first := api.Object(t, "v1", "ConfigMap", ns, "a")
	api.Apply(t, configMap(ns, "a", "two"))
	api.MergePatch(t, "v1", "ConfigMap", ns, "a", `{"data":{"key":"three"}}`)
	if err := api.Patch(t.Context(), object("v1", "ConfigMap", ns, "a"), client.RawPatch("application/merge-patch+json", []byte(`{"data":null}`)), client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(t.Context(), first, client.Preconditions{UID: new(first.GetUID())}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range r.Writes(0) {
		if w.Code/100 != 2 {
			continue // this write was repeated
		}
		line := w.Verb + " " + w.Object()
		if data, ok := w.Body["data"]; ok {
			line += fmt.Sprint(" ", data)
		}
		if w.DryRun {
			line += " dry-run"
		}
		if w.UID() != first.GetUID() {
			t.Errorf("%s: UID %q, want %q", w, w.UID(), first.GetUID())
		}
		if w.FieldManager != FieldManager && w.Verb == "apply" {
			t.Errorf("%s: field manager %q", w, w.FieldManager)
		}
		got = append(got, line)
	}
	want := []string{
		"apply configmaps " + ns + "/a map[key:one]", "apply configmaps " + ns + "/a map[key:two]", "patch configmaps " + ns + "/a map[key:three]",
		"patch configmaps " + ns + "/a <nil> dry-run", "delete configmaps " + ns + "/a",
	}
	// A write whose answer was late is written twice.
	if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
		t.Errorf("sequence (-want +got):\n%s", diff)
	}
}

// TestRecorderNotesTheEnd: the record distinguishes a pending write, an answered one, and one
// during which the API server died.
func TestRecorderNotesTheEnd(t *testing.T) {
	arrived, proceed := make(chan struct{}), make(chan struct{})
	apiServer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch path.Base(q.URL.Path) {
		case "slow":
			close(arrived)
			<-proceed
		case "dead":
			panic(http.ErrAbortHandler)
		}
	}))
	defer apiServer.Close()
	r, err := NewRecorder(&rest.Config{
		Host: apiServer.URL, BearerToken: "token",
		TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: apiServer.Certificate().Raw})},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	clients, err := rest.HTTPClientFor(r.Config())
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string) error {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPut, r.Config().Host+"/api/v1/namespaces/x/configmaps/"+name, strings.NewReader("{}"))
		if err != nil {
			return err
		}
		answer, err := clients.Do(q)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	}
	if err := put("answered"); err != nil {
		t.Fatal(err)
	}
	if err := put("dead"); err == nil {
		t.Error("a write is answered though the API server died")
	}
	slow := make(chan error, 1)
	go func() { slow <- put("slow") }()
	<-arrived
	ends := func() map[string]string {
		found := map[string]string{}
		for _, w := range r.Writes(0) {
			found[w.Name] = fmt.Sprintf("%d, ended %t", w.Code, !w.Ended.IsZero())
			if !w.Ended.IsZero() && w.Ended.Before(w.Time) {
				t.Errorf("%s ended at %s", w, w.Ended)
			}
		}
		return found
	}
	want := map[string]string{"answered": "200, ended true", "dead": "0, ended true", "slow": "0, ended false"}
	if diff := cmp.Diff(want, ends()); diff != "" {
		t.Errorf("before the last write is answered (-want +got):\n%s", diff)
	}
	close(proceed)
	if err := <-slow; err != nil {
		t.Fatal(err)
	}
	want["slow"] = "200, ended true"
	if diff := cmp.Diff(want, ends()); diff != "" {
		t.Errorf("afterwards (-want +got):\n%s", diff)
	}
}

// TestRecorderCallsTheHooksOfANamespace: each namespace has a hook of its own, and one hook
// gets all writes.
func TestRecorderCallsTheHooksOfANamespace(t *testing.T) {
	ns, other := Namespace(t, Config(0)), Namespace(t, Config(0))
	r, api := recorded(t)
	var mu sync.Mutex
	got := map[string][]string{}
	note := func(hook string) func(Write) {
		return func(w Write) {
			mu.Lock()
			defer mu.Unlock()
			// A write whose answer was late is written twice.
			got[hook] = slices.Compact(append(got[hook], w.Verb+" "+w.Object()))
		}
	}
	r.OnWrite(note("all"))
	r.OnWriteIn(ns, note("one"))
	r.OnWriteIn(other, note("other"))
	api.Apply(t, configMap(ns, "a", "one"))
	api.Apply(t, configMap(other, "b", "one"))
	api.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+", labels: {a: b}}\n")
	r.OnWrite(nil)
	r.OnWriteIn(other, nil)
	api.Apply(t, configMap(ns, "a", "two"))
	api.Apply(t, configMap(other, "b", "two"))
	inNS, inOther, itself := "apply configmaps "+ns+"/a", "apply configmaps "+other+"/b", "apply namespaces "+ns
	want := map[string][]string{"all": {inNS, inOther, itself}, "one": {inNS, itself, inNS}, "other": {inOther}}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestRecorderPassesWatches(t *testing.T) {
	ns := Namespace(t, Config(0))
	r, api := recorded(t)
	clients, err := kubernetes.NewForConfig(r.Config())
	if err != nil {
		t.Fatal(err)
	}
	w, err := clients.CoreV1().ConfigMaps(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	api.Apply(t, configMap(ns, "a", "one"))
	if e := <-w.ResultChan(); e.Type != "ADDED" {
		t.Fatalf("got %s, want ADDED", e.Type)
	}
	r.Fail(Cut)
	if e, open := <-w.ResultChan(); open {
		t.Errorf("a watch outlives the connection: %v", e)
	}
}

func TestRecorderFaults(t *testing.T) {
	for name, tc := range map[string]struct {
		fault Fault
		// read: reads are answered; done: the write is done at once; late: the write is done
		// after Heal
		read, done, late bool
	}{
		"Hang": {fault: Hang, late: true},
		"Cut":  {fault: Cut},
		"Mute": {fault: Mute, read: true, done: true, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			ns := Namespace(t, Config(0))
			r, api := recorded(t)
			direct, err := NewAPI(Config(0))
			if err != nil {
				t.Fatal(err)
			}
			list := func(ctx context.Context) error {
				_, err := api.ListKind(ctx, "v1", "ConfigMap", ns)
				return err
			}
			// The client has used the server before, and has a connection to it.
			Eventually(t, "a read", Patience, func() error { return list(t.Context()) })
			r.Fail(tc.fault)
			find := func() error {
				_, err := direct.Find(t.Context(), "v1", "ConfigMap", ns, "a")
				return err
			}
			exists := func() bool { return find() == nil }
			// The timeout leaves a hanging write time to be sent. A write that must be done
			// ends the wait.
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			answered := make(chan error, 1)
			if tc.done {
				ctx, cancel = context.WithCancel(t.Context())
				defer cancel()
			}
			go func() { answered <- api.TryApply(ctx, configMap(ns, "a", "one")) }()
			if tc.done {
				Eventually(t, "the write is performed at once", Patience, find)
				cancel()
			}
			if err := <-answered; err == nil {
				t.Error("a write is answered")
			}
			if tc.read {
				Eventually(t, "a read", Patience, func() error { return list(t.Context()) })
			} else {
				brief, end := context.WithTimeout(t.Context(), time.Second)
				defer end()
				if list(brief) == nil {
					t.Error("a read is answered")
				}
			}
			if !tc.done && exists() {
				t.Error("the write was performed")
			}
			r.Heal()
			if tc.late {
				Eventually(t, "the write is performed", Patience, find)
			} else if exists() {
				t.Error("a refused write was performed")
			}
			api.Apply(t, configMap(ns, "b", "one"))
		})
	}
}

func TestRecorderDelays(t *testing.T) {
	r, api := recorded(t)
	r.Slow(300 * time.Millisecond)
	Eventually(t, "a read", Patience, func() error {
		start := time.Now()
		_, err := api.ListKind(t.Context(), "v1", "Namespace", "")
		if took := time.Since(start); err == nil && took < 300*time.Millisecond {
			t.Fatalf("it took %s", took)
		}
		return err
	})
}

func TestParseWrite(t *testing.T) {
	for name, tc := range map[string]struct {
		method, url, contentType string
		want                     string // "" when nothing is changed
	}{
		"Read":            {http.MethodGet, "/api/v1/namespaces/x/pods", "", ""},
		"Create":          {http.MethodPost, "/api/v1/namespaces/x/pods", "", "create pods x/"},
		"Apply":           {http.MethodPatch, "/apis/apps/v1/namespaces/x/deployments/web", "application/apply-patch+yaml", "apply deployments.apps x/web"},
		"Namespace":       {http.MethodDelete, "/api/v1/namespaces/x", "", "delete namespaces x"},
		"FinalizeOfOne":   {http.MethodPut, "/api/v1/namespaces/x/finalize", "", "update namespaces x"},
		"ClusterScoped":   {http.MethodPatch, "/apis/rbac.authorization.k8s.io/v1/clusterroles/r", "", "patch clusterroles.rbac.authorization.k8s.io r"},
		"Collection":      {http.MethodDelete, "/api/v1/namespaces/x/pods", "", "deletecollection pods x/"},
		"Review":          {http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "", ""},
		"Exec":            {http.MethodPost, "/api/v1/namespaces/x/pods/p/exec", "", ""},
		"NoResourceAtAll": {http.MethodPost, "/healthz", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			q := httptest.NewRequestWithContext(t.Context(), tc.method, tc.url, nil)
			q.Header.Set("Content-Type", tc.contentType)
			got := ""
			if w, ok := parseWrite(q); ok {
				got = w.Verb + " " + w.Object()
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
