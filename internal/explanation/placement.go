package explanation

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/placement"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/render"
	"orrery.dev/orrery/internal/scheduler"
	"orrery.dev/orrery/internal/template"
)

// facts are what the hub knows about the placement of one object. Explainer.facts collects them,
// and explain draws the conclusions.
type facts struct {
	*subject

	placeable bool // policies may select the object: it is not reserved
	// known is true if all policies, bindings and clusters have been read since the hub started.
	known   bool
	claims  placement.Claims   // policies that select the object, the one that places it first
	near    []policy.Miss      // policies that almost select the object
	outcome *placement.Outcome // result of the last decision of this process; nil: none
	// decision is the last recorded decision on the clusters of the object. It is nil if there is no
	// record, if the object is gone, or if the records cannot be read: then unread is the error.
	decision *records.Decision
	unread   error
	// results are the results of the last attempts to apply the object, by cluster.
	results map[string]fleetv1alpha1.PlacementResult
	// recorded is true if results also has those of earlier processes. It is false if these cannot
	// be read.
	recorded bool
	// waiting are clusters whose copies stay unchanged until copies in other clusters are available,
	// although the binding has no eviction task for them.
	waiting []string
	copies  []string // clusters that have copies
	// contests has, by cluster, a message about another writer that repeatedly changes the copy.
	contests  map[string]string
	overrides []fleetv1alpha1.ExplainedPolicy // override policies that select the object
	// missing are override policies that do not exist, and without which nothing is written.
	missing []string
	// follows are the objects that depend on this one, as far as the caller may get them.
	follows []fleetv1alpha1.ExplainedObject
	// closed has the reasons why the namespace may not use a cluster, by cluster. It is nil for
	// callers that do not see every cluster.
	closed  map[string]string
	keeping []string // while the binding is deleted: clusters that may still have copies
	away    []string // clusters among keeping that do not respond
}

// Placement explains why an object is in its clusters. The argument of is its name, as
// KIND[.GROUP]/NAMESPACE/NAME, without NAMESPACE for a cluster-scoped kind. The caller needs the
// right to get the object. An object that was deleted on the hub is explained while it has a
// binding; else the error is NotFound. An invalid name is a BadRequest error.
func (e *Explainer) Placement(ctx context.Context, may Authorize, of string) (*fleetv1alpha1.PlacementExplanation, error) {
	s, err := e.subject(ctx, may, "parameter of", of)
	if err != nil {
		return nil, err
	}
	f, err := e.facts(ctx, may, s)
	if err != nil {
		return nil, err
	}
	return explain(f), nil
}

// facts collects what the hub knows about the placement of a subject, for explain. An error means
// that a right could not be checked, or that ctx ended. Records that cannot be read are no error:
// the fields unread and recorded of the result say so.
func (e *Explainer) facts(ctx context.Context, may Authorize, s *subject) (facts, error) {
	f := facts{subject: s, placeable: policy.Placeable(s.object)}
	o, b := s.object, s.binding
	if s.everything {
		f.closed = e.closed(o.GetNamespace())
	}
	f.claims, f.known = e.know.Placement.Claims(o, b)
	f.known = f.known && e.know.Fleet.Synced()
	if s.gone {
		f.claims = placement.Claims{} // no policy claims a missing object
	} else if len(f.claims.Order) == 0 {
		policies, err := e.listable(ctx, may, o.GetNamespace())
		if err != nil {
			return f, err
		}
		f.claims.Skipped = slices.DeleteFunc(f.claims.Skipped, func(s policy.Skip) bool { return !slices.Contains(policies, s.Policy) })
		if f.placeable {
			f.near = policy.Near(policies, o)
		}
	}
	var selecting []*render.Override
	var missing []types.NamespacedName
	if !s.gone {
		selecting, missing = e.know.Applier.Selecting(o, b)
	}
	for _, name := range missing {
		f.missing = append(f.missing, kindOfOverride(name.Namespace)+" "+strings.TrimPrefix(name.String(), "/"))
	}
	f.overrides = e.overriding(selecting, b)
	if b == nil {
		return f, nil
	}
	if outcome, ok := e.know.Placement.Outcome(b.UID); ok {
		f.outcome = &outcome
	}
	last, err := e.know.Records.Decisions(ctx, o.GetUID(), 1)
	if ctx.Err() != nil {
		return f, ctx.Err()
	}
	if f.unread = err; len(last) > 0 && !s.gone {
		f.decision = &last[0]
	}
	if f.results, f.recorded = e.results(ctx, s); ctx.Err() != nil {
		return f, ctx.Err()
	}
	f.waiting = e.know.Applier.Waiting(b.UID)
	f.contests = e.contests(b)
	for _, c := range e.know.Mirror.Placed(b.UID) {
		if !slices.Contains(f.copies, c.Cluster) {
			f.copies = append(f.copies, c.Cluster)
		}
	}
	if !b.DeletionTimestamp.IsZero() {
		f.keeping = slices.Sorted(maps.Keys(binding.Clusters(b).Union(sets.New(f.copies...))))
		f.keeping = slices.DeleteFunc(f.keeping, func(cluster string) bool {
			m, joined := e.know.Registry.Member(cluster)
			if joined && m.Lost() {
				f.away = append(f.away, cluster)
			}
			return e.know.Applier.Gone(b.UID, cluster) || !joined && !slices.Contains(f.copies, cluster)
		})
	}
	f.follows, err = e.follows(ctx, may, b)
	return f, err
}

