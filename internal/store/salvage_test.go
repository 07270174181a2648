package store

import (
	"bufio"
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/testenv"
)

// pastStates has all former states of pods in a store, by the sequence of the change that ended
// each, and all deletions.
type pastStates struct {
	States  map[int64]Revision
	Deleted []string
}

func former(t *testing.T, s *Store, clusters ...string) (out pastStates) {
	t.Helper()
	out.States = map[int64]Revision{}
	for _, cluster := range clusters {
		for i := range salvageNames {
			of := Object{Cluster: cluster, Resource: pods, Namespace: "x", Name: fmt.Sprint(i)}
			for before := int64(0); ; {
				page, err := s.Revisions(t.Context(), of, before, 50)
				check(t, err)
				for _, one := range page.Items {
					if one.EndSeq == 0 { // the present state
						continue
					}
					whole, err := s.Revision(t.Context(), of, one.Seq)
					check(t, err)
					out.States[one.EndSeq] = whole
				}
				if before = page.Next; before == 0 {
					break
				}
			}
		}
	}
	for before := int64(0); ; {
		page, err := s.Deleted(t.Context(), Query{Resource: "pods"}, nil, before, 50)
		check(t, err)
		for _, one := range page.Items {
			out.Deleted = append(out.Deleted, fmt.Sprint(one.EndSeq, " ", one.Row.Cluster, "/", one.Row.Name, " ", one.Row.UID))
		}
		if before = page.Next; before == 0 {
			return out
		}
	}
}

const salvageNames = 40

// aged creates a database with a history. The objects of two clusters were changed, some of
// them often, deleted and created again.
func aged(t *testing.T, dir string) (before pastStates, epoch string) {
	t.Helper()
	s := openStore(t, dir)
	random := rand.New(rand.NewPCG(3, 4))
	uids := map[string]int{}
	for n := range 60 {
		var changes []Change
		for _, cluster := range []string{"a", "b"} {
			for i := range salvageNames {
				if i > 5 && random.IntN(4) > 0 {
					continue
				}
				name := fmt.Sprint(i)
				r := pod(cluster, "x", name, map[string]string{"n": fmt.Sprint(n % 3)}, map[string]any{"n": n, "fill": strings.Repeat("x", random.IntN(600)), "r": random.Int64()})
				r.UID, r.ResourceVersion = typesUID(cluster, name, uids[cluster+name]), fmt.Sprint(n+1)
				gone := random.IntN(12) == 0
				if gone {
					uids[cluster+name]++
				}
				changes = append(changes, Change{Row: r, Delete: gone})
			}
		}
		check(t, s.Write(t.Context(), changes))
	}
	saveType(t, s, "a", pods)
	before = former(t, s, "a", "b")
	epoch, err := s.Epoch(t.Context())
	check(t, errors.Join(err, s.Close()))
	if len(before.States) < 1000 || len(before.Deleted) < 20 {
		t.Fatalf("%d states and %d deletions are no past", len(before.States), len(before.Deleted))
	}
	return before, epoch
}

