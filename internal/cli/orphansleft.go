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

// copied is an object in a member that has the marks of a copy, as the fleet lists it: its metadata
// and its type.
type copied struct {
	metav1.PartialObjectMetadata

	resource schema.GroupVersionResource
	kind     string
}

// marked returns the options of two lists that find all copies. The first selects objects with the
// label of a binding. The second selects objects without that label that have the annotation of a
// copy which was left at an unjoin.
func marked() []metav1.ListOptions {
	return []metav1.ListOptions{
		{LabelSelector: workv1alpha2.BindingLabel},
		{LabelSelector: "!" + workv1alpha2.BindingLabel, FieldSelector: "metadata.annotations['" + workv1alpha2.OrphanAnnotation + "']"},
	}
}

// measures reports whether the types of an API group are measurements, such as metrics.k8s.io,
// which cannot be placed.
func measures(group string) bool {
	return group == "metrics.k8s.io" || strings.HasSuffix(group, ".metrics.k8s.io")
}

// listCopies lists the objects of one type in all clusters of the fleet that options select, page
// by page. After an error it returns the objects of the pages before.
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

// template returns the template on the hub that the copy would have.
func (o *copied) template() binding.Template {
	return binding.Template{GroupKind: schema.GroupKind{Group: o.resource.Group, Kind: o.kind}, Namespace: o.Namespace, Name: o.Name}
}

// leftAtUnjoin reports whether o is a copy of this hub that stayed in a cluster when it was
// unjoined, and the cluster has joined again. If the hub has no template for it either, which the
// caller checks, it is an orphan.
//
// The result is false if the template has a binding, because the hub then takes over the copy when
// the binding names the cluster. It is also false for four sorts of objects: those that existed
// before the hub placed them, those that were left on purpose in a cluster that stayed, namespaces
// that the hub created for its copies, and objects that a controller created from a copy.
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

// hasTemplate requests whether the hub has an object of the kind, namespace and name of a copy. A
// policy could place that object at any time, so the copy is no orphan. It is false without an
// error if the hub does not serve the kind.
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

// stays returns the reason, for the user, why --remove does not delete the orphan; "" if it may be
// deleted.
func (o *orphan) stays() string {
	switch resource := (schema.GroupResource{Group: o.Group, Resource: o.Resource}); {
	case o.before:
		return "it was in the cluster before the hub placed it; if it is not needed, delete it in the cluster"
	case resource == schema.GroupResource{Resource: "namespaces"}, resource == schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}:
		return fmt.Sprintf("everything in it would go, too; if none of that is needed, run kubectl --context %s delete %s %s", o.Cluster, resource, o.Name)
	default:
		return ""
	}
}
