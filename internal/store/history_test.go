package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/testenv"
)

var pods = schema.GroupResource{Resource: "pods"}

// clock is a store's clock, which only the test moves.
type clock struct{ now time.Time }

func (c *clock) tick() time.Time {
	c.now = c.now.Add(time.Second)
	return c.now
}

func clocked(t *testing.T, s *Store) *clock {
	t.Helper()
	c := &clock{time.Now().Add(time.Minute).Truncate(time.Millisecond).UTC()}
	s.keeping.now = func() time.Time { return c.now }
	return c
}

// held checks that the recorded size of the history is right, and that no rows of the history
// lack the rows that they refer to.
func held(t *testing.T, s *Store) {
	t.Helper()
	for query, want := range map[string]int64{
		"SELECT coalesce(sum(length(body) + 100), 0) FROM revision":                            s.db.history.Load(),
		"SELECT history_bytes FROM epoch":                                                      s.db.history.Load(),
		"SELECT count(*) FROM revision WHERE object NOT IN (SELECT id FROM past)":              0,
		"SELECT count(*) FROM past WHERE ended = 0 AND id NOT IN (SELECT id FROM object)":      0,
		"SELECT count(*) FROM past WHERE ended > 0 AND ended NOT IN (SELECT id FROM revision)": 0,
		"SELECT count(*) FROM past WHERE ended > 0 AND id IN (SELECT id FROM object)":          0,
		"SELECT count(*) FROM revision WHERE whole = 0 AND object NOT IN (SELECT id FROM object WHERE revisions > 0) AND object NOT IN (SELECT object FROM revision WHERE whole = 1)": 0,
	} {
		var n int64
		if err := s.db.read.QueryRowContext(t.Context(), query).Scan(&n); err != nil || n != want {
			t.Errorf("%s: %d, %v, want %d", query, n, err, want)
		}
	}
}

// TestStateAtAMoment: a query of a past moment returns the rows that it returned at that
// moment, page by page, for all kinds of queries. In between objects are changed, deleted and
// replaced by others with the same names. Without SOAK it queries a third of 80 moments.
func TestStateAtAMoment(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		c := clocked(t, s)
		random := rand.New(rand.NewPCG(1, 2))
		queries := map[string]Query{
			"Everything": {}, "Label": {Labels: selector(t, "app=web")}, "NotLabel": {Labels: selector(t, "app!=web")}, "Cluster": {Clusters: []string{"b"}},
			"Scopes": {Scopes: map[string][]string{"a": {"x"}}}, "Names": {Names: []string{"1", "2"}}, "Owner": {OwnerUID: "owner-of-x"},
			"Field":    {Fields: []FieldRequirement{{Path: "spec.n", Operator: selection.Equals, Value: "3"}}},
			"NotField": {Fields: []FieldRequirement{{Path: "spec.flag", Operator: selection.NotEquals, Value: "true"}}},
		}
		type moment struct {
			at   time.Time
			rows map[string][]Row
		}
		var moments []moment
		c.tick()
		var last []Row
		for step := range 80 {
			var changes []Change
			for range 1 + random.IntN(6) {
				r := pod([]string{"a", "b"}[random.IntN(2)], []string{"x", "y"}[random.IntN(2)], fmt.Sprint(random.IntN(3)),
					map[string]string{"app": []string{"web", "db"}[random.IntN(2)]},
					map[string]any{"n": random.IntN(5), "flag": random.IntN(2) == 0, "fill": strings.Repeat("fill ", 40), "zero": "a\x00b"})
				r.UID, r.ResourceVersion = types.UID(fmt.Sprint(r.UID, random.IntN(8)/7)), fmt.Sprint(step)
				changes = append(changes, Change{Row: r, Delete: random.IntN(5) == 0})
			}
			check(t, s.Write(t.Context(), changes))
			if random.IntN(4) == 0 { // write the same rows again
				last = last[:0]
				page, err := s.List(t.Context(), Query{Resource: "pods"})
				check(t, err)
				for _, r := range page.Rows {
					write(t, s, r)
				}
			}
			m := moment{c.now, map[string][]Row{}}
			for name, q := range queries {
				q.Resource = "pods"
				page, err := s.List(t.Context(), q)
				check(t, err)
				m.rows[name] = page.Rows
			}
			moments = append(moments, m)
			c.tick()
		}
		for _, m := range testenv.Sample(t, 3, moments) {
			for name, q := range queries {
				q.Resource, q.At, q.Limit = "pods", m.at, 2
				var got []Row
				for {
					page, err := s.List(t.Context(), q)
					check(t, err)
					got = append(got, page.Rows...)
					if q.Continue = page.Continue; q.Continue == "" {
						break
					}
				}
				if diff := cmp.Diff(m.rows[name], got, cmpopts.IgnoreFields(Row{}, "Changed")); diff != "" {
					t.Fatalf("%s at %s: %s", name, m.at, diff)
				}
				if n, err := s.Count(t.Context(), q); err != nil || n != int64(len(got)) {
					t.Errorf("%s: Count %d, %v, and List %d", name, n, err, len(got))
				}
			}
		}
		held(t, s)
	})
}

