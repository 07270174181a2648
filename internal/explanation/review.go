package explanation

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/placement"
)

// Review answers where an object would be placed by the policy in the review or, with spec.moves,
// what a change would move. It returns the review with its status, and stores nothing. The caller
// needs the right to create such policies; with spec.moves, the right to make the change. The error
// is BadRequest for an invalid spec.
func (e *Explainer) Review(ctx context.Context, may Authorize, review fleetv1alpha1.PlacementReview) (*fleetv1alpha1.PlacementReview, error) {
	spec := &review.Spec
	review.TypeMeta = metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "PlacementReview"}
	if spec.Moves != nil {
		var err error
		review.Status, err = e.moves(ctx, may, spec)
		return &review, err
	}
	resource := "propagationpolicies"
	if spec.Namespace == "" {
		resource = "clusterpropagationpolicies"
	}
	if err := may(ctx, authorizationv1.ResourceAttributes{
		Verb: "create", Group: policyv1alpha1.GroupVersion.Group, Version: policyv1alpha1.GroupVersion.Version, Resource: resource, Namespace: spec.Namespace,
	}); err != nil {
		return nil, err
	}
	o, v, err := e.reviewed(ctx, may, spec)
	if err != nil {
		return nil, err
	}
	p, err := e.tryOut(ctx, spec, o)
	if err != nil {
		return nil, err
	}
	review.Status = answered(e.know.Placement.Review(o, p), v)
	return &review, nil
}

// reviewed returns the object of a review, and which clusters the caller sees. It is the object of
// the hub that spec.of names, the one in spec.object, or else one that imagined returns. The error
// is BadRequest for an invalid spec, and NotFound if the hub does not have the object.
func (e *Explainer) reviewed(ctx context.Context, may Authorize, spec *fleetv1alpha1.PlacementReviewSpec) (o *unstructured.Unstructured, v visibility, err error) {
	switch {
	case spec.Of != "" && len(spec.Object) > 0:
		return nil, v, apierrors.NewBadRequest("spec: at most one of the fields of and object may be set")
	case spec.Replicas != nil && (spec.Of != "" || len(spec.Object) > 0):
		return nil, v, apierrors.NewBadRequest("spec.replicas: leave it out, because the object has its own replicas")
	case spec.Replicas != nil && *spec.Replicas < 0:
		return nil, v, apierrors.NewBadRequest(fmt.Sprintf("spec.replicas: %d is less than 0", *spec.Replicas))
	case spec.Of != "":
		s, err := e.subject(ctx, may, "spec.of", spec.Of)
		if err == nil && s.gone {
			err = apierrors.NewNotFound(s.resource.GroupResource(), s.object.GetName())
		}
		if err != nil {
			return nil, v, err
		}
		if namespace := s.object.GetNamespace(); spec.Namespace != "" && namespace != spec.Namespace {
			return nil, v, apierrors.NewBadRequest(fmt.Sprintf("spec.of: a PropagationPolicy of namespace %s places nothing of %s", spec.Namespace, where(namespace)))
		}
		return s.object, s.visibility, nil
	}
	o = imagined(spec)
	if len(spec.Object) > 0 {
		if err := utiljson.Unmarshal(spec.Object, &o.Object); err != nil || o.GetAPIVersion() == "" || o.GetKind() == "" {
			return nil, v, apierrors.NewBadRequest("spec.object: apiVersion and kind are needed")
		}
		if err := e.settle(o, spec.Namespace); err != nil {
			return nil, v, err
		}
	}
	v, err = e.visible(ctx, may, authorizationv1.ResourceAttributes{}, o.GetNamespace())
	return o, v, err
}

// where names a namespace in an error; "": no namespace.
func where(namespace string) string {
	if namespace == "" {
		return "no namespace"
	}
	return "namespace " + namespace
}

// noName is the name that a reviewed object gets if it has none. It is no valid name, so no object
// of the hub has it.
const noName = "*"

// imagined returns the object of a review that names none. Every cluster accepts it: it is a
// ConfigMap or, if the review has replicas, a Deployment without resource requests.
func imagined(spec *fleetv1alpha1.PlacementReviewSpec) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	if spec.Replicas != nil {
		o.Object = map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "spec": map[string]any{"replicas": int64(*spec.Replicas)}}
	}
	o.SetName(noName)
	o.SetNamespace(spec.Namespace)
	return o
}