// salvaged opens a store, waits until the salvage is complete, and returns the log.
func salvaged(t *testing.T, dir string) (s *Store, said string) {
	t.Helper()
	var log bytes.Buffer
	s, err := Open(logr.NewContext(t.Context(), funcr.New(func(_, args string) { log.WriteString(args + "\n") }, funcr.Options{})), dir)
	check(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	s.salvaging.Wait()
	return s, log.String()
}

// TestSalvage: the readable history of a damaged file is copied to the new one unchanged. The
// log says what cannot be read. Nothing is invented.
func TestSalvage(t *testing.T) {
	sql := func(statement string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			s := openStore(t, dir)
			_, err := s.db.write.ExecContext(t.Context(), statement)
			check(t, errors.Join(err, s.Close()))
		}
	}
	garbage := func(from, to float64) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "mirror.db"), func(b []byte) []byte {
				noise(b[int(float64(len(b))*from):int(float64(len(b))*to)])
				return b
			})
		}
	}
	const everything, something, nothing = 2, 1, 0
	for name, tc := range map[string]struct {
		damage func(t *testing.T, dir string)
		want   int
	}{
		"ATableIsGone":         {sql("DROP TABLE label"), everything},
		"PresentStatesAreGone": {sql("DROP TABLE served; DELETE FROM body"), something},
		"SomeRevisionsAreGone": {sql("DROP TABLE label; UPDATE revision SET body = x'00' WHERE id % 50 = 7"), something},
		"OfOtherObjects":       {sql("DROP TABLE label; UPDATE past SET name = '0' WHERE name = '1'"), something},
		"MiddleThird":          {garbage(1.0/3, 2.0/3), something},
		"EveryTenthPage": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "mirror.db"), func(b []byte) []byte {
				for at := 25 * 4096; at+4096 <= len(b); at += 10 * 4096 {
					noise(b[at : at+4096])
				}
				return b
			})
		}, something},
		"AllButTheFirstPage": {garbage(0.01, 1), nothing},
		"Everything":         {garbage(0, 1), nothing},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			before, epoch := aged(t, dir)
			tc.damage(t, dir)
			s, said := salvaged(t, dir)
			if s.Losses() == 0 { // damage that is found only by reads
				use(t, s)
				check(t, s.Close())
				var again string
				s, again = salvaged(t, dir)
				said += again
			}
			after := former(t, s, "a", "b")
			wrong := 0
			for seq, state := range after.States {
				// Salvaged states keep their sequences, and get none of the new file.
				if !state.Until.After(time.Now().Add(-time.Hour)) || seq > 2*claimStride {
					t.Errorf("state %d until %s", seq, state.Until)
				}
				if diff := cmp.Diff(before.States[seq], state); diff != "" && wrong < 3 {
					wrong++
					t.Errorf("state %d: %s", seq, diff)
				}
			}
			for _, one := range after.Deleted {
				if !strings.Contains("\n"+strings.Join(before.Deleted, "\n")+"\n", "\n"+one+"\n") {
					t.Errorf("deletion %s never was", one)
				}
			}
			t.Logf("%d of %d states, %d of %d deletions", len(after.States), len(before.States), len(after.Deleted), len(before.Deleted))
			switch all := len(after.States) == len(before.States) && cmp.Equal(before.Deleted, after.Deleted); {
			case tc.want == everything && (!all || !strings.Contains(said, `"unreadable"=0`)),
				tc.want == something && (all || len(after.States) == 0 || strings.Contains(said, `"unreadable"=0`)),
				tc.want == nothing && len(after.States) > 0:
				t.Errorf("%d of %d states, said: %s", len(after.States), len(before.States), said)
			}
			if tc.want == nothing && !strings.Contains(said, "can be read") && !strings.Contains(said, "cannot be read") {
				t.Errorf("it is not said: %s", said)
			}
			now, err := s.Epoch(t.Context())
			check(t, err)
			if now == epoch {
				t.Error("the epoch is that of the damaged file")
			}
			// New changes continue the same history after the former states.
			var last int64
			for seq := range before.States {
				last = max(last, seq)
			}
			r := pod("a", "x", "0", nil, map[string]any{"n": "new"})
			r.ResourceVersion = "1000"
			write(t, s, r)
			r.ResourceVersion = "1001"
			write(t, s, r)
			page, err := s.Revisions(t.Context(), Object{Cluster: "a", Resource: pods, Namespace: "x", Name: "0"}, 0, 1000)
			check(t, err)
			for i, one := range page.Items[1:] {
				if one.Seq >= page.Items[i].Seq {
					t.Errorf("%d follows %d", page.Items[i].Seq, one.Seq)
				}
			}
			if tc.want > nothing && page.Items[1].Seq <= last {
				t.Errorf("a new change has the number %d, and there were %d", page.Items[1].Seq, last)
			}
			if _, err := s.List(t.Context(), Query{Resource: "pods", At: time.Now().Add(-time.Hour)}); !errors.Is(err, ErrNoHistory) {
				t.Errorf("%v, want ErrNoHistory: not everything is known of then", err)
			}
			held(t, s)
			checkIntegrity(t, s)
			// Salvaged states expire like others.
			s.keeping.now = func() time.Time { return time.Now().Add(8 * 24 * time.Hour) }
			for range 5 {
				s.db.trimmed = time.Time{}
				check(t, s.SaveCheckpoints(t.Context(), nil))
			}
			if n := rowsOf(t, s, "revision") + rowsOf(t, s, "past WHERE ended <> 0"); n != 0 {
				t.Errorf("%d rows are left after their time", n)
			}
		})
	}
}

// TestSalvageWhileRunning: damage that is found while the store runs leads to a salvage as
// well. The store works in the meantime.
func TestSalvageWhileRunning(t *testing.T) {
	dir := t.TempDir()
	before, _ := aged(t, dir)
	s := openStore(t, dir)
	_, err := s.db.write.ExecContext(t.Context(), "DROP TABLE label")
	check(t, err)
	persist(t, s, pod("a", "x", "0", nil, nil))
	s.salvaging.Wait()
	if after := former(t, s, "a", "b"); !cmp.Equal(before, after) {
		t.Error(cmp.Diff(before, after))
	}
}

