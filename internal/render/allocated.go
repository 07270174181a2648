package render

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Annotations in which an API server returns parts of the status of a HorizontalPodAutoscaler of
// autoscaling/v1, which has no fields for them. They change with every write of the status.
const (
	conditionsAnnotation     = "autoscaling.alpha.kubernetes.io/conditions"
	currentMetricsAnnotation = "autoscaling.alpha.kubernetes.io/current-metrics"
)

// Trim makes an object of the hub a template, in place. It removes what the hub's API server
// allocated, and the status in the annotations of a HorizontalPodAutoscaler. Then it removes the
// managedFields, which alone show what was allocated. The caches of the hub's objects use it as
// their transform.
func Trim(o *unstructured.Unstructured) {
	dropAllocated(o, o)
	if o.GetKind() == "HorizontalPodAutoscaler" && o.GetAPIVersion() == "autoscaling/v1" {
		remove(o, "metadata", "annotations", conditionsAnnotation)
		remove(o, "metadata", "annotations", currentMetricsAnnotation)
	}
	o.SetManagedFields(nil)
}

// dropAllocated removes from a Service the node ports and address families that the hub's API
// server allocated, and keeps those that a client requested. Both look the same in the spec,
// but only requested ones have an owner in managedFields, as the API server allocates after it
// has recorded who set what. Without managedFields everything is kept: a cluster refuses a port
// that collides with a clear message, while the loss of a requested port would go unnoticed.
// The node ports of a Service of type NodePort are kept, so that the Service has the same ports
// in every cluster. witness is the object with the managedFields.
func dropAllocated(o, witness *unstructured.Unstructured) {
	if o.GetKind() != "Service" || o.GetAPIVersion() != "v1" {
		return
	}
	owned := ownedFields(witness)
	if owned == nil {
		return
	}
	spec, _ := o.Object["spec"].(map[string]any)
	for _, name := range []string{"healthCheckNodePort", "ipFamilies", "ipFamilyPolicy"} {
		if !owns(owned, "f:spec", "f:"+name) {
			delete(spec, name)
		}
	}
	if spec["type"] == string(corev1.ServiceTypeNodePort) {
		return
	}
	ports, _ := spec["ports"].([]any)
	for _, p := range ports {
		port, ok := p.(map[string]any)
		if !ok {
			continue
		}
		key, err := json.Marshal(map[string]any{"port": port["port"], "protocol": port["protocol"]})
		if err != nil || !owns(owned, "f:spec", "f:ports", "k:"+string(key), "f:nodePort") {
			delete(port, "nodePort")
		}
	}
}

// ownedFields returns, for each entry of managedFields, the fields that its manager owns; nil if
// there are no managedFields.
func ownedFields(o *unstructured.Unstructured) []map[string]any {
	var owned []map[string]any
	for _, entry := range o.GetManagedFields() {
		var fields map[string]any
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		owned = append(owned, fields)
	}
	return owned
}

// owns reports whether any manager in the result of ownedFields owns the field at a path, such as
// "f:spec", "f:ports".
func owns(owned []map[string]any, path ...string) bool {
	for _, fields := range owned {
		if _, found, err := unstructured.NestedFieldNoCopy(fields, path...); found && err == nil {
			return true
		}
	}
	return false
}
