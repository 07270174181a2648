// Package spine helps tests check the invariants of docs/design/0003-spine.md from outside.
// They run `orrery server` as its users do, with member clusters whose API servers are behind
// recorders. So they assert the sequence of writes and not only the final state. The tests are
// in the packages below this one. Each package has a fleet of its own, so that they run in
// parallel.
package spine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// Patience is the timeout for steps that normally take a moment.
const Patience = testenv.Patience

// Members are shared by all tests of a package, each of which has namespaces of its own.
var Members *testenv.Members

var (
	hub     *testenv.Hub // shared by all tests except those that call Alone
	binary  string
	scratch string
	flags   []string // of Main
)

// Main runs the tests of a package with a fleet of its own. Each package calls it from TestMain.
// more are additional flags for each hub of the package.
func Main(m *testing.M, more ...string) {
	flags = more
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "spine:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	testenv.Programs() // so that seeds depend on the programs from the first test on
	if scratch, err = os.MkdirTemp("", "orrery-spine-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	defer func() { err = errors.Join(err, testenv.StopDatabases()) }()
	if binary, err = testenv.BuildOrrery(scratch); err != nil {
		return 1, err
	}
	if Members, err = testenv.StartMembers(scratch, 3, "oak", "pine", "birch"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, Members.Stop()) }()
	if hub, err = testenv.StartHub(scratch, binary, append(probes(), flags...)...); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, hub.Stop()) }()
	return m.Run(), nil
}

// probes returns flags with which a hub notices a lost member within 13 s. A member that does
// not answer for some seconds, as on a busy machine, is not lost. With the default flags that
// takes up to 28 s, which most tests accept only under Soak.
func probes() []string {
	if testenv.Soak() {
		return nil
	}
	return []string{"--probe-interval=2s", "--probe-timeout=2s", "--probe-failures=4"}
}

// World is the environment of one test: the fleet, without faults at the start, and a
// namespace.
type World struct {
	*testing.T
	Hub              *testenv.Hub
	Oak, Pine, Birch *testenv.Member
	Namespace        string
	Others           []string // further namespaces of the test
	Marks            map[string]int
	log              int64
	sentinels        int // how many objects CaughtUp has created
}

// Start returns a World with the shared fleet, in which every member answers and is joined.
func Start(t *testing.T, ns string) *World {
	t.Helper()
	return begin(t, hub, ns)
}

// Alone returns a World with a hub of its own that has joined every member. Meanwhile the
// shared hub is stopped, and it does not know what the other hub places in members.
func Alone(t *testing.T, ns string) *World {
	t.Helper()
	return alone(t, ns, probes()...)
}

// AloneByDefault is Alone with a hub that has the default times of health probes.
func AloneByDefault(t *testing.T, ns string) *World {
	t.Helper()
	return alone(t, ns)
}

func alone(t *testing.T, ns string, probes ...string) *World {
	t.Helper()
	if err := hub.Stop(); err != nil {
		t.Fatal(err)
	}
	own, err := testenv.StartHub(t.TempDir(), binary, slices.Concat(probes, flags)...)
	if err != nil {
		t.Fatal(err)
	}
	w := begin(t, own, ns)
	t.Cleanup(func() { // runs before the cleanup of begin, which removes the placed objects
		if t.Failed() {
			w.Explain()
		}
		own.Kill()
	})
	return w
}

func begin(t *testing.T, h *testenv.Hub, ns string) *World {
	t.Helper()
	testenv.Programs()
	w := &World{
		T: t, Hub: h, Namespace: ns, Marks: map[string]int{}, log: h.LogSize(),
		Oak: Members.Named("oak"), Pine: Members.Named("pine"), Birch: Members.Named("birch"),
	}
	w.whole()
	t.Cleanup(func() {
		for _, m := range Members.List {
			m.OnWriteIn(ns, nil)
			m.Heal()
		}
		if crash := testenv.Crash(h.LogSince(w.log)); crash != "" {
			t.Errorf("the server ended by itself, or will one day:\n%s", crash)
		}
		if t.Failed() && h.Running() {
			w.Explain()
		}
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		for _, name := range []string{ns, sentinelOf(ns)} {
			if h.Running() {
				_ = h.Delete(ctx, NamespaceObject(name))
			}
			for _, m := range Members.List {
				_ = m.Delete(ctx, NamespaceObject(name))
			}
		}
	})
	for _, m := range Members.List {
		w.Marks[m.Name] = m.Mark()
	}
	h.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n")
	return w
}

