package store

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
)

// watcher has the rows that a query selects, as a watching client does: from a list and the
// later events.
type watcher struct {
	query   Query
	rows    map[string]string // contents by key
	version Version
}

func (w *watcher) list(t *testing.T, s *Store) {
	t.Helper()
	page, err := s.List(t.Context(), w.query)
	check(t, err)
	w.rows, w.version = map[string]string{}, page.Version
	for i := range page.Rows {
		w.rows[keys(page.Rows[i : i+1])[0]] = content(&page.Rows[i])
	}
}

func content(r *Row) string { return string(r.UID) + r.ResourceVersion + string(r.Body) }

// follow applies the events since the last version.
func (w *watcher) follow(t *testing.T, s *Store) {
	t.Helper()
	events, now, _, err := s.Since(pods, w.version)
	check(t, err)
	for _, e := range events {
		if e.Version <= w.version {
			t.Fatalf("an event of %s after %s", e.Version, w.version)
		}
		before, after := e.Before != nil && w.query.Selects(e.Before), e.After != nil && w.query.Selects(e.After)
		key := keys([]Row{*e.row()})[0]
		if _, has := w.rows[key]; has && !before {
			t.Fatalf("%s: what is selected was not, before it changed", key)
		}
		if delete(w.rows, key); after {
			w.rows[key] = content(e.After)
		}
	}
	w.version = now
}

// TestSince: a client that lists once and then applies events always has the same rows as a new
// list, for all kinds of queries, even if clusters or types are dropped and objects are
// replaced.
func TestSince(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		random := rand.New(rand.NewPCG(3, 4))
		var watchers []*watcher
		for _, q := range []Query{
			{},
			{Labels: selector(t, "app=web")},
			{Labels: selector(t, "app!=web")},
			{Clusters: []string{"b"}},
			{Namespaces: []string{"x"}},
			{Scopes: map[string][]string{"a": {"x"}}},
			{Names: []string{"1", "2"}},
			{OwnerUID: "owner-of-x"},
			{Fields: []FieldRequirement{{Path: "spec.n", Operator: selection.Equals, Value: "3"}}},
			{Fields: []FieldRequirement{{Path: "metadata.name", Operator: selection.NotEquals, Value: "1"}}},
		} {
			q.Resource = "pods"
			w := &watcher{query: q}
			w.list(t, s)
			watchers = append(watchers, w)
		}
		seen := make([]bool, len(watchers))
		for step := range 150 {
			switch random.IntN(30) {
			case 0:
				check(t, s.DropCluster(t.Context(), "b"))
			case 1:
				check(t, s.DropType(t.Context(), "a", pods))
			}
			var changes []Change
			for range 1 + random.IntN(6) {
				r := pod([]string{"a", "b"}[random.IntN(2)], []string{"x", "y"}[random.IntN(2)], fmt.Sprint(random.IntN(3)),
					map[string]string{"app": []string{"web", "db"}[random.IntN(2)]}, map[string]any{"n": random.IntN(5)})
				r.UID, r.ResourceVersion = types.UID(fmt.Sprint(r.UID, random.IntN(8)/7)), fmt.Sprint(step)
				changes = append(changes, Change{Row: r, Delete: random.IntN(5) == 0})
			}
			check(t, s.Write(t.Context(), changes))
			for i, w := range watchers {
				if random.IntN(3) == 0 { // it gets the events of several steps at once later
					continue
				}
				w.follow(t, s)
				now := watcher{query: w.query}
				now.list(t, s)
				if !maps.Equal(w.rows, now.rows) {
					t.Fatalf("step %d, query %d: has %v, and there are %v", step, i, slices.Sorted(maps.Keys(w.rows)), slices.Sorted(maps.Keys(now.rows)))
				}
				seen[i] = seen[i] || len(now.rows) > 0
			}
		}
		if slices.Contains(seen, false) {
			t.Errorf("a query never selected anything: %v", seen)
		}
	})
}

// TestExpired: if some events after a version are unknown, Since returns ErrExpired and no
// events.
func TestExpired(t *testing.T) {
	s := openStore(t, t.TempDir())
	now := time.Unix(1_700_000_000, 0)
	s.journal.now = func() time.Time { return now }
	s.journal.limit = 20_000
	write(t, s, pod("a", "x", "early", nil, nil))
	first, err := s.Version(t.Context())
	check(t, err)
	expired := func(gr schema.GroupResource, v Version) bool {
		t.Helper()
		events, _, _, err := s.Since(gr, v)
		if err != nil && (!errors.Is(err, ErrExpired) || len(events) > 0) {
			t.Fatal(err)
		}
		return err != nil
	}
	if expired(pods, first) || !expired(pods, first.At(first.seq()-1)) || !expired(pods, first.At(first.seq()+1)) || !expired(pods, first+sequences) {
		t.Error("what was before the first question, or is of the future, or of another epoch, is not known; what comes after is")
	}
	quiet := schema.GroupResource{Resource: "nodes"}
	_, _, more, err := s.Since(pods, first)
	check(t, err)
	for i := range 40 {
		write(t, s, pod("a", "x", fmt.Sprint("web-", i), nil, map[string]any{"fill": strings.Repeat("fill ", 100)}))
	}
	<-more
	if !expired(pods, first) || expired(quiet, first) || s.journal.size > s.journal.limit {
		t.Errorf("a type that lost events is expired, and others are not: %d bytes", s.journal.size)
	}
	latest, err := s.Version(t.Context())
	check(t, err)
	if expired(pods, latest) || expired(pods, latest.At(latest.seq()-5)) {
		t.Error("the latest events are there")
	}

	now = now.Add(2 * journalIdle)
	write(t, s, pod("a", "x", "idle", nil, nil))
	if !expired(pods, latest) || len(s.journal.events) > 0 {
		t.Error("nothing is kept when nobody asks")
	}
	latest, err = s.Version(t.Context())
	check(t, err)
	_, _, more, err = s.Since(pods, latest)
	check(t, err)
	s.journal.reset("another", 7)
	<-more
	if !expired(pods, latest) {
		t.Error("another database has other versions")
	}
}

// TestVersions: versions are numbers that clients can compare. ParseVersion refuses everything
// else.
func TestVersions(t *testing.T) {
	v := versionOf("epoch", 41)
	if parsed, err := ParseVersion(v.At(42).String()); err != nil || parsed != v+1 || parsed.seq() != 42 {
		t.Errorf("%d, %v", parsed, err)
	}
	if versionOf("epoch", 41) == versionOf("another", 41) {
		t.Error("versions of two epochs are the same")
	}
	for _, s := range []string{"", "0", "7", "-1", "+" + v.String(), "0" + v.String(), v.String() + "0", "9223372036854775808", "1e18", " 1"} {
		if _, err := ParseVersion(s); err == nil {
			t.Errorf("%q is taken for a version", s)
		}
	}
}
