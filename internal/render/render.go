// Package render computes what a cluster should have, from template, placement and overrides.
// It is pure, so that applying, previewing and explaining share one function, and its results
// need not be stored.
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

// Input is everything that the manifest of a template for one cluster depends on. Render does not
// change it.
type Input struct {
	// Template is the object on the hub.
	Template *unstructured.Unstructured
	// Cluster is the cluster that gets the manifest.
	Cluster *clusterv1alpha1.Cluster
	// Target is the entry of the placement for the cluster, with its share of the replicas.
	Target workv1alpha2.TargetCluster
	// Divided is true if the manifest has the replicas of Target instead of those of the template.
	// Shares are then the shares of all clusters of the placement.
	Divided bool
	Shares  []workv1alpha2.TargetCluster
	// Binding is the UID of the binding that places the template.
	Binding types.UID
	// Overrides are the policies that select the template, in order; see Overrides.Of.
	Overrides []*Override
	// Completions is the number with which a Job began in the cluster, which it keeps; nil: the number
	// is computed from Shares.
	Completions *int64
}

// Render returns the manifest of a template for one cluster, and its digest. Manifests with the
// same digest are equal, except for replicas that belong to the cluster. Render copies the
// template, removes what belongs to the hub, sets the replicas, applies the overrides and adds the
// marks. If an override does not fit the template, the error names the override. A manifest above
// 1.5 MiB is an error.
func Render(in Input) (manifest *unstructured.Unstructured, digest string, err error) {
	manifest, digest, _, err = render(in)
	return manifest, digest, err
}

// render does the work of the function Render, and also returns the size of the manifest as JSON,
// in bytes.
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

// divide sets, in place, the replicas and completions of a manifest to the share of the cluster. It
// does nothing if the replicas are not divided.
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

// completions returns the completions of a Job for the cluster: the number with which the Job began
// there, or else its share. It returns nil if there are no completions to divide. It is an error if
// the cluster has no share.
func (in *Input) completions(o *unstructured.Unstructured) (*int64, error) {
	share, err := interpreter.Completions(o, in.Shares, in.Target.Name)
	if err == nil && share != nil && in.Completions != nil {
		return in.Completions, nil
	}
	return share, err
}

// mark adds, in place, the label of the binding and the annotation of the digest to a manifest. The
// digest covers everything except that annotation and replicas that belong to the cluster. size is
// the number of bytes that the digest covers.
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

// digestLength is the number of characters of a digest. Each has five bits, so a digest has 100
// bits and no collision happens by accident.
const digestLength = 20

// WithoutReplicas returns a manifest without its number of replicas. It shares all other values
// with o.
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

// identity returns apiVersion, kind, namespace and name of an object, which no override may change.
func identity(o *unstructured.Unstructured) [4]string {
	return [4]string{o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName()}
}

// copyOf returns a deep copy of an object.
func copyOf(o *unstructured.Unstructured) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o.Object)}
}
