package template

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

func TestPropagation(t *testing.T) {
	deleted := new(metav1.Now())
	for name, tc := range map[string]struct {
		object metav1.ObjectMeta
		want   metav1.DeletionPropagation
	}{
		"Living":            {metav1.ObjectMeta{}, ""},
		"LivingWithOrphan":  {metav1.ObjectMeta{Finalizers: []string{"orphan"}}, ""},
		"Background":        {metav1.ObjectMeta{DeletionTimestamp: deleted}, metav1.DeletePropagationBackground},
		"OthersFinalizer":   {metav1.ObjectMeta{DeletionTimestamp: deleted, Finalizers: []string{"a.b/c"}}, metav1.DeletePropagationBackground},
		"Orphan":            {metav1.ObjectMeta{DeletionTimestamp: deleted, Finalizers: []string{"orphan"}}, metav1.DeletePropagationOrphan},
		"OrphanAndOthers":   {metav1.ObjectMeta{DeletionTimestamp: deleted, Finalizers: []string{"a.b/c", "orphan"}}, metav1.DeletePropagationOrphan},
		"Foreground":        {metav1.ObjectMeta{DeletionTimestamp: deleted, Finalizers: []string{"foregroundDeletion"}}, metav1.DeletePropagationForeground},
		"ForegroundForever": {metav1.ObjectMeta{Finalizers: []string{"foregroundDeletion"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Propagation(&tc.object); got != tc.want {
				t.Errorf("it is %q, want %q", got, tc.want)
			}
		})
	}
}

// TestDeletionsAreBounded: beyond the limit the cache forgets the oldest deletion.
func TestDeletionsAreBounded(t *testing.T) {
	c := &Cache{}
	for i := range mostDeletions + 1 {
		for range 2 { // an object is seen several times
			c.deletions.observe(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				UID: types.UID(fmt.Sprint(i)), DeletionTimestamp: new(metav1.Now()), Finalizers: []string{metav1.FinalizerOrphanDependents},
			}})
		}
	}
	if got := c.Deletion("0"); got != "" {
		t.Errorf("the oldest is %q, want it forgotten", got)
	}
	if got := c.Deletion("1"); got != metav1.DeletePropagationOrphan {
		t.Errorf("the second is %q", got)
	}
	if len(c.deletions.of) != mostDeletions || len(c.deletions.order) != mostDeletions {
		t.Errorf("%d and %d are remembered, want %d", len(c.deletions.of), len(c.deletions.order), mostDeletions)
	}
}

// TestDeletionIsKnownOnceTheTemplateIsGone: as soon as the cache reports a template as absent,
// it has the propagation of the deletion, even if the garbage collector removed its finalizer
// long before. The test does the work of the garbage collector.
func TestDeletionIsKnownOnceTheTemplateIsGone(t *testing.T) {
	configMaps := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	namespace := testenv.Namespace(t, testenv.Config(0))
	c, direct, _ := newCache(t, func(c *Cache) {
		if err := c.Watch(configMaps); err != nil {
			t.Fatal(err)
		}
	})
	const other = "example.org/other"
	for name, tc := range map[string]struct {
		propagation metav1.DeletionPropagation
		finalizers  []string
		want        metav1.DeletionPropagation
	}{
		"background":      {metav1.DeletePropagationBackground, nil, ""},
		"orphan":          {metav1.DeletePropagationOrphan, nil, metav1.DeletePropagationOrphan},
		"orphan-waits":    {metav1.DeletePropagationOrphan, []string{other}, metav1.DeletePropagationOrphan},
		"foreground":      {metav1.DeletePropagationForeground, nil, metav1.DeletePropagationForeground},
		"foreground-wait": {metav1.DeletePropagationForeground, []string{other}, metav1.DeletePropagationForeground},
	} {
		t.Run(name, func(t *testing.T) {
			o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: tc.finalizers}}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(direct.Create(t.Context(), o))
			testenv.Eventually(t, "creation", patience, is(c, configMaps, namespace, name, presence.Present))
			must(direct.Delete(t.Context(), o, client.PropagationPolicy(tc.propagation)))
			for _, finalizers := range [][]string{tc.finalizers, nil} {
				if err := direct.Get(t.Context(), client.ObjectKeyFromObject(o), o); err == nil {
					o.Finalizers = finalizers
					must(direct.Update(t.Context(), o))
				} else {
					must(client.IgnoreNotFound(err))
				}
			}
			// A reader that sees the template absent also sees how it was deleted.
			var got metav1.DeletionPropagation
			testenv.Eventually(t, "end", patience, func() error {
				err := is(c, configMaps, namespace, name, presence.Absent)()
				got = c.Deletion(o.UID)
				return err
			})
			if got != tc.want {
				t.Errorf("it is %q, want %q", got, tc.want)
			}
		})
	}
}
