// Package spine holds Orrery to the invariants of docs/design/0003-spine.md from outside: an
// `orrery server` as its users run it, and member clusters whose API servers stand behind
// recorders, so that the sequence of what was written is asserted and not only its end.
package spine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// patience is how long anything may take that should take a moment.
const patience = testenv.Patience

// members are shared by all tests, each of which has namespaces of its own; so is the hub, but
// for tests that say so.
var (
	members *testenv.Members
	hub     *testenv.Hub
	binary  string
	scratch string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "spine:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if scratch, err = os.MkdirTemp("", "orrery-spine-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if binary, err = testenv.BuildOrrery(scratch); err != nil {
		return 1, err
	}
	if members, err = testenv.StartMembers(scratch, 3, "oak", "pine", "birch"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, members.Stop()) }()
	if hub, err = testenv.StartHub(scratch, binary); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, hub.Stop()) }()
	return m.Run(), nil
}

// world is what one test uses: the fleet, whole at its start, and a namespace.
type world struct {
	*testing.T
	hub              *testenv.Hub
	oak, pine, birch *testenv.Member
	ns               string
	others           []string // namespaces that it works in, too
	marks            map[string]int
	log              int64
}

// start gives a test the shared fleet: every member answers and is joined.
func start(t *testing.T, ns string) *world {
	t.Helper()
	testenv.Programs()
	return begin(t, hub, ns)
}

// alone gives a test a hub of its own, which has joined every member. The shared hub is stopped
// meanwhile, and knows nothing of what the other one places in members.
func alone(t *testing.T, ns string) *world {
	t.Helper()
	if err := hub.Stop(); err != nil {
		t.Fatal(err)
	}
	own, err := testenv.StartHub(t.TempDir(), binary)
	if err != nil {
		t.Fatal(err)
	}
	w := begin(t, own, ns)
	t.Cleanup(func() { // before begin's, which removes what it placed
		if t.Failed() {
			w.explain()
		}
		own.Kill()
	})
	return w
}

