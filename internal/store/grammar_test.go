package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/testenv"
)

// TestRandomQueries: any combination of requirements returns the rows that a naive filter
// selects, in the order of the query, and counts them. Without SOAK it makes a third of 400
// queries.
func TestRandomQueries(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		random := rand.New(rand.NewPCG(11, 12))
		rows := map[string]Row{}
		for range 300 {
			r := resident(random, string(rune('a'+random.IntN(3))), string(rune('x'+random.IntN(3))), fmt.Sprintf("pod-%02d-%x", random.IntN(20), random.IntN(30)))
			rows[keys([]Row{r})[0]] = r
		}
		var all []Row
		for _, key := range slices.Sorted(func(yield func(string) bool) {
			for key := range rows {
				if !yield(key) {
					return
				}
			}
		}) {
			all = append(all, rows[key])
		}
		write(t, s, all...)
		ids := map[string]int64{}
		check(t, each(t.Context(), s.db.read, "SELECT id, cluster, namespace, name FROM object", func(rows *sql.Rows) error {
			var r Row
			var id int64
			err := rows.Scan(&id, &r.Cluster, &r.Namespace, &r.Name)
			ids[keys([]Row{r})[0]] = id
			return err
		}))
		orders := orders(t)
		var queries []Query
		for range 400 {
			q := randomQuery(t, random)
			q.Order = orders[random.IntN(len(orders))]
			queries = append(queries, q)
		}
		for n, q := range testenv.Sample(t, 3, queries) {
			var kept []found
			for _, r := range all {
				if q.selects(&r) {
					kept = append(kept, found{Row: r, id: ids[keys([]Row{r})[0]]})
				}
			}
			slices.SortFunc(kept, q.Order.rows)
			var want []string
			for _, r := range kept {
				want = append(want, keys([]Row{r.Row})...)
			}
			paged(t, s, fmt.Sprintf("%d: %+v", n, q), q, want)
			if got, err := s.Count(t.Context(), q); err != nil || got != int64(len(want)) {
				t.Errorf("%+v: counted %d, %v, want %d", q, got, err, len(want))
			}
		}
	})
}

// randomQuery combines random requirements of all kinds.
func randomQuery(t *testing.T, random *rand.Rand) Query {
	t.Helper()
	q := Query{Resource: "pods"}
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	some := func(of ...string) (out []string) {
		for len(out) == 0 {
			out = slices.DeleteFunc(slices.Clone(of), func(string) bool { return random.IntN(2) == 0 })
		}
		return out
	}
	values := map[string][]string{
		"status.phase": {"Running", "Pending", "Failed", ""}, "spec.nodeName": {"node-0", "node-1", "node-9"}, "status.other": {"0", "1", "2", ""},
		"spec.containers[].image": {"image-0", "image-1", "sidecar", "none"}, "spec.containers[0].image": {"image-0", "image-2", "sidecar", ""},
		"spec.containers[].ports[].containerPort": {"80", "81", "82"}, "spec.containers[].args[]": {"a", "true", "1", "b"}, "spec.sometimes": {"0", "false", "x", ""},
		"metadata.name": {"pod-03-1", "pod-1"}, "metadata.namespace": {"x", "y", "none"}, FieldImages: {"image-0", "sidecar"}, "spec.containers[1].image": {"sidecar", ""},
	}
	for range random.IntN(4) {
		switch random.IntN(11) {
		case 0:
			q.Clusters = some("a", "b", "c", "none")
		case 1:
			q.Namespaces = some("x", "y", "z")
		case 2:
			q.Scopes = map[string][]string{"a": some("x", "y"), "c": some("y", "z", "none")}
		case 3:
			q.NameContains = some("d-1", "-0", "1", "pod", "0-1")
		case 4:
			q.Since = time.Unix(1_700_000_000+int64(random.IntN(8)), 0)
		case 5:
			q.Before = time.Unix(1_700_000_000+int64(random.IntN(9)), 0)
		case 6:
			q.OwnerUID = types.UID(one("owner-0", "owner-1", "nobody"))
		case 7:
			q.Labels = selector(t, one("app=app-1", "app in (app-0,app-2)", "app!=app-1", "!app", "app=app-0,app"))
		case 9:
			q.Texts = texts(t, some("shop", "-the", "image-1|b c", "sho*", "shop the", "-a|été", "app 1", "-nothing", "03|sidecar")[:1]...).Texts
		case 8:
			q.NamePrefix = one("pod-1", "pod-03", "x")
		default:
			path := one("status.phase", "spec.nodeName", "status.other", "spec.containers[].image", "spec.containers[0].image", "spec.containers[].ports[].containerPort",
				"spec.containers[].args[]", "spec.sometimes", "metadata.name", "metadata.namespace", FieldImages, "spec.containers[1].image")
			f := FieldRequirement{Path: path, Operator: selection.Operator(one("=", "==", "!=", "in", "notin", "exists", "!"))}
			if f.Operator == selection.In || f.Operator == selection.NotIn {
				f.Values = some(values[path]...)
			} else if f.Operator != selection.Exists && f.Operator != selection.DoesNotExist {
				f.Value = one(values[path]...)
			}
			if _, err := compileField(q.resource(), f); err == nil {
				q.Fields = append(q.Fields, f)
			}
		}
	}
	return q
}

