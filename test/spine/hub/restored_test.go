package hub

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// confirmRestore is the command with which an operator confirms that the hub was restored.
var confirmRestore = []string{"server", "confirm-restore", "--yes"}

// TestRestoredHub restores the hub's etcd from a backup, after more objects were placed. Until
// the restore is confirmed, nothing may be deleted and nothing rolled back. Then the fleet
// converges.
func TestRestoredHub(t *testing.T) {
	testenv.Rotate(t, 3, "TestRestoredHub", "TestRestoredHubWithEqualTemplates", "TestRestoredHubAndAClusterThatWasAway")
	w := spine.Alone(t, "restored")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak"))+spine.Policy(w.Namespace, "moving", "{apiVersion: apps/v1, kind: Deployment, name: moves}", spine.In("oak"))+
		spine.ConfigMap(w.Namespace, "deleted-since", "one")+spine.ConfigMap(w.Namespace, "changed-since", "one")+spine.Secret(w.Namespace, "changed-since", "one")+
		spine.Deployment(w.Namespace, "changed-since", 2)+spine.Deployment(w.Namespace, "moves", 2)+spine.Deployment(w.Namespace, "same", 1))
	for _, name := range []string{"changed-since", "moves"} {
		w.Available(w.Oak, name, 2)
		w.Applied("Deployment", name)
	}
	w.Applied("ConfigMap", "changed-since")
	w.Applied("Secret", "changed-since")

	backup := backUp(w)
	w.Hub.Remove(t, "v1", "ConfigMap", w.Namespace, "deleted-since")
	w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "changed-since", "two")+spine.Secret(w.Namespace, "changed-since", "two")+spine.ConfigMap(w.Namespace, "made-since", "one")+spine.Deployment(w.Namespace, "made-since", 2)+
		spine.Policy(w.Namespace, "moving", "{apiVersion: apps/v1, kind: Deployment, name: moves}", spine.In("pine")))
	w.Hub.MergePatch(t, "apps/v1", "Deployment", w.Namespace, "changed-since", `{"spec":{"replicas":3,"template":{"metadata":{"annotations":{"edited":"yes"}}}}}`)
	w.Gone(w.Oak, "v1", "ConfigMap", "deleted-since")
	w.Gone(w.Oak, "apps/v1", "Deployment", "moves")
	w.Available(w.Pine, "moves", 2)
	w.Available(w.Oak, "made-since", 2)
	w.Available(w.Oak, "changed-since", 3)
	w.Data(w.Oak, "changed-since", "two")
	w.Quiet(2 * time.Second)

	w.Must(w.Hub.Stop())
	before := map[*testenv.Member]spine.Content{w.Oak: w.Content(w.Oak), w.Pine: w.Content(w.Pine)}
	marks := map[*testenv.Member]int{w.Oak: w.Oak.Mark(), w.Pine: w.Pine.Mark()}
	log := w.Hub.LogSize()
	w.Must(w.Hub.Restore(backup))
	w.Restart()
	untouched := func() {
		t.Helper()
		for m := range before {
			w.NoDeletions(m, marks[m])
			w.Stays(m, before[m])
		}
	}
	suspected(w, untouched)
	for _, m := range spine.Members.List {
		w.Ready(m)
	}
	w.CaughtUp(3 * time.Second)
	untouched()
	// Work that rolls nothing back is done: a new object is placed.
	w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "new", "one"))
	w.Placed(w.Oak, "v1", "ConfigMap", "new")
	// The suspicion survives a restart, and is reported.
	w.Hub.Kill()
	w.Restart()
	w.Eventually("the log says so", func() error {
		if !strings.Contains(w.Hub.LogSince(log), "restored") {
			return errors.New("no word of a restored hub")
		}
		return nil
	})
	w.CaughtUp(3 * time.Second)
	untouched()

	confirm(w)
	w.Data(w.Oak, "changed-since", "one")
	w.Available(w.Oak, "changed-since", 2)
	w.Available(w.Oak, "moves", 2)
	w.Gone(w.Pine, "apps/v1", "Deployment", "moves")
	w.Placed(w.Oak, "v1", "ConfigMap", "deleted-since")
	// Objects that the hub does not know stay, are listed, and are adopted when they are
	// created again.
	for _, m := range []*testenv.Member{w.Oak} {
		for _, name := range []string{"Deployment/made-since", "ConfigMap/made-since"} {
			if now := w.Content(m)[name]; now.UID != before[m][name].UID {
				t.Errorf("%s is gone from %s", name, m.Name)
			}
		}
	}
	w.Eventually("orphans list it", func() error {
		listed, err := w.Hub.Orrery("cluster", "orphans", "oak")
		if err == nil && !strings.Contains(listed, "made-since") {
			err = errors.New(listed)
		}
		return err
	})
	w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "made-since", "one")+spine.Deployment(w.Namespace, "made-since", 2))
	w.Applied("ConfigMap", "made-since")
	w.Applied("Deployment", "made-since")
	for _, name := range []string{"Deployment/made-since", "ConfigMap/made-since"} {
		if now := w.Content(w.Oak)[name]; now.UID != before[w.Oak][name].UID {
			t.Errorf("%s was made anew", name)
		}
	}
}