// TestSalvageIsTakenOverAgain: if the new file cannot record that there is a history to salvage, as
// on a full disk, the next open records it.
func TestSalvageIsTakenOverAgain(t *testing.T) {
	dir := t.TempDir()
	before, _ := aged(t, dir)
	const aside = "mirror.db.damaged-20260101T000000.000Z"
	check(t, os.Rename(filepath.Join(dir, "mirror.db"), filepath.Join(dir, aside)))
	s := openStore(t, dir)
	_, err := s.db.write.ExecContext(t.Context(), "CREATE TRIGGER refuse BEFORE INSERT ON salvage BEGIN SELECT RAISE(ABORT, 'not now'); END")
	check(t, errors.Join(err, s.noteAside(predecessor{File: aside}), s.Close()))
	s = openStore(t, dir)
	if _, err := s.Epoch(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("%v, want ErrUnavailable: what is to be salvaged cannot be recorded", err)
	}
	check(t, s.Close())
	db, err := sql.Open("sqlite", filepath.Join(dir, "mirror.db"))
	check(t, err)
	_, err = db.ExecContext(t.Context(), "DROP TRIGGER refuse")
	check(t, errors.Join(err, db.Close()))
	s, said := salvaged(t, dir)
	if after := former(t, s, "a", "b"); !cmp.Equal(before, after) {
		t.Errorf("%d of %d states, said: %s", len(after.States), len(before.States), said)
	}
	if _, err := os.Stat(s.asideNote()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want no note: the salvage is recorded", err)
	}
}

// TestSalvageLeavesOutWhatWasDropped: if a cluster is dropped during the salvage, its history
// is not salvaged. Dropping a type after the salvage deletes its salvaged history.
func TestSalvageLeavesOutWhatWasDropped(t *testing.T) {
	dir := t.TempDir()
	before, _ := aged(t, dir)
	s := openStore(t, dir)
	_, err := s.db.write.ExecContext(t.Context(), "DROP TABLE label")
	check(t, errors.Join(err, s.Close()))
	s = openStore(t, dir)
	use(t, s) // it finds the damage
	check(t, s.DropCluster(t.Context(), "b"))
	s.salvaging.Wait()
	if after := former(t, s, "b"); len(after.States) != 0 || strings.Contains(strings.Join(after.Deleted, "\n"), " b/") {
		t.Errorf("of a cluster that was dropped %d states are known, and deletions: %v", len(after.States), after.Deleted)
	}
	ofA := maps.Clone(before.States)
	maps.DeleteFunc(ofA, func(_ int64, r Revision) bool { return r.Row.Cluster != "a" })
	if after := former(t, s, "a"); !cmp.Equal(ofA, after.States) {
		t.Errorf("of the other %d of %d states", len(after.States), len(ofA))
	}
	held(t, s)
	check(t, s.DropType(t.Context(), "a", pods))
	if n := rowsOf(t, s, "revision"); n != 0 {
		t.Errorf("%d revisions are left of a type that was dropped", n)
	}
}

// TestSalvageLeavesOutPendingDeletions: while the deletion of a cluster or type is pending, and
// after a write to it has completed the deletion, the salvage brings nothing of its history back.
func TestSalvageLeavesOutPendingDeletions(t *testing.T) {
	for name, tc := range map[string]struct {
		requested func(s *Store)
		rejoins   bool
	}{
		"Cluster":        {requested: func(s *Store) { s.HideCluster("b") }},
		"ClusterRejoins": {requested: func(s *Store) { s.HideCluster("b") }, rejoins: true},
		"Type":           {requested: func(s *Store) { s.addPendingDeletion("b", pods) }},
		"TypeRejoins":    {requested: func(s *Store) { s.addPendingDeletion("b", pods) }, rejoins: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			before, _ := aged(t, dir)
			const aside = "mirror.db.damaged-20260101T000000.000Z"
			check(t, os.Rename(filepath.Join(dir, "mirror.db"), filepath.Join(dir, aside)))
			s := openStore(t, dir)
			check(t, s.noteAside(predecessor{File: aside}))
			left, err := s.claim(t.Context(), s.db)
			check(t, err)
			// The clusters are known at once, so that those that the hub lacks can be hidden.
			if clusters, err := s.Clusters(t.Context()); err != nil || !cmp.Equal([]string{"a", "b"}, clusters) {
				t.Errorf("clusters %v, %v", clusters, err)
			}
			tc.requested(s)
			if tc.rejoins {
				write(t, s, pod("b", "x", "new", nil, nil))
			}
			check(t, s.salvage(t.Context(), s.db, left))
			after := former(t, s, "a", "b")
			wanted := maps.Clone(before.States)
			maps.DeleteFunc(wanted, func(_ int64, r Revision) bool { return r.Row.Cluster == "b" })
			if !cmp.Equal(wanted, after.States) {
				t.Errorf("%d states are known, want the %d of the other cluster", len(after.States), len(wanted))
			}
			if strings.Contains(strings.Join(after.Deleted, "\n"), " b/") {
				t.Errorf("deletions are known: %v", after.Deleted)
			}
		})
	}
}

