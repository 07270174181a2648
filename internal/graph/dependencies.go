package graph

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Reference names an object that another object needs.
type Reference struct {
	Kind            schema.GroupKind
	Namespace, Name string
}

var (
	// following are the relations to objects without which an object does not work, in any cluster.
	following = []Relation{Mount, Env, Pull, Account, TLS, Route}
	// followers are the kinds that can be copied to another cluster. Nodes, volumes and
	// classes belong to their cluster.
	followers = []schema.GroupKind{configMapKind, secretKind, serviceAccountKind, claimKind, serviceKind}
)

// Dependencies returns the objects that an object needs beside it, in the same namespace of the
// same cluster. These are the ConfigMaps, Secrets, claims and the ServiceAccount of its pods, the
// Service of a StatefulSet, the Services and certificates of an Ingress, Gateway or route, and the
// Secrets of a ServiceAccount. They are in the order in which the object names them, each once,
// without their own dependencies. Objects in other namespaces are left out. A cluster-scoped
// object, or one of a kind without known references, has none.
func Dependencies(o *unstructured.Unstructured) (out []Reference) {
	gr := resourceOf(o.GroupVersionKind())
	if o.GetNamespace() == "" || !Refers(gr) {
		return nil
	}
	body, err := o.MarshalJSON()
	if err != nil {
		return nil // no API server serves such an object
	}
	for _, l := range Referring(gr, body) {
		r := Reference{Kind: l.Kind, Namespace: o.GetNamespace(), Name: l.Name}
		if l.Inverse || l.Selector != nil || l.Namespace != "" && l.Namespace != r.Namespace ||
			!slices.Contains(following, l.Relation) || !slices.Contains(followers, l.Kind) || slices.Contains(out, r) {
			continue
		}
		out = append(out, r)
	}
	return out
}

// resourceOf returns the resource of a kind, by the naming rules of Kubernetes and the Gateway API.
func resourceOf(gvk schema.GroupVersionKind) schema.GroupResource {
	if t, ok := TypeOf(gvk.GroupKind()); ok {
		return schema.GroupResource{Group: gvk.Group, Resource: t.Resource}
	}
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	return plural.GroupResource()
}
