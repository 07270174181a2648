package mirror

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	configv1alpha1 "orrery.dev/orrery/api/config/v1alpha1"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// hubScheme returns a scheme with the types that the mirror reads from the hub.
func hubScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(configv1alpha1.AddToScheme(scheme), clusterv1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return scheme
}

// TestRestartFinishesDrops: the database refuses to delete rows until the process ends. The
// next process finds and deletes them: the objects of a type that is no longer mirrored, even
// if the store has no record of the type, and those of a cluster that the hub does not have.
// Rows of clusters of the hub stay.
func TestRestartFinishesDrops(t *testing.T) {
	cfg := testenv.Config(0)
	if err := testenv.InstallCRDs(cfg, "mirrorpolicies.config.orrery.dev", "clusters.cluster.orrery.dev"); err != nil {
		t.Fatal(err)
	}
	namespace := testenv.Namespace(t, cfg)
	configMap(t, cfg, namespace, "web", nil)
	scheme := hubScheme(t)
	hub := must[client.Client](t)(client.New(cfg, client.Options{Scheme: scheme}))
	// The hub has this Cluster, but without credentials it is not a member yet.
	north := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "north-" + namespace},
		Spec: clusterv1alpha1.ClusterSpec{
			SyncMode: clusterv1alpha1.Push, APIEndpoint: "https://127.0.0.1:1",
			SecretRef: clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: "north"},
		},
	}
	if err := hub.Create(t.Context(), north); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Delete(context.Background(), north); err != nil {
			t.Error(err)
		}
	})
	maps := mirrorPolicy(t, "maps", fmt.Sprintf("mirror: {resources: [{resources: [configmaps], namespaces: [%s]}]}", namespace))
	none := mirrorPolicy(t, "maps", "mirror: {resources: [{resources: [services]}]}")

	for name, forgotten := range map[string]bool{"Remembered": false, "NotRemembered": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := must[*store.Store](t)(store.Open(t.Context(), dir))
			raw := must[*sql.DB](t)(sql.Open("sqlite", filepath.Join(dir, "mirror.db")+"?_pragma=busy_timeout(30000)"))
			defer raw.Close()
			exec := func(text string) { t.Helper(); must[sql.Result](t)(raw.ExecContext(t.Context(), text)) }
			left := func() (clusters []string) {
				t.Helper()
				found, err := raw.QueryContext(t.Context(), "SELECT cluster FROM object WHERE namespace = ? AND name = 'web' ORDER BY cluster", namespace)
				if err != nil {
					t.Fatal(err)
				}
				defer found.Close()
				for found.Next() {
					var cluster string
					if err := found.Scan(&cluster); err != nil {
						t.Fatal(err)
					}
					clusters = append(clusters, cluster)
				}
				if err := found.Err(); err != nil {
					t.Fatal(err)
				}
				return clusters
			}
			east, west := newSource(t, "east", cfg), newSource(t, "west", cfg)
			fleet := newFleet(east, west)
			m, stop := begin(t, s, fleet, maps)
			eventually(t, "it is stored", func() bool { return slices.Equal(left(), []string{"east", "west"}) && m.Observation("west").Synced })
			// The store also has a row of the cluster that cannot be reached.
			page := must[store.Page](t)(s.List(t.Context(), store.Query{Resource: "configmaps", Clusters: []string{"east"}, Namespaces: []string{namespace}, Names: []string{"web"}, Limit: 1}))
			row := page.Rows[0]
			row.Cluster = north.Name
			if err := s.Write(t.Context(), []store.Change{{Row: row}}); err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{"DELETE ON object", "UPDATE ON cluster"} {
				exec("CREATE TRIGGER refuse" + text[:6] + " BEFORE " + text + " BEGIN SELECT RAISE(ABORT, 'not now'); END")
			}
			m.setPolicy("maps", none)
			fleet.mu.Lock()
			delete(fleet.sources, "west")
			fleet.mu.Unlock()
			fleet.notify(member.Event{Type: member.Left, Name: "west"})
			eventually(t, "nothing is mirrored any more", func() bool {
				tab, unlock := m.table("east", configmaps.GroupResource())
				defer unlock()
				return tab == nil && m.cluster("west") == nil
			})
			stop()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if got := left(); !slices.Equal(got, []string{"east", north.Name, "west"}) {
				t.Fatalf("the database deleted it of others than %v", got)
			}
			exec("DROP TRIGGER refuseDELETE")
			exec("DROP TRIGGER refuseUPDATE")
			if forgotten {
				exec("DELETE FROM served")
			}

			s = must[*store.Store](t)(store.Open(t.Context(), dir))
			defer s.Close()
			m = newMirror(s, fleet, testLogger(t))
			day := make(chan time.Time)
			m.absent = func() <-chan time.Time { return day }
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			informers := must[cache.Cache](t)(cache.New(cfg, cache.Options{Scheme: scheme}))
			if err := m.Follow(ctx, informers); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- informers.Start(ctx) }()
			m.setPolicy("maps", none)
			stop = run(t, m)
			shown := func() (clusters []string) {
				t.Helper()
				page := must[store.Page](t)(s.List(t.Context(), store.Query{Resource: "configmaps", Namespaces: []string{namespace}, Names: []string{"web"}, Limit: 9}))
				for _, row := range page.Rows {
					clusters = append(clusters, row.Cluster)
				}
				return clusters
			}
			eventually(t, "what is not to be stored is not shown", func() bool { return slices.Equal(shown(), []string{north.Name}) })
			eventually(t, "the type is deleted", func() bool { return !slices.Contains(left(), "east") })
			if got := left(); !slices.Equal(got, []string{north.Name, "west"}) {
				t.Errorf("the database has it of %v; the cluster that the hub does not have is kept for a day", got)
			}
			close(day)
			eventually(t, "what is not to be stored is deleted", func() bool { return slices.Equal(left(), []string{north.Name}) })
			stop()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
