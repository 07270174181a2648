package binding

import (
	"fmt"
	"testing"
)

// Target finds the entry of a cluster even if a user wrote the clusters out of order.
func TestTarget(t *testing.T) {
	for name, order := range map[string][]string{"ByName": {"a", "b", "c", "d"}, "AsWritten": {"d", "b", "a", "c"}, "None": nil} {
		t.Run(name, func(t *testing.T) {
			b := bound("web", "1", 0, order...)
			for _, cluster := range order {
				if got, ok := Target(b, cluster); !ok || got.Name != cluster {
					t.Errorf("%s: %q, %v", cluster, got.Name, ok)
				}
			}
			if _, ok := Target(b, "bb"); ok {
				t.Error("a cluster is found that is not there")
			}
		})
	}
}

func BenchmarkTarget(b *testing.B) {
	clusters := make([]string, 1000)
	for i := range clusters {
		clusters[i] = fmt.Sprintf("cluster-%03d", i)
	}
	wide := bound("web", "1", 0, clusters...)
	for b.Loop() {
		if _, ok := Target(wide, "cluster-900"); !ok {
			b.Fatal("not found")
		}
	}
}
