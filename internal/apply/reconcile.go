package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/queue"
	"orrery.dev/orrery/internal/render"
	"orrery.dev/orrery/internal/template"
)

// plansInARow bounds how often the result of an action leads to another plan at once.
const plansInARow = 4

// reconcile does what there is to do for a binding in this cluster.
func (q *clusterQueue) reconcile(ctx context.Context, name types.NamespacedName) queue.Next {
	for range plansInARow {
		b, ok := q.applier.bindings.Get(name)
		if !ok {
			return queue.Next{}
		}
		next, again := q.once(ctx, b)
		if _, ok := q.applier.bindings.ByUID(b.UID); !ok {
			q.applier.results.forget(b.UID) // it was deleted meanwhile
			return queue.Next{}
		}
		if !again {
			return next
		}
	}
	return queue.Next{Backoff: true}
}

// once plans and acts once. again is true if the results require another plan.
func (q *clusterQueue) once(ctx context.Context, b *workv1alpha2.ResourceBinding) (next queue.Next, again bool) {
	source, _ := q.applier.template(b)
	s := q.applier.results.plan(b.UID, q.name(), versionOf(source))
	if s.cluster != "" && s.cluster != q.uid { // of another Cluster with this name
		s = state{changes: s.changes}
	}
	t := &task{queue: q, binding: b, changes: s.changes}
	now := q.applier.now()
	s = t.uncontested(s, now)
	t.wanted, t.source = q.wanted(ctx, b)
	decided := int64(0)
	if t.wanted.Decided {
		decided = b.Generation
	}
	q.applier.results.decide(b.UID, q.name(), decided)
	seen := q.seenOf(b, &t.wanted)
	t.at, t.reachable = seen.AtObject.Object, seen.Reachable
	known := q.known(b, &t.wanted, s, now)
	begins := t.wanted.Work.tracked() && t.wanted.Work.Older && seen.At != presence.Present || t.wanted.Work.asked()
	// Otherwise nothing is removed, and nothing begins.
	if t.wanted.Intent != Place || len(seen.Copies) > 1 || begins {
		known.Surveyed = q.applier.survey.done(ctx)
	}
	actions := Plan(t.wanted, seen, known)
	if len(actions) == 0 && !b.DeletionTimestamp.IsZero() {
		t.unremoved(ctx, nil) // the copies are known, and are being deleted
	}
	next, again = t.do(ctx, actions)
	if again && t.applied && t.reports(ctx) {
		return queue.Next{}, false
	}
	return next, again
}

// known returns the input of a plan from a state.
func (q *clusterQueue) known(b *workv1alpha2.ResourceBinding, w *Wanted, s state, now time.Time) Known {
	known := s.acts
	known.Now, known.Restored, known.Contested = now, q.applier.restore.Suspected(), s.contest != Contest{}
	known.Fate = q.applier.fate(b, q.name(), w.Work.Mark)
	return known
}

// reports plans again after the manifest was applied, with the same wanted state. If only
// reports are left, it does them and returns true. Otherwise it does nothing, and the wanted
// state has to be determined again. That is so after a change of an input, for work that is
// tracked, where replicas move, and where the binding has other copies.
func (t *task) reports(ctx context.Context) bool {
	q := t.queue
	s, _ := q.applier.results.get(t.binding.UID, q.name())
	if s.changes != t.changes || t.wanted.Work.tracked() || q.applier.results.moves(t.binding.UID, q.name()) {
		return false
	}
	seen := q.seenOf(t.binding, &t.wanted)
	actions := Plan(t.wanted, seen, q.known(t.binding, &t.wanted, s, q.applier.now()))
	if len(seen.Copies) > 1 || slices.ContainsFunc(actions, func(a Action) bool { return a.Verb != Report }) {
		return false
	}
	t.at, t.reachable = seen.AtObject.Object, seen.Reachable
	t.do(ctx, actions)
	return true
}

