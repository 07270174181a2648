package mirror

import (
	"database/sql"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// changesOfAFault is the number of changes in the clusters while a database is at fault, unless
// CHANGES is set. It is several times the number of changes that may wait to be stored. 60000
// changes take about a minute.
const changesOfAFault = 2000

// TestDatabaseFaults: the database is at fault while clusters change. Nothing else stops:
// placed objects are found, deletions are noticed, and a cluster can join. The number of
// waiting changes is bounded. Afterwards the store equals the clusters, object by object.
// Without SOAK the test runs a third of the faults.
func TestDatabaseFaults(t *testing.T) {
	sqlite := func(t *testing.T) string { return t.TempDir() }
	file := func(at string) string { return filepath.Join(at, "mirror.db") }
	garbage := func(t *testing.T, at, suffix string) {
		t.Helper()
		size := must[os.FileInfo](t)(os.Stat(file(at))).Size()
		if err := os.WriteFile(file(at)+suffix, []byte(strings.Repeat("garbage ", int(size)/8)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	type fault struct {
		database func(t *testing.T) string
		begin    func(t *testing.T, at string) (end func())
		losses   int
	}
	faults := map[string]fault{
		"Full": {
			database: func(t *testing.T) string {
				if os.Getuid() != 0 {
					t.Skip("only root may mount a file system that is full; TestFullDisk of the store needs none")
				}
				dir := t.TempDir()
				if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := syscall.Unmount(dir, 0); err != nil {
						t.Error(err)
					}
				})
				return dir
			},
			begin: func(t *testing.T, at string) func() {
				ballast := filepath.Join(at, "ballast")
				f := must[*os.File](t)(os.Create(ballast))
				for block := make([]byte, 1<<16); ; {
					if _, err := f.Write(block); err != nil && len(block) == 1 {
						break
					} else if err != nil {
						block = block[:len(block)/2]
					}
				}
				_ = f.Close()
				return func() {
					if err := os.Remove(ballast); err != nil {
						t.Fatal(err)
					}
				}
			},
		},
		"Damaged": {
			database: sqlite, losses: 1,
			begin: func(t *testing.T, at string) func() {
				garbage(t, at, "")
				garbage(t, at, "-wal")
				return func() {}
			},
		},
		"Truncated": {
			database: sqlite, losses: 1,
			begin: func(t *testing.T, at string) func() {
				for _, suffix := range []string{"", "-wal"} {
					if err := os.Truncate(file(at)+suffix, 0); err != nil {
						t.Fatal(err)
					}
				}
				return func() {}
			},
		},
	}
	for _, d := range []*testenv.Database{testenv.PostgreSQL, testenv.MariaDB} {
		faults["Gone"+d.Name] = fault{database: func(t *testing.T) string { return d.Create(t) }, begin: func(t *testing.T, _ string) func() {
			d.Kill(t)
			return func() { d.Restart(t) }
		}}
	}
	faults["Locked"] = fault{
		database: func(t *testing.T) string { return testenv.PostgreSQL.Create(t) },
		begin: func(t *testing.T, at string) func() {
			tx := must[*sql.Tx](t)(testenv.PostgreSQL.Open(t, at).BeginTx(t.Context(), nil))
			if _, err := tx.ExecContext(t.Context(), "LOCK TABLE object IN ACCESS EXCLUSIVE MODE"); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := tx.Rollback(); err != nil {
					t.Fatal(err)
				}
			}
		},
	}
	faults["FailedOver"] = fault{
		database: func(t *testing.T) string { return testenv.PostgreSQL.Create(t) }, losses: 1,
		begin: func(t *testing.T, at string) func() {
			// The copy of the database is the replica. Changes that are committed from now on
			// are lost with the primary.
			name, _, _ := strings.Cut(at[strings.LastIndex(at, "/")+1:], "?")
			if !strings.HasPrefix(name, "orrery_") { // the socket is in the parameters
				_, rest, _ := strings.Cut(at, "orrery@/")
				name, _, _ = strings.Cut(rest, "?")
			}
			db := testenv.PostgreSQL.Open(t, strings.Replace(at, name, "postgres", 1))
			closed := func(database string, f func()) {
				t.Helper()
				for _, statement := range []string{
					"ALTER DATABASE " + database + " ALLOW_CONNECTIONS false",
					"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '" + database + "'",
				} {
					if _, err := db.ExecContext(t.Context(), statement); err != nil {
						t.Fatal(err)
					}
				}
				f()
			}
			exec := func(statements ...string) {
				t.Helper()
				// An ended session may need a moment to disappear.
				for _, statement := range statements {
					testenv.Eventually(t, statement, testenv.Patience, func() error {
						_, err := db.ExecContext(t.Context(), statement)
						return err
					})
				}
			}
			closed(name, func() {
				exec("CREATE DATABASE "+name+"_replica TEMPLATE "+name, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS true")
			})
			return func() {
				closed(name, func() {
					exec("ALTER DATABASE "+name+" RENAME TO "+name+"_primary", "DROP DATABASE "+name+"_primary",
						"ALTER DATABASE "+name+"_replica RENAME TO "+name)
				})
			}
		},
	}
	for _, name := range testenv.Sample(t, 3, slices.Sorted(maps.Keys(faults))) {
		tc := faults[name]
		t.Run(name, func(t *testing.T) { databaseFault(t, tc.database(t), tc.begin, tc.losses) })
	}
}

func databaseFault(t *testing.T, at string, begin func(t *testing.T, at string) (end func()), lost int) {
	cfg := testenv.Config(manyObjects)
	namespace := testenv.Namespace(t, cfg)
	k := clientset(t, cfg).CoreV1().ConfigMaps(namespace)
	s := must[*store.Store](t)(storeAt(at))
	defer s.Close()
	fleet := newFleet(duplicateSources(cfg)...)
	m, stop := start(t, s, fleet)
	defer stop()
	for _, name := range duplicates {
		synced(t, m, name)
	}
	l := newLoad(t, cfg, 1)
	changes := func(n int) {
		for range n {
			<-l.changed
		}
	}
	changes(500)
	applyMap(t, cfg, placedMap(namespace, "before", namespace, "d1", nil))
	binding := types.UID(namespace)
	cm := configmaps.GroupResource()
	eventually(t, "it is indexed", func() bool { return len(m.Placed(binding)) == len(duplicates) })
	eventually(t, "it is stored", func() bool {
		return len(rows(t, s, store.Query{Resource: cm.Resource, Names: []string{"before"}})) == len(duplicates)
	})

	end := begin(t, at)
	began, wanted := time.Now(), testenv.Count(t, "CHANGES", changesOfAFault, changesOfAFault)
	changes(wanted)
	t.Logf("%d changes while the database was at fault, in %s", wanted, time.Since(began).Round(time.Second))
	// Placement goes on.
	applyMap(t, cfg, placedMap(namespace, "during", namespace, "d1", nil))
	if err := k.Delete(t.Context(), "before", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what comes and goes is indexed", func() bool {
		placed := m.PlacedOf(binding, duplicates[0])
		p, _ := m.Lookup(duplicates[0], cm, namespace, "before")
		return len(placed) == 1 && placed[0].Name == "during" && p == presence.Absent
	})
	// A cluster joins.
	joins := newSource(t, "joins", cfg, "configmaps")
	fleet.mu.Lock()
	fleet.sources["joins"] = joins
	fleet.mu.Unlock()
	fleet.notify(member.Event{Type: member.Joined, Name: "joins"})
	eventually(t, "the cluster that joins is indexed", func() bool {
		return m.Synced("joins", cm) && len(m.PlacedOf(binding, "joins")) == 1
	})
	m.writer.mu.Lock()
	pending, queued := len(m.writer.pending), len(m.writer.queue)
	m.writer.mu.Unlock()
	// The checkpoints of each type wait as well.
	if most := pendingBound + 2*len(m.Types())*3; pending > most || queued > 2*most {
		t.Errorf("%d rows wait, and %d are queued", pending, queued)
	}
	end()

	changes(500)
	t.Logf("%d changes in all", l.stop())
	names := []string{duplicates[0], duplicates[1], "joins"}
	for _, name := range names {
		eventually(t, "cluster "+name+" is mirrored", func() bool { o := m.Observation(name); return o.Synced && m.Stored(name, cm) })
	}
	asClusters(t, s, m, cfg, names...)
	if s.Losses() != lost {
		t.Errorf("%d losses, want %d", s.Losses(), lost)
	}
}
