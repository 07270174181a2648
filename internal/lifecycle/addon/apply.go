package addon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// pollInterval is the interval between checks for a state of the cluster.
const pollInterval = 200 * time.Millisecond

// Apply applies a group and returns how many objects it changed. It does not write objects that are
// as they were applied last. While the API server is unavailable, Apply retries until ctx ends.
func Apply(ctx context.Context, cfg *rest.Config, g Group) (changed int, err error) {
	c, err := connect(cfg)
	if err != nil {
		return 0, err
	}
	s, err := c.survey(ctx, []Group{g})
	if err != nil {
		return 0, fmt.Errorf("look at what is there: %w", err)
	}
	a := application{cluster: c, group: g, state: s, inventory: s.inventories[g.Name].clone()}
	for _, wave := range waves(g.Objects) {
		if err := a.apply(ctx, wave); err != nil {
			return a.changed, err
		}
	}
	if maps.Equal(a.inventory, s.inventories[g.Name]) {
		return a.changed, nil
	}
	return a.changed, c.save(ctx, g.Name, a.inventory)
}

// waves orders objects by their dependencies: namespaces, custom resource definitions, and the rest
// in its order. API services and webhooks are last, because they block requests until their pods
// run.
func waves(all []*unstructured.Unstructured) [][]*unstructured.Unstructured {
	var namespaces, definitions, rest, last []*unstructured.Unstructured
	for _, o := range all {
		switch kindOf(o) {
		case kindNamespace:
			namespaces = append(namespaces, o)
		case kindCRD:
			definitions = append(definitions, o)
		case kindAPIService, kindMutating, kindValidating:
			last = append(last, o)
		default:
			rest = append(rest, o)
		}
	}
	return [][]*unstructured.Unstructured{namespaces, definitions, rest, last}
}

// application is a group that is being applied.
type application struct {
	cluster   *cluster
	group     Group
	state     *state
	inventory inventory
	changed   int
}

// item is an object in the form in which it is applied.
type item struct {
	ref    ref
	object *unstructured.Unstructured
}

// apply applies a wave. It saves new objects in the inventory before it creates them, so that no
// object is ever missing there.
func (a *application) apply(ctx context.Context, wave []*unstructured.Unstructured) error {
	items := make([]item, 0, len(wave))
	unknown := false
	for _, o := range wave {
		o = labelled(o, a.group.Name)
		r, err := a.cluster.resolve(ctx, o, a.group.Namespace)
		if err != nil {
			return fmt.Errorf("apply %s: %w", r, err)
		}
		o.SetNamespace(r.Namespace)
		items = append(items, item{ref: r, object: o})
		if _, known := a.inventory[r]; !known {
			a.inventory[r] = record{}
			unknown = true
		}
	}
	if unknown {
		if err := a.cluster.save(ctx, a.group.Name, a.inventory); err != nil {
			return err
		}
	}
	items = slices.DeleteFunc(items, func(it item) bool { return a.state.judge(it, a.group.Name) == same })
	for _, it := range items {
		if err := a.write(ctx, it); err != nil {
			return fmt.Errorf("apply %s: %w", it.ref, err)
		}
	}
	for _, it := range items {
		if it.ref.groupKind() == kindCRD {
			if err := a.cluster.writer.AwaitServed(ctx, it.object, transient); err != nil {
				return err
			}
		}
	}
	return nil
}

// write applies an object, and counts it if that changed the object.
func (a *application) write(ctx context.Context, it item) error {
	result, err := a.cluster.apply(ctx, it.object, false)
	if apierrors.IsInvalid(err) && it.ref.groupKind() == kindJob {
		// A Job cannot be changed, so it is replaced.
		if err := a.cluster.removed(ctx, it); err != nil {
			return err
		}
		result, err = a.cluster.apply(ctx, it.object, false)
	}
	if err != nil {
		return err
	}
	if before, was := a.state.live[it.ref]; !was || before.GetResourceVersion() != result.GetResourceVersion() {
		a.changed++
	}
	a.inventory[it.ref] = record{Digest: it.object.GetAnnotations()[digestAnnotation], Fingerprint: fingerprint(result)}
	return nil
}

// removed deletes an object and waits until it is gone.
func (c *cluster) removed(ctx context.Context, it item) error {
	for {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(it.object.GroupVersionKind())
		there, err := c.get(ctx, o, it.ref.Namespace, it.ref.Name)
		if err != nil || !there {
			return err
		}
		if err := c.remove(ctx, o); err != nil {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// pause waits for pollInterval. It returns the cause if ctx ends before.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pollInterval):
		return nil
	}
}
