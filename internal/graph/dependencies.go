package graph

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Reference names an object that another object needs, as Dependencies returns it.
type Reference struct {
	Kind            schema.GroupKind
	Namespace, Name string
}

var (
	// following are the relations that Dependencies follows. They lead to objects without which the
	// object does not work, in any cluster.
	following = []Relation{Mount, Env, Pull, Account, TLS, Route}
	// dependencyKinds are the kinds of dependencies: kinds whose objects can be copied to another
	// cluster. Nodes, volumes and classes are missing, because they belong to their cluster.
	dependencyKinds = []schema.GroupKind{configMapKind, secretKind, serviceAccountKind, claimKind, serviceKind}
)

// Dependencies returns the objects that an object needs to work, and that therefore are copied to
// member clusters with it. They are in the namespace of the object.
//
// Pods need their ConfigMaps, Secrets, PersistentVolumeClaims and ServiceAccount, and so do objects
// with a pod template. A StatefulSet needs its Service. An Ingress, Gateway or route needs Services
// and certificates. A ServiceAccount needs its Secrets.
//
// They are in the order in which the object names them, each once, without their own dependencies.
// Objects in other namespaces are left out. The result is nil for a cluster-scoped object, and for
// a kind without known references.
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
			!slices.Contains(following, l.Relation) || !slices.Contains(dependencyKinds, l.Kind) || slices.Contains(out, r) {
			continue
		}
		out = append(out, r)
	}
	return out
}

// resourceOf returns the resource of a kind: from the known types, or else by the naming rules of
// Kubernetes (lower case, plural), which also hold for the Gateway API.
func resourceOf(gvk schema.GroupVersionKind) schema.GroupResource {
	if t, ok := TypeOf(gvk.GroupKind()); ok {
		return schema.GroupResource{Group: gvk.Group, Resource: t.Resource}
	}
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	return plural.GroupResource()
}
