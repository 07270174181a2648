package members

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// load places one object of each kind in oak alone, and a second Deployment in oak and pine. It
// returns the content of oak.
func load(w *spine.World) spine.Content {
	w.Helper()
	w.Hub.Apply(w, spine.Policy(w.Namespace, "both", "{apiVersion: apps/v1, kind: Deployment, name: both}", spine.In("oak", "pine"))+
		spine.Policy(w.Namespace, "only", spine.Everything, spine.In("oak")))
	w.Hub.Apply(w, spine.Deployment(w.Namespace, "both", 2)+spine.Deployment(w.Namespace, "only", 2)+spine.ConfigMap(w.Namespace, "settings", "one")+spine.Secret(w.Namespace, "password", "one")+
		spine.Service(w.Namespace, "only")+spine.ServiceAccount(w.Namespace, "robot")+spine.Claim(w.Namespace, "disk")+spine.Job(w.Namespace, "migration"))
	loaded(w)
	w.Available(w.Oak, "both", 2)
	w.Available(w.Pine, "both", 2)
	w.Available(w.Oak, "only", 2)
	w.CaughtUp(time.Second)
	return w.Content(w.Oak)
}

// loaded waits until all objects of load are applied, and labeled in oak.
func loaded(w *spine.World) {
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
		w.Placed(w.Oak, o.apiVersion, o.kind, o.name)
		w.Applied(o.kind, o.name)
	}
}

// TestRejoin unjoins a cluster and joins it again. No workload in the cluster may be deleted,
// created again or changed.
func TestRejoin(t *testing.T) {
	testenv.Rotate(t, 2, "TestRejoin", "TestEditedWhileAway", "TestRebuilt", "TestRebuiltEmpty")
	for _, tc := range testenv.Sample(t, 2, []struct {
		name         string
		leaveAndCome func(*spine.World)
	}{
		{"Reachable", func(w *spine.World) {
			w.Unjoin(w.Oak)
			w.Join(w.Oak)
		}},
		{"Unreachable", func(w *spine.World) {
			w.Oak.Fail(testenv.Hang)
			w.Lost(w.Oak)
			w.Unjoin(w.Oak)
			w.Oak.Heal()
			w.Join(w.Oak)
		}},
		{"UnreachableThenRestarted", func(w *spine.World) {
			w.Oak.Fail(testenv.Cut)
			w.Lost(w.Oak)
			w.Unjoin(w.Oak)
			w.Hub.Kill()
			w.Oak.Heal()
			w.Restart()
			w.Join(w.Oak)
		}},
		{"KilledWhileItLeaves", func(w *spine.World) {
			random := testenv.Rand(w.T)
			for range testenv.Count(w.T, "REJOINS", 1, 3) {
				after := time.Duration(random.IntN(1500)) * time.Millisecond
				left := make(chan struct{})
				go func() { _ = w.Hub.Unjoin(w.Oak); close(left) }()
				time.Sleep(after)
				w.Hub.Kill()
				<-left
				w.Restart()
				if w.Hub.Joined(w, w.Oak) {
					// A cluster that was leaving may be gone before this second unjoin.
					w.Attempt("unjoin oak, unless it has left", func() error {
						err := w.Hub.Unjoin(w.Oak)
						if err != nil && !w.Hub.Joined(w, w.Oak) {
							return nil
						}
						return err
					})
				}
				came := make(chan struct{})
				go func() { _ = w.Hub.Join(w.Oak); close(came) }()
				time.Sleep(after)
				w.Hub.Kill()
				<-came
				w.Restart()
				w.Join(w.Oak) // a join that was cut off may have left the Cluster without its Secret
				w.Ready(w.Oak)
			}
		}},
	}) {
		t.Run(tc.name, func(t *testing.T) {
			w := spine.Start(t, "rejoin-"+spine.Lower(tc.name))
			before := load(w)
			mark := w.Oak.Mark()
			tc.leaveAndCome(w)
			loaded(w)
			w.CaughtUp(2 * time.Second)
			w.NoDeletions(w.Oak, mark)
			w.Stays(w.Oak, before)

			// The hub manages all objects again: an edit arrives, and a deletion.
			w.Hub.Apply(w, spine.ConfigMap(w.Namespace, "settings", "two"))
			w.Eventually("an edit arrives", func() error {
				o, err := w.Oak.Find(w.Context(), "v1", "ConfigMap", w.Namespace, "settings")
				if err != nil {
					return err
				}
				if data, _ := o.Object["data"].(map[string]any); data["key"] != "two" {
					return fmt.Errorf("data: %v", o.Object["data"])
				}
				return nil
			})
			w.Hub.Remove(w, "apps/v1", "Deployment", w.Namespace, "only")
			w.Gone(w.Oak, "apps/v1", "Deployment", "only")
		})
	}
}

