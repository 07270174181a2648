package mirror

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"

	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// TestKilled kills a mirror after at most killWithin changes of the clusters. That is enough
// for a mirror to list everything and to begin to watch.
const (
	killWithin       = 2000
	changesPerSecond = 1000
)

// duplicates are two clusters that are the same API server, so that both have objects of the same
// names.
var duplicates = []string{"east", "west"}

// killedEnv is the variable with the database and the kubeconfig for the process that
// TestKilled kills.
const killedEnv = "MIRROR_TEST_KILLED"

// mirrorUntilKilled is the main function of the process that TestKilled kills. It mirrors both
// clusters and prints "synced" when it has everything. It exits when its parent exits and so
// closes stdin.
func mirrorUntilKilled() {
	at, kubeconfig, _ := strings.Cut(os.Getenv(killedEnv), "\n")
	fail := func(err error) {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent closes it
		os.Exit(0)
	}()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		fail(err)
	}
	cfg.QPS = -1
	s, err := storeAt(at)
	if err != nil {
		fail(err)
	}
	m := newMirror(s, newFleet(duplicateSources(cfg)...), logr.Discard())
	m.follow(s)
	go func() {
		for ; ; time.Sleep(5 * time.Millisecond) {
			if m.Observation(duplicates[0]).Synced && m.Observation(duplicates[1]).Synced {
				fmt.Println("synced")
				return
			}
		}
	}()
	fail(m.Start(context.Background()))
}

func storeAt(at string) (*store.Store, error) {
	if strings.Contains(at, "://") {
		return store.OpenDSN(context.Background(), at)
	}
	return store.Open(context.Background(), at)
}

func duplicateSources(cfg *rest.Config) []*testSource {
	out := make([]*testSource, 0, len(duplicates))
	for _, name := range duplicates {
		s := sourceOf(name, cfg, "configmaps")
		for !s.discover() {
			time.Sleep(10 * time.Millisecond) // until the server answers
		}
		out = append(out, s)
	}
	return out
}

// TestKilled kills a mirror with SIGKILL at random points, at its start as well as later, while
// its clusters change. After each kill the database is intact. After the last one the store
// equals the clusters, object by object. KILLS sets the number of kills for each database.
func TestKilled(t *testing.T) {
	for _, tc := range []struct {
		name     string
		few, all int
		at       func(t *testing.T) string
	}{
		{"SQLite", 3, 10, func(t *testing.T) string { return t.TempDir() }},
		{"PostgreSQL", 1, 3, func(t *testing.T) string { return testenv.PostgreSQL.Create(t) }},
		{"MariaDB", 1, 3, func(t *testing.T) string { return testenv.MariaDB.Create(t) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			killed(t, tc.at(t), testenv.Count(t, "KILLS", tc.few, tc.all))
		})
	}
}

func killed(t *testing.T, at string, kills int) {
	cfg := testenv.Config(manyObjects)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, testenv.Kubeconfig(manyObjects), 0o600); err != nil {
		t.Fatal(err)
	}
	random := testenv.Rand(t)
	l := newLoad(t, cfg, testenv.Seed(t))
	began := time.Now()
	early := 0
	for range kills {
		point := random.IntN(killWithin)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killedEnv+"="+at+"\n"+kubeconfig)
		in := must[io.WriteCloser](t)(cmd.StdinPipe())
		out := must[io.ReadCloser](t)(cmd.StdoutPipe())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for len(l.changed) > 0 { // changes from before the mirror started
			<-l.changed
		}
		said := make(chan string, 2)
		go func() {
			defer close(said)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				said <- lines.Text()
			}
		}()
		had := false
		for n := 0; n < point; {
			select {
			case <-l.changed:
				n++
			case line := <-said:
				if line != "synced" {
					t.Fatalf("the mirror has ended: %q", line)
				}
				had, said = true, nil
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // an error, since the process was killed
		_ = in.Close()
		if !had {
			early++
		}
		s := must[*store.Store](t)(storeAt(at))
		if _, err := s.Count(t.Context(), store.Query{Resource: "configmaps"}); err != nil || s.Losses() != 0 {
			t.Errorf("after a kill there are %d losses, %v", s.Losses(), err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		whole(t, at)
	}
	took := time.Since(began)
	changes := l.stop()
	t.Logf("%d kills, %d of them before the mirror had everything, in %s; %d changes, %.0f/s", kills, early, took.Round(time.Second),
		changes, float64(changes)/took.Seconds())

	s := must[*store.Store](t)(storeAt(at))
	defer s.Close()
	m, stop := start(t, s, newFleet(duplicateSources(cfg)...))
	defer stop()
	for _, name := range duplicates {
		synced(t, m, name)
	}
	asClusters(t, s, m, cfg, duplicates...)
}

// whole fails the test if SQLite finds its file damaged. It skips other databases.
func whole(t *testing.T, at string) {
	t.Helper()
	if strings.Contains(at, "://") {
		return
	}
	db := must[*sql.DB](t)(sql.Open("sqlite", filepath.Join(at, "mirror.db")))
	defer db.Close()
	var verdict string
	if err := db.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("integrity check: %s, %v", verdict, err)
	}
}

// asClusters waits until the store has, for each cluster and mirrored type, the objects of the
// API server cfg, which is the same for all clusters. It compares UID, resource version, labels
// and content of each object.
func asClusters(t *testing.T, s *store.Store, m *Mirror, cfg *rest.Config, clusters ...string) {
	t.Helper()
	type object struct {
		UID, Version string
		Labels       map[string]string
		Content      any
	}
	c := must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(cfg))
	diff := ""
	defer func() {
		if t.Failed() {
			t.Log(diff[:min(len(diff), 4000)])
		}
	}()
	eventually(t, "the store is as the clusters are", func() bool {
		want, got := map[string]object{}, map[string]object{}
		total := 0
		for _, typ := range m.Types() {
			gvr := typ.GroupVersionResource()
			if gvr.GroupResource() == secrets { // only the metadata of Secrets is stored
				continue
			}
			list, err := c.Resource(gvr).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				diff = err.Error()
				return false
			}
			for i := range list.Items {
				o := &list.Items[i]
				if kept := managers(entriesOf(t, o), o.GetAPIVersion()); kept != nil {
					if err := unstructured.SetNestedSlice(o.Object, kept, "metadata", "managedFields"); err != nil {
						t.Fatal(err)
					}
				}
				for _, cluster := range clusters {
					want[fmt.Sprint(gvr, cluster, o.GetNamespace(), o.GetName())] = object{string(o.GetUID()), o.GetResourceVersion(), o.GetLabels(), o.Object}
				}
				total++
			}
			page, err := s.List(t.Context(), store.Query{Group: gvr.Group, Resource: gvr.Resource, Clusters: clusters})
			if err != nil {
				diff = err.Error()
				return false
			}
			for _, r := range page.Rows {
				var content map[string]any
				if err := json.Unmarshal(r.Body, &content); err != nil {
					t.Fatal(err)
				}
				got[fmt.Sprint(gvr, r.Cluster, r.Namespace, r.Name)] = object{string(r.UID), r.ResourceVersion, r.Labels, normal(t, content)}
			}
		}
		for k, o := range want {
			o.Content = normal(t, o.Content)
			want[k] = o
		}
		diff = cmp.Diff(want, got)
		return diff == "" && total > 0
	})
}

