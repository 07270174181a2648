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
	// digestAnnotation has the digest of the applied object. If it equals that of the new object, and
	// the object was not changed since, Apply does nothing.
	digestAnnotation = "lifecycle.orrery.dev/digest"
	// groupLabel names the group of an object.
	groupLabel = "lifecycle.orrery.dev/group"
	// managedByLabel has the value managedBy on all applied objects.
	managedByLabel, managedBy = "app.kubernetes.io/managed-by", "orrery"
)

// digestOf returns the digest of plain data. JSON sorts the keys of maps.
func digestOf(value any) string {
	content, err := json.Marshal(value)
	if err != nil { // it came from JSON
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

func setDigest(o *unstructured.Unstructured, digest string) {
	annotations := maps.Clone(o.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[digestAnnotation] = digest
	o.SetAnnotations(annotations)
}

// labelled returns a copy of an object with the labels of Orrery and the group, and its digest.
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

// fingerprint changes with each change of an object's spec. It uses the generation if there is one,
// because the resource version also changes with the status.
func fingerprint(o metav1.Object) string {
	if o.GetGeneration() > 0 {
		return fmt.Sprintf("%s/g%d", o.GetUID(), o.GetGeneration())
	}
	return fmt.Sprintf("%s/%s", o.GetUID(), o.GetResourceVersion())
}