// wanted returns what a binding wants of this cluster, and its template.
func (q *clusterQueue) wanted(ctx context.Context, b *workv1alpha2.ResourceBinding) (Wanted, *unstructured.Unstructured) {
	a := q.applier
	w := Wanted{Object: Object{Namespace: b.Namespace, Name: b.Spec.Resource.Name}}
	target, placed := binding.Target(b, q.name())
	switch {
	case !b.DeletionTimestamp.IsZero() && b.Spec.PreserveResourcesOnDeletion:
		w.Intent = Leave
	case !b.DeletionTimestamp.IsZero():
		w.Intent = Remove
	case !placed:
		w.Intent = Vacate
	}
	source, state := a.template(b)
	w.Keeps = state != presence.Absent && (followingClaim(b) || binding.RequiredByOrphans(b, q.name()))
	w.Source = a.sourceOf(b, source, q.uid)
	selecting, missing := a.overrides.of(source, binding.NeededOverrides(b))
	w.Suspended, w.SuspendedMessage = suspended(b, q.name(), missing)
	w.Decided = (state != presence.Present || source.GetGeneration() == b.Spec.Resource.Generation) &&
		a.decisions.Knows(b.UID, b.Generation, q.name(), q.uid)
	api, served := q.api(b)
	w.Object.Resource = api.GroupVersionResource()
	if w.Intent == Vacate && w.Suspended != "" {
		a.results.leave(b.UID, q.name(), 0, 0) // all replicas stay
	} else if w.Intent == Vacate {
		w.Held = a.held(b, source, q.name())
	}
	if w.Intent == Vacate {
		// A leaving cluster is taken out of bindings, perhaps before its member knows that it leaves.
		// Leave decides what the cluster keeps.
		w.Decided = w.Decided && !a.leaving(ctx, q.name(), q.uid)
	}
	if w.Intent != Place {
		return w, source
	}
	// Unknown is not Absent, and an absent template ends its binding.
	w.Decided = w.Decided && state == presence.Present
	if !w.Decided {
		return w, source
	}
	w.Work = a.work(b, source, q.name())
	divided := binding.Divided(b) && target.Replicas != nil && !interpreter.KeepsReplicas(source)
	if !divided || w.Suspended != "" {
		a.results.leave(b.UID, q.name(), 0, 0) // the copy keeps all its replicas
	}
	if q.member.Reachable() {
		switch served {
		case presence.Absent:
			w.Reason = workv1alpha2.ReasonAPINotServed
			w.Message = fmt.Sprintf("%s does not serve %s %s", q.name(), b.Spec.Resource.APIVersion, b.Spec.Resource.Kind)
			return w, source
		case presence.Unknown:
			w.Reason = workv1alpha2.ReasonClusterUnreachable
			w.Message = fmt.Sprintf("%s cannot say whether it serves %s %s", q.name(), b.Spec.Resource.APIVersion, b.Spec.Resource.Kind)
			return w, source
		case presence.Present:
		}
		a.mirror.Require(binding.Kind(b))
	}
	if divided && w.Suspended == "" {
		target.Replicas = new(a.replicasFor(b, source, q.name(), *target.Replicas))
	}
	manifest, digest, err := a.renders.Render(render.Input{
		Template: source, Cluster: q.member.Cluster(), Target: target, Divided: binding.Divided(b), Shares: b.Spec.Clusters, Binding: b.UID,
		Overrides: selecting, Completions: w.Work.Completions,
	}, versionOf(source))
	if err != nil {
		w.Reason, w.Message = workv1alpha2.ReasonRenderFailed, err.Error()
		return w, source
	}
	if why := q.bounds(manifest.GetNamespace()); why != "" {
		w.Reason, w.Message = workv1alpha2.ReasonRejected, why
		return w, source
	}
	if b.Namespace != "" {
		security, err := a.podSecurity(ctx, b.Namespace)
		if err != nil {
			w.Decided = false // the end of the namespace will end the binding
			return w, source
		}
		if why := a.standard.Violation(manifest, security); why != "" {
			w.Reason, w.Message = workv1alpha2.ReasonPodSecurity, why
			return w, source
		}
		w.Security = security
	}
	w.Manifest, w.Digest = manifest, digest
	w.Object.Namespace, w.Object.Name = manifest.GetNamespace(), manifest.GetName()
	w.Foreign = q.foreign(ctx, b)
	return w, source
}

