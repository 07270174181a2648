package store

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/words"
)

const (
	millionClusters   = 50
	millionNamespaces = 100 // per cluster
)

// inhabitant returns object number i of a large fleet. Of ten consecutive numbers of a cluster
// four are pods, two ReplicaSets, one a Deployment and three ConfigMaps. Bodies have about 2
// KB. All but ConfigMaps have four labels.
func inhabitant(i, version int) Row {
	cluster, n := fmt.Sprintf("cluster-%02d", i%millionClusters), i/millionClusters
	app, part := n/10, n%10
	namespace := fmt.Sprintf("namespace-%02d", app%millionNamespaces)
	uid := func(kind string, part int) types.UID {
		return types.UID(fmt.Sprintf("%s-%s-%08d-%d", cluster[8:], kind, app, part))
	}
	r := Row{
		Cluster: cluster, Version: "v1", Namespace: namespace, ResourceVersion: strconv.Itoa(version),
		Created: time.Unix(1_700_000_000+int64(uint32(i)*2654435761%2_592_000), 0).UTC(),
		Labels:  map[string]string{"app": fmt.Sprintf("app-%d", app), "team": fmt.Sprintf("team-%d", app%200), "tier": "front", "version": "v1"},
	}
	labels := fmt.Sprintf(`{"app":"app-%d","team":"team-%d","tier":"front","version":"v1"}`, app, app%200)
	template := fmt.Sprintf(`"containers":[{"name":"main","image":"registry.example.com/team-%d/app-%d:v1.%d","env":[{"name":"KEY","valueFrom":{"secretKeyRef":{"name":"app-%d","key":"k"}}}]}],"serviceAccountName":"default"`,
		app%200, app, app%7, app)
	var spec, status string
	switch {
	case part < 4:
		r.Resource, r.Kind, r.Name = "pods", "Pod", fmt.Sprintf("app-%d-%x-%x", app, part/2, i)
		r.UID, r.OwnerUID = uid("pod", part), uid("rs", part/2)
		phase := "Running"
		switch hash := uint32(i) * 2246822519 % 100; {
		case hash == 0:
			phase = "Pending"
		case hash < 3:
			phase = "Failed"
		}
		spec = fmt.Sprintf(`{"nodeName":"node-%d",%s}`, n%100, template)
		status = fmt.Sprintf(`{"phase":%q,"podIP":"10.0.0.1","observed":%d}`, phase, version)
	case part < 6:
		r.Group, r.Resource, r.Kind, r.Name = "apps", "replicasets", "ReplicaSet", fmt.Sprintf("app-%d-%x", app, part-4)
		r.UID, r.OwnerUID = uid("rs", part-4), uid("deployment", 0)
		spec, status = `{"replicas":2,"template":{"spec":{`+template+`}}}`, fmt.Sprintf(`{"replicas":2,"observed":%d}`, version)
	case part == 6:
		r.Group, r.Resource, r.Kind, r.Name, r.UID = "apps", "deployments", "Deployment", fmt.Sprintf("app-%d", app), uid("deployment", 0)
		spec, status = `{"replicas":2,"template":{"spec":{`+template+`}}}`, fmt.Sprintf(`{"replicas":2,"observed":%d}`, version)
	default:
		r.Resource, r.Kind, r.Name, r.UID = "configmaps", "ConfigMap", fmt.Sprintf("app-%d-%d", app, part), uid("cm", part)
		r.Labels, labels = nil, "{}"
		spec, status = `{}`, fmt.Sprintf(`{"observed":%d}`, version)
	}
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":%q,"metadata":{"namespace":%q,"name":%q,"uid":%q,"resourceVersion":"%d","creationTimestamp":%q,"labels":%s},"spec":%s,"status":%s,"data":{"fill":"`,
		r.Kind, r.Namespace, r.Name, r.UID, version, r.Created.Format(time.RFC3339), labels, spec, status)
	const size = 2048
	r.Body = []byte(body + strings.Repeat(fmt.Sprintf("%08x", uint32(i)*2654435761), size/8)[:max(size-len(body)-3, 0)] + `"}}`)
	return r
}