func begin(t *testing.T, h *testenv.Hub, ns string) *world {
	t.Helper()
	w := &world{
		T: t, hub: h, ns: ns, marks: map[string]int{}, log: h.LogSize(),
		oak: members.Named("oak"), pine: members.Named("pine"), birch: members.Named("birch"),
	}
	w.whole()
	t.Cleanup(func() {
		for _, m := range members.List {
			m.OnWrite(nil)
			m.Heal()
		}
		if crash := testenv.Crash(h.LogSince(w.log)); crash != "" {
			t.Errorf("the server ended by itself, or will one day:\n%s", crash)
		}
		if t.Failed() && h.Running() {
			w.explain()
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if h.Running() {
			_ = h.Delete(ctx, namespaceObject(ns))
		}
		for _, m := range members.List {
			_ = m.Delete(ctx, namespaceObject(ns))
		}
	})
	for _, m := range members.List {
		w.marks[m.Name] = m.Mark()
	}
	h.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n")
	return w
}

// whole heals, starts and joins whatever an earlier test has left otherwise.
func (w *world) whole() {
	w.Helper()
	for _, m := range members.List {
		m.Heal()
	}
	if !w.hub.Running() {
		if err := w.hub.Start(); err != nil {
			// An earlier test may have left a mirror that it cannot open.
			w.must(os.RemoveAll(filepath.Join(w.hub.Dir, "mirror")))
			w.must(w.hub.Start())
		}
	}
	for _, m := range members.List {
		if !w.hub.Joined(w, m) {
			w.must(w.hub.Join(m))
		}
		w.ready(m)
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// restart starts the hub again after it was killed or stopped.
func (w *world) restart() {
	w.Helper()
	w.must(w.hub.Start())
}

func namespaceObject(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("v1")
	o.SetKind("Namespace")
	o.SetName(name)
	return o
}

// explain prints what was written in members, and what the server logged.
func (w *world) explain() {
	for _, m := range members.List {
		var b strings.Builder
		for _, r := range m.Writes(w.marks[m.Name]) {
			if ns := cmp.Or(r.Namespace, r.Name); r.Namespace == "" || ns == w.ns || slices.Contains(w.others, ns) {
				fmt.Fprintln(&b, "  ", r)
			}
		}
		w.Logf("writes in %s:\n%s", m.Name, b.String())
	}
	log := strings.SplitAfter(w.hub.LogSince(w.log), "\n")
	for _, ns := range append([]string{w.ns}, w.others...) {
		all, err := w.hub.ListKind(context.Background(), "work.orrery.dev/v1alpha2", "ResourceBinding", ns)
		if err != nil {
			w.Log(err)
		}
		for _, b := range all {
			clusters, _, _ := unstructured.NestedSlice(b.Object, "spec", "clusters")
			w.Logf("%s/%s: %v %s", ns, b.GetName(), clusters, conditions(&b))
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

func (w *world) eventually(what string, check func() error) {
	w.Helper()
	testenv.Eventually(w, what, patience, check)
}

// conditions are those of an object, as Type=Status/Reason.
func conditions(o *unstructured.Unstructured) string {
	var all []string
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range list {
		if c, ok := c.(map[string]any); ok {
			all = append(all, fmt.Sprintf("%v=%v/%v", c["type"], c["status"], c["reason"]))
		}
	}
	return strings.Join(all, " ")
}

// ready waits until a cluster is.
func (w *world) ready(m *testenv.Member) {
	w.Helper()
	w.condition("cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name, "Ready=True")
}

// lost waits until the hub knows that a member does not answer.
func (w *world) lost(m *testenv.Member) {
	w.Helper()
	w.condition("cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name, "Reachable=Unknown")
}

// condition waits until an object on the hub has a condition, Type=Status or Type=Status/Reason.
func (w *world) condition(apiVersion, kind, namespace, name, want string) {
	w.Helper()
	w.eventually(kind+" "+name+" is "+want, func() error {
		o, err := w.hub.Find(w.Context(), apiVersion, kind, namespace, name)
		if err != nil {
			return err
		}
		if has := conditions(o); !strings.Contains(has+" ", want+" ") && !strings.Contains(has, want+"/") {
			return fmt.Errorf("it is %s", has)
		}
		return nil
	})
}

// binding waits until the binding of a template of this namespace has a condition.
func (w *world) binding(kind, name, want string) {
	w.Helper()
	w.condition("work.orrery.dev/v1alpha2", "ResourceBinding", w.ns, name+"-"+strings.ToLower(kind), want)
}

// applied waits until the template, as it is now, is applied everywhere.
func (w *world) applied(kind, name string) {
	w.Helper()
	w.binding(kind, name, "FullyApplied=True")
}

// placed waits until a member has a copy with our mark and returns it.
func (w *world) placed(m *testenv.Member, apiVersion, kind, name string) *unstructured.Unstructured {
	w.Helper()
	var found *unstructured.Unstructured
	w.eventually(m.Name+" has "+kind+" "+name, func() (err error) {
		if found, err = m.Find(w.Context(), apiVersion, kind, w.ns, name); err != nil {
			return err
		}
		if found.GetLabels()[workv1alpha2.BindingLabel] == "" {
			return errors.New("it has no mark")
		}
		return nil
	})
	return found
}

// gone waits until a member has no such object.
func (w *world) gone(m *testenv.Member, apiVersion, kind, name string) {
	w.Helper()
	ns := w.ns
	if kind == "Namespace" {
		ns = ""
	}
	w.eventually(m.Name+" has no "+kind+" "+name, func() error {
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

// available waits until a member's Deployment has so many available replicas.
func (w *world) available(m *testenv.Member, name string, want int64) {
	w.Helper()
	w.eventually(fmt.Sprintf("%s has %d available replicas of %s", m.Name, want, name), func() error {
		d, err := m.Find(w.Context(), "apps/v1", "Deployment", w.ns, name)
		if err != nil {
			return err
		}
		if n := availableReplicas(d); n != want {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}

func availableReplicas(d *unstructured.Unstructured) int64 {
	n, _, _ := unstructured.NestedInt64(d.Object, "status", "availableReplicas")
	return n
}

func replicas(d *unstructured.Unstructured) int64 {
	n, _, _ := unstructured.NestedInt64(d.Object, "spec", "replicas")
	return n
}

// writes are those in a member since the test began that changed something, about objects of
// the test's namespace or the namespace itself.
func (w *world) writes(m *testenv.Member) []testenv.Write {
	return w.writesSince(m, w.marks[m.Name])
}

func (w *world) writesSince(m *testenv.Member, mark int) []testenv.Write {
	var mine []testenv.Write
	for _, r := range m.Writes(mark) {
		if r.Changed() && (r.Namespace == w.ns || r.Resource == "namespaces" && r.Name == w.ns) {
			mine = append(mine, r)
		}
	}
	return mine
}

// noDeletions fails the test for every deletion in a member since a mark.
func (w *world) noDeletions(m *testenv.Member, mark int) {
	w.Helper()
	for _, r := range w.writesSince(m, mark) {
		if strings.HasPrefix(r.Verb, "delete") {
			w.Errorf("%s: %s", m.Name, r)
		}
	}
}

// kindName names a kind as a manifest does.
type kindName struct{ apiVersion, kind string }

// kinds whose objects tests compare.
var kinds = []kindName{
	{"apps/v1", "Deployment"},
	{"apps/v1", "StatefulSet"},
	{"batch/v1", "Job"},
	{"v1", "ConfigMap"},
	{"v1", "Secret"},
	{"v1", "Service"},
	{"v1", "ServiceAccount"},
	{"v1", "PersistentVolumeClaim"},
}

// content is what is in one namespace of a member, Kubernetes' own things apart, with what no
// mark of ours changes.
type content map[string]thing

type thing struct {
	UID      types.UID
	Contents any // spec and data
}

func (w *world) content(m *testenv.Member) content {
	w.Helper()
	all := content{}
	w.eventually("list what "+m.Name+" has", func() error {
		clear(all)
		for _, k := range kinds {
			list, err := m.ListKind(w.Context(), k.apiVersion, k.kind, w.ns)
			if err != nil {
				return err
			}
			for _, o := range list {
				if builtIn(&o) {
					continue
				}
				all[k.kind+"/"+o.GetName()] = thing{UID: o.GetUID(), Contents: contents(&o)}
			}
		}
		return nil
	})
	return all
}

// contents are an object without metadata and status.
func contents(o *unstructured.Unstructured) any {
	c := runtime.DeepCopyJSON(o.Object)
	delete(c, "metadata")
	delete(c, "status")
	return c
}

// builtIn is true for what Kubernetes makes in every namespace.
func builtIn(o *unstructured.Unstructured) bool {
	return o.GetKind() == "ServiceAccount" && o.GetName() == "default" ||
		o.GetKind() == "ConfigMap" && o.GetName() == "kube-root-ca.crt" || metav1.GetControllerOf(o) != nil
}

// stays fails the test when something that was in a member is not there any more, is another
// object of the name, or has other contents.
func (w *world) stays(m *testenv.Member, before content) {
	w.Helper()
	now := w.content(m)
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

// quiet waits until nothing has been written in any member, or others, for a while.
func (w *world) quiet(d time.Duration, others ...*testenv.Member) {
	w.Helper()
	last, since := -1, time.Now()
	w.eventually("members are left in peace", func() error {
		sum := 0
		for _, m := range append(others, members.List...) {
			sum += m.Mark()
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

func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }

// moved waits until a binding names exactly these clusters.
func (w *world) moved(kind, name string, clusters ...string) {
	w.Helper()
	ns := w.ns
	if kind == "ClusterResourceBinding" {
		ns = ""
	}
	w.eventually(fmt.Sprintf("%s %s names %v", kind, name, clusters), func() error {
		b, err := w.hub.Find(w.Context(), "work.orrery.dev/v1alpha2", kind, ns, name)
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

func contains(text, part string) bool { return strings.Contains(text, part) }
