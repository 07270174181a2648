package testenv

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// UniqueName returns a name for a cluster-scoped object of one test: the prefix, a dash and a
// random suffix.
func UniqueName(prefix string) string { return prefix + "-" + strings.ToLower(rand.Text()[:8]) }

// Leftovers fails the test if it leaves cluster-scoped objects of Orrery's kinds behind in the API
// server. Policies and clusters of one test would affect the next one there. A test calls it first,
// so that the check runs after all other cleanups.
//
// Objects that are being deleted do not count, nor do objects with an owner, which a garbage
// collector deletes. Tests that run in parallel on the same server cannot use it.
func Leftovers(t testing.TB, cfg *rest.Config) {
	t.Helper()
	list := func() (found map[types.UID]string) {
		t.Helper()
		Eventually(t, "list cluster-scoped objects", Patience, func() (err error) {
			found, err = clusterScoped(context.Background(), cfg)
			return err
		})
		return found
	}
	before := list()
	t.Cleanup(func() {
		after := list()
		maps.DeleteFunc(after, func(uid types.UID, _ string) bool { return before[uid] != "" })
		if left := slices.Sorted(maps.Values(after)); len(left) > 0 {
			t.Errorf("the test leaves cluster-scoped objects behind, which other tests see; delete them in a t.Cleanup: %s", strings.Join(left, ", "))
		}
	})
}

// clusterScoped returns the cluster-scoped objects of Orrery's kinds by UID, as
// "clusters.cluster.orrery.dev NAME". It leaves out objects that are being deleted or have an
// owner. A kind that is not installed has none.
func clusterScoped(ctx context.Context, cfg *rest.Config) (map[types.UID]string, error) {
	c, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	all, err := definitions()
	if err != nil {
		return nil, err
	}
	found := map[types.UID]string{}
	for _, d := range all {
		if d.Spec.Scope != apiextensionsv1.ClusterScoped {
			continue
		}
		resource := schema.GroupVersionResource{Group: d.Spec.Group, Resource: d.Spec.Names.Plural}
		for _, version := range d.Spec.Versions {
			if version.Storage {
				resource.Version = version.Name
			}
		}
		list, err := c.Resource(resource).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", d.Name, err)
		}
		for _, o := range list.Items {
			if o.DeletionTimestamp == nil && len(o.OwnerReferences) == 0 {
				found[o.UID] = d.Name + " " + o.Name
			}
		}
	}
	return found, nil
}
