package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/testenv"
)

func benchRow(cluster string, i int) Row {
	return pod(cluster, fmt.Sprintf("namespace-%d", i%50), fmt.Sprintf("pod-%06d", i), map[string]string{
		"app": fmt.Sprintf("app-%d", i%500), "pod-template-hash": fmt.Sprintf("%x", i/10), "tier": "front", "version": "v1",
	}, map[string]any{"nodeName": fmt.Sprintf("node-%d", i%100), "fill": strings.Repeat("x", 1500)})
}

// BenchmarkWrite reports rows per second for new and for changed rows, in batches of 500. For
// comparison it also inserts the same bodies into the same tables of another database in the
// same batches, without any work of a store (bare). The three kinds of batches alternate, so
// that other load on the machine affects all of them. OBJECTS is the number of rows of each
// kind.
func BenchmarkWrite(b *testing.B) {
	b.Run("SQLite", func(b *testing.B) { benchmarkWrite(b, func() string { return b.TempDir() }) })
	for _, d := range []*testenv.Database{testenv.PostgreSQL, testenv.MariaDB} {
		b.Run(d.Name, func(b *testing.B) { benchmarkWrite(b, func() string { return d.Create(b) }) })
	}
}

func benchmarkWrite(b *testing.B, create func() string) {
	b.Helper()
	objects := 20_000
	if n, err := strconv.Atoi(os.Getenv("OBJECTS")); err == nil {
		objects = n
	}
	const batch = 500
	var bare, inserted, changed time.Duration
	for b.Loop() {
		plain, s := openStore(b, create()), openStore(b, create())
		identified := benchRow("a", 0)
		// Stores the cluster and the type. The row is deleted again.
		write(b, plain, identified)
		if err := plain.Write(b.Context(), []Change{{Row: identified, Delete: true}}); err != nil {
			b.Fatal(err)
		}
		one := newBare(b, plain.db)
		clock := func(total *time.Duration, write func() error) {
			start := time.Now()
			if err := write(); err != nil {
				b.Fatal(err)
			}
			*total += time.Since(start)
		}
		for n := 0; n < objects; n += batch {
			changes := make([]Change, batch)
			for i := range changes {
				changes[i].Row = benchRow("a", n+i)
			}
			clock(&bare, func() error { return one.insert(b.Context(), changes) })
			clock(&inserted, func() error { return s.Write(b.Context(), changes) })
			for i := range changes {
				r := &changes[i].Row
				r.ResourceVersion, r.Body = "8", bytes.Replace(r.Body, []byte(`"node-`), []byte(`"other-`), 1)
			}
			clock(&changed, func() error { return s.Write(b.Context(), changes) })
		}
	}
	rate := func(total time.Duration) float64 { return float64(b.N*objects) / total.Seconds() }
	b.ReportMetric(rate(bare), "bare/s")
	b.ReportMetric(rate(inserted), "new/s")
	b.ReportMetric(rate(changed), "changed/s")
	b.ReportMetric(bare.Seconds()/inserted.Seconds(), "new/bare")
	b.ReportMetric(bare.Seconds()/changed.Seconds(), "changed/bare")
}

// bare inserts rows into the tables of a database without reading what the tables have. A batch
// is one transaction. A statement inserts up to 100 rows where the driver sends each statement
// to a server.
type bare struct {
	db                  *database
	object, body, label batch
	id                  int64
}

func newBare(b *testing.B, db *database) *bare {
	b.Helper()
	out := &bare{db: db, id: 1000}
	whole := slices.Concat([]string{"id"}, objectKey, objectColumns)
	for _, table := range []struct {
		batch   *batch
		name    string
		columns []string
	}{
		{&out.object, "object", whole},
		{&out.body, "body", []string{"object", "json"}},
		{&out.label, "label", append(slices.Clone(labelKey), "created", "object")},
	} {
		text := func(n int) string {
			return say(db.dialect, "INSERT INTO "+table.name+" ("+strings.Join(table.columns, ", ")+") "+values(n, table.columns))
		}
		table.batch.dialect, table.batch.lengths = plainArguments{db.dialect}, []int{100, 10, 1}
		if _, ok := db.dialect.(sqliteDialect); ok {
			table.batch.lengths = []int{1}
		}
		for _, n := range table.batch.lengths {
			stmt, err := db.write.PrepareContext(b.Context(), text(n))
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = stmt.Close() })
			table.batch.stmts = append(table.batch.stmts, stmt)
		}
	}
	return out
}

// plainArguments is a dialect whose statements have a parameter for each value.
type plainArguments struct{ dialect }

func (plainArguments) arguments(rows [][]any) []any { return flat(rows) }