// whole heals members, starts the hub and joins clusters where an earlier test did not.
func (w *World) whole() {
	w.Helper()
	for _, m := range Members.List {
		m.Heal()
	}
	if !w.Hub.Running() {
		if err := w.Hub.Start(); err != nil {
			// An earlier test may have left a mirror that the hub cannot open.
			w.Must(os.RemoveAll(filepath.Join(w.Hub.Dir, "mirror")))
			w.Must(w.Hub.Start())
		}
	}
	for _, m := range Members.List {
		if !w.Hub.Joined(w, m) {
			w.Join(m)
		}
		w.Ready(m)
	}
}

// Join joins a member. It repeats a join without an answer, which completes the earlier
// attempt.
func (w *World) Join(m *testenv.Member) {
	w.Helper()
	w.Attempt("join "+m.Name, func() error { return w.Hub.Join(m) })
}

// Unjoin removes a member from the fleet.
func (w *World) Unjoin(m *testenv.Member) {
	w.Helper()
	again := false
	w.Attempt("unjoin "+m.Name, func() error {
		err := w.Hub.Unjoin(m)
		if again && err != nil && strings.Contains(err.Error(), "is not joined") {
			return nil // an earlier attempt without an answer succeeded
		}
		again = true
		return err
	})
}

// Attempt runs a command until it succeeds. It repeats an attempt without an answer; any other
// error fails the test.
func (w *World) Attempt(what string, command func() error) {
	w.Helper()
	w.Eventually(what, func() error {
		err := command()
		if err != nil && !noAnswer(err) {
			w.Fatalf("%s: %v", what, err)
		}
		return err
	})
}

// unheard lists parts of the errors of commands whose requests had no answer, or the answer of
// a busy API server. It is unknown whether such requests were performed.
var unheard = []string{
	"context deadline exceeded", "would exceed context deadline", "Client.Timeout", "no answer in time", "i/o timeout", "TLS handshake timeout",
	"connection refused", "connection reset", "broken pipe", "client connection lost", "EOF",
	"the server is currently unable to handle the request", "cannot reach orrery server", "answers but is not ready", "is unreachable", "does not answer",
	"did not try the new credentials within", "in the time allotted", "request did not complete within", "etcdserver: ",
	"too many requests", "Too many requests", "Operation cannot be fulfilled",
}