// suspended returns why a binding holds back writes to a cluster; "" if it does not.
func suspended(b *workv1alpha2.ResourceBinding, cluster string, missing []types.NamespacedName) (reason, message string) {
	switch {
	case b.Spec.SuspendedOn(cluster):
		return workv1alpha2.ReasonSuspended, "changes are held back: " + b.Spec.PolicyRef.Kind + " " + b.Spec.PolicyRef.Name + " suspends dispatching"
	case len(missing) > 0:
		kind := "OverridePolicy "
		if missing[0].Namespace == "" {
			kind = "ClusterOverridePolicy "
		}
		return workv1alpha2.ReasonOverrideMissing, "changes are held back until there is " + kind + strings.TrimPrefix(missing[0].String(), "/")
	}
	return "", ""
}

// leaving reports whether the Cluster is being deleted, was deleted, or cannot be read.
func (a *Applier) leaving(ctx context.Context, name string, uid types.UID) bool {
	c := &clusterv1alpha1.Cluster{}
	err := a.hub.Get(ctx, client.ObjectKey{Name: name}, c)
	return err != nil || c.UID != uid || !c.DeletionTimestamp.IsZero()
}

// api returns how the cluster serves the kind of a binding, if necessary in another version
// than that of the template. Such a version serves for copies that exist, but not for new ones:
// then the presence is Absent.
func (q *clusterQueue) api(b *workv1alpha2.ResourceBinding) (member.API, presence.Presence) {
	apis := q.member.APIs()
	api, served := apis.Kind(binding.Kind(b))
	if served == presence.Absent {
		other := slices.IndexFunc(apis.All(), func(a member.API) bool { return a.GroupVersionKind.GroupKind() == binding.Kind(b).GroupKind() })
		if other >= 0 {
			api = apis.All()[other]
		}
	}
	return api, served
}

// foreign returns what may be done with unmanaged objects. A user who may write policies in a
// namespace of the hub does not thereby own the namespaces with that name in members. So such a
// policy takes objects only if this hub created the namespace, or an administrator allows that.
func (q *clusterQueue) foreign(ctx context.Context, b *workv1alpha2.ResourceBinding) Foreign {
	switch {
	case b.Spec.PolicyRef.Kind != policy.Kind("") &&
		q.applier.mirror.NamespaceMark(q.name(), b.Namespace) != q.applier.hubID && !q.applier.takeOverAllowed(ctx, b.Namespace):
		return Refuse
	case b.Spec.ConflictResolution == policyv1alpha1.ConflictOverwrite:
		return TakeOver
	default:
		return Adopt
	}
}

// seenOf returns what is known of the cluster for a binding.
func (q *clusterQueue) seenOf(b *workv1alpha2.ResourceBinding, w *Wanted) Seen {
	a := q.applier
	s := Seen{Reachable: q.member.Reachable(), Lost: q.member.Lost()}
	if s.Reachable {
		s.Listed = q.complete(b) // before the copies, which it confirms to be complete
		if !s.Listed {
			s.Problem = q.problem(b)
		}
	}
	for _, o := range a.mirror.PlacedOf(b.UID, q.name()) {
		s.Copies = append(s.Copies, a.copyOf(b, w.Source, o))
	}
	if w.Manifest == nil {
		return s
	}
	is, o := q.find(w.Object)
	s.At, s.AtObject = is, a.copyOf(b, w.Source, o)
	if w.Object.Resource.GroupResource() == namespaceResource.GroupResource() {
		s.OurNamespace = a.mirror.NamespaceMark(q.name(), w.Object.Name) == a.hubID
	}
	return s
}