// inOrder returns the numbers of the objects in the order in which clusters list them: by
// cluster, type and namespace.
func inOrder(objects int) []int {
	out := make([]int, 0, objects)
	apps := (objects + 10*millionClusters - 1) / (10 * millionClusters)
	for cluster := range millionClusters {
		for _, parts := range [][]int{{0, 1, 2, 3}, {4, 5}, {6}, {7, 8, 9}} {
			for namespace := range millionNamespaces {
				for app := namespace; app < apps; app += millionNamespaces {
					for _, part := range parts {
						if i := (app*10+part)*millionClusters + cluster; i < objects {
							out = append(out, i)
						}
					}
				}
			}
		}
	}
	return out
}

// BenchmarkMillion fills a store with OBJECTS objects of 50 clusters. In between it inserts
// every fifth batch into the same tables of another database, without a store (bare). For each
// class of queries it reports the p50 and p95 in milliseconds. It then puts the same objects
// into the table of Clusterpedia in the same database, and runs Clusterpedia's queries.
// Afterwards 3,000 objects change each second, for STEADY seconds, and the store is opened
// again. A directory STORE keeps the database of SQLite, for BenchmarkFleet of package search.
func BenchmarkMillion(b *testing.B) {
	b.Run("SQLite", func(b *testing.B) {
		kept := os.Getenv("STORE")
		benchmarkMillion(b, peerSQLite, func() string {
			defer func() { kept = "" }() // the first call is for the store
			return cmp.Or(kept, b.TempDir())
		})
	})
	b.Run("PostgreSQL", func(b *testing.B) {
		benchmarkMillion(b, peerPostgres, func() string { return testenv.PostgreSQL.Create(b) })
	})
	b.Run("MariaDB", func(b *testing.B) {
		benchmarkMillion(b, peerMariaDB, func() string { return testenv.MariaDB.Create(b) })
	})
}

