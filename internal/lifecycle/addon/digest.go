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
	// digestAnnotation has the digest of the object as it was applied. If the digest of the object to
	// apply is the same, and nobody has changed the object since, Apply does not write it.
	digestAnnotation = "lifecycle.orrery.dev/digest"
	// groupLabel is the label of all applied objects with the name of their group.
	groupLabel = "lifecycle.orrery.dev/group"
	// managedByLabel has the value managedBy on all applied objects.
	managedByLabel, managedBy = "app.kubernetes.io/managed-by", "orrery"
)

// digestOf returns the digest of a JSON value, as 32 hexadecimal digits. It panics if value cannot
// be encoded.
func digestOf(value any) string {
	content, err := json.Marshal(value)
	if err != nil { // cannot happen: value is made of JSON values
		panic(fmt.Sprintf("marshal %T: %v", value, err))
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}

// digestOfBytes returns the SHA-256 digest of content, with the prefix "sha256:".
func digestOfBytes(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// setDigest sets the annotation with the digest of an object.
func setDigest(o *unstructured.Unstructured, digest string) {
	annotations := maps.Clone(o.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[digestAnnotation] = digest
	o.SetAnnotations(annotations)
}

// labelled returns a copy of an object with the labels of Orrery and of the group, and with its
// digest. A digest that the object has already stays.
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

// fingerprint returns a text that changes with each change of an object's spec, and when the object
// is created again. It uses the generation if the object has one, because the resource version also
// changes with the status.
func fingerprint(o metav1.Object) string {
	if o.GetGeneration() > 0 {
		return fmt.Sprintf("%s/g%d", o.GetUID(), o.GetGeneration())
	}
	return fmt.Sprintf("%s/%s", o.GetUID(), o.GetResourceVersion())
}
