// Package explanation explains why an object of the hub is placed in its clusters, what its
// state there is, and where it would be placed. It reports what the controllers of the hub already
// know, and writes nothing. It collects facts; pure functions draw the conclusions.
//
// The caller needs the right to get the object. For a review, which says where an object would be
// placed, the caller needs the right to create policies. A caller with rights in one namespace sees
// the clusters that the namespace may use. Clusters that the caller does not see have no influence
// on the answer, unless they have the object: these are counted and not named.
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

// Options are the components of the hub from which an Explainer gets its facts. All of them are
// required.
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

// Explainer answers questions of users about placements: why an object is where it is, its state
// there, and what a change would do. Its methods may be called from several goroutines.
type Explainer struct{ know Options }

// New returns an Explainer.
func New(o Options) *Explainer { return &Explainer{o} }

// Authorize checks a right of the caller on the hub: what has the verb and the object. It returns
// nil if the caller has the right, and Forbidden if not. Any other error means that the right could
// not be checked. The errors are for the caller.
type Authorize func(ctx context.Context, what authorizationv1.ResourceAttributes) error

// allows reports whether the caller has the right what. A missing right is false and no error. The
// error means that the right could not be checked.
func (may Authorize) allows(ctx context.Context, what authorizationv1.ResourceAttributes) (bool, error) {
	err := may(ctx, what)
	if apierrors.IsForbidden(err) {
		return false, nil
	}
	return err == nil, err
}

// subject is the object of the hub that a request is about, with its binding and the visibility of
// the caller. A binding is the object that stores in which clusters the object is placed.
// Explainer.subject makes it.
type subject struct {
	object   *unstructured.Unstructured
	resource schema.GroupVersionResource
	binding  *workv1alpha2.ResourceBinding // nil if the object has no binding
	// gone is true if the hub does not have the object any more. Then the field object has only
	// what the binding records: type, name, UID and generation.
	gone bool
	visibility
}

// reference is the parsed name of an object, from KIND[.GROUP]/NAMESPACE/NAME. namespace is "" if
// the name has none.
type reference struct {
	kind            schema.GroupKind
	namespace, name string
}

// parse parses the name of an object in a request: KIND[.GROUP]/NAMESPACE/NAME, or
// KIND[.GROUP]/NAME. An empty part is an error. The error does not name the parameter.
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

// subject returns an object of the hub, if the caller may get it. The argument of is its name, as
// KIND[.GROUP]/NAMESPACE/NAME. Its binding is nil if there is none. field is the parameter with the
// name, for errors. The error is BadRequest for an invalid name or kind. If the caller may not get
// the object, it is the error of may. It is NotFound if the hub has neither the object nor a
// binding for the object.
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

// bound returns an object that the hub does not have any more, with the fields that its binding
// records: type, name, UID and generation.
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

// mapping returns the REST mapping of a kind on the hub. kind.Kind may also be the name of a
// resource, such as deployments. The error is a NoMatch error if the hub does not serve the kind.
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

// visible returns which clusters a caller sees when asking about objects of a namespace. A caller
// with the right everywhere, in all namespaces, sees all clusters and their objects. If everywhere
// has no resource, that right is not checked.
//
// Any other caller sees objects in the clusters that the namespace may use; none if namespace is
// "". The caller sees the names of all clusters with the right to list clusters, else of those
// clusters. The error is ServiceUnavailable while the hub still reads its fleet.
func (e *Explainer) visible(ctx context.Context, may Authorize, everywhere authorizationv1.ResourceAttributes, namespace string) (visibility, error) {
	all := func(string) bool { return true }
	if everywhere.Resource != "" {
		if allowed, err := may.allows(ctx, everywhere); allowed || err != nil {
			return visibility{everything: true, sees: all, reads: all}, err
		}
	}
	if !e.know.Fleet.Synced() {
		return visibility{}, apierrors.NewServiceUnavailable("the hub has just started and is still reading which clusters a namespace may use: try again in a few seconds")
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

// listsClusters reports whether the caller may list the Clusters of the hub. Such a caller sees the
// names of all clusters. The error means that the right could not be checked.
func (may Authorize) listsClusters(ctx context.Context) (bool, error) {
	return may.allows(ctx, authorizationv1.ResourceAttributes{
		Verb: "list", Group: clusterv1alpha1.GroupVersion.Group, Version: clusterv1alpha1.GroupVersion.Version, Resource: "clusters",
	})
}

// explained returns type, name, UID and generation of an object, as answers have them.
func explained(o *unstructured.Unstructured) fleetv1alpha1.ExplainedObject {
	return fleetv1alpha1.ExplainedObject{
		APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), Generation: o.GetGeneration(),
	}
}