// TestOwners: a query follows a chain of owners step by step, within one cluster and the
// visible namespaces.
func TestOwners(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		made := func(cluster, group, resource, namespace, name, uid, owner string) Row {
			r := pod(cluster, namespace, name, nil, nil)
			r.Group, r.Resource, r.UID, r.OwnerUID = group, resource, types.UID(uid), types.UID(owner)
			return r
		}
		for _, cluster := range []string{"a", "b"} { // UIDs are the same, as in cloned clusters
			write(
				t, s,
				made(cluster, "apps", "deployments", "x", "web", "d", ""), made(cluster, "apps", "deployments", "y", "web", "e", ""),
				made(cluster, "apps", "replicasets", "x", "web-1", "r1", "d"), made(cluster, "apps", "replicasets", "x", "web-2", "r2", "d"), made(cluster, "apps", "replicasets", "y", "web-1", "s1", "e"),
				made(cluster, "", "pods", "x", "web-1-a", "p1", "r1"), made(cluster, "", "pods", "x", "web-2-a", "p2", "r2"), made(cluster, "", "pods", "y", "web-1-a", "q1", "s1"),
				made(cluster, "", "pods", "x", "loop", "l", "l"),
			)
		}
		deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
		in := []string{"a"}
		for name, c := range map[string]struct {
			q    Query
			want []string
		}{
			"Direct":       {Query{Group: "apps", Resource: "replicasets", OwnerUID: "d", Clusters: in}, []string{"a/x/web-1", "a/x/web-2"}},
			"Two":          {Query{Resource: "pods", OwnerUID: "d", OwnerSteps: 1, Clusters: in}, []string{"a/x/web-1-a", "a/x/web-2-a"}},
			"Named":        {Query{Resource: "pods", OwnerName: "web", OwnerResource: deployments, OwnerSteps: 1, Clusters: in}, []string{"a/x/web-1-a", "a/x/web-2-a", "a/y/web-1-a"}},
			"InNamespace":  {Query{Resource: "pods", OwnerName: "web", OwnerResource: deployments, OwnerSteps: 1, Clusters: in, Namespaces: []string{"y"}}, []string{"a/y/web-1-a"}},
			"InScopes":     {Query{Resource: "pods", OwnerName: "web", OwnerResource: deployments, OwnerSteps: 1, Clusters: in, Scopes: map[string][]string{"a": {"x"}}}, []string{"a/x/web-1-a", "a/x/web-2-a"}},
			"OutOfScopes":  {Query{Resource: "pods", OwnerName: "web", OwnerResource: deployments, OwnerSteps: 1, Clusters: in, Scopes: map[string][]string{"b": {"x"}}}, nil},
			"Loop":         {Query{Resource: "pods", OwnerUID: "l", OwnerSteps: MostOwnerSteps, Clusters: in}, []string{"a/x/loop"}},
			"Nobody":       {Query{Resource: "pods", OwnerName: "none", OwnerResource: deployments, Clusters: in}, nil},
			"UnknownType":  {Query{Resource: "pods", OwnerName: "web", OwnerResource: schema.GroupResource{Resource: "none"}, Clusters: in}, nil},
			"AndSelectors": {Query{Resource: "pods", OwnerUID: "d", OwnerSteps: 1, Clusters: in, NameContains: []string{"web-2"}, Order: Newest}, []string{"a/x/web-2-a"}},
		} {
			paged(t, s, name, c.q, c.want)
			if n, err := s.Count(t.Context(), c.q); err != nil || n != int64(len(c.want)) {
				t.Errorf("%s: %d %v", name, n, err)
			}
		}
		for name, q := range map[string]Query{
			"NoCluster":   {OwnerUID: "d", OwnerSteps: 1},
			"TwoClusters": {OwnerUID: "d", OwnerSteps: 1, Clusters: []string{"a", "b"}},
			"Steps":       {OwnerUID: "d", OwnerSteps: MostOwnerSteps + 1, Clusters: in},
			"NoOwner":     {OwnerSteps: 1, Clusters: in},
			"Both":        {OwnerUID: "d", OwnerName: "web", OwnerResource: deployments, Clusters: in},
			"NoType":      {OwnerName: "web", Clusters: in},
			"Moment":      {OwnerUID: "d", OwnerSteps: 1, Clusters: in, At: time.Now()},
			"OffsetFar":   {Offset: MostOffset + 1},
			"OffsetThen":  {Offset: 1, At: time.Now()},
			"Ancient":     {Since: time.Unix(-5, 0)},
			"Contains":    {NameContains: []string{""}},
			"NUL":         {Names: []string{"a\x00"}},
		} {
			q.Resource = "pods"
			if _, err := s.List(t.Context(), q); !errors.Is(err, ErrSelector) {
				t.Errorf("%s: %v, want ErrSelector", name, err)
			}
		}
	})
}

