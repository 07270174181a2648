package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"orrery.dev/orrery/internal/testenv"
)

// persist writes until the database accepts the rows, as the mirror does.
func persist(t *testing.T, s *Store, rows ...Row) {
	t.Helper()
	changes := make([]Change, 0, len(rows))
	for _, r := range rows {
		changes = append(changes, Change{Row: r})
	}
	testenv.Eventually(t, "it is written", testenv.Patience, func() error {
		err := s.Write(context.Background(), changes)
		if err != nil && !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable or success", err)
		}
		return err
	})
}

// consistent checks that each table has exactly the rows that belong to the objects.
func consistent(t *testing.T, db *sql.DB, objects int) {
	t.Helper()
	const miscounted = "SELECT count(*) FROM tally t WHERE objects <> " +
		"(SELECT count(*) FROM object o WHERE o.type = t.type AND o.cluster = t.cluster AND o.namespace = t.namespace)"
	for query, want := range map[string]int{
		"SELECT count(*) FROM object": objects,
		"SELECT count(*) FROM body":   objects,
		"SELECT count(*) FROM object WHERE id NOT IN (SELECT object FROM body)":       0,
		"SELECT count(*) FROM label WHERE object NOT IN (SELECT id FROM object)":      0,
		"SELECT count(*) FROM object WHERE id NOT IN (SELECT object FROM label)":      0,
		"SELECT count(*) FROM object WHERE seq > (SELECT seq FROM epoch) OR seq < id": 0,
		"SELECT count(*) - count(DISTINCT seq) FROM object":                           0,
		"SELECT count(*) FROM object WHERE type NOT IN (SELECT id FROM type)":         0,
		"SELECT count(*) FROM object WHERE cluster NOT IN (SELECT name FROM cluster)": 0,
		"SELECT coalesce(sum(objects), 0) FROM tally":                                 objects,
		miscounted: 0,
	} {
		var n int
		if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil || n != want {
			t.Errorf("%s: %d, %v, want %d", query, n, err, want)
		}
	}
}

func numbered(from, n int) []Row {
	rows := make([]Row, 0, n)
	for i := range n {
		rows = append(rows, pod("a", "x", fmt.Sprintf("%06d", from+i), map[string]string{"app": "web", "n": fmt.Sprint(i)}, map[string]any{"fill": strings.Repeat("x", 500)}))
	}
	return rows
}

// TestConnectionCut ends the connection while a batch waits within its transaction. Nothing of
// the batch is stored, Write returns ErrUnavailable, and the next attempt writes the batch.
func TestConnectionCut(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		s := openStore(t, at)
		write(t, s, numbered(0, 10)...)
		db := d.Open(t, at)
		holder, err := db.Conn(t.Context())
		check(t, err)
		defer holder.Close()
		waiting, cut := "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'", "SELECT pg_terminate_backend(%d)"
		if d == testenv.MariaDB {
			waiting, cut = "SELECT id FROM information_schema.processlist WHERE db = database() AND state LIKE 'Waiting for table%'", "KILL %d"
			_, err = holder.ExecContext(t.Context(), "LOCK TABLES label WRITE")
		} else {
			_, err = holder.ExecContext(t.Context(), "BEGIN")
			check(t, err)
			_, err = holder.ExecContext(t.Context(), "LOCK TABLE label IN ACCESS EXCLUSIVE MODE")
		}
		check(t, err)
		done := make(chan error)
		go func() {
			changes := make([]Change, 0, 300)
			for _, r := range numbered(5, 300) {
				changes = append(changes, Change{Row: r})
			}
			done <- s.Write(context.Background(), changes)
		}()
		var id int64
		testenv.Eventually(t, "the batch waits", testenv.Patience, func() error {
			return db.QueryRowContext(t.Context(), waiting).Scan(&id)
		})
		_, err = db.ExecContext(t.Context(), fmt.Sprintf(cut, id))
		check(t, err)
		if err := <-done; !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		check(t, holder.Close())
		check(t, db.Close())
		db = d.Open(t, at)
		consistent(t, db, 10)
		persist(t, s, numbered(5, 300)...)
		consistent(t, db, 305)
		if s.Losses() != 0 {
			t.Errorf("%d losses: nothing was lost", s.Losses())
		}
	})
}

// TestServerKilled: the server is killed during writes and restarted. All rows that were
// reported as written are stored, and batches are complete.
func TestServerKilled(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		s := openStore(t, at)
		const batch, batches = 100, 30
		reached := make(chan int, batches)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for n := range batches {
				persist(t, s, numbered(n*batch, batch)...)
				reached <- n
			}
		}()
		for n := range reached {
			if n == 5 || n == 15 {
				d.Kill(t)
				if _, err := s.List(t.Context(), Query{Resource: "pods"}); err != nil && !errors.Is(err, ErrUnavailable) {
					t.Errorf("%v, want ErrUnavailable", err)
				}
				d.Restart(t)
			}
			if n == batches-1 {
				break
			}
		}
		<-done
		consistent(t, d.Open(t, at), batch*batches)
		if s.Losses() != 0 {
			t.Errorf("%d losses: nothing was lost", s.Losses())
		}
	})
}

