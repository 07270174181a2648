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
	// movesTime limits the calculation of the moves for one request. rightsTime limits the checks of
	// the caller's rights to the moved objects, after the calculation.
	movesTime, rightsTime = 20 * time.Second, 10 * time.Second
	// mostMoves is the maximum number of moved objects in an answer; others are only counted.
	mostMoves = 100
)

// moves answers a review with spec.moves: which objects and replicas would move if a policy or a
// cluster changed as the spec says. Nothing is written. The error is BadRequest for an invalid
// spec, and Forbidden if the caller may not make the change. If time runs out, the answer says that
// it is not exact. While the hub still reads the clusters, the answer is the result of early.
func (e *Explainer) moves(ctx context.Context, may Authorize, spec *fleetv1alpha1.PlacementReviewSpec) (*fleetv1alpha1.PlacementReviewStatus, error) {
	change := spec.Moves
	if !equality.Semantic.DeepEqual(*spec, fleetv1alpha1.PlacementReviewSpec{Moves: change}) {
		return nil, apierrors.NewBadRequest("spec.moves: no other field of the spec may be set beside it")
	}
	var what placement.Supposition
	var err error
	switch {
	case (change.Policy == nil) == (change.Cluster == nil):
		return nil, apierrors.NewBadRequest("spec.moves: set exactly one of the fields policy and cluster")
	case change.Policy != nil:
		what, err = e.supposePolicy(ctx, may, change.Policy)
	default:
		what, err = e.supposeCluster(ctx, may, change.Cluster)
	}
	if err != nil {
		return nil, err
	}
	working, end := context.WithTimeout(ctx, movesTime)
	result := e.know.Placement.Moves(working, what)
	end()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if result.Early || !e.know.Fleet.Synced() {
		return early(), nil
	}
	a := &audience{Explainer: e, may: may, until: time.Now().Add(rightsTime), kinds: map[scope]rights{}}
	moves, err := a.tell(ctx, result)
	if err != nil {
		return nil, err
	}
	status := &fleetv1alpha1.PlacementReviewStatus{Time: metav1.NowMicro(), Moves: moves}
	everything, err := may.listsClusters(ctx)
	if everything {
		status.Snapshot = result.Snapshot // only then: the number changes with every cluster
	}
	return status, err
}