// copyOf returns a copy with what its marks mean to a binding. now is the source of a copy that
// would be made now.
func (a *Applier) copyOf(b *workv1alpha2.ResourceBinding, now mark.Source, o mirror.Object) Copy {
	c := Copy{Object: o}
	if !o.Placed() {
		return c
	}
	switch other, ok := a.bindings.ByUID(o.Binding); {
	case o.Binding == b.UID:
		c.Owner = Binding
	case ok && !other.DeletionTimestamp.IsZero():
		c.Owner = Going
	case ok:
		c.Owner = Another
	}
	if from, err := a.key().Verify(o.Source); err == nil {
		c.Authentic = true
		c.ThisJoin = from.Cluster == now.Cluster
		if c.Owner != Binding {
			from.Placement = 0 // that of another binding
		}
		c.Newer = from.Newer(now)
	}
	return c
}

// sourceOf returns the source of a copy that would be made now.
func (a *Applier) sourceOf(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured, cluster types.UID) mark.Source {
	s := mark.Source{
		Template: b.Spec.Resource.UID, Generation: b.Spec.Resource.Generation, Epoch: a.restore.Epoch(),
		Version: version(b.ResourceVersion), Placement: b.Generation, Cluster: cluster,
	}
	if source != nil {
		s.Template, s.Generation = source.GetUID(), source.GetGeneration()
		// The version of the binding changes with its status.
		s.Version = version(source.GetResourceVersion())
	}
	return s
}

// complete reports whether the mirror knows every copy of the binding that may be in this
// cluster.
func (q *clusterQueue) complete(b *workv1alpha2.ResourceBinding) bool {
	api, served := q.api(b)
	switch {
	case served == presence.Unknown:
		return false
	case api.Resource == "":
		return true // no object outlives its type
	case !api.HoldsCopies():
		return true // no copy of this type was ever made
	}
	q.applier.mirror.Require(api.GroupVersionKind)
	return q.applier.mirror.SyncedIn(q.name(), api.GroupVersionResource().GroupResource(), b.Namespace)
}

// problem returns why the cluster cannot list the kind of a binding; "" if the list works or is
// being read.
func (q *clusterQueue) problem(b *workv1alpha2.ResourceBinding) string {
	api, served := q.api(b)
	if served == presence.Unknown {
		return q.member.APIs().Silent(binding.Kind(b).Group)
	}
	if api.Resource != "" {
		if err := q.applier.mirror.Problem(q.name(), api.GroupVersionResource().GroupResource()); err != nil {
			return err.Error()
		}
	}
	return ""
}

// find looks up an object in the mirror.
func (q *clusterQueue) find(o Object) (presence.Presence, mirror.Object) {
	return q.applier.mirror.Lookup(q.name(), o.Resource.GroupResource(), o.Namespace, o.Name)
}

// held reports whether the copy of a binding must stay for now in a cluster that the binding
// does not name any more.
func (a *Applier) held(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured, cluster string) bool {
	task := slices.ContainsFunc(b.Spec.GracefulEvictionTasks, func(t workv1alpha2.GracefulEvictionTask) bool { return t.FromCluster == cluster })
	o, there := a.placedAs(b, cluster)
	moves := task || there && a.unclaimed(source, o, 0) > 0
	needed := moves && dependency(binding.Kind(b)) && a.neededBy(b, cluster)
	a.releasing.Lock()
	defer a.releasing.Unlock()
	// A move without a target cluster is held. If no cluster matches any more, there is no
	// eviction task.
	nowhere := task && len(b.Spec.Clusters) == 0
	held := moves && (needed || nowhere || Release(a.placements(b, source, cluster), a.asked(b, source))[cluster] > 0)
	leaves := int32(0)
	if held {
		leaves = o.Replicas
	}
	a.results.leave(b.UID, cluster, o.Replicas, leaves)
	a.results.wait(b.UID, cluster, held && !task)
	return held
}

// replicasFor returns the replicas for a cluster with a share of them: replicas that move out
// of it stay as long as necessary.
func (a *Applier) replicasFor(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured, cluster string, share int32) int32 {
	a.releasing.Lock()
	defer a.releasing.Unlock()
	o, _ := a.placedAs(b, cluster)
	n, waits := a.decideReplicas(b, source, cluster, o, share)
	a.results.leave(b.UID, cluster, o.Replicas, n)
	a.results.wait(b.UID, cluster, waits)
	return n
}

