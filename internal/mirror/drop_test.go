package mirror

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// TestDropsAreTriedAgain: while the database cannot delete the rows of a type that is no longer
// mirrored, or of a cluster that left, no search shows them. They are deleted as soon as the
// database can. A type that is selected again meanwhile is listed again.
func TestDropsAreTriedAgain(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	configMap(t, cfg, namespace, "web", nil)
	dir := t.TempDir()
	s := must[*store.Store](t)(store.Open(t.Context(), dir))
	defer s.Close()
	raw := must[*sql.DB](t)(sql.Open("sqlite", filepath.Join(dir, "mirror.db")+"?_pragma=busy_timeout(30000)"))
	defer raw.Close()
	exec := func(text string) { t.Helper(); must[sql.Result](t)(raw.ExecContext(t.Context(), text)) }
	left := func() (n int) {
		t.Helper()
		if err := raw.QueryRowContext(t.Context(), "SELECT count(*) FROM object WHERE namespace = ? AND name = 'web'", namespace).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	refuse := func() {
		t.Helper()
		exec("CREATE TRIGGER refuse BEFORE DELETE ON object BEGIN SELECT RAISE(ABORT, 'not now'); END")
	}
	allow := func() { t.Helper(); exec("DROP TRIGGER refuse") }
	east := newSource(t, "east", cfg)
	fleet := newFleet(east)
	maps := mirrorPolicy(t, "maps", fmt.Sprintf("mirror: {resources: [{resources: [configmaps], namespaces: [%s]}]}", namespace))
	none := mirrorPolicy(t, "maps", "mirror: {resources: [{resources: [services]}]}")
	m, stop := begin(t, s, fleet, maps)
	defer stop()
	shown := func() int {
		return len(rows(t, s, store.Query{Resource: "configmaps", Namespaces: []string{namespace}}))
	}
	mirrored := func() bool {
		tab, unlock := m.table("east", configmaps.GroupResource())
		defer unlock()
		return tab != nil
	}
	eventually(t, "it is stored", func() bool { return shown() == 1 })

	refuse()
	m.setPolicy("maps", none)
	eventually(t, "it is not mirrored any more", func() bool { return !mirrored() && shown() == 0 })
	if left() != 1 {
		t.Fatal("the database deleted it")
	}
	allow()
	eventually(t, "it is deleted", func() bool { return left() == 0 })

	m.setPolicy("maps", maps)
	eventually(t, "it is stored again", func() bool { return shown() == 1 })
	refuse()
	m.setPolicy("maps", none)
	eventually(t, "it is not mirrored any more", func() bool { return !mirrored() && shown() == 0 })
	m.setPolicy("maps", maps)
	eventually(t, "it is listed while the database fails", func() bool {
		tab, unlock := m.table("east", configmaps.GroupResource())
		defer unlock()
		return tab != nil && tab.synced
	})
	if shown() != 0 {
		t.Error("what was to be deleted is shown")
	}
	allow()
	eventually(t, "it is stored once more", func() bool { return shown() == 1 && left() == 1 && m.Observation("east").Synced })

	refuse()
	fleet.mu.Lock()
	delete(fleet.sources, "east")
	fleet.mu.Unlock()
	fleet.notify(member.Event{Type: member.Left, Name: "east"})
	eventually(t, "the cluster is not mirrored any more", func() bool { return m.cluster("east") == nil && shown() == 0 })
	allow()
	eventually(t, "its rows are deleted", func() bool { return left() == 0 })
}
