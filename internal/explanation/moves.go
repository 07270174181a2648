package explanation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/placement"
)

const (
	// movesTime limits the calculation of the moves for one request, and rightsTime the checks
	// of the rights of the caller.
	movesTime, rightsTime = 20 * time.Second, 10 * time.Second
	// mostMoves is the maximum number of moves in an answer.
	mostMoves = 100
)

// moves answers which replicas and objects a change would move that is not made yet.
func (e *Explainer) moves(ctx context.Context, may Authorize, spec *fleetv1alpha1.PlacementReviewSpec) (*fleetv1alpha1.PlacementReviewStatus, error) {
	change := spec.Moves
	if !equality.Semantic.DeepEqual(*spec, fleetv1alpha1.PlacementReviewSpec{Moves: change}) {
		return nil, apierrors.NewBadRequest("spec.moves: with it no other field of the spec may be set")
	}
	var what placement.Supposition
	var err error
	switch {
	case (change.Policy == nil) == (change.Cluster == nil):
		return nil, apierrors.NewBadRequest("spec.moves: exactly one of the fields policy and cluster is to be set")
	case change.Policy != nil:
		what, err = e.supposePolicy(ctx, may, change.Policy)
	default:
		what, err = e.supposeCluster(ctx, may, change.Cluster)
	}
	if err != nil {
		return nil, err
	}
	working, end := context.WithTimeout(ctx, movesTime)
	told := e.know.Placement.Moves(working, what)
	end()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if told.Early || !e.know.Fleet.Synced() {
		return early(), nil
	}
	a := &audience{Explainer: e, may: may, until: time.Now().Add(rightsTime), kinds: map[scope]sights{}}
	moves, err := a.tell(ctx, told)
	if err != nil {
		return nil, err
	}
	status := &fleetv1alpha1.PlacementReviewStatus{Time: metav1.NowMicro(), Moves: moves}
	everything, err := may.listsClusters(ctx)
	if everything {
		status.Snapshot = told.Snapshot // the number reflects changes of all clusters
	}
	return status, err
}

// supposePolicy returns the supposed change of a policy. The API server of the hub checks and
// completes the policy. The caller needs the right to create, edit or delete it.
func (e *Explainer) supposePolicy(ctx context.Context, may Authorize, s *fleetv1alpha1.SupposedPolicy) (placement.Supposition, error) {
	what := placement.Supposition{Policy: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}}
	if s.Name == "" {
		return what, apierrors.NewBadRequest("spec.moves.policy.name: a policy has one")
	}
	attributes := authorizationv1.ResourceAttributes{
		Group: policyv1alpha1.GroupVersion.Group, Version: policyv1alpha1.GroupVersion.Version, Resource: "propagationpolicies", Namespace: s.Namespace, Name: s.Name,
	}
	if s.Namespace == "" {
		attributes.Resource = "clusterpropagationpolicies"
	}
	if s.Spec == nil {
		return what, may.any(ctx, attributes, "delete")
	}
	p := &policyv1alpha1.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}, Spec: *s.Spec}
	var sent client.Object = p
	if s.Namespace == "" {
		sent = (*policyv1alpha1.ClusterPropagationPolicy)(p)
	}
	made := sent.DeepCopyObject().(client.Object) //nolint:forcetypeassert // it was one
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec", "value": s.Spec}})
	if err != nil {
		return what, fmt.Errorf("encode the policy: %w", err)
	}
	if err = may.any(ctx, attributes, "update", "patch"); err == nil {
		err = e.know.Hub.Patch(ctx, sent, client.RawPatch(types.JSONPatchType, patch), client.DryRunAll)
	}
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		if err = may.any(ctx, attributes, "create"); err == nil {
			sent, err = made, e.know.Hub.Create(ctx, made, client.DryRunAll)
		}
	}
	if err != nil {
		return what, fmt.Errorf("check the policy: %w", err)
	}
	if what.As = p; sent == made {
		what.As = made.(interface { //nolint:forcetypeassert // both kinds are
			Propagation() *policyv1alpha1.PropagationPolicy
		}).Propagation()
	}
	return what, nil
}

// supposeCluster returns the supposed change of a cluster. The caller needs the right to make
// the change.
func (e *Explainer) supposeCluster(ctx context.Context, may Authorize, s *fleetv1alpha1.SupposedCluster) (placement.Supposition, error) {
	what := placement.Supposition{Cluster: s.Name, Leaves: s.Leaves, Labels: s.Labels}
	if s.Leaves == (s.Labels != nil) {
		return what, apierrors.NewBadRequest("spec.moves.cluster: exactly one of the fields leaves and labels is to be set")
	}
	verbs := []string{"update", "patch"}
	if s.Leaves {
		verbs = []string{"delete"}
	}
	if err := may.any(ctx, authorizationv1.ResourceAttributes{
		Group: clusterv1alpha1.GroupVersion.Group, Version: clusterv1alpha1.GroupVersion.Version, Resource: "clusters", Name: s.Name,
	}, verbs...); err != nil {
		return what, err
	}
	if _, ok := e.know.Fleet.Snapshot().Cluster(s.Name); !ok {
		return what, apierrors.NewNotFound(schema.GroupResource{Group: clusterv1alpha1.GroupVersion.Group, Resource: "clusters"}, s.Name)
	}
	return what, nil
}