// closed returns, by cluster, why a namespace may not use the cluster, as a text for users.
// Clusters that the namespace may use are left out. It is nil if the namespace may use all
// clusters.
func (e *Explainer) closed(namespace string) map[string]string {
	snapshot := e.know.Fleet.Snapshot()
	fence := snapshot.Fence(namespace)
	if fence == nil {
		return nil
	}
	closed := map[string]string{}
	for _, c := range snapshot.Clusters() {
		if !fence.Allows(c) {
			closed[c.Name] = fence.Closed()
		}
	}
	return closed
}

// listable returns the propagation policies that the caller may list and that can select objects of
// a namespace: the cluster-wide ones and those of the namespace. The error means that a right could
// not be checked.
func (e *Explainer) listable(ctx context.Context, may Authorize, namespace string) ([]*policyv1alpha1.PropagationPolicy, error) {
	what := authorizationv1.ResourceAttributes{
		Verb: "list", Group: policyv1alpha1.GroupVersion.Group, Version: policyv1alpha1.GroupVersion.Version, Resource: "clusterpropagationpolicies",
	}
	everywhere, err := may.allows(ctx, what)
	if err != nil {
		return nil, err
	}
	here := false
	if namespace != "" {
		what.Resource, what.Namespace = "propagationpolicies", namespace
		if here, err = may.allows(ctx, what); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(e.know.Placement.Policies(), func(p *policyv1alpha1.PropagationPolicy) bool {
		return p.Namespace == "" && !everywhere || p.Namespace != "" && (!here || p.Namespace != namespace)
	}), nil
}

// kindOfOverride returns the kind of an override policy in a namespace; "": a cluster-wide one.
func kindOfOverride(namespace string) string {
	if namespace == "" {
		return "ClusterOverridePolicy"
	}
	return "OverridePolicy"
}

// overriding returns the given override policies for an answer. Each has the clusters of the
// binding b in which the policy changes something. If b is nil, they have no clusters.
func (e *Explainer) overriding(selecting []*render.Override, b *workv1alpha2.ResourceBinding) []fleetv1alpha1.ExplainedPolicy {
	var all []fleetv1alpha1.ExplainedPolicy
	for _, v := range selecting {
		p := overridePolicy(v)
		if b != nil {
			for _, t := range b.Spec.Clusters {
				if m, ok := e.know.Registry.Member(t.Name); ok && v.Concerns(m.Cluster()) {
					p.Clusters = append(p.Clusters, t.Name)
				}
			}
		}
		all = append(all, p)
	}
	return all
}

// overridePolicy returns an override policy for an answer, without clusters.
func overridePolicy(v *render.Override) fleetv1alpha1.ExplainedPolicy {
	return fleetv1alpha1.ExplainedPolicy{
		Kind: kindOfOverride(v.Policy.Namespace), Namespace: v.Policy.Namespace, Name: v.Policy.Name, Generation: v.Policy.Generation,
	}
}

// results returns, by cluster, the result of the last attempt to apply the object of s, which must
// have a binding. Results of this process replace recorded ones of earlier processes. A cluster
// without a result is left out. false: the records cannot be read, and only results of this process
// are returned.
func (e *Explainer) results(ctx context.Context, s *subject) (map[string]fleetv1alpha1.PlacementResult, bool) {
	recorded, err := e.know.Records.Results(ctx, s.binding.UID)
	results := map[string]fleetv1alpha1.PlacementResult{}
	version := ""
	if !s.gone {
		version = template.Version(s.object)
	}
	for _, r := range recorded {
		results[r.Cluster] = fleetv1alpha1.PlacementResult{
			Applied: r.Applied, Reason: r.Reason, Message: r.Message, Time: new(metav1.NewMicroTime(r.Time)),
			Current: r.Generation >= s.binding.Generation && template.Same(r.Template, version),
		}
	}
	for cluster := range binding.Clusters(s.binding) {
		r, ok := e.know.Applier.Result(s.binding.UID, cluster)
		if !ok {
			continue
		}
		now := fleetv1alpha1.PlacementResult{
			Applied: r.Applied, Reason: r.Reason, Message: r.Message, Current: !r.Stale && r.Generation >= s.binding.Generation && template.Same(r.Template, version),
		}
		if was, ok := results[cluster]; ok && was.Applied == now.Applied && was.Reason == now.Reason && was.Message == now.Message {
			now.Time = was.Time
		}
		results[cluster] = now
	}
	return results, err == nil
}

// follows returns the objects for which the object of b is a dependency, if the caller may get
// them. Objects that the hub does not have, or does not serve any more, are left out. The error
// means that a right could not be checked.
func (e *Explainer) follows(ctx context.Context, may Authorize, b *workv1alpha2.ResourceBinding) ([]fleetv1alpha1.ExplainedObject, error) {
	var all []fleetv1alpha1.ExplainedObject
	for _, r := range b.Spec.RequiredBy {
		other, ok := e.know.Bindings.Get(binding.Name(&workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}}))
		if !ok {
			continue
		}
		mapping, err := e.know.Mapper.RESTMapping(binding.Kind(other).GroupKind())
		if err != nil {
			continue // the hub does not serve the kind any more
		}
		allowed, err := may.allows(ctx, authorizationv1.ResourceAttributes{
			Verb: "get", Group: mapping.Resource.Group, Version: mapping.Resource.Version, Resource: mapping.Resource.Resource,
			Namespace: other.Namespace, Name: other.Spec.Resource.Name,
		})
		if err != nil {
			return nil, err
		}
		if allowed {
			of := other.Spec.Resource
			all = append(all, fleetv1alpha1.ExplainedObject{APIVersion: of.APIVersion, Kind: of.Kind, Namespace: other.Namespace, Name: of.Name})
		}
	}
	return all, nil
}