// TestNamesAreIndexed: the index of parts of names has the stored objects and no others, after
// objects were created, deleted and created again, and after a cluster was dropped.
func TestNamesAreIndexed(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		var want []string
		rows := make([]Row, 0, 3*fewCandidates/2)
		for i := range 3 * fewCandidates / 2 {
			name := fmt.Sprintf("some-%04d", i)
			if i%100 == 0 {
				name = fmt.Sprintf("rare-%04d", i)
				want = append(want, "a/x/"+name)
			}
			rows = append(rows, pod("a", "x", name, nil, nil))
		}
		write(t, s, rows...)
		contain := func(text string) Query { return Query{Resource: "pods", NameContains: []string{text}} }
		paged(t, s, "rare", contain("are-"), want)
		if n := len(listed(t, s, contain("some"))); n != 3*fewCandidates/2-len(want) {
			t.Error(n)
		}
		check(t, s.Write(t.Context(), []Change{{Row: pod("a", "x", want[3][len("a/x/"):], nil, nil), Delete: true}}))
		paged(t, s, "deleted", contain("are-"), slices.Concat(want[:3], want[4:]))
		write(t, s, pod("a", "x", want[3][len("a/x/"):], nil, nil), pod("b", "x", "rare", nil, nil))
		paged(t, s, "again", contain("are-"), want)
		check(t, s.DropCluster(t.Context(), "a"))
		if diff := cmp.Diff([]string{"b/x/rare"}, listed(t, s, contain("rar"))); diff != "" {
			t.Error(diff)
		}
	})
}

