package store

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// BenchmarkDeep reads pages of 60 rows at the beginning, in the middle and at the end of
// 100,000 pods (OBJECTS), in 50 clusters and 50 namespaces. It uses the orders in which the
// console can sort a table, for all pods and for a label that all of them have. It reports the
// median in milliseconds.
func BenchmarkDeep(b *testing.B) {
	const clusters = 50
	objects := 100_000
	if n, err := strconv.Atoi(os.Getenv("OBJECTS")); err == nil {
		objects = n
	}
	s := openStore(b, b.TempDir())
	for n := 0; n < objects; n += 500 {
		rows := make([]Row, 500)
		for i := range rows {
			rows[i] = benchRow(fmt.Sprintf("cluster-%02d", (n+i)/50%clusters), n+i)
			rows[i].Created = time.Unix(1_700_000_000+int64((n+i)*7919%objects), 0)
		}
		write(b, s, rows...)
	}
	for _, selected := range []struct {
		name string
		q    Query
	}{{"All", Query{}}, {"Label", Query{Labels: selector(b, "tier=front")}}} {
		for _, columns := range [][]OrderColumn{
			{{"cluster", false}}, {{"cluster", true}}, {{"name", false}}, {{"name", true}}, {{"namespace", false}}, {{"namespace", true}}, {{"created", false}}, {{"created", true}},
		} {
			for place, offset := range map[string]int{"Begin": 0, "Midst": objects / 2, "End": objects - 60} {
				order, err := OrderBy(columns...)
				if err != nil {
					b.Fatal(err)
				}
				b.Run(fmt.Sprintf("%s/%s-%t/%s", selected.name, columns[0].Name, columns[0].Down, place), func(b *testing.B) {
					q := selected.q
					q.Resource, q.Version, q.Order, q.Offset, q.Limit = "pods", "", order, offset, 60
					var took []time.Duration
					for b.Loop() {
						for range 10 {
							start := time.Now()
							page, err := s.List(b.Context(), q)
							if err != nil || len(page.Rows) != 60 {
								b.Fatal(len(page.Rows), err)
							}
							took = append(took, time.Since(start))
						}
					}
					slices.Sort(took)
					b.ReportMetric(took[len(took)/2].Seconds()*1000, "p50-ms")
				})
			}
		}
	}
}