const (
	// Maxima in an answer: mostNear is that of policies that almost select an object, and mostFollow
	// that of dependencies.
	mostNear   = 10
	mostFollow = 100
)

// explain draws the conclusions from facts: it returns the answer of Placement. It is pure, so that
// it can be tested without the components of the hub.
func explain(f facts) *fleetv1alpha1.PlacementExplanation {
	e := &fleetv1alpha1.PlacementExplanation{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "PlacementExplanation"},
		Of:       explained(f.object), Follows: f.follows,
	}
	for i, c := range f.claims.Order {
		p := propagationPolicy(c.Policy)
		if i == 0 {
			e.Policy = &p
			continue
		}
		p.Reason = policy.Loses(f.claims.Order[0], c)
		e.Lost = append(e.Lost, p)
	}
	if len(f.claims.Order) == 0 {
		e.Near = f.nearly()
	}
	seen := f.visibilityFilter()
	f.results = seen.results(f.results)
	for _, o := range f.overrides {
		o.Clusters = seen.clusters(o.Clusters)
		e.Overrides = append(e.Overrides, o)
	}
	if b := f.binding; b != nil {
		f.follow(e)
		e.Generation = b.Spec.Resource.Generation
		about := f.decides()
		e.Clusters = f.clusters(about, &seen)
		if f.decision != nil {
			e.Decision = decisionOf(f.decision, about, &seen)
		}
		e.Waits = f.waits(&seen)
		e.Hidden = len(seen.hidden)
	} else if len(f.claims.Order) > 0 && f.known {
		e.Waits = f.waits(&seen)
	}
	f.sum(e, &seen)
	return e
}

