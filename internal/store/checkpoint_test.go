package store

import (
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func note(r Row, note string) Change {
	r.Note = note
	return Change{Row: r}
}

// TestCheckpoints: a checkpoint is kept as long as the stored rows are those that it covers.
func TestCheckpoints(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		change func(t *testing.T, s *Store, epoch string)
		epoch  string // epoch of the saved checkpoint; "": that of the database
		want   string
	}{
		"Saved":          {want: "at 7"},
		"OtherEpoch":     {epoch: "another"},
		"TypeDropped":    {change: func(t *testing.T, s *Store, _ string) { check(t, s.DropType(t.Context(), "east", pods)) }},
		"ClusterDropped": {change: func(t *testing.T, s *Store, _ string) { check(t, s.DropCluster(t.Context(), "east")) }},
		"TypeSavedAgain": {change: func(t *testing.T, s *Store, _ string) { saveType(t, s, "east", pods) }, want: "at 7"},
		"RowsMayBeNewer": {change: func(t *testing.T, s *Store, _ string) {
			check(t, s.Write(t.Context(), []Change{note(pod("east", "ns", "b", nil, nil), "")}))
		}, want: "at 7"},
		"NextIsSaved": {change: func(t *testing.T, s *Store, epoch string) { save(t, s, epoch, "at 8") }, want: "at 8"},
		"Withdrawn": {change: func(t *testing.T, s *Store, _ string) {
			check(t, s.SaveCheckpoints(t.Context(), []Checkpoint{{Cluster: "east", Resource: pods}}))
		}},
		"RowRefusedAfter":  {change: func(t *testing.T, s *Store, epoch string) { refuse(t, s, "bad"); save(t, s, epoch, "at 8") }, want: "at 8"},
		"NameRefusedAfter": {change: func(t *testing.T, s *Store, epoch string) { refuse(t, s, ""); save(t, s, epoch, "at 8") }, want: "at 7"},
		"NameRefusedAndDeleted": {change: func(t *testing.T, s *Store, epoch string) {
			refuse(t, s, "")
			check(t, s.Write(t.Context(), []Change{{Row: pod("east", "ns", "", nil, nil), Delete: true}}))
			save(t, s, epoch, "at 8")
		}, want: "at 8"},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, at string) {
				s := openStore(t, at)
				saveType(t, s, "east", pods)
				check(t, s.Write(t.Context(), []Change{note(pod("east", "ns", "a", nil, nil), "")}))
				epoch, err := s.Epoch(t.Context())
				check(t, err)
				if tc.epoch != "" {
					save(t, s, tc.epoch, "at 7")
				} else {
					save(t, s, epoch, "at 7")
				}
				if tc.change != nil {
					tc.change(t, s, epoch)
				}
				got, err := s.Checkpoint(t.Context(), "east", pods)
				check(t, err)
				if string(got) != tc.want {
					t.Errorf("checkpoint %q, want %q", got, tc.want)
				}
			})
		})
	}
}

func TestRows(t *testing.T) { onEach(t, testRows) }

func testRows(t *testing.T, at string) {
	s := openStore(t, at)
	gr := schema.GroupResource{Resource: "pods"}
	var changes []Change
	for _, name := range []string{"a", "b", "c"} {
		changes = append(changes, note(pod("east", "ns", name, map[string]string{"app": name}, nil), map[string]string{"b": "17"}[name]))
	}
	changes = append(changes, note(pod("east", "other", "a", nil, nil), ""), note(pod("west", "ns", "a", nil, nil), ""))
	check(t, s.Write(t.Context(), changes))
	read := func(bodies bool) (out []string) {
		t.Helper()
		var after Key
		for {
			rows, err := s.Rows(t.Context(), "east", gr, bodies, after, 3)
			check(t, err)
			for _, r := range rows {
				line := r.Namespace + "/" + r.Name + " " + r.Labels["app"] + " note " + r.Note
				if r.Body != nil {
					line += " body"
				}
				out = append(out, line)
			}
			if len(rows) < 3 {
				return out
			}
			last := rows[len(rows)-1]
			after = Key{Namespace: last.Namespace, Name: last.Name}
		}
	}
	if diff := cmp.Diff([]string{"ns/a a note ", "ns/b b note 17 body", "ns/c c note ", "other/a  note "}, read(false)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"ns/a a note  body", "ns/b b note 17 body", "ns/c c note  body", "other/a  note  body"}, read(true)); diff != "" {
		t.Error(diff)
	}
}

// TestRowsWithoutNotes: rows from schema 1, which has no notes, get an empty resource version.
// So the mirror writes them again.
func TestRowsWithoutNotes(t *testing.T) {
	dir := t.TempDir()
	db, err := sql.Open("sqlite", filepath.Join(dir, "mirror.db"))
	check(t, err)
	check(t, migrateOne(t.Context(), sqliteDialect{}, db, 1, sqliteMigrations[0]))
	_, err = db.ExecContext(t.Context(), `INSERT INTO cluster VALUES (1, 'east'); INSERT INTO type VALUES (1, '', 'pods');
		INSERT INTO object VALUES (1, 1, 1, 'ns', 'old', 'v1', 'Pod', 'u', '', 0, '7', '{}'); INSERT INTO body VALUES (1, '{}')`)
	check(t, errors.Join(err, db.Close()))
	s, err := Open(t.Context(), dir)
	check(t, err)
	defer s.Close()
	row := pod("east", "ns", "new", nil, nil)
	row.ResourceVersion = "8"
	check(t, s.Write(t.Context(), []Change{{Row: row}}))
	keys, err := s.Keys(t.Context(), "east", schema.GroupResource{Resource: "pods"})
	check(t, err)
	got := map[string]string{}
	for _, k := range keys {
		got[k.Name] = k.ResourceVersion
	}
	if diff := cmp.Diff(map[string]string{"old": "", "new": "8"}, got); diff != "" {
		t.Error(diff)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func saveType(t *testing.T, s *Store, cluster string, gr schema.GroupResource) {
	t.Helper()
	check(t, s.SaveType(t.Context(), Type{Cluster: cluster, Resource: gr, API: []byte("{}")}))
}

func save(t *testing.T, s *Store, epoch, state string) {
	t.Helper()
	check(t, s.SaveCheckpoints(t.Context(), []Checkpoint{
		{Cluster: "east", Resource: schema.GroupResource{Resource: "pods"}, Epoch: epoch, State: []byte(state)},
	}))
}

// refuse writes a row without valid JSON, and fails the test unless the database refuses the
// row.
func refuse(t *testing.T, s *Store, name string) {
	t.Helper()
	row := pod("east", "ns", name, nil, nil)
	row.Body = []byte("no JSON")
	if _, ok := errors.AsType[*RejectedError](s.Write(t.Context(), []Change{{Row: row}})); !ok {
		t.Fatal("the row was not refused")
	}
}
