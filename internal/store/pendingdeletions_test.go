package store

import (
	"context"
	"database/sql"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// refuseDeletions makes the database fail an action (act) on rows of a table until allow is
// called.
func refuseDeletions(t *testing.T, s *Store, act, table string) (allow func()) {
	t.Helper()
	var on, off []string
	switch s.db.dialect.(type) {
	case sqliteDialect:
		on = []string{"CREATE TRIGGER refuse BEFORE " + act + " ON " + table + " BEGIN SELECT RAISE(ABORT, 'not now'); END"}
		off = []string{"DROP TRIGGER refuse"}
	case postgresDialect:
		on = []string{
			"CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE 'not now'; END $$ LANGUAGE plpgsql",
			"CREATE TRIGGER refuse BEFORE " + act + " ON " + table + " FOR EACH ROW EXECUTE FUNCTION refuse()",
		}
		off = []string{"DROP TRIGGER refuse ON " + table, "DROP FUNCTION refuse()"}
	default:
		on = []string{"CREATE TRIGGER refuse BEFORE " + act + " ON " + table + " FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not now'"}
		off = []string{"DROP TRIGGER refuse"}
	}
	do := func(statements []string) {
		t.Helper()
		for _, text := range statements {
			_, err := s.db.write.ExecContext(t.Context(), text)
			check(t, err)
		}
	}
	do(on)
	return func() { do(off) }
}

// TestDropsThatFail: queries do not return dropped rows, even if the database fails to delete
// them. The rows are deleted when the drop is repeated, and before new rows take their place.
func TestDropsThatFail(t *testing.T) {
	for name, tc := range map[string]struct {
		act, table string
		drop       func(t *testing.T, s *Store) error
		again      bool // the drop is repeated; else the next write deletes the rows
	}{
		"Type":           {act: "DELETE", table: "object", drop: func(t *testing.T, s *Store) error { return s.DropType(t.Context(), "a", pods) }, again: true},
		"TypeWritten":    {act: "DELETE", table: "object", drop: func(t *testing.T, s *Store) error { return s.DropType(t.Context(), "a", pods) }},
		"Cluster":        {act: "UPDATE", table: "cluster", drop: func(t *testing.T, s *Store) error { return s.DropCluster(t.Context(), "a") }, again: true},
		"ClusterWritten": {act: "UPDATE", table: "cluster", drop: func(t *testing.T, s *Store) error { return s.DropCluster(t.Context(), "a") }},
		"ClusterHalf":    {act: "DELETE", table: "object", drop: func(t *testing.T, s *Store) error { return s.DropCluster(t.Context(), "a") }},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, at string) {
				s := openStore(t, at)
				saveType(t, s, "a", pods)
				saveType(t, s, "b", pods)
				epoch, err := s.Epoch(t.Context())
				check(t, err)
				write(t, s, pod("a", "x", "old", map[string]string{"app": "web"}, nil), pod("b", "x", "old", map[string]string{"app": "web"}, nil))
				check(t, s.SaveCheckpoints(t.Context(), []Checkpoint{{Cluster: "a", Resource: pods, Epoch: epoch, State: []byte("here")}}))
				allow := refuseDeletions(t, s, tc.act, tc.table)
				if err := tc.drop(t, s); err == nil {
					t.Fatal("it did not fail")
				}
				hasNot := func(want ...string) {
					t.Helper()
					for what, q := range map[string]Query{
						"everything": {Resource: "pods"}, "a label": {Resource: "pods", Labels: selector(t, "app=web")}, "clusters": {Resource: "pods", Clusters: []string{"a", "b"}},
						"namespaces": {Resource: "pods", Namespaces: []string{"x"}}, "scopes": {Resource: "pods", Scopes: map[string][]string{"a": {"x"}, "b": {"x"}}},
					} {
						if diff := cmp.Diff(want, listed(t, s, q)); diff != "" {
							t.Errorf("by %s: %s", what, diff)
						}
						if n, err := s.Count(t.Context(), q); err != nil || int(n) != len(want) {
							t.Errorf("by %s: counted %d, %v", what, n, err)
						}
					}
				}
				hasNot("b/x/old")
				keys, err := s.Keys(t.Context(), "a", pods)
				check(t, err)
				rows, err := s.Rows(t.Context(), "a", pods, true, Key{}, 10)
				check(t, err)
				state, err := s.Checkpoint(t.Context(), "a", pods)
				check(t, err)
				states, err := s.Revisions(t.Context(), Object{Cluster: "a", Resource: pods, Namespace: "x", Name: "old"}, 0, 10)
				check(t, err)
				types, err := s.Types(t.Context())
				check(t, err)
				if len(keys)+len(rows)+len(state)+len(states.Items) > 0 || len(types) != 1 {
					t.Errorf("%d keys, %d rows, checkpoint %q, %d states, %d types", len(keys), len(rows), state, len(states.Items), len(types))
				}
				if err := s.Write(t.Context(), []Change{{Row: pod("a", "x", "new", map[string]string{"app": "web"}, nil)}}); err == nil {
					t.Error("a row was written beside those that are to go")
				}
				hasNot("b/x/old")
				allow()
				if tc.again {
					check(t, tc.drop(t, s))
					hasNot("b/x/old")
					if n := rowsOf(t, s, "object"); n != 1 {
						t.Errorf("%d rows are left, want 1", n)
					}
				}
				write(t, s, pod("a", "x", "new", map[string]string{"app": "web"}, nil))
				hasNot("a/x/new", "b/x/old")
				if n := rowsOf(t, s, "object"); n != 2 {
					t.Errorf("%d rows are stored, want 2", n)
				}
			})
		})
	}
}

// afterFirst is a querier that calls f after its first query.
type afterFirst struct {
	querier

	f func()
}

func (a *afterFirst) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := a.querier.QueryContext(ctx, query, args...)
	if a.f != nil {
		a.f()
		a.f = nil
	}
	return rows, err
}

// TestPageBesideADeletion: if the deletion of a cluster is requested while a page far down a list
// is read, the page has the rows of the other clusters.
func TestPageBesideADeletion(t *testing.T) {
	s := openStore(t, t.TempDir())
	for _, cluster := range []string{"a", "b", "c"} {
		write(t, s, pod(cluster, "x", "1", nil, nil), pod(cluster, "x", "2", nil, nil))
	}
	for offset, want := range [][]string{{"a/x/1", "a/x/2", "c/x/1", "c/x/2"}, {"a/x/2", "c/x/1", "c/x/2"}, {"c/x/1", "c/x/2"}, {"c/x/1", "c/x/2"}, {"c/x/1", "c/x/2"}} {
		db := &afterFirst{s.db.read, func() { s.pendingDeletions.add(deletionKey{cluster: "b"}) }}
		found, err := s.db.byPlaces(t.Context(), db, Query{Resource: "pods", Offset: offset, Limit: 10})
		check(t, err)
		var got []string
		for _, one := range found {
			got = append(got, keys([]Row{one.Row})...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("from %d on: %s", offset, diff)
		}
		s.pendingDeletions.remove(deletionKey{cluster: "b"})
	}
}