// nearly explains why no policy selects the object. It returns at most mostNear policies, each with
// a reason: first policies that match but skip the object, then policies that almost select it.
func (f *facts) nearly() []fleetv1alpha1.ExplainedPolicy {
	var all []fleetv1alpha1.ExplainedPolicy
	for _, s := range f.claims.Skipped {
		p := propagationPolicy(s.Policy)
		if p.Reason = reserved; s.Reason == policyv1alpha1.ReasonSystemNamespace {
			p.Reason = "the object is in a system namespace (kube-*, orrery-*): a cluster-wide policy selects it only if the selector names that namespace"
		}
		all = append(all, p)
	}
	for _, m := range f.near {
		p := propagationPolicy(m.Policy)
		p.Reason = m.Why
		all = append(all, p)
	}
	return all[:min(len(all), mostNear)]
}

// reserved is the text for users why no policy may place an object.
const reserved = "every cluster creates such an object itself, or the object belongs to the hub"

// visibilityFilter returns the filter for the answer. It knows the clusters that have or had the
// object, because messages of the facts may name them.
func (f *facts) visibilityFilter() visibilityFilter {
	own := slices.Concat(f.waiting, f.copies, f.keeping, slices.Collect(maps.Keys(f.contests)), slices.Collect(maps.Keys(f.results)))
	if f.binding != nil {
		own = append(own, whereabouts(&f.binding.Spec)...)
	}
	if f.decision != nil {
		for _, t := range slices.Concat(f.decision.Targets, f.decision.Evictions) {
			own = append(own, t.Cluster)
		}
	}
	return newVisibilityFilter(f.visibility, own)
}

// propagationPolicy returns a propagation policy for an answer, without a reason.
func propagationPolicy(p *policyv1alpha1.PropagationPolicy) fleetv1alpha1.ExplainedPolicy {
	return fleetv1alpha1.ExplainedPolicy{Kind: policy.Kind(p.Namespace), Namespace: p.Namespace, Name: p.Name, Generation: p.Generation}
}

// follow adds the dependencies of the object to the answer e: at most mostFollow, and the number of
// further ones. It adds none unless the policy copies dependencies. f must have a binding.
func (f *facts) follow(e *fleetv1alpha1.PlacementExplanation) {
	spec := &f.binding.Spec
	if !spec.PropagateDeps {
		return
	}
	for _, d := range spec.Dependencies[:min(len(spec.Dependencies), mostFollow)] {
		// All kinds of dependencies belong to the core API, in version v1.
		gv := schema.GroupVersion{Group: d.Group, Version: "v1"}
		e.Follow = append(e.Follow, fleetv1alpha1.ExplainedObject{APIVersion: gv.String(), Kind: d.Kind, Namespace: f.binding.Namespace, Name: d.Name})
	}
	e.FollowMore = len(spec.Dependencies) - len(e.Follow)
}

// decides reports whether the recorded decision led to the clusters and the policy's placement that
// the binding has now. It is false if there is no recorded decision. f must have a binding.
func (f *facts) decides() bool {
	d, b := f.decision, f.binding
	return d != nil && d.Binding == b.UID && d.PlacementHash == b.Spec.PlacementHash &&
		slices.EqualFunc(d.Targets, targets(b.Spec.Clusters), func(a, b records.Target) bool {
			return a.Cluster == b.Cluster && equal(a.Replicas, b.Replicas)
		})
}

// targets returns the clusters and replicas of a binding in the form of a recorded decision, sorted
// by name.
func targets(of []workv1alpha2.TargetCluster) []records.Target {
	all := make([]records.Target, 0, len(of))
	for _, t := range of {
		all = append(all, records.Target{Cluster: t.Name, Replicas: t.Replicas})
	}
	slices.SortStableFunc(all, func(a, b records.Target) int { return strings.Compare(a.Cluster, b.Cluster) })
	return all
}

// equal reports whether two numbers are equal or both nil.
func equal(a, b *int32) bool { return a == b || a != nil && b != nil && *a == *b }

// decisionOf returns a recorded decision for an answer, with its message filtered by seen. current
// is true if the binding still has the result of this decision.
func decisionOf(d *records.Decision, current bool, seen *visibilityFilter) *fleetv1alpha1.ExplainedDecision {
	return &fleetv1alpha1.ExplainedDecision{
		Time: metav1.NewMicroTime(d.Time), Generation: d.Template.Generation, PolicyGeneration: d.Claimed.Generation, Current: current,
		Reason: d.Reason, Message: seen.message(d.Message), Replicas: d.Replicas, Divided: d.Divided,
	}
}

