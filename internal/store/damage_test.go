package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/testenv"
)

// many returns enough rows for a database of many pages.
func many() []Row {
	rows := make([]Row, 0, 2000)
	for i := range cap(rows) {
		rows = append(rows, pod("a", "x", fmt.Sprintf("%04d", i), map[string]string{"app": "web"}, map[string]any{"fill": strings.Repeat("x", 500)}))
	}
	return rows
}

// written creates a database with many rows, and returns its directory and file.
func written(t *testing.T) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, many()...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, filepath.Join(dir, "mirror.db")
}

func edit(t *testing.T, file string, change func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// It writes in place, because an open database keeps using this file.
	if err := os.WriteFile(file, change(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

func noise(b []byte) []byte {
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // never fails
	return b
}

func setAside(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "mirror.db.damaged-*"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "-wal") })
}

// use makes calls of all kinds, and retries each until it succeeds. So the store finds all
// damage and replaces the database.
func use(t *testing.T, s *Store) {
	t.Helper()
	ctx := context.Background()
	pods := schema.GroupResource{Resource: "pods"}
	calls := map[string]func() error{
		"List": func() error {
			_, err := s.List(ctx, Query{Resource: "pods", Labels: selector(t, "app=web,app!=x")})
			return err
		},
		"Count":      func() error { _, err := s.Count(ctx, Query{Resource: "pods"}); return err },
		"Keys":       func() error { _, err := s.Keys(ctx, "a", pods); return err },
		"Types":      func() error { _, err := s.Types(ctx); return err },
		"SaveType":   func() error { return s.SaveType(ctx, Type{Cluster: "a", Resource: pods, API: []byte("{}")}) },
		"Rows":       func() error { _, err := s.Rows(ctx, "a", pods, true, Key{}, 10); return err },
		"Epoch":      func() error { _, err := s.Epoch(ctx); return err },
		"Checkpoint": func() error { _, err := s.Checkpoint(ctx, "a", pods); return err },
		"SaveCheckpoints": func() error {
			return s.SaveCheckpoints(ctx, []Checkpoint{{Cluster: "a", Resource: pods, State: []byte("{}")}})
		},
		"Write": func() error { return s.Write(ctx, []Change{{Row: pod("a", "x", "0000", nil, nil)}}) },
	}
	deadline := time.Now().Add(testenv.Patience)
	for name, call := range calls {
		for err := call(); err != nil; err = call() {
			if !errors.Is(err, ErrUnavailable) || time.Now().After(deadline) {
				t.Fatalf("%s: %v, want ErrUnavailable and then success", name, err)
			}
		}
	}
}

// TestDamagedAtOpen: the store opens with any content of the file. An unusable file is set
// aside, under a name with the time.
func TestDamagedAtOpen(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"Garbage":            noise,
		"Text":               func([]byte) []byte { return bytes.Repeat([]byte("no database "), 1000) },
		"HalfAFile":          func(b []byte) []byte { return b[:len(b)/2] },
		"HeaderThenGarbage":  func(b []byte) []byte { noise(b[100:]); return b },
		"SchemaThenGarbage":  func(b []byte) []byte { noise(b[4096:]); return b },
		"MiddleThirdGarbage": func(b []byte) []byte { noise(b[len(b)/3 : 2*len(b)/3]); return b },
	} {
		t.Run(name, func(t *testing.T) {
			dir, file := written(t)
			edit(t, file, damage)
			s := openStore(t, dir)
			use(t, s)
			write(t, s, many()...)
			if got := listed(t, s, Query{Resource: "pods"}); len(got) != len(many()) {
				t.Errorf("%d rows after they were written again, want %d", len(got), len(many()))
			}
			checkIntegrity(t, s)
			if files := setAside(t, dir); len(files) != 1 || s.Losses() != 1 {
				t.Errorf("set aside %v, %d losses, want one", files, s.Losses())
			}
		})
	}
}