// TestChangesOfAnObject: each state of an object is returned completely and in order, with the
// sequence of the change that began it. Writing the same state again is no change. A later
// object with the same name is another object.
func TestChangesOfAnObject(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		c := clocked(t, s)
		of := Object{Cluster: "a", Resource: pods, Namespace: "x", Name: "1"}
		start := c.tick()
		const n = 80 // more than wholeEvery
		for i := range n {
			for range 2 {
				r := pod("a", "x", "1", map[string]string{"app": fmt.Sprint(i)}, map[string]any{"n": i, "fill": strings.Repeat("x", 300)})
				r.ResourceVersion = fmt.Sprint(i)
				write(t, s, r)
			}
			c.tick()
		}
		gone := c.now
		check(t, s.Write(t.Context(), []Change{{Row: pod("a", "x", "1", nil, nil), Delete: true}}))
		c.tick()
		again := pod("a", "x", "1", nil, map[string]any{"n": "again"})
		again.UID = "again"
		write(t, s, again)
		c.tick()

		var all []Revision
		for before := int64(0); ; {
			page, err := s.Revisions(t.Context(), of, before, 7)
			check(t, err)
			all = append(all, page.Items...)
			if epoch, err := s.Epoch(t.Context()); err != nil || page.Epoch != epoch {
				t.Errorf("epoch %s of %s, %v", page.Epoch, epoch, err)
			}
			if before = page.Next; before == 0 {
				break
			}
		}
		if len(all) != n+1 {
			t.Fatalf("%d states, want %d", len(all), n+1)
		}
		if one := all[0]; one.Row.UID != "again" || !one.Until.IsZero() || one.EndSeq != 0 || one.Deleted {
			t.Errorf("%+v is not the present state", one)
		}
		slices.Reverse(all)
		for i, one := range all[:n] {
			whole, err := s.Revision(t.Context(), of, one.Seq)
			check(t, err)
			if whole.Row.ResourceVersion != fmt.Sprint(i) || !strings.Contains(string(whole.Row.Body), fmt.Sprintf(`"n":%d}`, i)) || whole.Row.Labels["app"] != fmt.Sprint(i) {
				t.Errorf("state %d is %+v", i, whole.Row)
			}
			whole.Row.Body, whole.Row.Labels = nil, nil
			if one.Row.UID != whole.Row.UID || one.Row.ResourceVersion != whole.Row.ResourceVersion || one.Seq != whole.Seq || !one.Until.Equal(whole.Until) {
				t.Errorf("%+v is listed as %+v", whole, one)
			}
			if !one.Since.Equal(start.Add(time.Duration(i)*time.Second)) || !one.Until.Equal(one.Since.Add(time.Second)) || one.Deleted != (i == n-1) || i > 0 && one.Seq != all[i-1].EndSeq {
				t.Errorf("state %d: %+v", i, one)
			}
		}
		if _, err := s.Revision(t.Context(), of, 1<<40); !errors.Is(err, ErrNoHistory) {
			t.Errorf("%v, want ErrNoHistory", err)
		}
		dead, err := s.Deleted(t.Context(), Query{Resource: "pods", Labels: selector(t, "app=79")}, nil, 0, 10)
		check(t, err)
		if len(dead.Items) != 1 || !dead.Items[0].Until.Equal(gone) || !strings.Contains(string(dead.Items[0].Row.Body), `"n":79}`) || dead.Next != 0 {
			t.Errorf("%+v was deleted", dead)
		}
		if none, err := s.Deleted(t.Context(), Query{Resource: "pods", Labels: selector(t, "app=78")}, nil, 0, 10); err != nil || len(none.Items) != 0 {
			t.Errorf("%+v, %v", none, err)
		}
		held(t, s)
	})
}

