package store

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/testenv"
)

// TestCompare: Compare returns exactly the differences between a list of the moment and one of
// now, page by page, for all kinds of queries. Without SOAK it uses a third of 60 moments.
func TestCompare(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		c := clocked(t, s)
		random := rand.New(rand.NewPCG(3, 4))
		queries := map[string]Query{
			"Everything": {}, "Cluster": {Clusters: []string{"b"}}, "Namespaces": {Namespaces: []string{"y", "x"}}, "Names": {Names: []string{"1", "2"}},
			"Scopes": {Scopes: map[string][]string{"a": {"x"}, "c": {"x"}}}, "ScopesAndNames": {Scopes: map[string][]string{"a": {"y", "x"}}, Names: []string{"0"}, Namespaces: []string{"y"}},
		}
		moments := map[time.Time]map[string][]Row{}
		list := func(name string, q Query) []Row {
			t.Helper()
			page, err := s.List(t.Context(), q)
			check(t, err)
			for i := range page.Rows {
				page.Rows[i].Changed = 0
			}
			return page.Rows
		}
		for step := range 60 {
			c.tick()
			var changes []Change
			for range 1 + random.IntN(4) {
				r := pod([]string{"a", "b"}[random.IntN(2)], []string{"x", "y"}[random.IntN(2)], fmt.Sprint(random.IntN(4)), nil, map[string]any{"n": random.IntN(5)})
				r.UID, r.ResourceVersion = types.UID(fmt.Sprint(r.UID, random.IntN(8)/7)), fmt.Sprint(step)
				changes = append(changes, Change{Row: r, Delete: random.IntN(4) == 0})
			}
			check(t, s.Write(t.Context(), changes))
			moments[c.now] = map[string][]Row{}
			for name, q := range queries {
				q.Resource = "pods"
				moments[c.now][name] = list(name, q)
			}
		}
		key := func(r *Row) string { return r.Cluster + "/" + r.Namespace + "/" + r.Name }
		find := func(rows []Row, name string) *Row {
			if i := slices.IndexFunc(rows, func(r Row) bool { return key(&r) == name }); i >= 0 {
				return &rows[i]
			}
			return nil
		}
		compared := 0
		for _, moment := range testenv.Sample(t, 3, slices.SortedFunc(maps.Keys(moments), time.Time.Compare)) {
			then := moments[moment]
			for name, q := range queries {
				q.Resource = "pods"
				now := list(name, q)
				var want []Difference
				for _, r := range append(slices.Clone(then[name]), now...) {
					d := Difference{Before: find(then[name], key(&r)), After: find(now, key(&r))}
					if (d.Before == nil || d.After == nil || !gocmp.Equal(*d.Before, *d.After)) &&
						!slices.ContainsFunc(want, func(other Difference) bool { return key(cmp.Or(other.Before, other.After)) == key(&r) }) {
						want = append(want, d)
					}
				}
				slices.SortFunc(want, func(a, b Difference) int {
					return cmp.Compare(key(cmp.Or(a.Before, a.After)), key(cmp.Or(b.Before, b.After)))
				})
				var got []Difference
				q.At, q.Limit = moment, 3
				for {
					page, err := s.Compare(t.Context(), q)
					check(t, err)
					got = append(got, page.Items...)
					if q.Continue = page.Continue; q.Continue == "" {
						break
					}
				}
				for i := range got {
					if !got[i].Changed.After(moment) || got[i].Changed.After(c.now) {
						t.Fatalf("%s: it changed at %s, compared with %s", name, got[i].Changed, moment)
					}
					for _, r := range []*Row{got[i].Before, got[i].After} {
						if r != nil {
							r.Changed = 0
						}
					}
				}
				if diff := gocmp.Diff(want, got, cmpopts.IgnoreFields(Difference{}, "Changed"), cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("%s since %s (-want, +got):\n%s", name, moment, diff)
				}
				compared += len(got)
			}
		}
		if compared < 30 {
			t.Errorf("only %d differences were compared", compared)
		}
		if _, err := s.Compare(t.Context(), Query{Resource: "pods", At: c.now, Labels: selector(t, "a=b")}); !errors.Is(err, ErrSelector) {
			t.Errorf("with labels: %v", err)
		}
		_, err := s.Compare(t.Context(), Query{Resource: "pods", At: time.Now().Add(-24 * time.Hour)})
		old, ok := errors.AsType[*TooOldError](err)
		if !ok || !errors.Is(err, ErrNoHistory) {
			t.Fatalf("before there was a history: %v", err)
		}
		if _, err := s.Compare(t.Context(), Query{Resource: "pods", At: old.From}); err != nil {
			t.Errorf("from where it is said to be known: %v", err)
		}
	})
}