// settle completes the object in spec.object, which need not be on the hub. namespace is that of
// the policy, "" for a cluster-wide one. settle sets a missing namespace and a missing name, and
// removes the UID. The error is BadRequest if the hub does not serve the kind, or if such a policy
// cannot select the object.
func (e *Explainer) settle(o *unstructured.Unstructured, namespace string) error {
	mapping, err := e.mapping(o.GroupVersionKind().GroupKind())
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("spec.object: the hub serves no kind %s: %v", o.GroupVersionKind().GroupKind(), err))
	}
	namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace
	switch {
	case !namespaced && namespace != "":
		return apierrors.NewBadRequest("spec.object: a PropagationPolicy places nothing that is in no namespace, such as a " + o.GetKind())
	case !namespaced:
		o.SetNamespace("")
	case o.GetNamespace() == "":
		o.SetNamespace(namespace)
	case namespace != "" && o.GetNamespace() != namespace:
		return apierrors.NewBadRequest(fmt.Sprintf("spec.object: a PropagationPolicy of namespace %s places nothing of namespace %s", namespace, o.GetNamespace()))
	}
	if namespaced && o.GetNamespace() == "" {
		return apierrors.NewBadRequest("spec.object.metadata.namespace: a " + o.GetKind() + " is in one: name it")
	}
	o.SetUID("") // the object counts as not on the hub
	if o.GetName() == "" {
		o.SetName(noName)
	}
	return nil
}

// tryOut returns a policy with the placement of the review and a selector for the kind of the
// object o. The API server of the hub validates and completes the policy by a dry run, which stores
// nothing. The error is that of the API server, such as for an invalid placement.
func (e *Explainer) tryOut(ctx context.Context, spec *fleetv1alpha1.PlacementReviewSpec, o *unstructured.Unstructured) (*policyv1alpha1.PropagationPolicy, error) {
	p := &policyv1alpha1.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: spec.Namespace, GenerateName: "review-"},
		Spec: policyv1alpha1.PropagationSpec{
			Placement:         spec.Placement,
			ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: o.GetAPIVersion(), Kind: o.GetKind()}},
		},
	}
	var sent client.Object = p
	if spec.Namespace == "" {
		sent = (*policyv1alpha1.ClusterPropagationPolicy)(p)
	}
	if err := e.know.Hub.Create(ctx, sent, client.DryRunAll); err != nil {
		return nil, fmt.Errorf("check the placement: %w", err)
	}
	return p, nil
}

// answered returns the status of a review from a decision, as a caller with the visibility v may
// see it. If it was too early to decide, the status is that of early. It is pure.
func answered(d placement.Decision, v visibility) *fleetv1alpha1.PlacementReviewStatus {
	if d.Spec == nil {
		return early()
	}
	r := &d.Record
	status := &fleetv1alpha1.PlacementReviewStatus{
		Time: metav1.NewMicroTime(r.Time), State: fleetv1alpha1.PlacementPlaced, Reason: d.Outcome.Reason, Replicas: d.Spec.Replicas, Divided: r.Divided,
	}
	if v.everything {
		status.Snapshot = r.Snapshot // only then: the number changes with every cluster
	}
	seen := newVisibilityFilter(v, whereabouts(d.Spec))
	if len(d.Spec.Clusters) == 0 {
		status.State = fleetv1alpha1.PlacementNowhere
	}
	all := clusterList{}
	for _, t := range d.Spec.Clusters {
		c := all.of(t.Name)
		c.Placed, c.Replicas, c.Attached = true, t.Replicas, t.Attached
	}
	for _, t := range d.Spec.GracefulEvictionTasks {
		c := all.of(t.FromCluster)
		c.Leaves, c.Leaving = true, t.Replicas
	}
	all.verdicts(r.Verdicts)
	status.Clusters = all.sorted(&seen)
	status.Hidden = len(seen.hidden)
	status.Message = seen.message(d.Outcome.Message)
	return status
}

// whereabouts returns the clusters of a binding: those in which the object is placed, and those
// with an eviction task, from which it moves. A name may occur twice.
func whereabouts(spec *workv1alpha2.BindingSpec) []string {
	var names []string
	for _, t := range spec.Clusters {
		names = append(names, t.Name)
	}
	for _, t := range spec.GracefulEvictionTasks {
		names = append(names, t.FromCluster)
	}
	return names
}

// early returns the status of a review while the hub has not read the clusters since its start: the
// user shall try again.
func early() *fleetv1alpha1.PlacementReviewStatus {
	return &fleetv1alpha1.PlacementReviewStatus{
		State: fleetv1alpha1.PlacementWaiting, Message: "the hub has just started and is still reading the clusters: try again in a few seconds", Time: metav1.NowMicro(),
	}
}
