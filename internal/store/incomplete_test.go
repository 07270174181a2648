package store

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
)

// incompleteMark returns the names of a body's missing parts; "": none is missing.
func incompleteMark(t *testing.T, body []byte) string {
	t.Helper()
	var o struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	check(t, json.Unmarshal(body, &o))
	return o.Metadata.Annotations[IncompleteAnnotation]
}

// deepBody returns the body of a pod with one field that is nested so deeply that SQLite
// refuses it.
func deepBody(r Row, levels int) []byte {
	deep := strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels)
	return []byte(strings.Replace(string(r.Body), `"spec":null`, `"spec":{"nodeName":"n1"},"data":`+deep, 1))
}

// TestRefusedUpdates: an update that the database refuses is stored without the refused part,
// with its version, labels, event and mark, and is counted. A query never returns the earlier
// state of the object, or another object of that name, as the current one.
func TestRefusedUpdates(t *testing.T) {
	for name, tc := range map[string]struct {
		body func(r Row) []byte
		mark string // in all databases, unless only is set
		only string // in SQLite; other databases accept the body
		node bool   // the stored part can be searched
	}{
		"Deep":   {body: func(r Row) []byte { return deepBody(r, 1_500) }, only: "data", node: true},
		"NoJSON": {body: func(Row) []byte { return []byte("no JSON") }, mark: "everything but the name"},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, at string) {
				s := openStore(t, at)
				mark := tc.mark
				if _, ok := s.db.dialect.(sqliteDialect); ok && mark == "" {
					mark = tc.only
				}
				saveType(t, s, "east", pods)
				web := pod("east", "shop", "web", map[string]string{"v": "1"}, nil)
				write(t, s, web, pod("east", "shop", "other", nil, nil))
				w := watcher{query: Query{Resource: "pods"}}
				w.list(t, s)
				began := w.version

				update := pod("east", "shop", "web", map[string]string{"v": "2"}, nil)
				update.ResourceVersion = "8"
				update.Body = tc.body(update)
				put := func(r Row) {
					t.Helper()
					err := s.Write(t.Context(), []Change{{Row: r}, {Row: pod("east", "shop", "beside", nil, nil)}})
					rejected, ok := errors.AsType[*RejectedError](err)
					if ok != (mark != "") || ok && (!rejected.Stored || rejected.Name != "web") {
						t.Fatalf("%+v, want that web is stored without %q", err, mark)
					}
				}
				is := func(version, uid, mark string) {
					t.Helper()
					page, err := s.List(t.Context(), Query{Resource: "pods", Names: []string{"web"}})
					check(t, err)
					if len(page.Rows) != 1 || page.Rows[0].ResourceVersion != version || string(page.Rows[0].UID) != uid || incompleteMark(t, page.Rows[0].Body) != mark {
						t.Fatalf("web is %d rows: %+v", len(page.Rows), page.Rows)
					}
					w.follow(t, s)
					if got := w.rows[keys(page.Rows)[0]]; got != content(&page.Rows[0]) {
						t.Errorf("who follows has %s, a list %s", got, content(&page.Rows[0]))
					}
					count := Incomplete{}
					counted, err := s.Incomplete(t.Context())
					check(t, err)
					if len(counted) > 0 {
						count = counted[0]
					}
					want := Incomplete{}
					if mark != "" {
						want = Incomplete{Cluster: "east", Resource: pods, Partly: 1}
					}
					if len(counted) > 1 || count != want {
						t.Errorf("incomplete are %+v, want %+v", counted, want)
					}
				}
				put(update)
				is("8", string(web.UID), mark)
				for value, want := range map[string][]string{"1": {}, "2": {"east/shop/web"}} {
					if diff := cmp.Diff(want, listed(t, s, Query{Resource: "pods", Labels: selector(t, "v="+value)})); diff != "" {
						t.Errorf("v=%s: %s", value, diff)
					}
				}
				if tc.node {
					q := Query{Resource: "pods", Fields: []FieldRequirement{{Path: "spec.nodeName", Operator: selection.Equals, Value: "n1"}}}
					if diff := cmp.Diff([]string{"east/shop/web"}, listed(t, s, q)); diff != "" {
						t.Errorf("by node: %s", diff)
					}
				}
				events, _, _, err := s.Since(pods, began)
				check(t, err)
				if len(events) != 2 || events[0].Before == nil || events[0].Before.Labels["v"] != "1" || events[0].After.Labels["v"] != "2" {
					t.Errorf("%d events", len(events))
				}
				epoch, err := s.Epoch(t.Context())
				check(t, err)
				save(t, s, epoch, "at 8")
				if state, err := s.Checkpoint(t.Context(), "east", pods); err != nil || string(state) != "at 8" {
					t.Errorf("checkpoint %s, %v", state, err)
				}

				successor := update
				successor.UID, successor.ResourceVersion = "another", "9"
				put(successor)
				is("9", "another", mark)
				check(t, s.Close())
				s = openStore(t, at)
				w.list(t, s)
				is("9", "another", mark)

				whole := pod("east", "shop", "web", map[string]string{"v": "3"}, nil)
				whole.UID, whole.ResourceVersion = "another", "10"
				write(t, s, whole)
				is("10", "another", "")
				put(update)
				check(t, s.Write(t.Context(), []Change{{Row: update, Delete: true}}))
				w.follow(t, s)
				if counted, err := s.Incomplete(t.Context()); err != nil || len(counted) > 0 {
					t.Errorf("incomplete are %+v, %v", counted, err)
				}
				if diff := cmp.Diff([]string{"east/shop/beside", "east/shop/other"}, listed(t, s, w.query)); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestReductions: reductions returns the forms of a refused row that are tried, the largest
// first.
func TestReductions(t *testing.T) {
	r := pod("east", "shop", "web", map[string]string{"v": "1"}, nil)
	r.Body = deepBody(r, deepest+1)
	var got []string
	for _, lesser := range reductions(&r) {
		var o map[string]json.RawMessage
		check(t, json.Unmarshal(lesser.Body, &o))
		var fields []string
		for _, field := range []string{"apiVersion", "kind", "metadata", "spec", "data"} {
			if _, ok := o[field]; ok {
				fields = append(fields, field)
			}
		}
		got = append(got, strings.Join(fields, " ")+"; labels "+lesser.Labels["v"]+"; without "+incompleteMark(t, lesser.Body))
	}
	want := []string{
		"apiVersion kind metadata spec; labels 1; without data", "apiVersion kind metadata; labels 1; without data, spec",
		"apiVersion kind metadata; labels 1; without everything but the name", "apiVersion kind metadata; labels ; without everything but the name",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestRefusedNames: an object whose name the database refuses is counted until it is deleted.
func TestRefusedNames(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		saveType(t, s, "east", pods)
		missing := func() []Incomplete {
			t.Helper()
			counted, err := s.Incomplete(t.Context())
			check(t, err)
			return counted
		}
		refuse(t, s, "")
		refuse(t, s, "")
		if diff := cmp.Diff([]Incomplete{{Cluster: "east", Resource: pods, Missing: 1}}, missing()); diff != "" {
			t.Error(diff)
		}
		check(t, s.Write(t.Context(), []Change{{Row: pod("east", "ns", "", nil, nil), Delete: true}}))
		if got := missing(); len(got) > 0 {
			t.Errorf("%v", got)
		}
		refuse(t, s, "")
		check(t, s.DropType(t.Context(), "east", schema.GroupResource{Resource: "pods"}))
		if got := missing(); len(got) > 0 {
			t.Errorf("when the type is dropped: %v", got)
		}
	})
}