// TestFewNamesLead: a part of a name that few objects have makes its index drive the query, and
// one that many objects have does not. The result is the same.
func TestFewNamesLead(t *testing.T) {
	glob := func(pieces ...string) Query { return Query{Slim: Slim{Patterns: []Pattern{{Globs: []Glob{pieces}}}}} }
	queries := map[string]struct {
		q    Query
		few  bool
		grep func(name string) bool
	}{
		"Beginning":       {glob("web-12", ""), true, func(name string) bool { return strings.HasPrefix(name, "web-12") }},
		"BeginningAndEnd": {glob("web-1", "-7"), true, func(name string) bool { return strings.HasPrefix(name, "web-1") && strings.HasSuffix(name, "-7") }},
		"Many":            {glob("web-", ""), false, func(name string) bool { return strings.HasPrefix(name, "web-") }},
		"Word":            {glob("", "b-1234-", ""), true, func(name string) bool { return strings.Contains(name, "b-1234-") }},
		"Words":           {Query{NameContains: []string{"-77-"}}, true, func(name string) bool { return strings.Contains(name, "-77-") }},
		"Text":            {Query{Slim: texts(t, "web 1234")}, true, func(name string) bool { return strings.Contains(name, "web-1234-") }},
		"None":            {glob("web-x", ""), true, func(string) bool { return false }},
	}
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		var names []string
		for i := range 3 * fewCandidates / 2 {
			names = append(names, fmt.Sprintf("web-%d-%d", i, i%10))
		}
		rows := make([]Row, 0, len(names))
		for _, name := range names {
			rows = append(rows, pod("a", "x", name, nil, nil))
		}
		write(t, s, rows...)
		for name, tc := range queries {
			tc.q.Resource = "pods"
			p, err := s.db.plan(t.Context(), s.db.read, tc.q, position{}, false)
			check(t, err)
			if few := p == nil || p.candidates != nil; few != tc.few {
				t.Errorf("%s: few lead: %v", name, few)
			}
			want := []string{}
			for _, name := range names {
				if tc.grep(name) {
					want = append(want, "a/x/"+name)
				}
			}
			slices.Sort(want)
			if diff := cmp.Diff(want, listed(t, s, tc.q)); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	})
}

// TestNoTrigrams: without the right to install pg_trgm, PostgreSQL has no index of parts of
// names. Queries work without the index. It is created once the extension can be installed.
func TestNoTrigrams(t *testing.T) {
	at := testenv.PostgreSQL.Create(t)
	s := openStore(t, at)
	write(t, s, pod("a", "x", "one", nil, nil), pod("a", "x", "other", nil, nil))
	for _, text := range []string{"DROP INDEX object_grams", "DROP EXTENSION pg_trgm"} {
		_, err := s.db.write.ExecContext(t.Context(), text)
		check(t, err)
	}
	paged(t, s, "without", Query{Resource: "pods", NameContains: []string{"the"}}, []string{"a/x/other"})
	check(t, s.db.dialect.ready(context.WithoutCancel(t.Context()), s.db.write))
	var n int
	check(t, s.db.read.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_indexes WHERE indexname = 'object_grams'").Scan(&n))
	if n != 1 {
		t.Error("it is not made again")
	}
}

// TestFewNamespacesLead: if the visible namespaces have few objects, the query reads these and
// does not use the index of names, which covers all namespaces. The result is the same.
func TestFewNamespacesLead(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		var rows []Row
		for i := range fewSpanned + 1 {
			rows = append(rows, pod("a", "large", fmt.Sprintf("web-%d-x", i), nil, nil))
		}
		for i := range 20 {
			rows = append(rows, pod("a", "small", fmt.Sprintf("web-%d-x", i), nil, nil), pod("b", "small", fmt.Sprintf("web-%d-y", i), nil, nil))
		}
		write(t, s, rows...)
		contains := Query{Resource: "pods", NameContains: []string{"b-17-"}}
		prefix := Query{Resource: "pods", NamePrefix: "web-17-"}
		for _, order := range []Order{ByKey, ByName, Newest} {
			for name, q := range map[string]Query{"Contains": contains, "Prefix": prefix} {
				q.Order = order
				q.Scopes = map[string][]string{"a": {"small", "none"}, "b": {"small"}, "gone": {"small"}}
				p, err := s.db.plan(t.Context(), s.db.read, q, position{}, false)
				check(t, err)
				if p == nil || p.candidates != nil {
					t.Errorf("%s, order %d: an index of all namespaces leads", name, order)
				}
				got := listed(t, s, q)
				slices.Sort(got)
				if diff := cmp.Diff([]string{"a/small/web-17-x", "b/small/web-17-y"}, got); diff != "" {
					t.Errorf("%s, order %d: %s", name, order, diff)
				}
				q.Scopes = map[string][]string{"a": {"large", "small"}}
				got = listed(t, s, q)
				slices.Sort(got)
				if diff := cmp.Diff([]string{"a/large/web-17-x", "a/small/web-17-x"}, got); diff != "" {
					t.Errorf("%s of many, order %d: %s", name, order, diff)
				}
			}
		}
	})
}