// supposePolicy returns the change of the policy that s names: to the spec in s, or its deletion if
// that spec is nil. The API server of the hub validates and completes the policy by a dry run. The
// error is that of the API server, or Forbidden: the caller needs the right to make the change.
func (e *Explainer) supposePolicy(ctx context.Context, may Authorize, s *fleetv1alpha1.SupposedPolicy) (placement.Supposition, error) {
	what := placement.Supposition{Policy: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}}
	if s.Name == "" {
		return what, apierrors.NewBadRequest("spec.moves.policy.name: name the policy")
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

// supposeCluster returns the change of the cluster that s names: the cluster leaves, or gets the
// labels or the taints in s. The caller needs the right to make the change, else the error is
// Forbidden. The error is BadRequest unless s has exactly one of these changes, and NotFound for an
// unknown cluster.
func (e *Explainer) supposeCluster(ctx context.Context, may Authorize, s *fleetv1alpha1.SupposedCluster) (placement.Supposition, error) {
	what := placement.Supposition{Cluster: s.Name, Leaves: s.Leaves, Labels: s.Labels, Tainted: s.Taints != nil, Taints: s.Taints}
	if s.Changes() != 1 {
		return what, apierrors.NewBadRequest("spec.moves.cluster: set exactly one of the fields leaves, labels and taints")
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

// any returns nil if the caller may do what with at least one of the verbs. Otherwise it returns
// Forbidden for the last verb. If a right cannot be checked, it returns that error at once.
func (may Authorize) any(ctx context.Context, what authorizationv1.ResourceAttributes, verbs ...string) (err error) {
	for _, what.Verb = range verbs {
		if err = may(ctx, what); err == nil || !apierrors.IsForbidden(err) {
			return err
		}
	}
	return err
}

// scope is a kind in one namespace: the objects for which rights are checked together. The
// namespace "" is that of cluster-scoped objects.
type scope struct {
	kind      schema.GroupKind
	namespace string
}

// rights are the rights of a caller to the objects of one kind in one namespace. If may is false,
// the visibility is empty.
type rights struct {
	visibility

	may bool // the caller may get all objects of the kind in the namespace
}

// audience is the caller of one request for moves, with the rights that were checked already. It
// must not be used concurrently.
type audience struct {
	*Explainer

	may   Authorize
	until time.Time // afterwards no rights are checked, and moves count as hidden
	kinds map[scope]rights
}

// sees returns the rights of the caller to the objects of a kind in a namespace, and which clusters
// the caller sees for them. If the caller may not get the objects, or the hub does not serve the
// kind, may is false and the rest is empty. Results are cached.
func (a *audience) sees(ctx context.Context, kind schema.GroupKind, namespace string) (rights, error) {
	in := scope{kind, namespace}
	known, ok := a.kinds[in]
	if ok {
		return known, nil
	}
	mapping, err := a.mapping(kind)
	if err != nil {
		a.kinds[in] = known // no user may get objects of a kind that the hub no longer serves
		return known, nil   //nolint:nilerr // the missing kind is no failure
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

// tell returns at most mostMoves of the moves in result, as the caller may see them; the others are
// only counted. Moves that remove an object from a cluster come first. Moves of objects that the
// caller may not get count as hidden. After a.until all further moves do, and the answer is not
// exact. A right to get a single object by its name is not considered.
func (a *audience) tell(ctx context.Context, result placement.Moves) (*fleetv1alpha1.PlacementMoves, error) {
	moves := &fleetv1alpha1.PlacementMoves{Looked: result.Looked, Moving: len(result.Moving), Exact: result.Exact}
	for _, m := range result.Moving {
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

// loses returns the rank of a move in the order of an answer. 0: the object is at once in no
// cluster any more. 1: the object is removed from a cluster. 2: any other move.
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

// moving returns a move as a caller with the visibility v may see it. Clusters in which the share
// of replicas stays the same are left out. Clusters that the caller does not see are counted as
// hidden, and their names are removed from the message. It is pure.
func moving(m placement.Move, v visibility) fleetv1alpha1.PlacementMove {
	o, after := m.Object, m.After
	own := whereabouts(after)
	if m.Before != nil {
		own = append(own, whereabouts(&m.Before.Spec)...)
	}
	seen := newVisibilityFilter(v, own)
	move := fleetv1alpha1.PlacementMove{Of: explained(o), Later: m.Later, Reason: m.Outcome.Reason}
	if ref := after.PolicyRef; ref.Name != "" {
		move.Policy = &fleetv1alpha1.ExplainedPolicy{Kind: ref.Kind, Name: ref.Name}
		if ref.Kind == "PropagationPolicy" {
			move.Policy.Namespace = o.GetNamespace()
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
		if i := slices.IndexFunc(after.GracefulEvictionTasks, func(t workv1alpha2.GracefulEvictionTask) bool { return t.FromCluster == name }); i >= 0 {
			purge := after.GracefulEvictionTasks[i].PurgeMode
			c.Unmanaged = purge == policyv1alpha1.PurgeNever
			c.Stays = !c.Unmanaged && purge != policyv1alpha1.PurgeDirectly
		}
		if !equality.Semantic.DeepEqual(c.From, c.To) && seen.cluster(name) {
			move.Clusters = append(move.Clusters, c)
		}
	}
	move.AtOnce = had > 0 && len(after.Clusters) == 0 && !slices.ContainsFunc(after.GracefulEvictionTasks, stays)
	move.Hidden, move.Message = len(seen.hidden), seen.message(m.Outcome.Message)
	return move
}

// stays reports whether the old copy stays in the cluster of a task when the move begins, for a
// while or for ever.
func stays(t workv1alpha2.GracefulEvictionTask) bool {
	return t.PurgeMode != policyv1alpha1.PurgeDirectly
}