// downgrade reverses the migrations of a file that follow a version.
func downgrade(t *testing.T, file string, version int) {
	t.Helper()
	undo := map[int][]string{
		8:  {"DROP TRIGGER object_named", "DROP TRIGGER object_unnamed", "DROP TABLE object_grams"},
		9:  {"DROP TRIGGER prose_told", "DROP TRIGGER prose_changed", "DROP TRIGGER prose_untold", "DROP TABLE prose_words", "DROP TABLE prose", "ALTER TABLE object DROP COLUMN prose"},
		10: {},
		11: {"ALTER TABLE epoch DROP COLUMN claim", "ALTER TABLE epoch DROP COLUMN owner"},
		12: {"ALTER TABLE epoch DROP COLUMN written"},
	}
	db, err := sql.Open("sqlite", file)
	check(t, err)
	for is := len(sqliteMigrations); is > version; is-- {
		statements, known := undo[is]
		if !known {
			t.Fatalf("schema %d cannot be taken back", is)
		}
		for _, text := range append(statements, fmt.Sprintf("PRAGMA user_version = %d", is-1)) {
			_, err := db.ExecContext(t.Context(), text)
			check(t, err)
		}
	}
	check(t, db.Close())
}

// TestSalvageGoesOnAfterAnUpgrade: a version that can read the schema of the file that was set
// aside continues the salvage of an earlier version.
func TestSalvageGoesOnAfterAnUpgrade(t *testing.T) {
	for version := oldestSalvaged; version < len(sqliteMigrations); version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			dir := t.TempDir()
			before, _ := aged(t, dir)
			s := openStore(t, dir)
			_, err := s.db.write.ExecContext(t.Context(), "DROP TABLE label")
			check(t, err)
			persist(t, s, pod("a", "x", "0", nil, nil))
			s.salvaging.Wait()
			// Restore the state at the beginning of the salvage.
			aside := setAside(t, dir)
			if len(aside) != 1 {
				t.Fatalf("set aside are %v", aside)
			}
			for _, text := range []string{"DELETE FROM revision", "DELETE FROM past WHERE ended <> 0", "INSERT INTO salvage (file, base) SELECT '" + filepath.Base(aside[0]) + "', min(id) - 1 FROM object"} {
				_, err := s.db.write.ExecContext(t.Context(), text)
				check(t, err)
			}
			check(t, s.Close())
			downgrade(t, aside[0], version)
			downgrade(t, filepath.Join(dir, "mirror.db"), version)

			s, said := salvaged(t, dir)
			if after := former(t, s, "a", "b"); !cmp.Equal(before, after) || s.Losses() != 0 {
				t.Errorf("%d of %d states, %d losses, said: %s", len(after.States), len(before.States), s.Losses(), said)
			}
		})
	}
}

// TestSalvageKilled kills the salvaging process at random moments. The next process continues,
// and in the end each state is salvaged exactly once.
func TestSalvageKilled(t *testing.T) {
	if dir := os.Getenv("STORE_TEST_SALVAGE"); dir != "" {
		s, err := Open(t.Context(), dir)
		check(t, err)
		fmt.Println("open")
		for last := int64(-1); ; {
			j, err := s.db.left(t.Context())
			check(t, err)
			if j == nil {
				fmt.Println("done")
				return
			}
			if j.after != last {
				last = j.after
				fmt.Println("after", last)
			}
		}
	}
	dir := t.TempDir()
	before, _ := aged(t, dir)
	s := openStore(t, dir)
	_, err := s.db.write.ExecContext(t.Context(), "DROP TABLE label")
	check(t, errors.Join(err, s.Close()))
	random, kills := testenv.Rand(t), 0
	for {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSalvageKilled$")
		cmd.Env = append(os.Environ(), "STORE_TEST_SALVAGE="+dir)
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		lines, done := bufio.NewScanner(out), false
		for n := random.IntN(12); n >= 0 && lines.Scan(); n-- {
			done = done || lines.Text() == "done"
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if done {
			break
		}
		kills++
	}
	s, _ = salvaged(t, dir)
	if after := former(t, s, "a", "b"); !cmp.Equal(before, after) {
		t.Errorf("after %d kills %d of %d states", kills, len(after.States), len(before.States))
	}
	if kills < 3 {
		t.Errorf("it was killed %d times only", kills)
	}
	held(t, s)
}

func typesUID(cluster, name string, n int) (uid types.UID) {
	return types.UID(fmt.Sprint(cluster, "-", name, "-", n))
}
