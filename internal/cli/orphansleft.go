package cli

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/mark"
)

// copied is an object in a member with a mark of a hub.
type copied struct {
	metav1.PartialObjectMetadata

	resource schema.GroupVersionResource
	kind     string
}

// marked returns options that select objects with the mark of a placement, and objects with the
// mark that an unjoin leaves.
func marked() []metav1.ListOptions {
	return []metav1.ListOptions{
		{LabelSelector: workv1alpha2.BindingLabel},
		{LabelSelector: "!" + workv1alpha2.BindingLabel, FieldSelector: "metadata.annotations['" + workv1alpha2.OrphanAnnotation + "']"},
	}
}

// measures reports whether the types of an API group are measurements, which cannot be placed.
func measures(group string) bool {
	return group == "metrics.k8s.io" || strings.HasSuffix(group, ".metrics.k8s.io")
}

// listCopies lists the objects of a type in all clusters, page by page. With an error it returns
// the pages that it has read.
func listCopies(
	ctx context.Context, fleet metadata.Interface, resource schema.GroupVersionResource, kind string, options metav1.ListOptions,
) (copies []copied, err error) {
	options.Limit = 500
	for {
		page, err := fleet.Resource(resource).List(ctx, options)
		if err != nil {
			return copies, fmt.Errorf("list %s: %w", resource.GroupResource(), err)
		}
		for _, item := range page.Items {
			copies = append(copies, copied{item, resource, kind})
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return copies, nil
		}
	}
}

func (o *copied) template() binding.Template {
	return binding.Template{GroupKind: schema.GroupKind{Group: o.resource.Group, Kind: o.kind}, Namespace: o.Namespace, Name: o.Name}
}

// leftAtUnjoin reports whether an object is a copy that this hub created, and that stayed in a
// cluster when it was unjoined and has joined again. It is false if the template has a binding:
// the hub takes the copy over as soon as the binding names the cluster. It is also false for an
// object that was in the cluster before the hub, for one that was left on purpose in a cluster
// that stayed, for a namespace that the hub created for its copies, and for an object that a
// controller created from a copy, with its annotations.
func (p *placedOnHub) leftAtUnjoin(cluster string, o *copied) bool {
	if metav1.GetControllerOf(o) != nil || p.templates[o.template()] || p.clusters[cluster] == "" {
		return false
	}
	left, ok := mark.ParseOrphan(o.Annotations[workv1alpha2.OrphanAnnotation])
	if !ok || left.Hub != p.hub || left.Template == "" || left.Origin != "" {
		return false
	}
	source, err := p.key.Verify(left.Source)
	return err == nil && source.Cluster != ""
}

// hasTemplate reports whether the hub has an object of the kind, namespace and name of a copy. A
// policy could place such an object at any time.
func hasTemplate(ctx context.Context, hub metadata.Interface, mapper meta.RESTMapper, o *copied) (bool, error) {
	of := o.template()
	mapping, err := mapper.RESTMapping(of.GroupKind)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	if err == nil {
		_, err = hub.Resource(mapping.Resource).Namespace(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask the hub for %s: %w", of, err)
	}
	return true, nil
}

// stays returns why an orphan is not deleted; empty if it may be deleted.
func (o *orphan) stays() string {
	switch resource := (schema.GroupResource{Group: o.Group, Resource: o.Resource}); {
	case o.before:
		return "it was in the cluster before the hub placed it"
	case resource == schema.GroupResource{Resource: "namespaces"}, resource == schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}:
		return fmt.Sprintf("everything in it would go, too; if none of that is needed, run kubectl --context %s delete %s %s", o.Cluster, resource, o.Name)
	default:
		return ""
	}
}