// TestChangesBetweenMoments: Changed returns everything that was created, updated or deleted
// after one moment and until another, once and in order.
func TestChangesBetweenMoments(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		c := clocked(t, s)
		row := func(name, uid string, n int) Row {
			r := pod("a", "x", name, nil, map[string]any{"n": n})
			r.UID = types.UID(uid)
			return r
		}
		c.tick()
		write(t, s, row("before", "1", 0), row("both", "2", 0))
		from := c.now
		c.tick()
		write(t, s, row("new", "3", 0), row("both", "2", 1))
		c.tick()
		write(t, s, row("new", "3", 1))
		check(t, s.Write(t.Context(), []Change{{Row: row("both", "2", 0), Delete: true}}))
		write(t, s, row("new", "4", 0)) // another object with the name
		to := c.now
		c.tick()
		write(t, s, row("before", "1", 1), row("after", "5", 1))

		want := []string{"Created new 3", "Updated both 2", "Updated new 3", "Deleted both 2", "Deleted new 3", "Created new 4"}
		for _, limit := range []int{1, 2, 100} {
			var got []string
			seq := int64(0)
			for after := int64(0); ; {
				page, err := s.Changed(t.Context(), Query{Resource: "pods", Scopes: map[string][]string{"a": {"x"}}}, from, to, after, limit)
				check(t, err)
				for _, one := range page.Items {
					got = append(got, fmt.Sprintf("%s %s %s", one.Verb, one.Row.Name, one.Row.UID))
					if one.Seq < seq || !one.Time.After(from) || one.Time.After(to) {
						t.Errorf("%+v after %d", one, seq)
					}
					seq = one.Seq
				}
				if after = page.Next; after == 0 {
					break
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%d a page: %s", limit, diff)
			}
		}
		if none, err := s.Changed(t.Context(), Query{Resource: "pods", Scopes: map[string][]string{"a": {"y"}}}, from, to, 0, 10); err != nil || len(none.Items) != 0 {
			t.Errorf("%+v, %v", none, err)
		}
		if _, err := s.Changed(t.Context(), Query{Resource: "pods", Labels: selector(t, "a=b")}, from, to, 0, 10); !errors.Is(err, ErrSelector) {
			t.Errorf("%v, want ErrSelector", err)
		}
	})
}

// TestChangesOfManyOldObjects: objects that existed before the interval are not reported as
// created in it, even if there are more than one read returns.
func TestChangesOfManyOldObjects(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		c := clocked(t, s)
		change := func(n int) {
			rows := make([]Row, chunk+100)
			for i := range rows {
				rows[i] = pod("a", "x", fmt.Sprint(i), nil, map[string]any{"n": n})
			}
			c.tick()
			write(t, s, rows...)
		}
		change(0)
		from := c.now
		change(1)
		page, err := s.Changed(t.Context(), Query{Resource: "pods"}, from, c.now, 0, 2*chunk)
		check(t, err)
		verbs := map[ChangeVerb]int{}
		for _, one := range page.Items {
			verbs[one.Verb]++
		}
		if diff := cmp.Diff(map[ChangeVerb]int{Updated: chunk + 100}, verbs); diff != "" {
			t.Error(diff)
		}
	})
}

