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
	// Manifest is nil if there is none, and Message then says why. Manifest is read-only.
	Manifest *unstructured.Unstructured
	Message  string
	// Overrides are the override policies that change the manifest, in the order in which they are
	// applied.
	Overrides []*render.Override
}

// Rendered renders what a binding wants a cluster to have now, as it is applied. It sends no
// request and changes nothing.
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
	// Without them the manifest would be another one, which is not to be applied.
	if len(missing) > 0 {
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

// Selecting returns the override policies that select a template, in the order in which they
// are applied. missing are those without which nothing of the binding is written. A nil binding
// needs none.
func (a *Applier) Selecting(o *unstructured.Unstructured, b *workv1alpha2.ResourceBinding) (selecting []*render.Override, missing []types.NamespacedName) {
	var needed []types.NamespacedName
	if b != nil {
		needed = binding.NeededOverrides(b)
	}
	return a.overrides.of(o, needed)
}

// Waiting returns the clusters whose copies of a binding stay as they are until others are
// available, without an eviction task.
func (a *Applier) Waiting(binding types.UID) []string { return a.results.waiting(binding) }

// Drift returns the fields of a manifest that have other values in a copy: Before is rendered,
// After is the copy's. Fields that only the copy has, and those that it may keep despite the
// manifest, are no drift.
func Drift(manifest, live *unstructured.Unstructured) []fleetv1alpha1.FieldDifference {
	var drift []fleetv1alpha1.FieldDifference
	// The annotation is a mark of the manifest that was applied last.
	digest := join("metadata.annotations", workv1alpha2.DigestAnnotation)
	compareFields("", retained(manifest, live).Object, live.Object, func(path string, wanted, is any) {
		if path != digest {
			drift = append(drift, fleetv1alpha1.FieldDifference{Path: path, Before: encoded(wanted), After: encoded(is)})
		}
	})
	slices.SortFunc(drift, func(a, b fleetv1alpha1.FieldDifference) int { return strings.Compare(a.Path, b.Path) })
	return drift
}

// encoded returns a value of an object as JSON; nil if there is none.
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
