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
// kube-system/coredns". It changes nothing. Without changes by others it costs one request for each
// kind, not for each object. While the API server is unavailable, Observe retries until ctx ends.
func Observe(ctx context.Context, cfg *rest.Config, groups []Group) (changes []string, err error) {
	c, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	s, err := c.survey(ctx, groups)
	if err != nil {
		return nil, fmt.Errorf("look at what is there: %w", err)
	}
	for _, g := range groups {
		for _, o := range g.Objects {
			o = labelled(o, g.Name)
			// The kind may be new with this group.
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

// verdict is the effect of applying an object.
type verdict string

const (
	same   verdict = "same"
	add    verdict = "add"
	change verdict = "change"
	// touched means that somebody has changed the object since, perhaps outside of the applied fields.
	touched verdict = "touched"
)

// state is the state of a cluster: all objects with a group's label, of the kinds of the groups,
// and the inventories.
type state struct {
	inventories map[string]inventory
	live        map[ref]*metav1.PartialObjectMetadata
}

// survey reads the state that matters to groups.
func (c *cluster) survey(ctx context.Context, groups []Group) (*state, error) {
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

// judge compares an object of a group with the live object and the inventory.
func (s *state) judge(it item, group string) verdict {
	digest := it.object.GetAnnotations()[digestAnnotation]
	was := s.inventories[group][it.ref]
	live, there := s.live[it.ref]
	switch {
	case !there && it.ref.groupKind() == kindJob && was.Digest == digest:
		return same // it has run, and may have been cleaned up
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

// compare asks the API server in a dry run whether applying an object would change it.
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