// TestWithoutHistory: types that change all the time, and types in Except, have no history, and
// queries of it return ErrNoHistory. A heartbeat of a Node is no change; a changed condition
// is.
func TestWithoutHistory(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		c := clocked(t, s)
		deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
		change := func(gr schema.GroupResource, bodies ...string) {
			for i, body := range bodies {
				c.tick()
				write(t, s, Row{
					Cluster: "a", Group: gr.Group, Resource: gr.Resource, Version: "v1", Kind: "K", Namespace: "x", Name: "1", UID: "u",
					ResourceVersion: fmt.Sprint(i), Body: []byte(body),
				})
			}
		}
		kept := func(gr schema.GroupResource) []string {
			page, err := s.Revisions(t.Context(), Object{Cluster: "a", Resource: gr, Namespace: "x", Name: "1"}, 0, 100)
			check(t, err)
			out := []string{}
			for _, one := range page.Items {
				whole, err := s.Revision(t.Context(), Object{Cluster: "a", Resource: gr, Namespace: "x", Name: "1"}, one.Seq)
				check(t, err)
				out = append(out, string(whole.Row.Body))
			}
			return out
		}
		none := func(gr schema.GroupResource) {
			t.Helper()
			_, err := s.Revisions(t.Context(), Object{Cluster: "a", Resource: gr, Namespace: "x", Name: "1"}, 0, 100)
			_, atErr := s.List(t.Context(), Query{Group: gr.Group, Resource: gr.Resource, At: c.now})
			if !errors.Is(err, ErrNoHistory) || !errors.Is(atErr, ErrNoHistory) {
				t.Errorf("%s: %v, %v, want ErrNoHistory", gr, err, atErr)
			}
		}
		for _, gr := range fleeting {
			change(gr, `{"n":1}`, `{"n":2}`)
			none(gr)
		}
		if n := rowsOf(t, s, "revision"); n != 0 {
			t.Errorf("%d revisions of what has no history", n)
		}
		node := func(rv, beat, status string) string {
			return fmt.Sprintf(`{"metadata":{"name":"1","resourceVersion":"%s"},"spec":{},"status":{"conditions":[{"type":"Ready","status":"%s","lastHeartbeatTime":"%s"}]}}`, rv, status, beat)
		}
		change(nodes, node("1", "10:00", "True"), node("2", "10:05", "True"), node("3", "10:10", "False"), node("4", "10:15", "False"))
		if diff := cmp.Diff([]string{node("4", "10:15", "False"), node("2", "10:05", "True")}, kept(nodes)); diff != "" {
			t.Error(diff)
		}
		// The history of a type ends, and starts again.
		change(deployments, `{"n":1}`, `{"n":2}`)
		s.KeepHistory(History{Time: time.Hour, Bytes: 1 << 30, Except: []schema.GroupResource{deployments}})
		change(deployments, `{"n":3}`, `{"n":4}`, `{"n":5}`)
		none(deployments)
		s.KeepHistory(DefaultHistory)
		change(deployments, `{"n":6}`, `{"n":7}`)
		if diff := cmp.Diff([]string{`{"n":7}`, `{"n":6}`, `{"n":5}`, `{"n":2}`, `{"n":1}`}, kept(deployments)); diff != "" {
			t.Error(diff)
		}
		held(t, s)
		// An object that is deleted while its type has no history does not leave rows for ever.
		s.KeepHistory(History{Time: time.Hour, Bytes: 1 << 30, Except: []schema.GroupResource{deployments}})
		change(deployments, `{"n":8}`, `{"n":9}`)
		check(t, s.Write(t.Context(), []Change{{Row: Row{Cluster: "a", Group: "apps", Resource: "deployments", Namespace: "x", Name: "1"}, Delete: true}}))
		c.now = c.now.Add(2 * time.Hour)
		change(nodes, node("5", "11:00", "True"), node("6", "11:05", "False"))
		c.now = c.now.Add(2 * time.Hour)
		check(t, s.SaveCheckpoints(t.Context(), nil))
		if n := rowsOf(t, s, "past"); n != 1 {
			t.Errorf("%d objects have a past, want the node alone", n)
		}
	})
}