// any returns nil if the caller may do what with one of the verbs.
func (may Authorize) any(ctx context.Context, what authorizationv1.ResourceAttributes, verbs ...string) (err error) {
	for _, what.Verb = range verbs {
		if err = may(ctx, what); err == nil || !apierrors.IsForbidden(err) {
			return err
		}
	}
	return err
}

// scope is a kind in one namespace; "" for all namespaces.
type scope struct {
	kind      schema.GroupKind
	namespace string
}

// sights are the rights of a caller to the objects of a scope.
type sights struct {
	visibility

	may bool // the caller may get the objects
}

// audience is the caller of a request, with cached rights.
type audience struct {
	*Explainer

	may   Authorize
	until time.Time // no rights are checked after this time
	kinds map[scope]sights
}

// sees returns which clusters the caller sees for an object, if the caller may get it.
func (a *audience) sees(ctx context.Context, kind schema.GroupKind, namespace string) (sights, error) {
	in := scope{kind, namespace}
	known, ok := a.kinds[in]
	if ok {
		return known, nil
	}
	mapping, err := a.mapping(kind)
	if err != nil {
		a.kinds[in] = known // the hub does not serve the kind any more, so no user may get it
		return known, nil   //nolint:nilerr // so it is no failure
	}
	what := authorizationv1.ResourceAttributes{
		Verb: "get", Group: mapping.Resource.Group, Version: mapping.Resource.Version, Resource: mapping.Resource.Resource, Namespace: namespace,
	}
	known.may, err = a.may.allows(ctx, what)
	if err == nil && known.may {
		what.Namespace = ""
		known.visibility, err = a.visible(ctx, a.may, what, namespace)
	}
	if err != nil {
		return known, err
	}
	a.kinds[in] = known
	return known, nil
}

// tell returns the moves that the caller may see. A right to get one object only by its name is
// not checked.
func (a *audience) tell(ctx context.Context, told placement.Moves) (*fleetv1alpha1.PlacementMoves, error) {
	moves := &fleetv1alpha1.PlacementMoves{Looked: told.Looked, Moving: len(told.Moving), Exact: told.Exact}
	for _, m := range told.Moving {
		if time.Now().After(a.until) {
			moves.Hidden, moves.Exact = moves.Hidden+1, false
			continue
		}
		known, err := a.sees(ctx, m.Object.GroupVersionKind().GroupKind(), m.Object.GetNamespace())
		switch {
		case err != nil:
			return nil, err
		case !known.may:
			moves.Hidden++
		default:
			moves.Items = append(moves.Items, moving(m, known.visibility))
		}
	}
	slices.SortFunc(moves.Items, func(x, y fleetv1alpha1.PlacementMove) int {
		return cmp.Or(
			cmp.Compare(loses(x), loses(y)), strings.Compare(x.Of.Kind, y.Of.Kind), strings.Compare(x.Of.Namespace, y.Of.Namespace), strings.Compare(x.Of.Name, y.Of.Name),
		)
	})
	moves.Items = moves.Items[:min(len(moves.Items), mostMoves)]
	return moves, nil
}

// loses returns the position of a move in the order: first moves that leave the object in
// no cluster at once, then moves that remove something from a cluster.
func loses(m fleetv1alpha1.PlacementMove) int {
	switch {
	case m.AtOnce:
		return 0
	case slices.ContainsFunc(m.Clusters, func(c fleetv1alpha1.MovedCluster) bool { return c.To == nil }):
		return 1
	default:
		return 2
	}
}

// moving returns a move as the caller may see it. It is pure.
func moving(m placement.Move, v visibility) fleetv1alpha1.PlacementMove {
	o, after := m.Object, m.After
	own := whereabouts(after)
	if m.Before != nil {
		own = append(own, whereabouts(&m.Before.Spec)...)
	}
	seen := newSight(v, own)
	told := fleetv1alpha1.PlacementMove{Of: explained(o), Later: m.Later, Reason: m.Outcome.Reason}
	if ref := after.PolicyRef; ref.Name != "" {
		told.Policy = &fleetv1alpha1.ExplainedPolicy{Kind: ref.Kind, Name: ref.Name}
		if ref.Kind == "PropagationPolicy" {
			told.Policy.Namespace = o.GetNamespace()
		}
	}
	all := map[string]*fleetv1alpha1.MovedCluster{}
	share := func(name string) *fleetv1alpha1.MovedCluster {
		if all[name] == nil {
			all[name] = &fleetv1alpha1.MovedCluster{Name: name}
		}
		return all[name]
	}
	had := 0
	if m.Before != nil {
		had = len(m.Before.Spec.Clusters)
		for _, t := range m.Before.Spec.Clusters {
			share(t.Name).From = &fleetv1alpha1.MovedShare{Replicas: t.Replicas}
		}
	}
	for _, t := range after.Clusters {
		share(t.Name).To = &fleetv1alpha1.MovedShare{Replicas: t.Replicas}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c := *all[name]
		c.Stays = slices.ContainsFunc(after.GracefulEvictionTasks, func(t workv1alpha2.GracefulEvictionTask) bool { return t.FromCluster == name })
		if !equality.Semantic.DeepEqual(c.From, c.To) && seen.cluster(name) {
			told.Clusters = append(told.Clusters, c)
		}
	}
	told.AtOnce = had > 0 && len(after.Clusters) == 0 && len(after.GracefulEvictionTasks) == 0
	told.Hidden, told.Message = len(seen.hidden), seen.message(m.Outcome.Message)
	return told
}
