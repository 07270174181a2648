package spine

import (
	"cmp"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"orrery.dev/orrery/internal/testenv"
)

// confirmRestore is the command by which an operator says that the hub was restored.
var confirmRestore = []string{"server", "confirm-restore", "--yes"}

// TestRestoredHub restores the hub's etcd from a backup that is older than what was placed since.
// Until that is confirmed nothing may be deleted and nothing rolled back; then it converges.
func TestRestoredHub(t *testing.T) {
	w := alone(t, "restored")
	w.hub.Apply(t, policy(w.ns, "all", everything, in("oak"))+policy(w.ns, "moving", "{apiVersion: apps/v1, kind: Deployment, name: moves}", in("oak"))+
		configMap(w.ns, "deleted-since", "one")+configMap(w.ns, "changed-since", "one")+secret(w.ns, "changed-since", "one")+
		deployment(w.ns, "changed-since", 2)+deployment(w.ns, "moves", 2)+deployment(w.ns, "same", 1))
	for _, name := range []string{"changed-since", "moves"} {
		w.available(w.oak, name, 2)
		w.applied("Deployment", name)
	}
	w.applied("ConfigMap", "changed-since")
	w.applied("Secret", "changed-since")

	backup := w.backUp()
	w.hub.Remove(t, "v1", "ConfigMap", w.ns, "deleted-since")
	w.hub.Apply(t, configMap(w.ns, "changed-since", "two")+secret(w.ns, "changed-since", "two")+configMap(w.ns, "made-since", "one")+deployment(w.ns, "made-since", 2)+
		policy(w.ns, "moving", "{apiVersion: apps/v1, kind: Deployment, name: moves}", in("pine")))
	w.hub.MergePatch(t, "apps/v1", "Deployment", w.ns, "changed-since", `{"spec":{"replicas":3,"template":{"metadata":{"annotations":{"edited":"yes"}}}}}`)
	w.gone(w.oak, "v1", "ConfigMap", "deleted-since")
	w.gone(w.oak, "apps/v1", "Deployment", "moves")
	w.available(w.pine, "moves", 2)
	w.available(w.oak, "made-since", 2)
	w.available(w.oak, "changed-since", 3)
	w.data(w.oak, "changed-since", "two")
	w.quiet(2 * time.Second)

	w.must(w.hub.Stop())
	before := map[*testenv.Member]content{w.oak: w.content(w.oak), w.pine: w.content(w.pine)}
	marks := map[*testenv.Member]int{w.oak: w.oak.Mark(), w.pine: w.pine.Mark()}
	log := w.hub.LogSize()
	w.must(w.hub.Restore(backup))
	w.restart()
	untouched := func() {
		t.Helper()
		for m := range before {
			w.noDeletions(m, marks[m])
			w.stays(m, before[m])
		}
	}
	w.suspected(untouched)
	for _, m := range members.List {
		w.ready(m)
	}
	w.quiet(3 * time.Second)
	untouched()
	// What does not go back is done: an object of now is placed.
	w.hub.Apply(t, configMap(w.ns, "new", "one"))
	w.placed(w.oak, "v1", "ConfigMap", "new")
	// It is remembered over a restart, and said.
	w.hub.Kill()
	w.restart()
	w.eventually("the log says so", func() error {
		if !contains(w.hub.LogSince(log), "restored") {
			return errors.New("no word of a restored hub")
		}
		return nil
	})
	w.quiet(3 * time.Second)
	untouched()

	out, err := w.hub.Orrery(confirmRestore...)
	if err != nil {
		t.Fatal(out, err)
	}
	w.data(w.oak, "changed-since", "one")
	w.available(w.oak, "changed-since", 2)
	w.available(w.oak, "moves", 2)
	w.gone(w.pine, "apps/v1", "Deployment", "moves")
	w.placed(w.oak, "v1", "ConfigMap", "deleted-since")
	// What the hub does not know stays, is listed, and is adopted when it is made again.
	for _, m := range []*testenv.Member{w.oak} {
		for _, name := range []string{"Deployment/made-since", "ConfigMap/made-since"} {
			if now := w.content(m)[name]; now.UID != before[m][name].UID {
				t.Errorf("%s is gone from %s", name, m.Name)
			}
		}
	}
	listed, err := w.hub.Orrery("cluster", "orphans", "oak")
	if err != nil || !contains(listed, "made-since") {
		t.Errorf("orphans do not list it: %v\n%s", err, listed)
	}
	w.hub.Apply(t, configMap(w.ns, "made-since", "one")+deployment(w.ns, "made-since", 2))
	w.applied("ConfigMap", "made-since")
	w.applied("Deployment", "made-since")
	for _, name := range []string{"Deployment/made-since", "ConfigMap/made-since"} {
		if now := w.content(w.oak)[name]; now.UID != before[w.oak][name].UID {
			t.Errorf("%s was made anew", name)
		}
	}
}