// decideReplicas returns the replicas for a copy as replicasFor does, and whether replicas wait
// that no eviction task names.
func (a *Applier) decideReplicas(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured, cluster string, o mirror.Object, share int32) (n int32, waits bool) {
	if o.Replicas <= share {
		return share, false
	}
	unclaimed := a.unclaimed(source, o, share) > 0
	if len(b.Spec.GracefulEvictionTasks) == 0 && !unclaimed {
		return share, false
	}
	stay := Release(a.placements(b, source, cluster), a.asked(b, source))[cluster]
	// A move never scales up the cluster that it leaves.
	return max(share, min(o.Replicas, share+stay)), stay > 0 && unclaimed
}

// asked returns the number of replicas in the template if they are divided; 0 if each cluster
// has all of them, or the object is placed nowhere and leaves. The share of a cluster in which
// the work rests does not count.
func (a *Applier) asked(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured) int32 {
	if b.Spec.Replicas == nil || !binding.Divided(b) || !countsReplicas(source) || len(b.Spec.Clusters)+len(b.Spec.GracefulEvictionTasks) == 0 {
		return 0
	}
	n := *b.Spec.Replicas
	for _, t := range b.Spec.Clusters {
		if t.Replicas != nil && a.rests(b, source, t.Name) {
			n -= *t.Replicas
		}
	}
	return max(0, n)
}

// rests reports whether the work of a binding has ended in a cluster, or does not begin there
// any more. No replica is available there that a move could cost, now or later.
func (a *Applier) rests(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured, cluster string) bool {
	if source == nil || !interpreter.Ends(binding.Kind(b).GroupKind()) && len(a.runs.of(b)) == 0 {
		return false
	}
	w := a.work(b, source, cluster)
	return w.rests() != ""
}

// placedAs returns the copy of a binding with the binding's name in a cluster; false if there
// is none.
func (a *Applier) placedAs(b *workv1alpha2.ResourceBinding, cluster string) (mirror.Object, bool) {
	placed := a.mirror.PlacedOf(b.UID, cluster)
	i := slices.IndexFunc(placed, func(o mirror.Object) bool { return o.Name == b.Spec.Resource.Name })
	if i < 0 {
		return mirror.Object{}, false
	}
	return placed[i], true
}

// unclaimed returns the number of replicas of a copy above the share of its cluster, if the
// copy was made from the current template, or from a later one that a restored hub lost. No
// user scaled it down, so these replicas move even if no decision says so: the copy may be from
// a decision that a restored hub does not know, or from an earlier join. A copy from an older
// template may be above its share because a user scaled down; then the eviction tasks say what
// moves.
func (a *Applier) unclaimed(source *unstructured.Unstructured, o mirror.Object, share int32) int32 {
	if source == nil || o.Deleting || o.Replicas <= share {
		return 0
	}
	from, err := a.key().Verify(o.Source)
	if err != nil || from.Template != source.GetUID() || from.Generation < source.GetGeneration() {
		return 0
	}
	return o.Replicas - share
}

