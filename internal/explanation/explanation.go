// Package explanation explains why an object of the hub is placed in its clusters, what its
// state there is, and where it would be placed. It reports what the controllers know already,
// and writes nothing. It collects facts; pure functions draw the conclusions.
//
// The caller needs the right to get the object, or to create policies to review one. A caller
// with rights in one namespace sees the clusters that the namespace may use, as in a search. An
// answer does not depend on whether another cluster is in the fleet, unless the cluster has the
// object: such clusters are counted and not named.
package explanation

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/store"
)

// Options are the components that provide facts. All of them are required.
type Options struct {
	Placement *placement.Controller
	Applier   *apply.Applier
	Bindings  *binding.Cache
	Fleet     *fleet.Cache
	Registry  *member.Registry
	Mirror    *mirror.Mirror
	Store     *store.Store
	Records   records.Reader
	// Hub is a client that reads from the hub and not from a cache, with the rights of an
	// administrator.
	Hub    client.Client
	Mapper meta.RESTMapper
}

// Explainer answers questions about placements.
type Explainer struct{ know Options }

// New returns an Explainer.
func New(o Options) *Explainer { return &Explainer{o} }

// Authorize returns nil if the caller may do what on the hub, and else the error for the caller.
type Authorize func(ctx context.Context, what authorizationv1.ResourceAttributes) error

// allows reports whether the caller may do what.
func (may Authorize) allows(ctx context.Context, what authorizationv1.ResourceAttributes) (bool, error) {
	err := may(ctx, what)
	if apierrors.IsForbidden(err) {
		return false, nil
	}
	return err == nil, err
}

// subject is the object of the hub that a question is about.
type subject struct {
	object   *unstructured.Unstructured
	resource schema.GroupVersionResource
	binding  *workv1alpha2.ResourceBinding // nil if the object has no binding
	// gone is true if the hub does not have the object any more; object then has what the
	// binding records.
	gone bool
	visibility
}

// reference is the value of the parameter of.
type reference struct {
	kind            schema.GroupKind
	namespace, name string
}

// parse parses KIND[.GROUP]/NAMESPACE/NAME, or KIND[.GROUP]/NAME.
func parse(of string) (reference, error) {
	parts := strings.Split(of, "/")
	if len(parts) < 2 || len(parts) > 3 {
		return reference{}, fmt.Errorf("%q is not KIND[.GROUP]/NAMESPACE/NAME, or KIND[.GROUP]/NAME of what is in no namespace, such as Deployment.apps/shop/web", of)
	}
	if slices.Contains(parts, "") {
		return reference{}, fmt.Errorf("%q has an empty part: write KIND[.GROUP]/NAMESPACE/NAME, such as Deployment.apps/shop/web", of)
	}
	r := reference{kind: schema.ParseGroupKind(parts[0]), name: parts[len(parts)-1]}
	if len(parts) == 3 {
		r.namespace = parts[1]
	}
	return r, nil
}

// subject returns the object that of names, if the caller may get it. field is the name of the
// parameter, for errors.
func (e *Explainer) subject(ctx context.Context, may Authorize, field, of string) (*subject, error) {
	r, err := parse(of)
	if err != nil {
		return nil, apierrors.NewBadRequest(field + ": " + err.Error())
	}
	mapping, err := e.mapping(r.kind)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s: the hub serves no kind %s: %v", field, r.kind, err))
	}
	namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace
	if namespaced != (r.namespace != "") {
		form := mapping.GroupVersionKind.GroupKind().String() + "/NAME"
		if namespaced {
			form = mapping.GroupVersionKind.GroupKind().String() + "/NAMESPACE/NAME"
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s: %q: write %s", field, of, form))
	}
	what := authorizationv1.ResourceAttributes{
		Verb: "get", Group: mapping.Resource.Group, Version: mapping.Resource.Version, Resource: mapping.Resource.Resource, Namespace: r.namespace, Name: r.name,
	}
	if err := may(ctx, what); err != nil {
		return nil, err
	}
	s := &subject{resource: mapping.Resource}
	k := binding.Template{GroupKind: mapping.GroupVersionKind.GroupKind(), Namespace: r.namespace, Name: r.name}
	s.binding, _ = e.know.Bindings.Of(k)
	o, state := e.know.Placement.Template(k, s.binding)
	if state != presence.Present {
		o = &unstructured.Unstructured{}
		o.SetGroupVersionKind(mapping.GroupVersionKind)
		err := e.know.Hub.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: r.name}, o)
		switch {
		case apierrors.IsNotFound(err) && s.binding != nil:
			s.gone, o = true, bound(s.binding)
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", k, err)
		}
	}
	s.object = o
	what.Namespace, what.Name = "", ""
	s.visibility, err = e.visible(ctx, may, what, r.namespace)
	return s, err
}

