package addon

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Observe returns what Apply and Prune would change, such as "change ConfigMap
// kube-system/coredns". The verbs are add, change and remove. groups must be all groups of the
// cluster, as for Prune. Observe changes nothing. While the API server is unavailable, it retries
// until ctx ends.
//
// If nobody else has changed objects, it sends one request for each kind and not for each object.
func Observe(ctx context.Context, cfg *rest.Config, groups []Group) (changes []string, err error) {
	c, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	s, err := c.inspect(ctx, groups)
	if err != nil {
		return nil, fmt.Errorf("read the objects in the cluster: %w", err)
	}
	for _, g := range groups {
		for _, o := range g.Objects {
			o = labelled(o, g.Name)
			// An unknown kind is no error: the group itself may install its definition.
			r, err := c.resolve(ctx, o, g.Namespace)
			if err != nil && !meta.IsNoMatchError(err) {
				return nil, fmt.Errorf("look at %s: %w", r, err)
			}
			o.SetNamespace(r.Namespace)
			verdict := s.judge(item{ref: r, object: o}, g.Name)
			if verdict == touched {
				if verdict, err = c.compare(ctx, item{ref: r, object: o}); err != nil {
					return nil, fmt.Errorf("look at %s: %w", r, err)
				}
			}
			if verdict != same {
				changes = append(changes, string(verdict)+" "+r.String())
			}
		}
	}
	wanted, err := c.wanted(ctx, groups)
	if err != nil {
		return nil, err
	}
	stale, err := c.stale(ctx, s.inventories, wanted)
	if err != nil {
		return nil, err
	}
	for _, o := range stale {
		changes = append(changes, "remove "+o.ref.String())
	}
	return changes, nil
}

// verdict is what applying an object would do to the object in the cluster.
type verdict string

const (
	// same means that the object in the cluster is as applied, add that it is missing, and change that
	// applying changes it.
	same   verdict = "same"
	add    verdict = "add"
	change verdict = "change"
	// touched means that somebody may have changed the object since it was applied, perhaps in other
	// fields. compare finds out whether it is same or change.
	touched verdict = "touched"
)

// state is what inspect has read from a cluster. inventories are those of all groups, by group.
// live has the metadata of the objects with the label of a group, of the kinds that the inspected
// groups have.
type state struct {
	inventories map[string]inventory
	live        map[ref]*metav1.PartialObjectMetadata
}

// inspect reads the inventories of all groups in the cluster, and the metadata of labelled objects
// of all kinds that the given groups have.
func (c *cluster) inspect(ctx context.Context, groups []Group) (*state, error) {
	s := &state{live: map[ref]*metav1.PartialObjectMetadata{}}
	var err error
	if s.inventories, err = c.inventories(ctx); err != nil {
		return nil, err
	}
	kinds := map[schema.GroupKind]schema.GroupVersionKind{}
	for _, g := range groups {
		for _, o := range g.Objects {
			kinds[kindOf(o)] = o.GroupVersionKind()
		}
	}
	var mu sync.Mutex
	each, ctx := errgroup.WithContext(ctx)
	each.SetLimit(8)
	for gk, gvk := range kinds {
		each.Go(func() error {
			found, err := c.metadata(ctx, gvk)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range found {
				o := &found[i]
				s.live[ref{Group: gk.Group, Kind: gk.Kind, Namespace: o.Namespace, Name: o.Name}] = o
			}
			return nil
		})
	}
	return s, each.Wait()
}

// judge returns what applying an object of a group would do, from what inspect has read. A Job that
// was applied in this form and is gone is same, because it has run and may have been cleaned up.
func (s *state) judge(it item, group string) verdict {
	digest := it.object.GetAnnotations()[digestAnnotation]
	was := s.inventories[group][it.ref]
	live, there := s.live[it.ref]
	switch {
	case !there && it.ref.groupKind() == kindJob && was.Digest == digest:
		return same // the Job has run, and may have been cleaned up
	case !there:
		return add
	case live.Annotations[digestAnnotation] != digest, live.Labels[groupLabel] != group:
		return change
	case was.Fingerprint == fingerprint(live):
		return same
	default:
		return touched
	}
}

// compare reports, by a dry run at the API server, whether applying an object would change it. The
// result is same or change, or "" with an error.
func (c *cluster) compare(ctx context.Context, it item) (verdict, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(it.object.GroupVersionKind())
	if _, err := c.get(ctx, live, it.ref.Namespace, it.ref.Name); err != nil {
		return "", err
	}
	applied, err := c.apply(ctx, it.object, true)
	if err != nil {
		return "", err
	}
	for _, o := range []*unstructured.Unstructured{live, applied} {
		for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
			unstructured.RemoveNestedField(o.Object, "metadata", field)
		}
	}
	if equality.Semantic.DeepEqual(live.Object, applied.Object) {
		return same, nil
	}
	return change, nil
}
