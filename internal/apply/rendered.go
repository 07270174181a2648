package apply

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/render"
)

// Rendered is what a binding wants a cluster to have now.
type Rendered struct {
	// Manifest is nil where there is none, and Message says why. It is read-only.
	Manifest *unstructured.Unstructured
	Message  string
	// Overrides are the override policies that change it, in the order in which they are applied.
	Overrides []*render.Override
}

// Rendered renders what a binding wants a cluster to have now, as it is applied. It calls nobody and changes nothing.
func (a *Applier) Rendered(b *workv1alpha2.ResourceBinding, cluster string) Rendered {
	target, placed := binding.Target(b, cluster)
	m, joined := a.registry.Member(cluster)
	source, state := a.template(b)
	switch {
	case !b.DeletionTimestamp.IsZero():
		return Rendered{Message: "it is to be nowhere any more"}
	case !placed:
		return Rendered{Message: "it is not placed there any more"}
	case !joined:
		return Rendered{Message: "the cluster is not joined"}
	case state != presence.Present:
		return Rendered{Message: "the hub does not know the object at present"}
	}
	selecting, missing := a.overrides.of(source, binding.NeededOverrides(b))
	if len(missing) > 0 { // without them it would be another manifest, which nobody wants there
		_, message := suspended(b, cluster, missing)
		return Rendered{Message: message}
	}
	r := Rendered{Overrides: slices.DeleteFunc(slices.Clone(selecting), func(v *render.Override) bool { return !v.Concerns(m.Cluster()) })}
	if binding.Divided(b) && target.Replicas != nil && !interpreter.KeepsReplicas(source) && !b.Spec.SuspendedOn(cluster) {
		o, _ := a.placedAs(b, cluster)
		a.releasing.Lock()
		n, _ := a.decideReplicas(b, source, cluster, o, *target.Replicas)
		a.releasing.Unlock()
		target.Replicas = &n
	}
	manifest, _, err := a.renders.Render(render.Input{
		Template: source, Cluster: m.Cluster(), Target: target, Divided: binding.Divided(b), Shares: b.Spec.Clusters, Binding: b.UID,
		Overrides: selecting, Completions: a.work(b, source, cluster).Completions,
	}, versionOf(source))
	if err != nil {
		r.Message = err.Error()
		return r
	}
	r.Manifest = manifest
	return r
}

// Selecting are the override policies that select a template, in the order in which they are applied, and those that are missing of the ones without which
// nothing of its binding (nil: there is none) is written.
func (a *Applier) Selecting(o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) (selecting []*render.Override, missing []types.NamespacedName) {
	var needed []types.NamespacedName
	if b != nil {
		needed = binding.NeededOverrides(b)
	}
	return a.overrides.of(o, needed)
}

// Waiting are the clusters whose copies of a binding stay as they are until others are available, though no eviction task says so.
func (a *Applier) Waiting(binding types.UID) []string { return a.results.waiting(binding) }

// Drift are the fields of a manifest that a copy has otherwise: Before is rendered, After is what the copy has. What the copy has beside is its cluster's, and what
// it keeps although the manifest says otherwise is none.
func Drift(manifest, live *unstructured.Unstructured) []fleetv1alpha1.FieldDifference {
	var drift []fleetv1alpha1.FieldDifference
	digest := join("metadata.annotations", workv1alpha2.DigestAnnotation) // a mark of what was applied last
	compareFields("", retained(manifest, live).Object, live.Object, func(path string, wanted, is any) {
		if path != digest {
			drift = append(drift, fleetv1alpha1.FieldDifference{Path: path, Before: encoded(wanted), After: encoded(is)})
		}
	})
	slices.SortFunc(drift, func(a, b fleetv1alpha1.FieldDifference) int { return strings.Compare(a.Path, b.Path) })
	return drift
}

// encoded is a value of an object; nil where there is none.
func encoded(value any) json.RawMessage {
	if value == nil {
		return nil
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return json.RawMessage(fmt.Sprintf("%q", err.Error())) // it was JSON
	}
	return raw
}