// clusters returns what the answer says about each cluster of the binding and each cluster with a
// copy. If about is true, the binding has the result of the recorded decision. Then clusters with a
// verdict are added, which is a reason of the decision against a cluster. Clusters that the caller
// does not see are left out.
func (f *facts) clusters(about bool, seen *visibilityFilter) []fleetv1alpha1.ExplainedCluster {
	b := f.binding
	all := clusterList{}
	for _, t := range b.Spec.Clusters {
		c := all.of(t.Name)
		c.Placed, c.Replicas, c.Attached = true, t.Replicas, t.Attached
	}
	for _, t := range b.Spec.GracefulEvictionTasks {
		c := all.of(t.FromCluster)
		c.Leaves, c.Leaving = true, t.Replicas
	}
	for _, name := range f.waiting {
		all.of(name).Leaves = true
	}
	for _, name := range f.copies {
		all.of(name)
	}
	if about {
		all.verdicts(f.decision.Verdicts)
		all.close(f.closed)
	}
	for name, r := range f.results {
		if c := all[name]; c != nil {
			c.Result = &r
		}
	}
	return all.sorted(seen)
}

// clusterList collects the clusters of an answer, by name.
type clusterList map[string]*fleetv1alpha1.ExplainedCluster

// of returns the cluster with the name, to be changed. A missing cluster is added first.
func (l clusterList) of(name string) *fleetv1alpha1.ExplainedCluster {
	if l[name] == nil {
		l[name] = &fleetv1alpha1.ExplainedCluster{Name: name}
	}
	return l[name]
}

// verdicts adds each verdict of a decision, which is a reason against clusters, to the clusters
// that it is about. Missing clusters are added.
func (l clusterList) verdicts(all []records.Verdict) {
	for _, v := range all {
		for _, name := range v.Clusters {
			c := l.of(name)
			c.Verdicts = append(c.Verdicts, fleetv1alpha1.PlacementVerdict{Reason: v.Reason, Message: v.Message})
		}
	}
}

// close adds the verdict Fenced to the clusters that the namespace may not use, unless they are
// placed or have the verdict Fenced or StaysFenced. closed has the reasons by cluster. The recorded
// decision lacks the verdict if the cluster was closed or joined later, because this causes no new
// decision.
func (l clusterList) close(closed map[string]string) {
	for name, message := range closed {
		is := func(v fleetv1alpha1.PlacementVerdict) bool {
			return v.Reason == scheduler.ReasonFenced || v.Reason == scheduler.ReasonStaysFenced
		}
		if c := l.of(name); !c.Placed && !slices.ContainsFunc(c.Verdicts, is) {
			c.Verdicts = slices.Insert(c.Verdicts, 0, fleetv1alpha1.PlacementVerdict{Reason: scheduler.ReasonFenced, Message: message})
		}
	}
}

