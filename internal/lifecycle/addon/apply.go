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

// pollInterval is the interval between two reads of an object while this package waits for a change
// of it.
const pollInterval = 200 * time.Millisecond

// Apply applies the objects of a group, and returns how many of them it changed, also with an
// error. It does not write an object that is unchanged since the last Apply. It takes over fields
// that other managers set, and replaces a Job whose change is refused.
//
// It waits until new custom resource definitions are served, but not for workloads, for which there
// is Ready. While the API server is unavailable, Apply retries until ctx ends.
func Apply(ctx context.Context, cfg *rest.Config, g Group) (changed int, err error) {
	c, err := connect(cfg)
	if err != nil {
		return 0, err
	}
	s, err := c.inspect(ctx, []Group{g})
	if err != nil {
		return 0, fmt.Errorf("read the objects in the cluster: %w", err)
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

// waves splits objects into four lists, which are applied one after another: namespaces, custom
// resource definitions, all other objects, and webhooks with API services. The last ones block
// requests until their pods run. In a list the objects keep their order. A list may be empty.
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

// application is the state of one call of Apply. state is how the cluster was before. inventory has
// the objects that were applied for the group so far. changed counts the objects that this call has
// changed.
type application struct {
	cluster   *cluster
	group     Group
	state     *state
	inventory inventory
	changed   int
}

// item is an object as it is applied, with the labels and the digest of Orrery, and its identity.
type item struct {
	ref    ref
	object *unstructured.Unstructured
}

// apply applies the objects of one wave. Before it creates objects that the inventory lacks, it
// saves the inventory with them. So no object in the cluster is ever missing in the inventory.
//
// It adds the digests of applied objects to a.inventory, which the caller saves. It waits until
// custom resource definitions of the wave are served.
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

// write applies one object, adds it to a.inventory, and adds 1 to a.changed if that changed the
// object in the cluster. A Job whose change is refused is deleted first.
func (a *application) write(ctx context.Context, it item) error {
	result, err := a.cluster.apply(ctx, it.object, false)
	if apierrors.IsInvalid(err) && it.ref.groupKind() == kindJob {
		// Most fields of a Job cannot be changed, so the Job is replaced.
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

// removed deletes an object and waits until it is gone or ctx ends. An object that does not exist
// is no error.
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

// pause waits for pollInterval. If ctx ends before that, it returns the cause of ctx.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pollInterval):
		return nil
	}
}