// TestEditedWhileAway changes and deletes templates while their cluster is not joined. At the
// next join changed templates are applied. The copy of a deleted template is an orphan, which
// is not deleted.
func TestEditedWhileAway(t *testing.T) {
	testenv.Rotate(t, 2, "TestRejoin", "TestEditedWhileAway", "TestRebuilt", "TestRebuiltEmpty")
	w := spine.Start(t, "edited-while-away")
	before := load(w)
	mark := w.Oak.Mark()
	w.Unjoin(w.Oak)
	w.Hub.Apply(w, spine.ConfigMap(w.Namespace, "settings", "two"))
	w.Hub.Remove(w, "v1", "Secret", w.Namespace, "password")
	w.Join(w.Oak)
	w.Eventually("the edit arrives", func() error {
		o, err := w.Oak.Find(w.Context(), "v1", "ConfigMap", w.Namespace, "settings")
		if err != nil {
			return err
		}
		if data, _ := o.Object["data"].(map[string]any); data["key"] != "two" {
			return fmt.Errorf("data: %v", o.Object["data"])
		}
		return nil
	})
	w.Applied("ConfigMap", "settings")
	w.CaughtUp(2 * time.Second)
	w.NoDeletions(w.Oak, mark)
	delete(before, "ConfigMap/settings")
	w.Stays(w.Oak, before)
}

// TestRebuilt joins another cluster under the name of a cluster that has left. The new cluster
// was restored from a backup of the old, so its objects have the hub's labels, and others
// created objects in it since. Nothing in it may be changed except those labels and
// annotations.
func TestRebuilt(t *testing.T) {
	testenv.Rotate(t, 2, "TestRejoin", "TestEditedWhileAway", "TestRebuilt", "TestRebuiltEmpty")
	w := spine.Start(t, "rebuilt")
	var elms []*testenv.Member
	for range 2 {
		m, err := testenv.NewMember(t.TempDir(), "elm", testenv.StartServer(t).Config())
		w.Must(err)
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		elms = append(elms, m)
	}
	old, rebuilt := elms[0], elms[1]
	w.Join(old)
	t.Cleanup(func() { _ = w.Hub.Unjoin(old) })
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("elm"))+spine.Deployment(w.Namespace, "web", 2)+spine.ConfigMap(w.Namespace, "settings", "one")+
		spine.ConfigMap(w.Namespace, "stale", "one")+spine.ConfigMap(w.Namespace, "taken", "one")+spine.Secret(w.Namespace, "password", "one"))
	for _, name := range []string{"settings", "stale", "taken"} {
		w.Placed(old, "v1", "ConfigMap", name)
	}
	w.Placed(old, "apps/v1", "Deployment", "web")
	w.Placed(old, "v1", "Secret", "password")

	// The backup has all objects but "taken", which another user created in the new cluster.
	rebuilt.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+w.Namespace+"}\n"+spine.ConfigMap(w.Namespace, "taken", "theirs"))
	for _, k := range spine.Kinds {
		var list []unstructured.Unstructured
		w.Eventually("list what the backup has", func() (err error) {
			list, err = old.ListKind(t.Context(), k.APIVersion, k.Kind, w.Namespace)
			return err
		})
		for _, o := range list {
			if o.GetName() == "taken" || spine.BuiltIn(&o) {
				continue
			}
			o.SetResourceVersion("")
			o.SetUID("")
			w.Eventually("fill from the backup", func() error {
				if err := rebuilt.Create(t.Context(), o.DeepCopy()); !apierrors.IsAlreadyExists(err) {
					return err
				}
				return nil // the answer to an earlier attempt was lost
			})
		}
	}
	before := w.Content(rebuilt)
	old.Fail(testenv.Cut)
	w.Lost(old)
	w.Unjoin(old)
	w.Hub.Remove(t, "v1", "ConfigMap", w.Namespace, "stale")
	w.Join(rebuilt)
	w.Binding("ConfigMap", "taken", "FullyApplied=False/Conflict")
	w.Applied("ConfigMap", "settings")
	w.Applied("Secret", "password")
	w.Applied("Deployment", "web")
	w.CaughtUp(2*time.Second, rebuilt)
	w.NoDeletions(rebuilt, 0)
	w.Stays(rebuilt, before)
	w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "settings", "two"))
	w.Data(rebuilt, "settings", "two")
}
