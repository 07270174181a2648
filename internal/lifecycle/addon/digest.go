package addon

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// digestAnnotation has the digest of what was applied: if it is that of what is to be applied, and nobody has
	// changed the object since, there is nothing to do.
	digestAnnotation = "lifecycle.orrery.dev/digest"
	// groupLabel names the group that an object belongs to.
	groupLabel = "lifecycle.orrery.dev/group"
	// managedByLabel has the value managedBy on all that is applied.
	managedByLabel, managedBy = "app.kubernetes.io/managed-by", "orrery"
)

// digestOf is the digest of a value that is plain data. Keys of maps are in order in JSON.
func digestOf(value any) string {
	content, err := json.Marshal(value)
	if err != nil { // it came from JSON
		panic(fmt.Sprintf("marshal %T: %v", value, err))
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}

// digestOfBytes is the digest of a content.
func digestOfBytes(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func setDigest(o *unstructured.Unstructured, digest string) {
	annotations := maps.Clone(o.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[digestAnnotation] = digest
	o.SetAnnotations(annotations)
}

// labelled is an object as it is applied: labelled as ours and the group's, with its digest.
func labelled(o *unstructured.Unstructured, group string) *unstructured.Unstructured {
	o = o.DeepCopy()
	if o.GetAnnotations()[digestAnnotation] == "" {
		setDigest(o, digestOf(o.Object))
	}
	labels := maps.Clone(o.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[managedByLabel], labels[groupLabel] = managedBy, group
	o.SetLabels(labels)
	return o
}

// fingerprint changes whenever anyone changes what an object is to be like. Where the API server counts such changes
// that number is used, because the resource version changes with the status too.
func fingerprint(o metav1.Object) string {
	if o.GetGeneration() > 0 {
		return fmt.Sprintf("%s/g%d", o.GetUID(), o.GetGeneration())
	}
	return fmt.Sprintf("%s/%s", o.GetUID(), o.GetResourceVersion())
}
