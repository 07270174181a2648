//go:build bench

package bench

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bytesPerPlacement returns the bytes in etcd for each placed Deployment and cluster without
// the template of the user: the binding, and the fields that placing adds to the template. The
// size of a plain template is read in a namespace without policies.
func (f *fleet) bytesPerPlacement(b *testing.B, ns string, count int) float64 {
	b.Helper()
	ctx := context.Background()
	hub := clientset(b, f.cfg)
	unplaced := "un" + ns
	namespace(b, hub, unplaced)
	_, d := pair(unplaced, "d0000")
	if _, err := hub.AppsV1().Deployments(unplaced).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{"unix://" + filepath.Join(f.dir, "hub", "etcd", "client.sock")},
		DialTimeout: 5 * time.Second,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer etcd.Close()
	res, err := etcd.Get(ctx, "/registry/", clientv3.WithPrefix())
	if err != nil {
		b.Fatal(err)
	}
	var placed, template, bindings int
	for _, kv := range res.Kvs {
		size := len(kv.Key) + len(kv.Value)
		switch key := string(kv.Key); {
		case strings.Contains(key, "/deployments/"+ns+"/"):
			placed += size
		case strings.Contains(key, "/deployments/"+unplaced+"/"):
			// The name of its namespace is longer, both in the key and in the value.
			template += size - len("un")*2
		case strings.Contains(key, "/resourcebindings/"+ns+"/") && strings.HasSuffix(key, "-deployment"):
			bindings += size
		}
	}
	b.Logf("template %d bytes, when placed %d; binding %d", template, placed/count, bindings/count)
	return float64(bindings+placed-count*template) / float64(count*len(f.members))
}