// noAnswer reports whether a command ended without an answer, so that it may be run again.
func noAnswer(err error) bool {
	return slices.ContainsFunc(unheard, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// Unanswered reports whether an error leaves the state of the object unknown: there was no
// answer, or the answer of a busy API server.
func Unanswered(err error) bool {
	var (
		status  apierrors.APIStatus
		request *url.Error
	)
	if errors.As(err, &status) {
		code := status.Status().Code
		return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout
	}
	return errors.As(err, &request) || errors.Is(err, context.DeadlineExceeded)
}

// Answered repeats a check until its requests are answered, and returns its result.
func (w *World) Answered(what string, check func() error) (found error) {
	w.Helper()
	w.Eventually(what+": ask until there is an answer", func() error {
		if found = check(); Unanswered(found) {
			return found
		}
		return nil
	})
	return found
}

// Lookup returns an object, or nil if it does not exist. It repeats until the API server
// answers.
func (w *World) Lookup(api *testenv.API, apiVersion, kind, namespace, name string) (found *unstructured.Unstructured) {
	w.Helper()
	w.Eventually("look for "+kind+" "+name, func() (err error) {
		if found, err = api.Find(w.Context(), apiVersion, kind, namespace, name); apierrors.IsNotFound(err) {
			found, err = nil, nil
		}
		return err
	})
	return found
}

// Object is like Lookup for the test's namespace, and fails the test if the object does not
// exist.
func (w *World) Object(api *testenv.API, apiVersion, kind, name string) *unstructured.Unstructured {
	w.Helper()
	o := w.Lookup(api, apiVersion, kind, w.Namespace, name)
	if o == nil {
		w.Fatalf("there is no %s %s", kind, name)
	}
	return o
}

// Must fails the test for an error.
func (w *World) Must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// Restart starts the hub again after it was killed or stopped.
func (w *World) Restart() {
	w.Helper()
	w.Must(w.Hub.Start())
}

// NamespaceObject returns a Namespace.
func NamespaceObject(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("v1")
	o.SetKind("Namespace")
	o.SetName(name)
	return o
}

// Explain prints the writes in members, and the log of the server.
func (w *World) Explain() {
	for _, m := range Members.List {
		var b strings.Builder
		for _, r := range m.Writes(w.Marks[m.Name]) {
			if ns := cmp.Or(r.Namespace, r.Name); r.Namespace == "" || ns == w.Namespace || slices.Contains(w.Others, ns) {
				fmt.Fprintln(&b, "  ", r)
			}
		}
		w.Logf("writes in %s:\n%s", m.Name, b.String())
	}
	log := strings.SplitAfter(w.Hub.LogSince(w.log), "\n")
	for _, ns := range append([]string{w.Namespace}, w.Others...) {
		all, err := w.Hub.ListKind(context.Background(), "work.orrery.dev/v1alpha2", "ResourceBinding", ns)
		if err != nil {
			w.Log(err)
		}
		for _, b := range all {
			clusters, _, _ := unstructured.NestedSlice(b.Object, "spec", "clusters")
			w.Logf("%s/%s: %v %s", ns, b.GetName(), clusters, Conditions(&b))
		}
		var lines []string
		for _, line := range log {
			if strings.Contains(line, ns) || strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
				lines = append(lines, line)
			}
		}
		w.Logf("the server's log about %s:\n%s", ns, strings.Join(lines[max(0, len(lines)-100):], ""))
	}
}

// Eventually waits until a check returns no error.
func (w *World) Eventually(what string, check func() error) {
	w.Helper()
	testenv.Eventually(w, what, Patience, check)
}

// Conditions returns the conditions of an object as Type=Status/Reason.
func Conditions(o *unstructured.Unstructured) string {
	var all []string
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range list {
		if c, ok := c.(map[string]any); ok {
			all = append(all, fmt.Sprintf("%v=%v/%v", c["type"], c["status"], c["reason"]))
		}
	}
	return strings.Join(all, " ")
}

// Ready waits until the cluster of a member is ready.
func (w *World) Ready(m *testenv.Member) {
	w.Helper()
	w.Condition("cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name, "Ready=True")
}

// Lost waits until the hub has noticed that a member does not answer.
func (w *World) Lost(m *testenv.Member) {
	w.Helper()
	w.Condition("cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name, "Reachable=Unknown")
}

// Condition waits until an object on the hub has a condition, Type=Status or Type=Status/Reason.
func (w *World) Condition(apiVersion, kind, namespace, name, want string) {
	w.Helper()
	w.Eventually(kind+" "+name+" is "+want, func() error {
		o, err := w.Hub.Find(w.Context(), apiVersion, kind, namespace, name)
		if err != nil {
			return err
		}
		if has := Conditions(o); !strings.Contains(has+" ", want+" ") && !strings.Contains(has, want+"/") {
			return fmt.Errorf("it is %s", has)
		}
		return nil
	})
}

// Binding waits until the binding of a template of this namespace has a condition.
func (w *World) Binding(kind, name, want string) {
	w.Helper()
	w.Condition("work.orrery.dev/v1alpha2", "ResourceBinding", w.Namespace, name+"-"+strings.ToLower(kind), want)
}

// Applied waits until the current template is applied in all its clusters.
func (w *World) Applied(kind, name string) {
	w.Helper()
	w.Binding(kind, name, "FullyApplied=True")
}

// Placed waits until a member has a copy with our label, and returns the copy.
func (w *World) Placed(m *testenv.Member, apiVersion, kind, name string) *unstructured.Unstructured {
	w.Helper()
	var found *unstructured.Unstructured
	w.Eventually(m.Name+" has "+kind+" "+name, func() (err error) {
		if found, err = m.Find(w.Context(), apiVersion, kind, w.Namespace, name); err != nil {
			return err
		}
		if found.GetLabels()[workv1alpha2.BindingLabel] == "" {
			return errors.New("it has no mark")
		}
		return nil
	})
	return found
}

// Gone waits until a member does not have the object.
func (w *World) Gone(m *testenv.Member, apiVersion, kind, name string) {
	w.Helper()
	ns := w.Namespace
	if kind == "Namespace" {
		ns = ""
	}
	w.Eventually(m.Name+" has no "+kind+" "+name, func() error {
		_, err := m.Find(w.Context(), apiVersion, kind, ns, name)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return errors.New("it is there")
	})
}

// Available waits until a Deployment in a member has that many available replicas.
func (w *World) Available(m *testenv.Member, name string, want int64) {
	w.Helper()
	w.Eventually(fmt.Sprintf("%s has %d available replicas of %s", m.Name, want, name), func() error {
		d, err := m.Find(w.Context(), "apps/v1", "Deployment", w.Namespace, name)
		if err != nil {
			return err
		}
		if n := AvailableReplicas(d); n != want {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}

// AvailableReplicas returns the available replicas in the status of a Deployment.
func AvailableReplicas(d *unstructured.Unstructured) int64 {
	n, _, _ := unstructured.NestedInt64(d.Object, "status", "availableReplicas")
	return n
}

// Replicas returns the replicas in the spec of a Deployment.
func Replicas(d *unstructured.Unstructured) int64 {
	n, _, _ := unstructured.NestedInt64(d.Object, "spec", "replicas")
	return n
}

// Writes returns the writes in a member since the test began that changed an object of the
// test's namespace, or the namespace itself.
func (w *World) Writes(m *testenv.Member) []testenv.Write {
	return w.WritesSince(m, w.Marks[m.Name])
}

// WritesSince is like Writes, since a mark.
func (w *World) WritesSince(m *testenv.Member, mark int) []testenv.Write {
	var mine []testenv.Write
	for _, r := range m.Writes(mark) {
		if r.Changed() && (r.Namespace == w.Namespace || r.Resource == "namespaces" && r.Name == w.Namespace) {
			mine = append(mine, r)
		}
	}
	return mine
}

// NoDeletions fails the test for every deletion in a member since a mark.
func (w *World) NoDeletions(m *testenv.Member, mark int) {
	w.Helper()
	for _, r := range w.WritesSince(m, mark) {
		if strings.HasPrefix(r.Verb, "delete") {
			w.Errorf("%s: %s", m.Name, r)
		}
	}
}

// Kind names a kind as a manifest does.
type Kind struct{ APIVersion, Kind string }

// Kinds are the kinds whose objects the tests compare.
var Kinds = []Kind{
	{"apps/v1", "Deployment"},
	{"apps/v1", "StatefulSet"},
	{"batch/v1", "Job"},
	{"v1", "ConfigMap"},
	{"v1", "Secret"},
	{"v1", "Service"},
	{"v1", "ServiceAccount"},
	{"v1", "PersistentVolumeClaim"},
}

// Content holds the objects in one namespace of a member, without those that Kubernetes creates
// there, and of each object the part that Orrery's labels and annotations do not change.
type Content map[string]Object

// Object is one object in Content.
type Object struct {
	UID      types.UID
	Contents any // spec and data
}

// Content returns the content of the test's namespace in a member.
func (w *World) Content(m *testenv.Member) Content {
	w.Helper()
	all := Content{}
	w.Eventually("list what "+m.Name+" has", func() error {
		clear(all)
		for _, k := range Kinds {
			list, err := m.ListKind(w.Context(), k.APIVersion, k.Kind, w.Namespace)
			if err != nil {
				return err
			}
			for _, o := range list {
				if BuiltIn(&o) {
					continue
				}
				all[k.Kind+"/"+o.GetName()] = Object{UID: o.GetUID(), Contents: Contents(&o)}
			}
		}
		return nil
	})
	return all
}

// Contents returns an object without metadata and status.
func Contents(o *unstructured.Unstructured) any {
	c := runtime.DeepCopyJSON(o.Object)
	delete(c, "metadata")
	delete(c, "status")
	return c
}

// BuiltIn reports whether Kubernetes creates the object in every namespace, or a controller
// owns it.
func BuiltIn(o *unstructured.Unstructured) bool {
	return o.GetKind() == "ServiceAccount" && o.GetName() == "default" ||
		o.GetKind() == "ConfigMap" && o.GetName() == "kube-root-ca.crt" || metav1.GetControllerOf(o) != nil
}

// Stays fails the test for each object in before that is gone from the member, was replaced by
// another object of the name, or has other contents.
func (w *World) Stays(m *testenv.Member, before Content) {
	w.Helper()
	now := w.Content(m)
	for name, was := range before {
		is, ok := now[name]
		switch {
		case !ok:
			w.Errorf("%s: %s is gone", m.Name, name)
		case is.UID != was.UID:
			w.Errorf("%s: %s was deleted and made anew", m.Name, name)
		case fmt.Sprint(is.Contents) != fmt.Sprint(was.Contents):
			w.Errorf("%s: %s changed from %v to %v", m.Name, name, was.Contents, is.Contents)
		}
	}
}

// Quiet waits until, for the duration d, no write reaches the test's namespaces in any member
// or in others.
func (w *World) Quiet(d time.Duration, others ...*testenv.Member) {
	w.Helper()
	last, since := -1, time.Now()
	w.Eventually("members are left in peace", func() error {
		sum := 0
		for _, m := range append(others, Members.List...) {
			for _, r := range m.Writes(w.Marks[m.Name]) {
				if w.owns(cmp.Or(r.Namespace, r.Name)) {
					sum++
				}
			}
		}
		if sum != last {
			last, since = sum, time.Now()
		}
		if time.Since(since) < d {
			return fmt.Errorf("the last of %d writes was %s ago", sum, time.Since(since).Round(time.Millisecond))
		}
		return nil
	})
}

// owns reports whether the test works in a namespace.
func (w *World) owns(ns string) bool { return ns == w.Namespace || slices.Contains(w.Others, ns) }

// CaughtUp waits until the hub has done its earlier work in the members (default: all). To find
// out, it creates an object, in a namespace of its own, and waits until the object is placed
// there and the hub reports that. The object tolerates the taints of clusters. Under Soak,
// CaughtUp then also waits until no write happens for the given duration.
func (w *World) CaughtUp(while time.Duration, in ...*testenv.Member) {
	w.Helper()
	if len(in) == 0 {
		in = Members.List
	}
	ns := sentinelOf(w.Namespace)
	w.sentinels++
	names := make([]string, 0, len(in))
	for _, m := range in {
		names = append(names, m.Name)
	}
	name := fmt.Sprint("sentinel-", w.sentinels)
	w.Hub.Apply(w, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n"+
		Policy(ns, name, "{apiVersion: v1, kind: ConfigMap, name: "+name+"}", In(names...)+", "+Tolerating)+ConfigMap(ns, name, "one"))
	for _, m := range in {
		w.Eventually(m.Name+" has what was made after all else", func() error {
			_, err := m.Find(w.Context(), "v1", "ConfigMap", ns, name)
			return err
		})
	}
	w.Condition("work.orrery.dev/v1alpha2", "ResourceBinding", ns, name+"-configmap", "FullyApplied=True")
	if testenv.Soak() {
		w.Quiet(while, in...)
	}
}

// sentinelOf returns the namespace that CaughtUp uses for a test.
func sentinelOf(ns string) string { return ns + "-sentinel" }

// Never fails the test if check returns an error now or after the hub has caught up in the
// members. Under Soak, it repeats the check for the duration within after that.
func (w *World) Never(what string, within time.Duration, check func() error, in ...*testenv.Member) {
	w.Helper()
	if err := w.Answered(what, check); err != nil {
		w.Fatalf("%s: %v", what, err)
	}
	w.CaughtUp(0, in...)
	if err := w.Answered(what, check); err != nil {
		w.Fatalf("%s: %v", what, err)
	}
	if testenv.Soak() {
		testenv.Never(w, what, within, func() error { return w.Answered(what, check) })
	}
}

// Moved waits until a binding names exactly these clusters.
func (w *World) Moved(kind, name string, clusters ...string) {
	w.Helper()
	ns := w.Namespace
	if kind == "ClusterResourceBinding" {
		ns = ""
	}
	w.Eventually(fmt.Sprintf("%s %s names %v", kind, name, clusters), func() error {
		b, err := w.Hub.Find(w.Context(), "work.orrery.dev/v1alpha2", kind, ns, name)
		if err != nil {
			return err
		}
		var names []string
		list, _, _ := unstructured.NestedSlice(b.Object, "spec", "clusters")
		for _, c := range list {
			if c, ok := c.(map[string]any); ok {
				names = append(names, fmt.Sprint(c["name"]))
			}
		}
		slices.Sort(names)
		slices.Sort(clusters)
		if !slices.Equal(names, clusters) {
			return fmt.Errorf("it names %v", names)
		}
		return nil
	})
}

// Data waits until a member's ConfigMap has a value.
func (w *World) Data(m *testenv.Member, name, want string) {
	w.Helper()
	w.Eventually(m.Name+" has "+want+" in ConfigMap "+name, func() error {
		o, err := m.Find(w.Context(), "v1", "ConfigMap", w.Namespace, name)
		if err != nil {
			return err
		}
		if got, _, _ := unstructured.NestedString(o.Object, "data", "key"); got != want {
			return fmt.Errorf("it has %s", got)
		}
		return nil
	})
}

// ClusterNames are the names of all members.
var ClusterNames = []string{"oak", "pine", "birch"}