// placements returns the current and wanted state of a binding in all clusters, for a cluster
// (asks) that decides how much to release. Of other clusters it counts only the replicas that
// stay after the writes that are under way.
func (a *Applier) placements(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured, asks string) []Placement {
	found, shrinks := map[string]mirror.Object{}, map[string]bool{}
	for _, o := range a.mirror.Placed(b.UID) {
		if o.Name != b.Spec.Resource.Name {
			continue
		}
		if left := a.results.leaves(b.UID, o.Cluster, o.Replicas); o.Cluster != asks && left < o.Replicas {
			o.Replicas, o.Available, shrinks[o.Cluster] = left, min(o.Available, left), true
		}
		found[o.Cluster] = o
	}
	clusters := map[string]*Placement{}
	of := func(cluster string) *Placement {
		p := clusters[cluster]
		if p == nil {
			o, there := found[cluster]
			s, _ := a.results.get(b.UID, cluster)
			r := s.current()
			// What stays of a copy that releases replicas serves already, even before the write is done.
			p = &Placement{Cluster: cluster, Current: there && r.Applied && !r.Stale && r.Digest == o.Digest || shrinks[cluster]}
			if there && a.reachable(cluster) && !o.Deleting && !a.rests(b, source, cluster) {
				p.Available = o.Available
			}
			clusters[cluster] = p
		}
		return p
	}
	counted := countsReplicas(source)
	for _, t := range b.Spec.Clusters {
		if a.rests(b, source, t.Name) {
			continue // nothing of it will be available there
		}
		of(t.Name).Wanted = 1
		if counted && t.Replicas != nil {
			of(t.Name).Wanted = *t.Replicas
		}
	}
	for _, t := range b.Spec.GracefulEvictionTasks {
		p := of(t.FromCluster)
		if o, there := found[t.FromCluster]; there {
			p.Moving = max(0, o.Replicas-p.Wanted) // what is still there
			if counted && t.Replicas != nil {
				p.Moving = min(p.Moving, *t.Replicas)
			}
		}
	}
	divided := counted && binding.Divided(b) && !interpreter.KeepsReplicas(source)
	for cluster, o := range found {
		if _, named := binding.Target(b, cluster); named && !divided {
			continue // each cluster has all replicas
		}
		p := of(cluster)
		p.Moving = max(p.Moving, a.unclaimed(source, o, p.Wanted))
	}
	all := make([]Placement, 0, len(clusters))
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		all = append(all, *clusters[name])
	}
	return all
}

// countsReplicas reports whether the availability of an object is counted in replicas.
func countsReplicas(source *unstructured.Unstructured) bool {
	if source == nil {
		return false
	}
	replicas := interpreter.Replicas(source)
	asked, _ := interpreter.Availability(source)
	return replicas != nil && asked == *replicas
}

// followingClaim reports whether a PersistentVolumeClaim is placed only because other objects
// refer to it, and by no policy.
func followingClaim(b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.PlacementHash == "" && len(b.Spec.RequiredBy) > 0 && binding.Kind(b).GroupKind() == schema.GroupKind{Kind: "PersistentVolumeClaim"}
}

// neededBy reports whether a workload in the binding's namespace that also moves out of the
// cluster is still there. A workload that the same policy claims moves with it, even if its own
// binding does not say so yet.
func (a *Applier) neededBy(b *workv1alpha2.ResourceBinding, cluster string) bool {
	here := map[types.UID]bool{}
	for _, o := range a.mirror.PlacedIn(cluster) {
		if o.Namespace == b.Namespace {
			here[o.Binding] = true
		}
	}
	for uid := range here {
		other, ok := a.bindings.ByUID(uid)
		if !ok || uid == b.UID || !other.DeletionTimestamp.IsZero() {
			continue
		}
		source, state := a.template(other)
		if state != presence.Present || interpreter.PodSpec(source) == nil {
			continue
		}
		_, stays := binding.Target(other, cluster)
		moves := slices.ContainsFunc(other.Spec.GracefulEvictionTasks, func(t workv1alpha2.GracefulEvictionTask) bool { return t.FromCluster == cluster })
		behind := b.Spec.PlacementHash != "" && other.Spec.PolicyRef == b.Spec.PolicyRef && other.Spec.PlacementHash != b.Spec.PlacementHash
		o, there := a.placedAs(other, cluster)
		if behind || !stays && (moves || there && a.unclaimed(source, o, 0) > 0) {
			return true
		}
	}
	return false
}

// template returns the template of a binding. An object with another UID counts as absent.
func (a *Applier) template(b *workv1alpha2.ResourceBinding) (*unstructured.Unstructured, presence.Presence) {
	o, state := a.templates.Get(binding.Kind(b), b.Namespace, b.Spec.Resource.Name)
	if state == presence.Present && b.Spec.Resource.UID != "" && o.GetUID() != b.Spec.Resource.UID {
		return nil, presence.Absent // another object of the same name
	}
	return o, state
}

// versionOf identifies the content of a template; "" if there is none.
func versionOf(source *unstructured.Unstructured) string {
	if source == nil {
		return ""
	}
	return template.Version(source)
}
