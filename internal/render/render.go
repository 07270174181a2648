// Package render says what a cluster should have: template, placement and overrides in,
// manifest out. It is pure, so applying, previewing and explaining are the same function
// called by different people, and nobody needs to store its result.
package render

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/interpreter"
)

// Input is everything that a manifest depends on. None of it is changed.
type Input struct {
	// Template is the object on the hub.
	Template *unstructured.Unstructured
	// Cluster is where the manifest goes.
	Cluster *clusterv1alpha1.Cluster
	// Target is the cluster's share of the placement.
	Target workv1alpha2.TargetCluster
	// Divided: the manifest asks for the replicas of Target, not for the template's. Shares are
	// those of all clusters of the placement then.
	Divided bool
	Shares  []workv1alpha2.TargetCluster
	// Binding is the UID of the binding that places the template.
	Binding types.UID
	// Overrides are those that select the template, in order; see Overrides.Of.
	Overrides []*Override
	// Completions of a Job that fell to the cluster as it began; nil: those of its share.
	Completions *int64
}

// Render makes the manifest of a template in one cluster, and its digest: two manifests
// with the same digest are the same. It takes the template, drops what belongs to the
// hub, sets the replicas, applies the overrides and adds the marks. An error names the
// override that does not fit the template.
func Render(in Input) (manifest *unstructured.Unstructured, digest string, err error) {
	manifest, digest, _, err = render(in)
	return manifest, digest, err
}

// render is Render, and says how many bytes the manifest has as JSON.
func render(in Input) (manifest *unstructured.Unstructured, digest string, size int, err error) {
	o, err := strip(in.Template)
	if err != nil {
		return nil, "", 0, err
	}
	if err := in.divide(o); err != nil {
		return nil, "", 0, err
	}
	for _, v := range in.Overrides {
		if o, err = override(o, v, in.Cluster); err != nil {
			return nil, "", 0, err
		}
	}
	if err := bounded(o); err != nil {
		return nil, "", 0, err
	}
	digest, size, err = mark(o, in.Binding)
	if err != nil {
		return nil, "", 0, err
	}
	return o, digest, size, nil
}

// divide has a manifest ask for the target's share.
func (in *Input) divide(o *unstructured.Unstructured) error {
	if !in.Divided || in.Target.Replicas == nil {
		return nil
	}
	completions, err := in.completions(o)
	if err != nil {
		return err
	}
	if err := interpreter.SetReplicas(o, *in.Target.Replicas); err != nil || completions == nil {
		return err
	}
	return interpreter.SetCompletions(o, *completions)
}

// completions are what falls to the cluster of the completions of a Job: what fell to it as it began, whatever the shares are by now.
// nil: there are none to share out.
func (in *Input) completions(o *unstructured.Unstructured) (*int64, error) {
	share, err := interpreter.Completions(o, in.Shares, in.Target.Name)
	if err == nil && share != nil && in.Completions != nil {
		return in.Completions, nil
	}
	return share, err
}

// mark puts our marks on a manifest and returns its digest, which covers all of it but
// the annotation that holds it, and replicas that are the cluster's own, and how many bytes it covers.
func mark(o *unstructured.Unstructured, binding types.UID) (digest string, size int, err error) {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels[workv1alpha2.BindingLabel] = string(binding)
	o.SetLabels(labels)

	digested := o.Object
	if interpreter.KeepsReplicas(o) {
		digested = WithoutReplicas(o).Object
	}
	canonical, err := json.Marshal(digested) // sorts keys
	if err != nil {
		return "", 0, fmt.Errorf("encode %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	sum := sha256.Sum256(canonical)
	digest = strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:digestLength]

	annotations[workv1alpha2.DigestAnnotation] = digest
	o.SetAnnotations(annotations)
	return digest, len(canonical), nil
}

// digestLength in characters of five bits: 100 bits, which nobody finds a collision of by
// accident.
const digestLength = 20

// WithoutReplicas returns a manifest without its number of replicas. It shares the rest with it.
func WithoutReplicas(o *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: maps.Clone(o.Object)}
	path := interpreter.ReplicasField(o)
	parent := out.Object
	for i, name := range path {
		if i == len(path)-1 {
			delete(parent, name)
			break
		}
		child, ok := parent[name].(map[string]any)
		if !ok {
			break
		}
		child = maps.Clone(child)
		parent[name], parent = child, child
	}
	return out
}

// identity is what an override must leave as it is.
func identity(o *unstructured.Unstructured) [4]string {
	return [4]string{o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName()}
}

// copyOf returns a copy that may be changed.
func copyOf(o *unstructured.Unstructured) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o.Object)}
}