// TestReplacedDatabase: if a database was replaced, or is in an earlier state than it was left
// in, such as a promoted replica without the last commits, it gets a new epoch. OnLoss
// functions are called, and no earlier checkpoint is valid.
func TestReplacedDatabase(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, change := range map[string]string{
		"Earlier": "UPDATE epoch SET seq = seq - 1", "Another": "UPDATE epoch SET id = 'another', seq = 1000",
	} {
		t.Run(name, func(t *testing.T) {
			onServers(t, func(t *testing.T, d *testenv.Database, at string) {
				s := openStore(t, at)
				calls := 0
				s.OnLoss(func() { calls++ })
				write(t, s, numbered(0, 10)...)
				saveType(t, s, "a", pods)
				epoch, err := s.Epoch(t.Context())
				check(t, err)
				check(t, s.SaveCheckpoints(t.Context(), []Checkpoint{{Cluster: "a", Resource: pods, Epoch: epoch, State: []byte("at 7")}}))
				_, err = d.Open(t, at).ExecContext(t.Context(), change)
				check(t, err)
				if err := s.Write(t.Context(), []Change{{Row: numbered(10, 1)[0]}}); !errors.Is(err, ErrUnavailable) {
					t.Errorf("%v, want ErrUnavailable", err)
				}
				now, err := s.Epoch(t.Context())
				check(t, err)
				state, err := s.Checkpoint(t.Context(), "a", pods)
				check(t, err)
				if now == epoch || state != nil || calls != 1 || s.Losses() != 1 {
					t.Errorf("epoch %s after %s, checkpoint %q, notified %d times of %d losses", now, epoch, state, calls, s.Losses())
				}
				persist(t, s, numbered(10, 1)...)
				check(t, s.SaveCheckpoints(t.Context(), []Checkpoint{{Cluster: "a", Resource: pods, Epoch: epoch, State: []byte("at 7")}}))
				if state, err := s.Checkpoint(t.Context(), "a", pods); err != nil || state != nil {
					t.Errorf("checkpoint %q of the epoch before, %v", state, err)
				}
			})
		})
	}
}

// TestEmptiedDatabase: a database whose tables were dropped gets new ones.
func TestEmptiedDatabase(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		s := openStore(t, at)
		write(t, s, numbered(0, 10)...)
		db := d.Open(t, at)
		for _, table := range []string{"cluster", "type", "served", "object", "body", "label", "epoch", "revision", "past", "tally", "prose", "schema_version"} {
			_, err := db.ExecContext(t.Context(), "DROP TABLE "+table)
			check(t, err)
		}
		if d == testenv.MariaDB {
			_, err := db.ExecContext(t.Context(), "DROP TABLE word")
			check(t, err)
		}
		persist(t, s, numbered(0, 5)...)
		consistent(t, db, 5)
		if s.Losses() != 1 {
			t.Errorf("%d losses, want one", s.Losses())
		}
	})
}

func TestOpenDSN(t *testing.T) {
	for name, dsn := range map[string]string{
		"Empty": "", "Path": "/etc/passwd", "OtherScheme": "oracle://u:secret@h/d", "NoDatabase": "mysql://u:secret@tcp(h:1)/",
		"Postgres": "postgres://u:secret@h:port/d", "PostgresParameter": "postgres://u:secret@h/d?sslmode=perhaps",
		"MySQL": "mysql://u:secret@h/d", "MySQLParameter": "mysql://u:secret@tcp(h:1)/d?tls=perhaps",
		"PostgresFile": "postgres://u:secret@h/d?sslmode=verify-full&sslrootcert=/none",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := OpenDSN(t.Context(), dsn)
			if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "postgres://USER") {
				t.Errorf("%v does not say what a DSN is", err)
			}
		})
	}
	// If a server does not answer, the store opens, and its errors and log do not contain the
	// password.
	for name, dsn := range map[string]string{
		"PostgreSQL": "postgres://u:secret@127.0.0.1:1/d", "MySQL": "mysql://u:secret@tcp(127.0.0.1:1)/d",
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			log := funcr.New(func(_, args string) { said.WriteString(args) }, funcr.Options{})
			s, err := OpenDSN(logr.NewContext(t.Context(), log), dsn)
			check(t, err)
			defer s.Close()
			_, err = s.Count(t.Context(), Query{Resource: "pods"})
			if all := said.String() + fmt.Sprint(err); !errors.Is(err, ErrUnavailable) || strings.Contains(all, "secret") || !strings.Contains(all, "127.0.0.1:1") {
				t.Error(all)
			}
		})
	}
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		check(t, openStore(t, at).Close())
		_, err := d.Open(t, at).ExecContext(t.Context(), "INSERT INTO schema_version VALUES (1000)")
		check(t, err)
		if _, err := OpenDSN(t.Context(), at); err == nil || !strings.Contains(err.Error(), "its schema is 1000") {
			t.Errorf("%v, want what is wrong with the database", err)
		}
	})
}