// entriesOf returns the managedFields of an object.
func entriesOf(t *testing.T, o *unstructured.Unstructured) []any {
	t.Helper()
	entries, _, err := unstructured.NestedSlice(o.Object, "metadata", "managedFields")
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// normal returns v after encoding it to JSON and decoding it again.
func normal(t *testing.T, v any) (out any) {
	t.Helper()
	if err := json.Unmarshal(must[[]byte](t)(json.Marshal(v)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// load changes ConfigMaps of a namespace at changesPerSecond until it is stopped. It sends to
// changed for each change that the API server acknowledged.
type load struct {
	changed chan struct{}
	stop    func() (changes int)
}

func newLoad(t *testing.T, cfg *rest.Config, seed uint64) *load {
	t.Helper()
	const workers, names = 16, 20 // names per worker
	namespace := testenv.Namespace(t, cfg)
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	k := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(cfg)).CoreV1().ConfigMaps(namespace)
	ctx, cancel := context.WithCancel(context.Background())
	pace := flowcontrol.NewTokenBucketRateLimiter(changesPerSecond, workers)
	l := &load{changed: make(chan struct{}, 1<<16)}
	var running sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for worker := range workers {
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(worker+1)))
			there := map[string]bool{}
			for n := 0; pace.Wait(ctx) == nil; n++ {
				name := fmt.Sprintf("m-%d-%d", worker, random.IntN(names))
				o := &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"n": strconv.Itoa(n % 7)}},
					Data:       map[string]string{"n": strconv.Itoa(n), "fill": strings.Repeat("x", random.IntN(2000))},
				}
				var change func() error
				done := func(error) bool { return false }
				// With context.Background a started change is completed. If it were cancelled,
				// its result would be unknown.
				switch {
				case !there[name]:
					change = func() error { _, err := k.Create(context.Background(), o, metav1.CreateOptions{}); return err }
					done = apierrors.IsAlreadyExists
					there[name] = true
				case random.IntN(5) == 0:
					change = func() error { return k.Delete(context.Background(), name, metav1.DeleteOptions{}) }
					done = apierrors.IsNotFound
					there[name] = false
				default:
					change = func() error { _, err := k.Update(context.Background(), o, metav1.UpdateOptions{}); return err }
				}
				err := change()
				// A server under this load may not answer in time. The change may have been
				// applied nevertheless.
				for end := time.Now().Add(testenv.Patience); err != nil && time.Now().Before(end); _ = pace.Wait(context.Background()) {
					if err = change(); err != nil && done(err) {
						err = nil
					}
				}
				if err != nil {
					t.Errorf("change %s: %v", name, err)
					return
				}
				mu.Lock()
				total++
				mu.Unlock()
				select {
				case l.changed <- struct{}{}:
				default: // the buffer is full: no test has read it for long
				}
			}
		})
	}
	l.stop = sync.OnceValue(func() int {
		cancel()
		running.Wait()
		return total
	})
	t.Cleanup(func() { l.stop() })
	return l
}
