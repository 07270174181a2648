package store

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/seal"
)

// TestDataLeavesTheJournal: after KeepData no event contains data of Secrets that must not be
// kept: no event of a created, changed or deleted Secret, even if the database has no such data
// any more. Events of other Secrets, clusters and types do not change.
func TestDataLeavesTheJournal(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := withKeys(t, at, sealingKeys(t, seal.New()))
		write(t, s, secret("goes", "changed", "1", hush), secret("goes", "deleted", "1", hush))
		began, err := s.Version(t.Context())
		check(t, err)
		elsewhere := secret("goes", "elsewhere", "1", hush)
		elsewhere.Cluster = "b"
		write(t, s, secret("goes", "new", "1", hush), secret("stays", "new", "1", hush), elsewhere)
		write(t, s, secret("goes", "changed", "2", hush+"!"), pod("a", "goes", "web", nil, map[string]any{"secret": hush}))
		check(t, s.Write(t.Context(), []Change{{Row: secret("goes", "deleted", "1", ""), Delete: true}}))
		published := func() (out []string) {
			t.Helper()
			events, _, _, err := s.Since(secrets, began)
			check(t, err)
			for _, e := range events {
				line := e.row().Cluster + "/" + e.row().Namespace + "/" + e.row().Name
				for side, r := range map[string]*Row{" before": e.Before, " after": e.After} {
					if r != nil && strings.Contains(string(r.Body), `"data"`) {
						line += side + " has data"
					}
					if r != nil && len(r.Body) > 0 && !strings.Contains(string(r.Body), `"metadata"`) {
						line += side + " lacks metadata"
					}
				}
				out = append(out, line)
			}
			return out
		}
		before := published()
		if n := strings.Count(strings.Join(before, "\n"), "has data"); n != 6 {
			t.Fatalf("%d states with data are published, want 6: %q", n, before)
		}
		_, err = s.KeepData(t.Context(), "a", func(namespace string, _ map[string]string) bool { return namespace == "stays" })
		check(t, err)
		want := []string{
			"a/goes/new", "a/stays/new after has data", "b/goes/elsewhere after has data", "a/goes/changed", "a/goes/deleted",
		}
		if diff := cmp.Diff(want, published()); diff != "" {
			t.Error(diff)
		}

		check(t, s.Write(t.Context(), []Change{{Row: secret("stays", "new", "1", ""), Delete: true}}))
		_, err = s.KeepData(t.Context(), "a", func(string, map[string]string) bool { return false })
		check(t, err)
		want = append(want, "a/stays/new")
		want[1] = "a/stays/new"
		if diff := cmp.Diff(want, published()); diff != "" {
			t.Errorf("when nothing is kept: %s", diff)
		}
		s.journal.mu.Lock()
		defer s.journal.mu.Unlock()
		size := int64(0)
		for _, e := range s.journal.events {
			size += e.bytes()
		}
		if size != s.journal.size {
			t.Errorf("the journal has %d bytes and counts %d", size, s.journal.size)
		}
	})
}