// TestLargeRevisions: a large state takes only as much space as its changes, and decodes to
// what it was. Decoding it against the wrong state fails or returns the right result.
func TestLargeRevisions(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var c compressor
	for _, size := range []int{0, 1, 100, 60_000, 70_000, 1 << 20, 3 << 20} {
		old := make([]byte, size)
		for i := range old {
			old[i] = byte('a' + random.IntN(20))
		}
		now := append([]byte("begin"), old...)
		now[len(now)/2]++
		b, err := c.compress(old, now)
		check(t, err)
		got, err := decompress(b, now)
		if err != nil || string(got) != string(old) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if len(b) > 200+size/50 {
			t.Errorf("%d bytes are %d", size, len(b))
		}
		if size > 100 {
			other := append([]byte("other"), now[5:]...)
			other[len(other)-20] ^= 1
			if got, err := decompress(b, other); err == nil && string(got) != string(old) {
				t.Errorf("%d bytes: read against another state it is wrong, and not said", size)
			}
		}
	}
}

// TestHistoryIsBounded: states that are too old are deleted, and the oldest ones if the history
// is too large. Queries of a deleted moment return ErrNoHistory. The rest can be read.
func TestHistoryIsBounded(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		c := clocked(t, s)
		c.tick()
		roll := func(i int) {
			var changes []Change
			for n := range 20 {
				r := pod("a", "x", fmt.Sprint(n), nil, map[string]any{"n": i, "fill": fmt.Sprint(i, n, strings.Repeat("z", 200))})
				r.ResourceVersion = fmt.Sprint(i)
				changes = append(changes, Change{Row: r})
			}
			check(t, s.Write(t.Context(), changes))
			c.tick()
		}
		begin := c.now
		for i := range 10 {
			roll(i)
		}
		check(t, s.Write(t.Context(), []Change{{Row: pod("a", "x", "19", nil, nil), Delete: true}}))
		middle := c.now
		_, err := s.List(t.Context(), Query{Resource: "pods", At: begin})
		check(t, err)
		c.now = c.now.Add(DefaultHistory.Time - 5*time.Second)
		for i := range 5 {
			check(t, s.SaveCheckpoints(t.Context(), nil)) // time passes, with writes
			c.now = c.now.Add(trimEvery / 4)
			_ = i
		}
		if _, err := s.List(t.Context(), Query{Resource: "pods", At: begin}); !errors.Is(err, ErrNoHistory) {
			t.Errorf("%v, want ErrNoHistory", err)
		}
		if n := rowsOf(t, s, "revision") + rowsOf(t, s, "past WHERE ended > 0"); n != 0 {
			t.Errorf("%d revisions and tombstones are left of %s", n, middle)
		}
		held(t, s)

		for i := range 30 {
			roll(100 + i)
		}
		size := s.db.history.Load()
		s.KeepHistory(History{Time: time.Hour, Bytes: size / 2})
		roll(200)
		if now := s.db.history.Load(); now > size/2 || now < size/4 {
			t.Errorf("the history is of %d bytes, and may be of %d", now, size/2)
		}
		held(t, s)
		page, err := s.List(t.Context(), Query{Resource: "pods", At: c.now.Add(-10 * time.Second)})
		check(t, err)
		if len(page.Rows) != 20 || page.Rows[0].ResourceVersion != "121" && page.Rows[0].ResourceVersion != "122" {
			t.Errorf("%d rows, of version %s", len(page.Rows), page.Rows[0].ResourceVersion)
		}
		s.KeepHistory(History{})
		roll(300)
		if n := rowsOf(t, s, "revision"); n != 0 {
			t.Errorf("%d revisions are left of a history that is off", n)
		}
	})
}

// TestDropTakesTheHistoryAlong: DropCluster and DropType also delete the history.
func TestDropTakesTheHistoryAlong(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		for _, cluster := range []string{"a", "b", "c"} {
			for i := range 3 {
				write(t, s, pod(cluster, "x", "1", nil, map[string]any{"n": i}), pod(cluster, "x", "2", nil, map[string]any{"n": i}))
			}
			check(t, s.Write(t.Context(), []Change{{Row: pod(cluster, "x", "2", nil, nil), Delete: true}}))
		}
		check(t, s.DropCluster(t.Context(), "a"))
		check(t, s.DropType(t.Context(), "b", pods))
		held(t, s)
		dead, err := s.Deleted(t.Context(), Query{Resource: "pods"}, nil, 0, 10)
		check(t, err)
		if n := rowsOf(t, s, "past"); n != 2 || len(dead.Items) != 1 || dead.Items[0].Row.Cluster != "c" {
			t.Errorf("%d objects have a past, %+v was deleted", n, dead)
		}
	})
}