// TestRestoredHubWithEqualTemplates restores a hub whose templates are as they were: that it is
// older than its members shows in where they have their copies, or in how a cluster left.
func TestRestoredHubWithEqualTemplates(t *testing.T) {
	w := alone(t, "placed-since")
	w.hub.Apply(t, policy(w.ns, "moving", "{apiVersion: v1, kind: ConfigMap, name: moves}", in("oak"))+
		policy(w.ns, "both", "{apiVersion: v1, kind: ConfigMap, name: both}", in("oak", "pine"))+
		configMap(w.ns, "moves", "one")+configMap(w.ns, "both", "one"))
	w.applied("ConfigMap", "moves")
	w.applied("ConfigMap", "both")
	restored := func(since func(), copies ...*testenv.Member) {
		t.Helper()
		backup := w.backUp()
		since()
		w.quiet(2 * time.Second)
		w.must(w.hub.Stop())
		before, marks := map[*testenv.Member]content{}, map[*testenv.Member]int{}
		for _, m := range members.List {
			before[m], marks[m] = w.content(m), m.Mark()
		}
		w.must(w.hub.Restore(backup))
		w.restart()
		untouched := func() {
			t.Helper()
			for m, mark := range marks {
				w.noDeletions(m, mark)
			}
			for _, m := range copies {
				w.stays(m, before[m])
			}
		}
		w.suspected(untouched)
		w.quiet(2 * time.Second)
		untouched()
		if out, err := w.hub.Orrery(confirmRestore...); err != nil {
			t.Fatal(out, err)
		}
	}

	restored(func() {
		w.hub.Apply(t, policy(w.ns, "moving", "{apiVersion: v1, kind: ConfigMap, name: moves}", in("pine")))
		w.placed(w.pine, "v1", "ConfigMap", "moves")
		w.gone(w.oak, "v1", "ConfigMap", "moves")
	}, w.pine)
	w.placed(w.oak, "v1", "ConfigMap", "moves")
	w.gone(w.pine, "v1", "ConfigMap", "moves")

	uid := w.placed(w.pine, "v1", "ConfigMap", "both").GetUID()
	restored(func() { w.must(w.hub.Unjoin(w.pine)) }, w.pine)
	w.must(w.hub.Join(w.pine))
	w.applied("ConfigMap", "both")
	if now := w.placed(w.pine, "v1", "ConfigMap", "both").GetUID(); now != uid {
		t.Errorf("what was left in pine was made anew")
	}
}

// TestRestoredHubAndAClusterThatWasAway restores a hub of a time at which a cluster did not answer. What shows that the hub is
// older than its members is in that cluster alone, which answers now: the hub asks it, and does not go by what it wrote of the
// cluster then.
func TestRestoredHubAndAClusterThatWasAway(t *testing.T) {
	w := alone(t, "was-away")
	w.hub.Apply(t, policy(w.ns, "goes", "{apiVersion: v1, kind: ConfigMap, name: goes}", in("oak"))+
		policy(w.ns, "changes", "{apiVersion: v1, kind: ConfigMap, name: changes}", in("birch"))+
		configMap(w.ns, "goes", "one")+configMap(w.ns, "changes", "one"))
	w.applied("ConfigMap", "goes")
	w.applied("ConfigMap", "changes")
	w.birch.Fail(testenv.Cut)
	w.lost(w.birch)
	backup := w.backUp()
	w.birch.Heal()
	w.ready(w.birch)
	w.hub.Apply(t, configMap(w.ns, "changes", "two"))
	w.data(w.birch, "changes", "two")

	w.must(w.hub.Stop())
	before, mark := map[*testenv.Member]content{w.oak: w.content(w.oak), w.birch: w.content(w.birch)}, w.oak.Mark()
	w.must(w.hub.Restore(backup))
	w.birch.Slow(500 * time.Millisecond) // it answers, if later than the others
	w.restart()
	w.hub.Remove(t, "v1", "ConfigMap", w.ns, "goes")
	untouched := func() {
		t.Helper()
		w.noDeletions(w.oak, mark)
		for m := range before {
			w.stays(m, before[m])
		}
	}
	w.suspected(untouched)
	w.birch.Heal()
	w.quiet(2 * time.Second)
	untouched()
	if out, err := w.hub.Orrery(confirmRestore...); err != nil {
		t.Fatal(out, err)
	}
	w.gone(w.oak, "v1", "ConfigMap", "goes")
	w.data(w.birch, "changes", "one")
}

// backUp copies the hub's etcd away, between two runs of the hub.
func (w *world) backUp() string {
	w.Helper()
	backup := filepath.Join(w.TempDir(), "backup")
	w.must(w.hub.Stop())
	w.must(w.hub.Backup(backup))
	w.restart()
	return backup
}

// suspected waits until the hub says that it seems to be restored; meanwhile must hold until then.
func (w *world) suspected(meanwhile func()) {
	w.Helper()
	w.eventually("the hub suspects that it was restored", func() error {
		o, err := w.hub.Find(w.Context(), "v1", "ConfigMap", "orrery-cluster", "hub-restore")
		state := ""
		if err == nil {
			state, _, _ = unstructured.NestedString(o.Object, "data", "state")
		}
		if state != "Suspected" {
			if meanwhile(); w.Failed() {
				w.FailNow()
			}
			return cmp.Or(err, errorf("its state is %q", state))
		}
		return nil
	})
}

// data waits until a member's ConfigMap has a value.
func (w *world) data(m *testenv.Member, name, want string) {
	w.Helper()
	w.eventually(m.Name+" has "+want+" in ConfigMap "+name, func() error {
		o, err := m.Find(w.Context(), "v1", "ConfigMap", w.ns, name)
		if err != nil {
			return err
		}
		if got, _, _ := unstructured.NestedString(o.Object, "data", "key"); got != want {
			return errorf("it has %s", got)
		}
		return nil
	})
}