// sorted returns the clusters that the caller sees, by name. Those of the object that the caller
// does not see are counted by seen.
func (l clusterList) sorted(seen *visibilityFilter) []fleetv1alpha1.ExplainedCluster {
	var all []fleetv1alpha1.ExplainedCluster
	for name, c := range l {
		if seen.cluster(name) {
			all = append(all, *c)
		}
	}
	slices.SortFunc(all, func(a, b fleetv1alpha1.ExplainedCluster) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// sum sets the state, the message and Current of the answer e, from its other fields, which must be
// set. It sets PlacedBy if another policy placed the object than the one that selects it now.
func (f *facts) sum(e *fleetv1alpha1.PlacementExplanation, seen *visibilityFilter) {
	b := f.binding
	switch {
	case b == nil && !f.placeable:
		e.State, e.Current = fleetv1alpha1.PlacementReserved, true
		e.Message = "no policy may place it: " + reserved
		return
	case !f.known:
		e.State, e.Message = fleetv1alpha1.PlacementUnknown, "the hub has just started and is still reading policies, bindings and clusters: try again in a few seconds"
		return
	case b == nil && len(f.claims.Order) == 0:
		e.State, e.Current = fleetv1alpha1.PlacementUnclaimed, true
		e.Message = "no policy places it, so it is on the hub only: create a " + policy.Kind(f.object.GetNamespace()) + " that selects it"
		return
	case b == nil:
		e.State, e.Message = fleetv1alpha1.PlacementWaiting, named(*e.Policy)+" selects it; "+e.Waits[0].Message
		return
	case f.gone && !b.DeletionTimestamp.IsZero():
		e.State, e.Message = fleetv1alpha1.PlacementWaiting, "it was deleted on the hub, and its copies are being deleted"
		return
	case f.gone:
		e.State, e.Message = fleetv1alpha1.PlacementWaiting, "it was deleted on the hub, and its copies are deleted in a moment"
		return
	case b.Spec.Resource.UID != "" && b.Spec.Resource.UID != f.object.GetUID():
		e.State, e.Message = fleetv1alpha1.PlacementWaiting, "an earlier object of its name is still placed, and its copies are deleted first"
		return
	case !b.DeletionTimestamp.IsZero():
		e.State, e.Message = fleetv1alpha1.PlacementWaiting, "its placement is being removed"
		return
	}
	by := fleetv1alpha1.ExplainedPolicy{Kind: b.Spec.PolicyRef.Kind, Name: b.Spec.PolicyRef.Name}
	if by.Kind == policy.Kind("x") {
		by.Namespace = b.Namespace
	}
	dependencyOnly := b.Spec.PlacementHash == "" && len(b.Spec.RequiredBy) > 0
	if !dependencyOnly && (e.Policy == nil || e.Policy.Kind != by.Kind || e.Policy.Name != by.Name) {
		e.PlacedBy = &by
	}
	e.Current = b.Spec.Resource.Generation == f.object.GetGeneration() && (f.decision == nil || f.decides()) && f.stands(e)
	how := "by " + named(by)
	if dependencyOnly {
		how = "as a dependency of other objects"
	}
	visible := 0
	for _, c := range e.Clusters {
		if c.Placed {
			visible++
		}
	}
	switch n := len(b.Spec.Clusters); n {
	case 0:
		e.State, e.Message = fleetv1alpha1.PlacementNowhere, fmt.Sprintf("it is not placed in any cluster %s: %s", how, f.outcomeMessage(seen))
	default:
		e.State, e.Message = fleetv1alpha1.PlacementPlaced, fmt.Sprintf("it is placed in %s %s", counted(n, "cluster"), how)
		if hidden := n - visible; hidden > 0 {
			e.Message += fmt.Sprintf(", and you may not see %d of them", hidden)
		}
	}
	if f.decision == nil {
		e.Message += "; the reason is unknown: " + f.unrecorded()
	}
	if len(placement.DeletionWaitsFor(f.object)) > 0 {
		e.Message += "; its deletion waits"
	}
	if e.Policy == nil && !dependencyOnly {
		e.Message += "; no policy selects it any more, and its copies stay"
	}
}

// stands reports whether the binding follows the present placement of the policy in e. It is also
// true if no policy selects the object.
func (f *facts) stands(e *fleetv1alpha1.PlacementExplanation) bool {
	return e.Policy == nil || e.PlacedBy == nil && f.claims.Hash == f.binding.Spec.PlacementHash
}

// unreadable is the text for users in place of results or decisions whose records cannot be read.
const unreadable = "the hub's records cannot be read now"

// unrecorded returns, as a text for users, why there is no recorded decision: the records cannot be
// read, or have none.
func (f *facts) unrecorded() string {
	if f.unread != nil {
		return unreadable
	}
	return "the hub has no record of the decision"
}

// scheduled returns reason and message of the last decision on the binding: that of this process
// or, if there is none, the condition Scheduled of the binding. Both are "" if there is no such
// condition.
func (f *facts) scheduled() (reason, message string) {
	if f.outcome != nil {
		return f.outcome.Reason, f.outcome.Message
	}
	if c := meta.FindStatusCondition(f.binding.Status.Conditions, workv1alpha2.ConditionScheduled); c != nil {
		return c.Reason, c.Message
	}
	return "", ""
}

// outcomeMessage returns the message of the last decision without clusters that the caller does not
// see. Without a message it is "no cluster fits".
func (f *facts) outcomeMessage(seen *visibilityFilter) string {
	_, message := f.scheduled()
	return cmp.Or(seen.message(message), "no cluster fits")
}

// named returns kind and name of a policy for a message.
func named(p fleetv1alpha1.ExplainedPolicy) string {
	if p.Namespace == "" {
		return p.Kind + " " + p.Name
	}
	return p.Kind + " " + p.Namespace + "/" + p.Name
}

// counted returns a number with its noun, such as 1 cluster or 2 clusters.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
