package spine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"orrery.dev/orrery/internal/testenv"
)

// load places one object of each kind in oak alone, and a second Deployment in oak and pine,
// and returns what oak has.
func (w *world) load() content {
	w.Helper()
	w.hub.Apply(w, policy(w.ns, "both", "{apiVersion: apps/v1, kind: Deployment, name: both}", in("oak", "pine"))+
		policy(w.ns, "only", everything, in("oak")))
	w.hub.Apply(w, deployment(w.ns, "both", 2)+deployment(w.ns, "only", 2)+configMap(w.ns, "settings", "one")+secret(w.ns, "password", "one")+
		service(w.ns, "only")+serviceAccount(w.ns, "robot")+claim(w.ns, "disk")+job(w.ns, "migration"))
	w.loaded()
	w.available(w.oak, "both", 2)
	w.available(w.pine, "both", 2)
	w.available(w.oak, "only", 2)
	w.quiet(time.Second)
	return w.content(w.oak)
}

// loaded waits until all of it is applied, and marked in oak.
func (w *world) loaded() {
	w.Helper()
	for _, o := range []struct{ apiVersion, kind, name string }{
		{"apps/v1", "Deployment", "both"},
		{"apps/v1", "Deployment", "only"},
		{"v1", "ConfigMap", "settings"},
		{"v1", "Secret", "password"},
		{"v1", "Service", "only"},
		{"v1", "ServiceAccount", "robot"},
		{"v1", "PersistentVolumeClaim", "disk"},
		{"batch/v1", "Job", "migration"},
	} {
		w.placed(w.oak, o.apiVersion, o.kind, o.name)
		w.applied(o.kind, o.name)
	}
}

// TestRejoin takes a cluster out of the fleet and joins it again. No workload there may be
// touched: not deleted, not made anew, not changed.
func TestRejoin(t *testing.T) {
	for name, leaveAndCome := range map[string]func(*world){
		"Reachable": func(w *world) {
			w.must(w.hub.Unjoin(w.oak))
			w.must(w.hub.Join(w.oak))
		},
		"Unreachable": func(w *world) {
			w.oak.Fail(testenv.Hang)
			w.lost(w.oak)
			w.must(w.hub.Unjoin(w.oak))
			w.oak.Heal()
			w.must(w.hub.Join(w.oak))
		},
		"UnreachableThenRestarted": func(w *world) {
			w.oak.Fail(testenv.Cut)
			w.lost(w.oak)
			w.must(w.hub.Unjoin(w.oak))
			w.hub.Kill()
			w.oak.Heal()
			w.restart()
			w.must(w.hub.Join(w.oak))
		},
		"KilledWhileItLeaves": func(w *world) {
			random := rand.New(rand.NewPCG(1, 2))
			for range 3 {
				after := time.Duration(random.IntN(1500)) * time.Millisecond
				left := make(chan struct{})
				go func() { _ = w.hub.Unjoin(w.oak); close(left) }()
				time.Sleep(after)
				w.hub.Kill()
				<-left
				w.restart()
				if w.hub.Joined(w, w.oak) {
					// The one that was leaving may be gone before it is told to leave once more.
					if err := w.hub.Unjoin(w.oak); w.hub.Joined(w, w.oak) {
						w.Fatal("unjoin did not remove the Cluster:", err)
					}
				}
				came := make(chan struct{})
				go func() { _ = w.hub.Join(w.oak); close(came) }()
				time.Sleep(after)
				w.hub.Kill()
				<-came
				w.restart()
				w.must(w.hub.Join(w.oak)) // the Cluster of one that was cut off may be there without its Secret
				w.ready(w.oak)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, "rejoin-"+lower(name))
			before := w.load()
			mark := w.oak.Mark()
			leaveAndCome(w)
			w.loaded()
			w.quiet(2 * time.Second)
			w.noDeletions(w.oak, mark)
			w.stays(w.oak, before)

			// All of it is ours again: an edit arrives, and a deletion.
			w.hub.Apply(w, configMap(w.ns, "settings", "two"))
			w.eventually("an edit arrives", func() error {
				o, err := w.oak.Find(w.Context(), "v1", "ConfigMap", w.ns, "settings")
				if err != nil {
					return err
				}
				if data, _ := o.Object["data"].(map[string]any); data["key"] != "two" {
					return fmt.Errorf("data: %v", o.Object["data"])
				}
				return nil
			})
			w.hub.Remove(w, "apps/v1", "Deployment", w.ns, "only")
			w.gone(w.oak, "apps/v1", "Deployment", "only")
		})
	}
}