// bound returns the object of a binding, with the fields that the binding records.
func bound(b *workv1alpha2.ResourceBinding) *unstructured.Unstructured {
	of, o := b.Spec.Resource, &unstructured.Unstructured{}
	o.SetAPIVersion(of.APIVersion)
	o.SetKind(of.Kind)
	o.SetNamespace(b.Namespace)
	o.SetName(of.Name)
	o.SetUID(of.UID)
	o.SetGeneration(of.Generation)
	return o
}

// mapping returns the mapping of a kind. The kind may also be the name of its resource.
func (e *Explainer) mapping(kind schema.GroupKind) (*meta.RESTMapping, error) {
	mapping, err := e.know.Mapper.RESTMapping(kind)
	if err == nil || !meta.IsNoMatchError(err) {
		return mapping, err
	}
	gvk, other := e.know.Mapper.KindFor(schema.GroupVersionResource{Group: kind.Group, Resource: strings.ToLower(kind.Kind)})
	if other != nil {
		return nil, err
	}
	return e.know.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
}

// visible returns which clusters a caller sees, for objects of a namespace. The caller sees all
// clusters if it may list clusters or may do everywhere in all namespaces, else those that the
// namespace may use. It also returns in which clusters the caller sees the objects: in all if it
// may do everywhere in all namespaces, else in those that the namespace may use. If everywhere
// has no resource, its right is not checked.
func (e *Explainer) visible(ctx context.Context, may Authorize, everywhere authorizationv1.ResourceAttributes, namespace string) (visibility, error) {
	all := func(string) bool { return true }
	if everywhere.Resource != "" {
		if allowed, err := may.allows(ctx, everywhere); allowed || err != nil {
			return visibility{everything: true, sees: all, reads: all}, err
		}
	}
	if !e.know.Fleet.Synced() {
		return visibility{}, apierrors.NewServiceUnavailable("which clusters the hub's namespaces may use is not known yet: ask again in a moment")
	}
	snapshot := e.know.Fleet.Snapshot()
	reads := func(cluster string) bool {
		_, known := snapshot.Cluster(cluster)
		return known && namespace != "" && snapshot.Allowed(namespace, cluster)
	}
	listed, err := may.listsClusters(ctx)
	if listed {
		return visibility{everything: true, sees: all, reads: reads}, err
	}
	return visibility{fenced: namespace != "", sees: reads, reads: reads}, err
}

// listsClusters reports whether the caller may list the clusters, and so sees all of them.
func (may Authorize) listsClusters(ctx context.Context) (bool, error) {
	return may.allows(ctx, authorizationv1.ResourceAttributes{
		Verb: "list", Group: clusterv1alpha1.GroupVersion.Group, Version: clusterv1alpha1.GroupVersion.Version, Resource: "clusters",
	})
}

func explained(o *unstructured.Unstructured) fleetv1alpha1.ExplainedObject {
	return fleetv1alpha1.ExplainedObject{
		APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), Generation: o.GetGeneration(),
	}
}