// TestRestoredHubWithEqualTemplates restores a hub whose templates did not change since the
// backup. Only the clusters of the copies, or an unjoin, show that the hub is older than its
// members.
func TestRestoredHubWithEqualTemplates(t *testing.T) {
	testenv.Rotate(t, 3, "TestRestoredHub", "TestRestoredHubWithEqualTemplates", "TestRestoredHubAndAClusterThatWasAway")
	w := spine.Alone(t, "placed-since")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "moving", "{apiVersion: v1, kind: ConfigMap, name: moves}", spine.In("oak"))+
		spine.Policy(w.Namespace, "both", "{apiVersion: v1, kind: ConfigMap, name: both}", spine.In("oak", "pine"))+
		spine.ConfigMap(w.Namespace, "moves", "one")+spine.ConfigMap(w.Namespace, "both", "one"))
	w.Applied("ConfigMap", "moves")
	w.Applied("ConfigMap", "both")
	restored := func(since func(), reached []*testenv.Member, copies ...*testenv.Member) {
		t.Helper()
		backup := backUp(w)
		since()
		w.Quiet(2 * time.Second) // an object created now would show that the hub is older
		w.Must(w.Hub.Stop())
		before, marks := map[*testenv.Member]spine.Content{}, map[*testenv.Member]int{}
		for _, m := range spine.Members.List {
			before[m], marks[m] = w.Content(m), m.Mark()
		}
		w.Must(w.Hub.Restore(backup))
		w.Restart()
		untouched := func() {
			t.Helper()
			for m, mark := range marks {
				w.NoDeletions(m, mark)
			}
			for _, m := range copies {
				w.Stays(m, before[m])
			}
		}
		suspected(w, untouched)
		w.CaughtUp(2*time.Second, reached...)
		untouched()
		confirm(w)
	}

	restored(func() {
		w.Hub.Apply(t, spine.Policy(w.Namespace, "moving", "{apiVersion: v1, kind: ConfigMap, name: moves}", spine.In("pine")))
		w.Placed(w.Pine, "v1", "ConfigMap", "moves")
		w.Gone(w.Oak, "v1", "ConfigMap", "moves")
	}, spine.Members.List, w.Pine)
	w.Placed(w.Oak, "v1", "ConfigMap", "moves")
	w.Gone(w.Pine, "v1", "ConfigMap", "moves")

	uid := w.Placed(w.Pine, "v1", "ConfigMap", "both").GetUID()
	restored(func() { w.Unjoin(w.Pine) }, []*testenv.Member{w.Oak, w.Birch}, w.Pine)
	w.Join(w.Pine)
	w.Applied("ConfigMap", "both")
	if now := w.Placed(w.Pine, "v1", "ConfigMap", "both").GetUID(); now != uid {
		t.Errorf("what was left in pine was made anew")
	}
}

// TestRestoredHubAndAClusterThatWasAway restores a backup from a time when a cluster did not
// answer. Only objects in that cluster show that the hub is older, and the cluster answers now.
// The hub must ask the cluster instead of trusting its old status. The hub has the default
// times of health probes.
func TestRestoredHubAndAClusterThatWasAway(t *testing.T) {
	testenv.Rotate(t, 3, "TestRestoredHub", "TestRestoredHubWithEqualTemplates", "TestRestoredHubAndAClusterThatWasAway")
	w := spine.AloneByDefault(t, "was-away")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "goes", "{apiVersion: v1, kind: ConfigMap, name: goes}", spine.In("oak"))+
		spine.Policy(w.Namespace, "changes", "{apiVersion: v1, kind: ConfigMap, name: changes}", spine.In("birch"))+
		spine.ConfigMap(w.Namespace, "goes", "one")+spine.ConfigMap(w.Namespace, "changes", "one"))
	w.Applied("ConfigMap", "goes")
	w.Applied("ConfigMap", "changes")
	w.Birch.Fail(testenv.Cut)
	w.Lost(w.Birch)
	backup := backUp(w)
	w.Birch.Heal()
	w.Ready(w.Birch)
	w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "changes", "two"))
	w.Data(w.Birch, "changes", "two")

	w.Must(w.Hub.Stop())
	before, mark := map[*testenv.Member]spine.Content{w.Oak: w.Content(w.Oak), w.Birch: w.Content(w.Birch)}, w.Oak.Mark()
	w.Must(w.Hub.Restore(backup))
	w.Birch.Slow(500 * time.Millisecond) // it answers later than the others
	w.Restart()
	w.Hub.Remove(t, "v1", "ConfigMap", w.Namespace, "goes")
	untouched := func() {
		t.Helper()
		w.NoDeletions(w.Oak, mark)
		for m := range before {
			w.Stays(m, before[m])
		}
	}
	suspected(w, untouched)
	w.Birch.Heal()
	w.CaughtUp(2 * time.Second)
	untouched()
	confirm(w)
	w.Gone(w.Oak, "v1", "ConfigMap", "goes")
	w.Data(w.Birch, "changes", "one")
}

// confirm confirms that the hub was restored.
func confirm(w *spine.World) {
	w.Helper()
	w.Attempt("confirm that the hub was restored", func() error {
		_, err := w.Hub.Orrery(confirmRestore...)
		return err
	})
}

// backUp stops the hub, copies its etcd, and starts the hub again.
func backUp(w *spine.World) string {
	w.Helper()
	backup := filepath.Join(w.TempDir(), "backup")
	w.Must(w.Hub.Stop())
	w.Must(w.Hub.Backup(backup))
	w.Restart()
	return backup
}

// suspected waits until the hub reports that it seems to be restored. It calls meanwhile before
// each check, so meanwhile must hold until then.
func suspected(w *spine.World, meanwhile func()) {
	w.Helper()
	w.Eventually("the hub suspects that it was restored", func() error {
		o, err := w.Hub.Find(w.Context(), "v1", "ConfigMap", "orrery-cluster", "hub-restore")
		state := ""
		if err == nil {
			state, _, _ = unstructured.NestedString(o.Object, "data", "state")
		}
		if state != "Suspected" {
			if meanwhile(); w.Failed() {
				w.FailNow()
			}
			return cmp.Or(err, fmt.Errorf("its state is %q", state))
		}
		return nil
	})
}