// TestHostileBodies: bodies with characters that databases cannot store as text, deep ones and
// large ones are stored unchanged and found.
func TestHostileBodies(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		deep := strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200)
		bodies := map[string]string{
			"nul": `{"spec":{"find":"me","x":"a\u0000b"}}`, "surrogate": `{"spec":{"find":"me","x":"\ud800"}}`, "escaped": `{"spec":{"find":"me","x":"\\u0000"}}`,
			"deep": `{"spec":{"find":"me","x":` + deep + `}}`, "large": `{"spec":{"find":"me","x":"` + strings.Repeat("é", 2<<20) + `"}}`,
		}
		var changes []Change
		for name, body := range bodies {
			r := pod("a", "x", name, nil, nil)
			r.Body = []byte(body)
			changes = append(changes, Change{Row: r})
		}
		check(t, s.Write(t.Context(), changes))
		// MariaDB finds no field in deeply nested JSON.
		found := listed(t, s, Query{
			Resource: "pods", Names: []string{"nul", "surrogate", "escaped", "large"},
			Fields: []FieldRequirement{{Path: "spec.find", Operator: selection.Equals, Value: "me"}},
		})
		if diff := cmp.Diff([]string{"a/x/escaped", "a/x/large", "a/x/nul", "a/x/surrogate"}, found); diff != "" {
			t.Error(diff)
		}
		page, err := s.List(t.Context(), Query{Resource: "pods"})
		check(t, err)
		got := map[string]string{}
		for _, r := range page.Rows {
			got[r.Name] = string(r.Body)
		}
		if diff := cmp.Diff(bodies, got); diff != "" {
			t.Error(diff[:min(len(diff), 2000)])
		}
	})
}

// TestDeletionIsOfOneObject: a late deletion of an object does not delete a newer object of its
// name.
func TestDeletionIsOfOneObject(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		old, now := pod("a", "x", "1", map[string]string{"app": "old"}, nil), pod("a", "x", "1", map[string]string{"app": "now"}, nil)
		old.UID, now.UID = "old", "now"
		write(t, s, old, now)
		check(t, s.Write(t.Context(), []Change{{Row: old, Delete: true}}))
		if diff := cmp.Diff([]string{"a/x/1"}, listed(t, s, Query{Resource: "pods", Labels: selector(t, "app=now")})); diff != "" {
			t.Error(diff)
		}
		// Changes in one batch apply one after another.
		check(t, s.Write(t.Context(), []Change{{Row: now, Delete: true}, {Row: old}, {Row: now, Delete: true}}))
		if diff := cmp.Diff([]string{"a/x/1"}, listed(t, s, Query{Resource: "pods", Labels: selector(t, "app=old")})); diff != "" {
			t.Error(diff)
		}
		check(t, s.Write(t.Context(), []Change{{Row: now}, {Row: now, Delete: true}}))
		if got := listed(t, s, Query{Resource: "pods"}); len(got) != 0 {
			t.Errorf("%v is left", got)
		}
	})
}

// TestSequence: each change gets a sequence greater than those of all earlier commits.
func TestSequence(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		var last int64
		for i := range 5 {
			refused := pod("a", "x", "bad", nil, nil)
			refused.Body = []byte("no JSON")
			err := s.Write(t.Context(), []Change{{Row: pod("a", "x", fmt.Sprint(i), nil, nil)}, {Row: refused}, {Row: pod("a", "x", "same", nil, nil)}})
			if _, ok := errors.AsType[*RejectedError](err); !ok {
				t.Fatal(err)
			}
			var lowest, highest, epoch int64
			check(t, s.db.read.QueryRowContext(t.Context(), say(s.db.dialect, "SELECT min(seq), max(seq), (SELECT seq FROM epoch) FROM object WHERE seq > ?"), last).
				Scan(&lowest, &highest, &epoch))
			if lowest <= last || highest > epoch || lowest == highest {
				t.Errorf("sequences %d to %d after %d, and the store is at %d", lowest, highest, last, epoch)
			}
			last = epoch
		}
	})
}

// TestWriterIsNotKept: a server that does not answer does not block a write for ever.
func TestWriterIsNotKept(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		s := openStore(t, at)
		write(t, s, numbered(0, 1)...)
		tx, err := d.Open(t, at).BeginTx(t.Context(), nil)
		check(t, err)
		defer tx.Rollback()
		_, err = tx.ExecContext(t.Context(), "UPDATE epoch SET seq = seq")
		check(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := s.Write(ctx, []Change{{Row: numbered(1, 1)[0]}}); err == nil {
			t.Error("it was written")
		}
		check(t, tx.Rollback())
		persist(t, s, numbered(1, 1)...)
	})
}
