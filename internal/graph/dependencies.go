package graph

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Reference names an object that another needs.
type Reference struct {
	Kind            schema.GroupKind
	Namespace, Name string
}

var (
	// following are the relations to what an object cannot do its job without, wherever it is.
	following = []Relation{Mount, Env, Pull, Account, TLS, Route}
	// followers are the kinds of which an object in another cluster may be a copy: a node, a volume or a class is the cluster's own.
	followers = []schema.GroupKind{configMapKind, secretKind, serviceAccountKind, claimKind, serviceKind}
)

// Dependencies are what an object needs beside it in the same namespace of the same cluster to do its job: the ConfigMaps, Secrets, claims and the ServiceAccount of
// its pods, the Service of a StatefulSet, the Services and certificates of an Ingress, Gateway or route, and the Secrets of a ServiceAccount. They are in the order
// in which the object names them, each once. What they need in turn is theirs to say. An object without a namespace, and one of a kind that refers to nothing
// that is known here, has none; nor is anything in another namespace one.
func Dependencies(o *unstructured.Unstructured) (out []Reference) {
	gr := resourceOf(o.GroupVersionKind())
	if o.GetNamespace() == "" || !Refers(gr) {
		return nil
	}
	body, err := o.MarshalJSON()
	if err != nil {
		return nil // no API server has such an object
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

// resourceOf is the resource of a kind, as Kubernetes and its Gateway API name theirs.
func resourceOf(gvk schema.GroupVersionKind) schema.GroupResource {
	if t, ok := TypeOf(gvk.GroupKind()); ok {
		return schema.GroupResource{Group: gvk.Group, Resource: t.Resource}
	}
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	return plural.GroupResource()
}
