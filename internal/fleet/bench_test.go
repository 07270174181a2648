package fleet

import (
	"fmt"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"

	"orrery.dev/orrery/internal/access"
)

// BenchmarkClusterAccesses measures a fleet of 100 clusters with 3,000 ClusterAccesses of as
// many namespaces, as informers deliver them: the load at a start, until the first snapshot,
// and an edit of one until the next snapshot.
func BenchmarkClusterAccesses(b *testing.B) {
	const n = 3000
	spaces, grants := make([]*metav1.PartialObjectMetadata, n), make([]string, n)
	for i := range n {
		grants[i] = fmt.Sprintf("team-%d", i)
		spaces[i] = namespace(grants[i], map[string]string{"team": grants[i], "kubernetes.io/metadata.name": grants[i]})
	}
	load := func(b *testing.B) *Cache {
		b.Helper()
		var synced atomic.Bool
		c := newCache(&members{}, access.None)
		c.synced = []toolscache.InformerSynced{synced.Load}
		c.SubscribeFences(func(sets.Set[string]) {})
		for i := range 100 {
			c.changed(nil, object(fmt.Sprintf("cluster-%d", i), "1", nil))
		}
		for _, s := range spaces {
			c.namespaceChanged(nil, s)
		}
		for _, team := range grants {
			if err := c.accessChanged(nil, clusterAccess(team, "cluster-7")); err != nil {
				b.Fatal(err)
			}
		}
		synced.Store(true)
		if s := c.Snapshot(); !s.Allowed(grants[n-1], "cluster-7") || s.Allowed(grants[0], "cluster-8") {
			b.Fatal("the fences are wrong")
		}
		return c
	}
	b.Run("Start", func(b *testing.B) {
		for b.Loop() {
			load(b)
		}
	})
	b.Run("Edit", func(b *testing.B) {
		c := load(b)
		for i := 0; b.Loop(); i++ {
			if err := c.accessChanged(nil, clusterAccess(grants[i%n], fmt.Sprintf("cluster-%d", i/n%100), "cluster-8")); err != nil {
				b.Fatal(err)
			}
			if !c.Snapshot().Allowed(grants[i%n], "cluster-8") {
				b.Fatal("the edit is not there")
			}
		}
	})
}
