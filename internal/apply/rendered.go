package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/render"
)

// Rendered is what a binding wants a cluster to have now.
type Rendered struct {
	// Manifest is nil if there is none, and Message then says why. Manifest is read-only.
	Manifest *unstructured.Unstructured
	Message  string
	// Overrides are the override policies that change the manifest, in the order in which they are
	// applied.
	Overrides []*render.Override
}

// Rendered returns the manifest that a binding wants a cluster to have now, for explanations. It
// has the replicas that stay while they move. What the applier would refuse is refused with the
// same message. Rendered sends no request to the cluster and changes nothing.
func (a *Applier) Rendered(ctx context.Context, b *workv1alpha2.ResourceBinding, cluster string) Rendered {
	_, placed := binding.Target(b, cluster)
	m, joined := a.registry.Member(cluster)
	r := a.revision(b)
	switch {
	case !b.DeletionTimestamp.IsZero():
		return Rendered{Message: "it is to be nowhere any more"}
	case !placed:
		return Rendered{Message: "it is not placed there any more"}
	case !joined:
		return Rendered{Message: "the cluster is not joined"}
	case r.State != presence.Present:
		return Rendered{Message: "the hub does not know the object at present"}
	}
	s := a.snapshot(ctx, r, m)
	s.Preview = true
	// Without the missing policies the manifest would be another one, which is not to be applied.
	if len(r.Missing) > 0 {
		_, message := s.suspended()
		return Rendered{Message: message}
	}
	a.release(s, false)
	w := Want(s, a.renders, a.standard)
	return Rendered{
		Manifest: w.Manifest, Message: w.Message,
		Overrides: slices.DeleteFunc(slices.Clone(r.Overrides), func(v *render.Override) bool { return !v.Concerns(s.Cluster) }),
	}
}

// Selecting returns the override policies that select a template, and those that the binding needs
// by name, in the order in which they are applied. missing names needed policies that do not exist:
// without them nothing of the binding is written. A nil binding needs none.
func (a *Applier) Selecting(o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) (selecting []*render.Override, missing []types.NamespacedName) {
	var needed []types.NamespacedName
	if b != nil {
		needed = binding.NeededOverrides(b)
	}
	return a.overrides.of(o, needed)
}

// Waiting returns the clusters, in no order, whose copies of a binding keep replicas until replicas
// elsewhere are available, without an eviction task that says so.
func (a *Applier) Waiting(binding types.UID) []string { return a.results.waiting(binding) }

// Drift returns the fields of a manifest that have other values in a copy (live), sorted by path;
// nil: there is no drift. In each, Before is the value in the manifest and After that in the copy;
// a nil After means that the copy lacks the field. Fields that only the copy has, and those that it
// may keep despite the manifest, are no drift.
func Drift(manifest, live *unstructured.Unstructured) []fleetv1alpha1.FieldDifference {
	var drift []fleetv1alpha1.FieldDifference
	// The digest annotation is a mark, and differs whenever another manifest was applied last.
	digest := join("metadata.annotations", workv1alpha2.DigestAnnotation)
	compareFields("", retained(manifest, live).Object, live.Object, func(path string, wanted, is any) {
		if path != digest {
			drift = append(drift, fleetv1alpha1.FieldDifference{Path: path, Before: encoded(wanted), After: encoded(is)})
		}
	})
	slices.SortFunc(drift, func(a, b fleetv1alpha1.FieldDifference) int { return strings.Compare(a.Path, b.Path) })
	return drift
}

// encoded returns a value of an object as JSON; nil for nil.
func encoded(value any) json.RawMessage {
	if value == nil {
		return nil
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return json.RawMessage(fmt.Sprintf("%q", err.Error())) // not reached: the value was JSON
	}
	return raw
}