// TestEditedWhileAway changes and deletes templates while their cluster is out of the fleet.
// What was changed follows its template at the next join; what was deleted is an orphan, which
// nobody deletes.
func TestEditedWhileAway(t *testing.T) {
	w := start(t, "edited-while-away")
	before := w.load()
	mark := w.oak.Mark()
	w.must(w.hub.Unjoin(w.oak))
	w.hub.Apply(w, configMap(w.ns, "settings", "two"))
	w.hub.Remove(w, "v1", "Secret", w.ns, "password")
	w.must(w.hub.Join(w.oak))
	w.eventually("the edit arrives", func() error {
		o, err := w.oak.Find(w.Context(), "v1", "ConfigMap", w.ns, "settings")
		if err != nil {
			return err
		}
		if data, _ := o.Object["data"].(map[string]any); data["key"] != "two" {
			return fmt.Errorf("data: %v", o.Object["data"])
		}
		return nil
	})
	w.applied("ConfigMap", "settings")
	w.quiet(2 * time.Second)
	w.noDeletions(w.oak, mark)
	delete(before, "ConfigMap/settings")
	w.stays(w.oak, before)
}

// TestRebuilt joins another cluster under the name of one that has left: a new one that was
// filled from a backup of the old, so that marks of the hub are on what is in it, and in which
// others made things since. Nothing in it may be touched but marks.
func TestRebuilt(t *testing.T) {
	w := start(t, "rebuilt")
	var elms []*testenv.Member
	for range 2 {
		m, err := testenv.NewMember(t.TempDir(), "elm", testenv.StartServer(t).Config())
		w.must(err)
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		elms = append(elms, m)
	}
	old, rebuilt := elms[0], elms[1]
	w.must(w.hub.Join(old))
	t.Cleanup(func() { _ = w.hub.Unjoin(old) })
	w.hub.Apply(t, policy(w.ns, "all", everything, in("elm"))+deployment(w.ns, "web", 2)+configMap(w.ns, "settings", "one")+
		configMap(w.ns, "stale", "one")+configMap(w.ns, "taken", "one")+secret(w.ns, "password", "one"))
	for _, name := range []string{"settings", "stale", "taken"} {
		w.placed(old, "v1", "ConfigMap", name)
	}
	w.placed(old, "apps/v1", "Deployment", "web")
	w.placed(old, "v1", "Secret", "password")

	// The backup has all of it but "taken", which somebody made for themselves.
	rebuilt.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+w.ns+"}\n"+configMap(w.ns, "taken", "theirs"))
	for _, k := range kinds {
		list, err := old.ListKind(t.Context(), k.apiVersion, k.kind, w.ns)
		w.must(err)
		for _, o := range list {
			if o.GetName() == "taken" || builtIn(&o) {
				continue
			}
			o.SetResourceVersion("")
			o.SetUID("")
			w.must(rebuilt.Create(t.Context(), &o))
		}
	}
	before := w.content(rebuilt)
	old.Fail(testenv.Cut)
	w.lost(old)
	w.must(w.hub.Unjoin(old))
	w.hub.Remove(t, "v1", "ConfigMap", w.ns, "stale")
	w.must(w.hub.Join(rebuilt))
	w.binding("ConfigMap", "taken", "FullyApplied=False/Conflict")
	w.applied("ConfigMap", "settings")
	w.applied("Secret", "password")
	w.applied("Deployment", "web")
	w.quiet(2*time.Second, rebuilt)
	w.noDeletions(rebuilt, 0)
	w.stays(rebuilt, before)
	w.hub.Apply(t, configMap(w.ns, "settings", "two"))
	w.data(rebuilt, "settings", "two")
}
