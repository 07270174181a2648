package server

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// fleetReader lists one cluster, oak, once all of fails were returned.
type fleetReader struct {
	client.Reader

	fails []error
}

func (r *fleetReader) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if len(r.fails) > 0 {
		err := r.fails[0]
		r.fails = r.fails[1:]
		return err
	}
	oak := clusterv1alpha1.Cluster{Spec: clusterv1alpha1.ClusterSpec{APIEndpoint: "https://oak"}}
	oak.Name = "oak"
	list.(*clusterv1alpha1.ClusterList).Items = []clusterv1alpha1.Cluster{oak}
	return nil
}

// TestKubeconfigIsRetried: a kubeconfig that could not be written, because the clusters could not
// be listed or the file not be replaced, is written later, without another cluster that joins.
func TestKubeconfigIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		came := make(chan struct{}, 1)
		came <- struct{}{}
		full := true
		var written [][]string
		write := func(members []string) error {
			if full {
				full = false
				return errors.New("no space left on device")
			}
			written = append(written, members)
			return nil
		}
		go keepKubeconfig(ctx, write, &fleetReader{fails: []error{errors.New("not now")}}, came, logr.Discard())
		time.Sleep(3 * kubeconfigRetry)
		synctest.Wait()
		if len(written) != 1 || !slices.Equal(written[0], []string{"oak"}) {
			t.Fatalf("after two failures these members were written: %v", written)
		}
		came <- struct{}{}
		time.Sleep(3 * kubeconfigRetry)
		synctest.Wait()
		if len(written) != 1 {
			t.Errorf("without a change these members were written: %v", written)
		}
	})
}