func setting(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

func benchmarkMillion(b *testing.B, peer peer, create func() string) {
	b.Helper()
	objects := setting("OBJECTS", 20_000)
	for b.Loop() {
		at := create()
		s := openStore(b, at)
		fill(b, s, create(), objects)
		settle(b, s.db, peer)
		for _, class := range classes(b, objects) {
			report(b, "", class.name, 40, 0, func(i int) { class.run(b, s, i) })
		}
		peer.fill(b, s.db, objects)
		settle(b, s.db, peer)
		for _, class := range classes(b, objects) {
			if class.peer != nil {
				report(b, "peer:", class.name, 5, 8*time.Second, func(i int) { peer.run(b, s.db, class.peer(i)) })
			}
		}
		if _, err := s.db.write.ExecContext(b.Context(), "DROP TABLE resources"); err != nil {
			b.Fatal(err)
		}
		steady(b, s, objects, time.Duration(setting("STEADY", 2))*time.Second)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		again := openStore(b, at)
		page, err := again.List(b.Context(), Query{Resource: "pods", Limit: 500})
		if err != nil || len(page.Rows) == 0 {
			b.Fatal(len(page.Rows), err)
		}
		b.ReportMetric(time.Since(start).Seconds()*1000, "open-ms")
		start = time.Now()
		read := 0
		for c := range millionClusters {
			for _, gr := range []schema.GroupResource{{Resource: "pods"}, {Resource: "configmaps"}, {Group: "apps", Resource: "replicasets"}, {Group: "apps", Resource: "deployments"}} {
				keys, err := again.Keys(b.Context(), fmt.Sprintf("cluster-%02d", c), gr)
				if err != nil {
					b.Fatal(err)
				}
				read += len(keys)
			}
		}
		b.ReportMetric(time.Since(start).Seconds()*1000, "keys-ms")
		if read != objects {
			b.Errorf("%d keys of %d objects", read, objects)
		}
	}
}

// fill writes the objects into the store, and every fifth batch without a store into another
// database.
func fill(b *testing.B, s *Store, at string, objects int) {
	b.Helper()
	plain := openStore(b, at)
	for i := range 10 * millionClusters { // store all clusters and types
		if r := inhabitant(i, 1); i%millionClusters == 0 || i < millionClusters {
			write(b, plain, r)
			if err := plain.Write(b.Context(), []Change{{Row: r, Delete: true}}); err != nil {
				b.Fatal(err)
			}
		}
	}
	one := newBare(b, plain.db)
	one.id = 1_000_000
	var bare, inserted, late time.Duration
	const batch = 500
	lates, bares, numbers := 0, 0, inOrder(objects)
	for n := 0; n < objects; n += batch {
		changes := make([]Change, min(batch, objects-n))
		for i := range changes {
			changes[i].Row = inhabitant(numbers[n+i], 1)
		}
		start := time.Now()
		if n/batch%5 == 0 {
			if err := one.insert(b.Context(), changes); err != nil {
				b.Fatal(err)
			}
			bare, bares = bare+time.Since(start), bares+len(changes)
		}
		start = time.Now()
		if err := s.Write(b.Context(), changes); err != nil {
			b.Fatal(err)
		}
		took := time.Since(start)
		inserted += took
		if n >= objects*9/10 {
			late += took
			lates += len(changes)
		}
	}
	b.ReportMetric(float64(bares)/bare.Seconds(), "bare/s")
	b.ReportMetric(float64(objects)/inserted.Seconds(), "new/s")
	b.ReportMetric(float64(lates)/late.Seconds(), "new-at-the-end/s")
	b.ReportMetric(float64(objects)/inserted.Seconds()*bare.Seconds()/float64(bares), "new/bare")
	for _, table := range []string{"object", "body", "label"} { // free the space
		text := "TRUNCATE TABLE " + table
		if plain.server == nil {
			text = "DELETE FROM " + table
		}
		if _, err := plain.db.write.ExecContext(b.Context(), text); err != nil {
			b.Fatal(err)
		}
	}
	if err := plain.Close(); err != nil {
		b.Fatal(err)
	}
	if plain.server == nil {
		for _, suffix := range []string{"", "-wal"} {
			if err := os.Remove(filepath.Join(at, "mirror.db"+suffix)); err != nil && !os.IsNotExist(err) {
				b.Fatal(err)
			}
		}
	}
}

// settle runs the maintenance that a server does some time after such a load.
func settle(b *testing.B, d *database, p peer) {
	b.Helper()
	for _, text := range p.settle {
		if _, err := d.write.ExecContext(b.Context(), text); err != nil {
			b.Fatal(err)
		}
	}
}

// report calls run several times and reports the durations. It stops early after about while,
// unless that is 0.
func report(b *testing.B, who, name string, times int, while time.Duration, run func(i int)) {
	b.Helper()
	var took []time.Duration
	for begin, i := time.Now(), 0; i < times && (while == 0 || time.Since(begin) < while); i++ {
		start := time.Now()
		run(i)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	ms := func(share float64) float64 { return took[int(share*float64(len(took)-1))].Seconds() * 1000 }
	b.ReportMetric(ms(0.5), who+name+":p50-ms")
	b.ReportMetric(ms(0.95), who+name+":p95-ms")
}

// phrases returns a function that returns the ith query for a phrase.
func phrases(b *testing.B, phrase func(i int) (text string, prefix bool)) func(i int) Query {
	b.Helper()
	return func(i int) Query {
		p, err := words.Parse(phrase(i))
		if err != nil {
			b.Fatal(err)
		}
		return Query{Slim: Slim{Texts: []FullText{{Any: []words.Phrase{p}}}}}
	}
}

// class is a class of queries. run makes the ith query to the store. peer returns the ith query
// to Clusterpedia; nil: it has no such query.
type class struct {
	name string
	run  func(b *testing.B, s *Store, i int)
	peer func(i int) peerQuery
}

func classes(b *testing.B, objects int) []class {
	b.Helper()
	apps, deep := max(objects/millionClusters/10, 1), objects/5
	grants := func(n, i int) map[string][]string {
		out := map[string][]string{}
		for j := range n {
			c := fmt.Sprintf("cluster-%02d", (i+j)%millionClusters)
			out[c] = append(out[c], fmt.Sprintf("namespace-%02d", (i+j/millionClusters+j%millionClusters)%millionNamespaces))
		}
		return out
	}
	listOf := func(name string, q func(i int) Query, p func(i int) peerQuery) class {
		return class{name, func(b *testing.B, s *Store, i int) {
			q := q(i)
			q.Resource = "pods"
			if q.Limit == 0 {
				q.Limit = 50
			}
			selected(b, s, q)
		}, p}
	}
	countOf := func(name string, q func(i int) Query, p func(i int) peerQuery) class {
		return class{name, func(b *testing.B, s *Store, i int) {
			q := q(i)
			q.Resource = "pods"
			if _, err := s.Count(b.Context(), q); err != nil {
				b.Fatal(err)
			}
		}, p}
	}
	groupsOf := func(name string, q func(i int) Query, by ...By) class {
		return class{name, func(b *testing.B, s *Store, i int) {
			q := q(i)
			q.Resource = "pods"
			if groups, err := s.Groups(b.Context(), q, by); err != nil || len(groups) == 0 {
				b.Fatal(len(groups), err)
			}
		}, nil}
	}
	labels := func(format string, n int) func(i int) Query {
		return func(i int) Query {
			return Query{Labels: selector(b, fmt.Sprintf(format, i*7919%n))}
		}
	}
	return []class{
		listOf("label-hit", labels("app=app-%d", apps), func(i int) peerQuery {
			return peerQuery{label: "app", value: fmt.Sprintf("app-%d", i*7919%apps), limit: 50}
		}),
		listOf("label-miss", labels("app=none-%d", apps), func(i int) peerQuery { return peerQuery{label: "app", value: fmt.Sprint("none-", i), limit: 50} }),
		countOf("label-count", labels("team=team-%d", min(apps, 200)), func(i int) peerQuery {
			return peerQuery{label: "team", value: fmt.Sprintf("team-%d", i*7919%min(apps, 200)), count: true}
		}),
		countOf("label-count-of-all", func(int) Query { return Query{Labels: selector(b, "tier=front")} }, nil),
		listOf("field-newest", func(int) Query {
			return Query{Fields: []FieldRequirement{{Path: "status.phase", Operator: "=", Value: "Pending"}}, Order: Newest}
		}, func(int) peerQuery { return peerQuery{field: "phase", value: "Pending", newest: true, limit: 50} }),
		listOf("image", func(i int) Query {
			app := i * 7919 % apps
			return Query{Fields: []FieldRequirement{{Path: FieldImages, Operator: "=", Value: fmt.Sprintf("registry.example.com/team-%d/app-%d:v1.%d", app%200, app, app%7)}}}
		}, nil),
		listOf("name-prefix", func(i int) Query { return Query{NamePrefix: fmt.Sprintf("app-%d-", i*7919%apps), Order: ByName} },
			func(i int) peerQuery { return peerQuery{name: fmt.Sprintf("app-%d-", i*7919%apps), limit: 50} }),
		listOf("name-contains-rare", func(i int) Query { return Query{NameContains: []string{fmt.Sprintf("-%d-0-", i*7919%apps)}} },
			func(i int) peerQuery { return peerQuery{name: fmt.Sprintf("-%d-0-", i*7919%apps), limit: 50} }),
		listOf("name-contains-many", func(int) Query { return Query{NameContains: []string{"app-1"}} }, nil),
		listOf("name-contains-none", func(i int) Query { return Query{NameContains: []string{fmt.Sprint("zzz", i)}} }, nil),
		listOf("words-rare", phrases(b, func(i int) (string, bool) { return fmt.Sprint("app-", i*7919%apps), false }), nil),
		listOf("words-some", phrases(b, func(i int) (string, bool) { return fmt.Sprint("team=team-", i*7919%min(apps, 200)), false }), nil),
		listOf("words-many", phrases(b, func(int) (string, bool) { return "tier front", false }), nil),
		listOf("words-prefix", phrases(b, func(i int) (string, bool) { return fmt.Sprint("app-", 10+i%10), true }), nil),
		listOf("words-none", phrases(b, func(i int) (string, bool) { return fmt.Sprint("front none", i), false }), nil),
		listOf("name-contains-short", func(i int) Query { return Query{NameContains: []string{fmt.Sprint(i % 10)}} }, nil),
		listOf("created-recent", func(int) Query { return Query{Since: time.Unix(1_700_000_000+2_592_000-600, 0)} }, nil),
		listOf("created-many", func(int) Query { return Query{Before: time.Unix(1_700_000_000+1_296_000, 0)} }, nil),
		listOf("order-name-down", func(int) Query { return Query{Order: orderOf(b, OrderColumn{"name", true})} }, nil),
		listOf("order-cluster-down", func(int) Query { return Query{Order: orderOf(b, OrderColumn{"cluster", true})} }, nil),
		listOf("order-sorted", func(int) Query { return Query{Order: orderOf(b, OrderColumn{"namespace", false})} }, nil),
		listOf("offset-10000", func(i int) Query { return Query{Offset: MostOffset - i} }, func(i int) peerQuery { return peerQuery{offset: MostOffset - i, limit: 50} }),
		// Objects that a Deployment's ReplicaSets own.
		listOf("owner-seniority-2", func(i int) Query {
			return Query{OwnerUID: inhabitant((i*7919%apps*10+6)*millionClusters+i%millionClusters, 1).UID, OwnerSteps: 1, Clusters: []string{fmt.Sprintf("cluster-%02d", i%millionClusters)}}
		}, nil),
		listOf("field-of-list", func(i int) Query {
			app := i * 7919 % apps
			return Query{Fields: []FieldRequirement{{Path: "spec.containers[].image", Operator: "=", Value: fmt.Sprintf("registry.example.com/team-%d/app-%d:v1.%d", app%200, app, app%7)}}}
		}, nil),
		listOf("newest", func(int) Query { return Query{Order: Newest} }, func(int) peerQuery { return peerQuery{newest: true, limit: 50} }),
		listOf("deep-page", func(i int) Query {
			return Query{Continue: position{Cluster: fmt.Sprintf("cluster-%02d", 25+i%5), Namespace: "namespace-50", Name: "a", ID: 1}.token(Query{Resource: "pods"})}
		}, func(i int) peerQuery { return peerQuery{offset: deep + i, limit: 50} }),
		{"owner-chain", func(b *testing.B, s *Store, i int) {
			owner := inhabitant((i*7919%apps*10+6)*millionClusters+i%millionClusters, 1).UID
			for _, rs := range selected(b, s, Query{Group: "apps", Resource: "replicasets", OwnerUID: owner}) {
				if got := selected(b, s, Query{Resource: "pods", OwnerUID: rs.UID}); len(got) != 2 {
					b.Fatalf("%d pods of %s", len(got), rs.Name)
				}
			}
		}, func(i int) peerQuery {
			return peerQuery{cluster: fmt.Sprintf("cluster-%02d", i%millionClusters), owner: string(inhabitant((i*7919%apps*10+6)*millionClusters+i%millionClusters, 1).UID)}
		}},
		listOf("namespace-500", func(i int) Query { return Query{Namespaces: []string{fmt.Sprintf("namespace-%02d", i)}, Limit: 500} },
			func(i int) peerQuery { return peerQuery{namespace: fmt.Sprintf("namespace-%02d", i), limit: 500} }),
		listOf("tenant-12", func(i int) Query { return Query{Scopes: grants(12, i)} }, nil),
		listOf("tenant-3000", func(i int) Query { return Query{Scopes: grants(3000, i)} }, nil),
		countOf("tenant-12-count", func(i int) Query { return Query{Scopes: grants(12, i)} }, nil),
		countOf("tenant-3000-count", func(i int) Query { return Query{Scopes: grants(3000, i)} }, nil),
		listOf("tenant-3000-newest", func(i int) Query { return Query{Scopes: grants(3000, i), Order: Newest} }, nil),
		listOf("name-part", func(i int) Query {
			return Query{Slim: Slim{Patterns: []Pattern{{Globs: []Glob{{"", fmt.Sprintf("p-%d-", i*7919%apps), ""}}}}}}
		}, nil),
		listOf("created-since", func(int) Query {
			return Query{Slim: Slim{CreatedFrom: inhabitant(objects/2, 1).Created}, Order: Newest}
		}, nil),
		groupsOf("group-cluster-namespace", func(int) Query { return Query{} }, By{Column: "cluster"}, By{Column: "namespace"}),
		groupsOf("group-cluster-phase", func(int) Query { return Query{} }, By{Column: "cluster"}, By{Field: "status.phase"}),
		groupsOf("group-label-phase", labels("team=team-%d", min(apps, 200)), By{Label: "tier"}, By{Field: "status.phase"}),
		groupsOf("tenant-12-group", func(i int) Query { return Query{Scopes: grants(12, i)} }, By{Column: "cluster"}, By{Field: "status.phase"}),
		countOf("count-of-all", func(int) Query { return Query{} }, func(int) peerQuery { return peerQuery{count: true} }),
	}
}

func orderOf(b *testing.B, columns ...OrderColumn) Order {
	b.Helper()
	o, err := OrderBy(columns...)
	if err != nil {
		b.Fatal(err)
	}
	return o
}

func selected(b *testing.B, s *Store, q Query) []Row {
	b.Helper()
	page, err := s.List(b.Context(), q)
	if err != nil {
		b.Fatal(err)
	}
	return page.Rows
}

// steady changes 3,000 objects a second, and reports how many changes waited at most and at the
// end. Another goroutine makes the changes, as clusters do, at a rate that does not depend on
// the store.
func steady(b *testing.B, s *Store, objects int, d time.Duration) {
	b.Helper()
	const rate, batch = 3000, 500
	start, done, most := time.Now(), 0, 0
	due := func() int { return int(min(time.Since(start), d).Seconds() * rate) }
	made := make(chan Change, batch)
	go func() {
		defer close(made)
		// Versions differ between calls, since unchanged objects are not written.
		random, version := rand.New(rand.NewPCG(1, 2)), int(start.Unix())
		for n := 0; time.Since(start) < d; n++ {
			for n >= due() && time.Since(start) < d {
				time.Sleep(time.Millisecond)
			}
			made <- Change{Row: inhabitant(random.IntN(objects), version+n)}
		}
	}()
	var took time.Duration
	for first := range made {
		most = max(most, due()-done)
		changes := []Change{first}
		for len(changes) < batch {
			select {
			case c, ok := <-made:
				if ok {
					changes = append(changes, c)
					continue
				}
			case <-time.After(10 * time.Millisecond):
			}
			break
		}
		begin := time.Now()
		if err := s.Write(b.Context(), changes); err != nil {
			b.Fatal(err)
		}
		took += time.Since(begin)
		done += len(changes)
	}
	b.ReportMetric(float64(done)/d.Seconds(), "steady/s")
	b.ReportMetric(float64(done)/took.Seconds(), "steady-possible/s")
	b.ReportMetric(float64(most), "steady-waiting-most")
	b.ReportMetric(float64(due()-done), "steady-waiting-at-the-end")
}

// BenchmarkSteady is the last part of BenchmarkMillion, on the store that it left in the
// directory STORE: OBJECTS of its objects change for STEADY seconds.
func BenchmarkSteady(b *testing.B) {
	if os.Getenv("STORE") == "" {
		b.Skip("STORE names no directory: BenchmarkMillion fills one")
	}
	benchmarkSteady(b, func() string { return os.Getenv("STORE") })
}

func benchmarkSteady(b *testing.B, filled func() string) {
	b.Helper()
	s := openStore(b, filled())
	for b.Loop() {
		steady(b, s, setting("OBJECTS", 20_000), time.Duration(setting("STEADY", 2))*time.Second)
	}
}

// peer has the types with which Clusterpedia stores objects in a kind of database, and its
// expression for a path in an object.
type peer struct {
	kind   string // type of the column with the object
	text   string // type of other columns
	path   func(keys ...string) string
	settle []string
}

var (
	peerSQLite   = peer{"JSON", "TEXT", func(keys ...string) string { return "json_extract(object, '" + pathOf(keys) + "')" }, nil}
	peerPostgres = peer{"jsonb", "text", func(keys ...string) string {
		return "object -> '" + strings.Join(keys[:len(keys)-1], "' -> '") + "' ->> '" + keys[len(keys)-1] + "'"
	}, []string{"VACUUM ANALYZE"}}
	peerMariaDB = peer{"JSON", "varchar(253)", func(keys ...string) string { return "JSON_UNQUOTE(JSON_EXTRACT(object, '" + pathOf(keys) + "'))" }, nil}
)

// peerQuery is a query of pods in Clusterpedia.
type peerQuery struct {
	label, field, value, name, namespace, cluster, owner string
	newest, count                                        bool
	limit, offset                                        int
}

var peerColumns = []string{"id", "grp", "version", "resource", "kind", "cluster", "namespace", "name", "owner_uid", "uid", "resource_version", "object", "created_at", "synced_at"}

func (p peer) fill(b *testing.B, d *database, objects int) {
	b.Helper()
	t := " " + p.text
	for _, text := range []string{
		"CREATE TABLE resources (id bigint PRIMARY KEY, grp" + t + ", version" + t + ", resource" + t + ", kind" + t + ", cluster" + t + ", namespace" + t + ", name" + t +
			", owner_uid" + t + ", uid" + t + ", resource_version" + t + ", object " + p.kind + ", created_at bigint, synced_at bigint, deleted_at bigint)",
	} {
		if _, err := d.write.ExecContext(b.Context(), text); err != nil {
			b.Fatal(err)
		}
	}
	one := batch{dialect: plainArguments{d.dialect}, lengths: []int{100, 10, 1}}
	for _, n := range one.lengths {
		stmt, err := d.write.PrepareContext(b.Context(), say(d.dialect, "INSERT INTO resources ("+strings.Join(peerColumns, ", ")+") "+values(n, peerColumns)))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = stmt.Close() })
		one.stmts = append(one.stmts, stmt)
	}
	const batch = 1000
	numbers := inOrder(objects)
	for n := 0; n < objects; n += batch {
		rows := make([][]any, min(batch, objects-n))
		for i := range rows {
			r := inhabitant(numbers[n+i], 1)
			rows[i] = []any{
				int64(n + i), r.Group, r.Version, r.Resource, r.Kind, r.Cluster, r.Namespace, r.Name, string(r.OwnerUID), string(r.UID), r.ResourceVersion,
				string(r.Body), r.Created.Unix(), r.Created.Unix(),
			}
		}
		if err := func() error {
			tx, err := d.write.BeginTx(b.Context(), nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := one.run(b.Context(), tx, rows, nil); err != nil {
				return err
			}
			return tx.Commit()
		}(); err != nil {
			b.Fatal(err)
		}
	}
	for _, text := range []string{
		"CREATE UNIQUE INDEX uni_group_version_resource_cluster_namespace_name ON resources (grp, version, resource, cluster, namespace, name)",
		"CREATE INDEX idx_group_version_resource_namespace_name ON resources (grp, version, resource, namespace, name)",
		"CREATE INDEX idx_group_version_resource_name ON resources (grp, version, resource, name)",
		"CREATE INDEX idx_cluster ON resources (cluster)",
	} {
		if p.text != "text" && p.text != "TEXT" { // InnoDB limits the length of keys
			text = strings.NewReplacer("grp,", "grp(63),", "version,", "version(31),", "resource,", "resource(63),", "cluster,", "cluster(63),", "namespace,", "namespace(63),").Replace(text)
		}
		if _, err := d.write.ExecContext(b.Context(), text); err != nil {
			b.Fatal(err)
		}
	}
}

func (p peer) run(b *testing.B, d *database, q peerQuery) {
	b.Helper()
	s := &statement{dialect: d.dialect}
	s.sql(map[bool]string{true: "SELECT count(*)", false: "SELECT object"}[q.count] + " FROM resources WHERE grp = '' AND version = 'v1' AND resource = 'pods'")
	is := func(expression, value string) {
		if value != "" {
			s.sql(" AND " + expression + " = ").arg(value)
		}
	}
	if q.label != "" {
		is(p.path("metadata", "labels", q.label), q.value)
	}
	if q.field != "" {
		is(p.path("status", q.field), q.value)
	}
	is("namespace", q.namespace)
	is("cluster", q.cluster)
	if q.owner != "" {
		s.sql(" AND owner_uid IN (SELECT uid FROM resources WHERE cluster = ").arg(q.cluster).sql(" AND owner_uid = ").arg(q.owner).sql(")")
	}
	if q.name != "" {
		s.sql(" AND name LIKE ").arg("%" + q.name + "%")
	}
	if q.newest {
		s.sql(" ORDER BY created_at DESC")
	}
	if q.limit > 0 {
		s.sql(fmt.Sprintf(" LIMIT %d OFFSET %d", q.limit, q.offset))
	}
	var one sql.RawBytes
	if err := each(context.Background(), d.read, s.text.String(), func(rows *sql.Rows) error { return rows.Scan(&one) }, s.args...); err != nil {
		b.Fatal(s.text.String(), err)
	}
}
