package store

import (
	"fmt"
	"strings"
	"testing"
)

func benchRow(cluster string, i int) Row {
	return pod(cluster, fmt.Sprintf("namespace-%d", i%50), fmt.Sprintf("pod-%06d", i), map[string]string{
		"app": fmt.Sprintf("app-%d", i%500), "pod-template-hash": fmt.Sprintf("%x", i/10), "tier": "front", "version": "v1",
	}, map[string]any{"nodeName": fmt.Sprintf("node-%d", i%100), "fill": strings.Repeat("x", 1500)})
}

// BenchmarkWrite reports rows per second, in batches of 500: new ones and changed ones.
func BenchmarkWrite(b *testing.B) {
	for _, known := range []bool{false, true} {
		b.Run(map[bool]string{false: "Insert", true: "Update"}[known], func(b *testing.B) {
			s := openStore(b, b.TempDir())
			const batch = 500
			n := 0
			for b.Loop() {
				changes := make([]Change, batch)
				for i := range changes {
					changes[i].Row = benchRow("a", n+i)
				}
				if !known {
					n += batch
				}
				if err := s.Write(b.Context(), changes); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "rows/s")
		})
	}
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