func TestDatabaseOfANewerVersionIsSetAside(t *testing.T) {
	dir, _ := written(t)
	s := openStore(t, dir)
	if _, err := s.db.write.ExecContext(t.Context(), fmt.Sprintf("PRAGMA user_version = %d", len(sqliteMigrations)+1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	if got := listed(t, s, Query{Resource: "pods"}); len(got) != 0 || len(setAside(t, dir)) != 1 {
		t.Errorf("%d rows, set aside %v", len(got), setAside(t, dir))
	}
}

// TestDamagedWhileRunning: if files are damaged while the store runs, calls succeed or fail
// with ErrUnavailable, and the store soon works again. OnLoss functions are called if rows are
// lost.
func TestDamagedWhileRunning(t *testing.T) {
	truncate := func(suffix string) func(*testing.T, string) {
		return func(t *testing.T, file string) {
			if err := os.Truncate(file+suffix, 0); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	remove := func(suffix string) func(*testing.T, string) {
		return func(t *testing.T, file string) {
			if err := os.Remove(file + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	for name, tc := range map[string]struct {
		damage func(*testing.T, string)
		lost   bool
	}{
		"GarbageInTheDatabase": {func(t *testing.T, f string) { edit(t, f, noise) }, true},
		"TruncatedDatabase":    {truncate(""), true},
		"TruncatedLog":         {truncate("-wal"), true},
		"GarbageInTheLog":      {func(t *testing.T, f string) { edit(t, f+"-wal", noise) }, true},
		"TruncatedIndex":       {truncate("-shm"), false},
		"RemovedDatabase":      {remove(""), false},
		"RemovedLog":           {remove("-wal"), false},
		"RemovedIndex":         {remove("-shm"), false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, file := written(t)
			s := openStore(t, dir)
			calls := 0
			s.OnLoss(func() { calls++ })
			write(t, s, many()[:1000]...) // into the write-ahead log
			if tc.damage(t, file); tc.lost {
				s.db.read.SetMaxIdleConns(0) // so that reads use the file and no cache
			}
			use(t, s)
			if lost := s.Losses() > 0; lost != tc.lost || (calls > 0) != tc.lost {
				t.Errorf("lost %t, notified %d times, want %t", lost, calls, tc.lost)
			}
			write(t, s, many()...)
			if got := listed(t, s, Query{Resource: "pods"}); len(got) != len(many()) {
				t.Errorf("%d rows, want %d", len(got), len(many()))
			}
			checkIntegrity(t, s)
			if tc.lost && len(setAside(t, dir)) != 1 {
				t.Errorf("set aside %v, want one", setAside(t, dir))
			}
		})
	}
}

// TestFaultOfTheSchema: an error of a table is not reported as an error of the written rows.
// Otherwise the writer would drop one row after another.
func TestFaultOfTheSchema(t *testing.T) {
	for name, fault := range map[string]string{
		"Table": "DROP TABLE label", "Column": "ALTER TABLE object DROP COLUMN owner", "Trigger": "CREATE TRIGGER t BEFORE INSERT ON body BEGIN SELECT none(); END",
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			for _, q := range []string{"DROP INDEX object_owner", fault} {
				if _, err := s.db.write.ExecContext(t.Context(), q); err != nil {
					t.Fatal(err)
				}
			}
			err := s.Write(t.Context(), []Change{{Row: pod("a", "x", "1", map[string]string{"a": "b"}, nil)}, {Row: pod("a", "x", "2", nil, nil)}})
			if _, rejected := errors.AsType[*RejectedError](err); rejected || err == nil {
				t.Errorf("%v, want an error that is about no row", err)
			}
		})
	}
}

// TestOnlyTheLastDamagedDatabaseIsKept: copies of damaged databases must not fill a failing
// disk.
func TestOnlyTheLastDamagedDatabaseIsKept(t *testing.T) {
	dir, file := written(t)
	var last []string
	for range 3 {
		edit(t, file, noise)
		s := openStore(t, dir)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		files := setAside(t, dir)
		if len(files) != 1 || cmp.Equal(files, last) {
			t.Errorf("set aside %v after %v", files, last)
		}
		last = files
	}
}

// TestLocked: while another process has the database locked, opening succeeds and calls return
// ErrUnavailable. The store uses the database when the lock is released.
func TestLocked(t *testing.T) {
	if dir := os.Getenv("STORE_TEST_LOCKED"); dir != "" {
		s, err := Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("open", s.db != nil)
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the parent closes it
		return
	}
	dir, _ := written(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestLocked$")
	cmd.Env = append(os.Environ(), "STORE_TEST_LOCKED="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, len("open true\n"))
	if _, err := out.Read(said); err != nil || string(said) != "open true\n" {
		t.Fatalf("%q, %v", said, err)
	}
	s := openStore(t, dir)
	if _, err := s.List(t.Context(), Query{Resource: "pods"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	use(t, s)
	if got := listed(t, s, Query{Resource: "pods"}); len(got) != len(many()) || s.Losses() != 0 {
		t.Errorf("%d rows, %d losses: a lock is no damage", len(got), s.Losses())
	}
}

func TestUnwritableDirectory(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may write everywhere")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "writable by this user") {
		t.Errorf("%v does not say the way out", err)
	}
}

// TestWhatIsMissingIsWrittenAgain: the next write of an object restores rows of it that another
// program deleted, all or some of them.
func TestWhatIsMissingIsWrittenAgain(t *testing.T) {
	for name, statements := range map[string][]string{
		"Everything": {"DELETE FROM label", "DELETE FROM body", "DELETE FROM object"}, "Row": {"DELETE FROM object"}, "Body": {"DELETE FROM body"},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, at string) {
				s := openStore(t, at)
				s.KeepHistory(History{})
				r := pod("a", "x", "1", map[string]string{"app": "web"}, nil)
				write(t, s, r)
				for _, statement := range statements {
					_, err := s.db.write.ExecContext(t.Context(), statement)
					check(t, err)
				}
				r.ResourceVersion = "8"
				write(t, s, r)
				page, err := s.List(t.Context(), Query{Resource: "pods", Labels: selector(t, "app=web")})
				check(t, err)
				if diff := cmp.Diff([]Row{r}, page.Rows, cmpopts.IgnoreFields(Row{}, "Changed")); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}