func (p *bare) insert(ctx context.Context, changes []Change) error {
	tx, err := p.db.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var objects, bodies, labels [][]any
	kind := p.db.kind(groupResource{"", "pods"})
	for _, c := range changes {
		p.id++
		terms := termsOf(groupResource{c.Group, c.Resource}, c.Body)
		objects = append(objects, []any{
			p.id, kind, c.Cluster, c.Namespace, c.Name, p.id, c.Version, c.Kind, string(c.UID),
			c.ResourceVersion, encode(c.Labels), "", p.id, int64(0), int64(0), encodeTerms(terms), int64(0), c.Created.Unix(), string(c.OwnerUID), int64(0),
		})
		bodies = append(bodies, []any{p.id, string(c.Body)})
		for one := range pairsOf(c.Labels, terms) {
			labels = append(labels, []any{kind, one.key, one.value, c.Cluster, c.Namespace, c.Name, c.Created.Unix(), p.id})
		}
	}
	for _, one := range []struct {
		batch *batch
		rows  [][]any
	}{{&p.object, objects}, {&p.body, bodies}, {&p.label, labels}} {
		if err := one.batch.run(ctx, tx, one.rows, nil); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// BenchmarkList reads pages of 500 of 40,000 rows in two clusters.
func BenchmarkList(b *testing.B) {
	s := openStore(b, b.TempDir())
	for _, cluster := range []string{"a", "b"} {
		for n := 0; n < 20_000; n += 500 {
			rows := make([]Row, 500)
			for i := range rows {
				rows[i] = benchRow(cluster, n+i)
			}
			write(b, s, rows...)
		}
	}
	for name, q := range map[string]Query{
		"Page":        {},
		"Namespace":   {Namespaces: []string{"namespace-7"}},
		"LabelCommon": {Labels: selector(b, "tier=front")},
		"LabelRare":   {Labels: selector(b, "app=app-7")},
		"LabelMiss":   {Labels: selector(b, "app=none")},
		"FieldRare":   {Fields: []FieldRequirement{{Path: "spec.nodeName", Operator: "=", Value: "node-7"}}},
	} {
		b.Run(name, func(b *testing.B) {
			q.Resource, q.Limit = "pods", 500
			for b.Loop() {
				if _, err := s.List(b.Context(), q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRevision updates the image of the Deployments in a file of manifests (MANIFESTS) a
// hundred times, with the states that a cluster reports. It compares the size of a revision
// with that of the live object: the content alone, and its share of the database file.
func BenchmarkRevision(b *testing.B) {
	file := os.Getenv("MANIFESTS")
	if file == "" {
		b.Skip("MANIFESTS names no file")
	}
	manifests, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	const rolls = 100
	for b.Loop() {
		dir := b.TempDir()
		s := openStore(b, dir)
		size := func() (pages int64) {
			if err := s.db.write.QueryRowContext(b.Context(), "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()").Scan(&pages); err != nil {
				b.Fatal(err)
			}
			return pages
		}
		empty := size()
		var live, before int64
		version := 100
		objects := int64(0)
		for roll := range rolls + 1 {
			for doc := range strings.SplitSeq(string(manifests), "\n---") {
				var o map[string]any
				if err := yaml.Unmarshal([]byte(doc), &o); err != nil || o["kind"] != "Deployment" {
					continue
				}
				// The controller reports three states of a rollout: started, progressing,
				// complete.
				for phase := range 3 {
					if roll == 0 && phase > 0 {
						continue
					}
					version++
					rolled(o, roll, phase, version)
					body, err := json.Marshal(o)
					if err != nil {
						b.Fatal(err)
					}
					name := o["metadata"].(map[string]any)["name"].(string)
					write(b, s, Row{
						Cluster: "a", Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment", Namespace: "shop", Name: name,
						UID: types.UID(fmt.Sprintf("%036s", name)), ResourceVersion: fmt.Sprint(version), Labels: map[string]string{"app": name}, Body: body,
					})
					if roll == 0 {
						objects++
						live += int64(len(body))
					}
				}
			}
			if roll == 0 {
				before = size()
			}
		}
		var content, revisions int64
		if err := s.db.read.QueryRowContext(b.Context(), "SELECT sum(length(body)), count(*) FROM revision").Scan(&content, &revisions); err != nil {
			b.Fatal(err)
		}
		grown := size() - before
		b.ReportMetric(float64(live)/float64(objects), "live-bytes")
		b.ReportMetric(float64(before-empty)/float64(objects), "live-bytes-stored")
		b.ReportMetric(float64(content)/float64(revisions), "content-bytes/revision")
		b.ReportMetric(float64(grown)/float64(revisions), "stored-bytes/revision")
		b.ReportMetric(100*float64(grown)/float64(revisions)/(float64(live)/float64(objects)), "%-of-live")
	}
}

// rolled gives a Deployment its content in a phase of the rollout of a new image.
func rolled(o map[string]any, roll, phase, version int) {
	at := time.Unix(1_700_000_000+int64(version), 0).UTC().Format(time.RFC3339)
	meta := o["metadata"].(map[string]any)
	meta["generation"], meta["resourceVersion"], meta["creationTimestamp"] = roll+1, fmt.Sprint(version), "2026-01-01T00:00:00Z"
	meta["uid"] = fmt.Sprintf("%036s", meta["name"])
	meta["annotations"] = map[string]any{"deployment.kubernetes.io/revision": fmt.Sprint(roll + 1)}
	pod := o["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	container := pod["containers"].([]any)[0].(map[string]any)
	image, _, _ := strings.Cut(container["image"].(string), ":v")
	container["image"] = fmt.Sprintf("%s:v0.10.%d", image, roll)
	done := phase == 2 || roll == 0
	reason, replicas := "ReplicaSetUpdated", 2
	if done {
		reason, replicas = "NewReplicaSetAvailable", 1
	}
	o["status"] = map[string]any{
		"observedGeneration": roll + 1, "replicas": replicas, "updatedReplicas": min(phase, 1), "readyReplicas": 1, "availableReplicas": 1,
		"conditions": []any{
			map[string]any{
				"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": "Deployment has minimum availability.",
				"lastTransitionTime": "2026-01-01T00:00:03Z", "lastUpdateTime": "2026-01-01T00:00:03Z",
			},
			map[string]any{
				"type": "Progressing", "status": "True", "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": at,
				"message": fmt.Sprintf("ReplicaSet \"%v-%08x\" is progressing: %s.", meta["name"], uint32(roll)*2654435761, reason),
			},
		},
	}
}

// BenchmarkMoment reads the past of 20,000 objects in 10 clusters. All of them changed twice
// since the first moment, and 10 of them once more. It reads the first page of the first
// moment, one object of it, the differences to the present, and the revisions of one object.
func BenchmarkMoment(b *testing.B) {
	const objects, clusters = 20_000, 10
	s := openStore(b, b.TempDir())
	now := time.Now().Add(time.Minute)
	s.keeping.now = func() time.Time { return now }
	put := func(n, version int) {
		now = now.Add(time.Second)
		for i := 0; i < n; i += 500 {
			var changes []Change
			for j := i; j < min(i+500, n); j++ {
				r := benchRow(fmt.Sprintf("cluster-%d", j%clusters), j)
				r.Body = bytes.Replace(r.Body, []byte(`"nodeName"`), fmt.Appendf(nil, `"version":%d,"nodeName"`, version), 1)
				r.ResourceVersion = strconv.Itoa(version)
				changes = append(changes, Change{Row: r})
			}
			if err := s.Write(b.Context(), changes); err != nil {
				b.Fatal(err)
			}
		}
	}
	put(objects, 0)
	first := now
	put(objects, 1)
	put(objects, 2)
	before := now
	put(10, 3)
	page := func(q Query, want int) func(*testing.B) {
		return func(b *testing.B) {
			q.Resource = "pods"
			for b.Loop() {
				p, err := s.List(b.Context(), q)
				if err != nil || len(p.Rows) != want {
					b.Fatalf("%d rows, %v, want %d", len(p.Rows), err, want)
				}
			}
		}
	}
	b.Run("Page", page(Query{At: first, Limit: 50}, 50))
	b.Run("PageNow", page(Query{Limit: 50}, 50))
	b.Run("One", page(Query{At: first, Clusters: []string{"cluster-7"}, Namespaces: []string{"namespace-17"}, Names: []string{"pod-000017"}}, 1))
	b.Run("OneAnywhere", page(Query{At: first, Namespaces: []string{"namespace-17"}, Names: []string{"pod-000017"}}, 1))
	b.Run("Label", page(Query{At: first, Labels: selector(b, "app=app-17"), Limit: 50}, 40))
	compare := func(q Query, want int) func(*testing.B) {
		return func(b *testing.B) {
			q.Resource = "pods"
			for b.Loop() {
				d, err := s.Compare(b.Context(), q)
				if err != nil || len(d.Items) != want {
					b.Fatalf("%d differences, %v, want %d", len(d.Items), err, want)
				}
			}
		}
	}
	b.Run("FewChanged", compare(Query{At: before, Limit: 100}, 10))
	b.Run("AllChanged", compare(Query{At: first, Limit: 100}, 100))
	b.Run("Revisions", func(b *testing.B) {
		of := Object{Cluster: "cluster-7", Resource: pods, Namespace: "namespace-17", Name: "pod-000017"}
		for b.Loop() {
			r, err := s.Revisions(b.Context(), of, 0, 100)
			if err != nil || len(r.Items) != 3 {
				b.Fatalf("%d, %v", len(r.Items), err)
			}
			for _, one := range r.Items {
				if _, err := s.Revision(b.Context(), of, one.Seq); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