// TestServerMigrations: databases of each earlier schema are migrated with their content, even
// if an earlier migration was interrupted.
func TestServerMigrations(t *testing.T) {
	for version := 1; version < len(postgresDialect{}.migrations()); version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) { testServerMigrations(t, version) })
	}
}

func testServerMigrations(t *testing.T, version int) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		server, err := parseDSN(at)
		check(t, err)
		db, err := server.connect()
		check(t, err)
		defer db.Close()
		_, err = server.dialect.version(t.Context(), db)
		check(t, err)
		for i, script := range server.dialect.migrations()[:version] {
			check(t, migrateOne(t.Context(), server.dialect, db, i+1, script))
		}
		terms, none := "", ""
		if version > 2 {
			terms, none = ", terms", ", '[]'"
		}
		for _, text := range []string{
			`INSERT INTO cluster VALUES ('a', 0)`, `INSERT INTO type VALUES (1, '', 'pods')`,
			`INSERT INTO object (id, seq, type, cluster, namespace, name, version, kind, uid, owner, created, rv, labels, note` + terms + `)
				VALUES (10, 20, 1, 'a', 'ns', 'x', 'v1', 'Pod', 'u', 'o', 5, '7', '{"app":"web"}', ''` + none + `)`,
			`INSERT INTO label (type, label_key, label_value, cluster, namespace, name, object) VALUES (1, 'app', 'web', 'a', 'ns', 'x', 10)`, `INSERT INTO body (object, json) VALUES (10, '{"spec":{"a":2,"nodeName":"n"}}')`,
			`UPDATE epoch SET seq = 30`,
		} {
			_, err = db.ExecContext(t.Context(), text)
			check(t, err)
		}
		for _, text := range strings.Split(tallied, ";")[1:] {
			if version > 2 {
				_, err = db.ExecContext(t.Context(), text)
				check(t, err)
			}
		}
		if d == testenv.MariaDB { // MariaDB commits each statement separately
			next := server.dialect.migrations()[version]
			for _, text := range next[:min(5, len(next))] {
				_, err = db.ExecContext(t.Context(), text)
				check(t, err)
			}
		}
		check(t, db.Close())
		s := openStore(t, at)
		indexedExactly(t, s)
		node := []FieldRequirement{{Path: "spec.nodeName", Operator: selection.Equals, Value: "n"}}
		for order := ByKey; order <= ByName; order++ {
			if diff := cmp.Diff([]string{"a/ns/x"}, listed(t, s, Query{Resource: "pods", Fields: node, Order: order})); diff != "" {
				t.Error(diff)
			}
		}
		if got := listed(t, s, Query{Resource: "pods", Slim: texts(t, "app web")}); len(got) != 1 {
			t.Errorf("%v have the words of their label", got)
		}
		c := clocked(t, s)
		before := c.now
		c.tick()
		now := pod("a", "ns", "x", map[string]string{"app": "db"}, map[string]any{"a": 3})
		now.UID = "u"
		write(t, s, now)
		c.tick()
		want := []Row{{
			Cluster: "a", Version: "v1", Resource: "pods", Kind: "Pod", Namespace: "ns", Name: "x", UID: "u", OwnerUID: "o",
			ResourceVersion: "7", Created: time.Unix(5, 0).UTC(), Labels: map[string]string{"app": "web"}, Body: []byte(`{"spec":{"a":2,"nodeName":"n"}}`),
		}}
		page, err := s.List(t.Context(), Query{Resource: "pods", At: before, Labels: selector(t, "app=web")})
		check(t, err)
		if diff := cmp.Diff(want, page.Rows, cmpopts.IgnoreFields(Row{}, "Changed")); diff != "" {
			t.Error(diff)
		}
		states, err := s.Revisions(t.Context(), Object{Cluster: "a", Resource: pods, Namespace: "ns", Name: "x"}, 0, 10)
		check(t, err)
		if len(states.Items) != 2 || states.Items[1].Seq != 10 || !states.Items[1].Since.IsZero() {
			t.Errorf("%+v", states)
		}
		held(t, s)
	})
}
