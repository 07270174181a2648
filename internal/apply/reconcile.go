package apply

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/queue"
	"orrery.dev/orrery/internal/template"
)

// plansInARow bounds how often the result of an action leads to another plan at once.
const plansInARow = 4

// reconcile plans and acts for a binding in this cluster, up to plansInARow times. The result says
// when to plan again. It does nothing for a binding that is gone.
func (q *clusterQueue) reconcile(ctx context.Context, name types.NamespacedName) queue.Next {
	for range plansInARow {
		b, ok := q.begin(name)
		if !ok {
			return queue.Next{}
		}
		next, again := q.once(ctx, b)
		if _, ok := q.applier.bindings.ByUID(b.UID); !ok {
			q.applier.results.forget(b.UID) // the binding was deleted meanwhile
			q.applier.preservation.forget(b.UID)
			return queue.Next{}
		}
		if !again {
			return next
		}
	}
	return queue.Next{Backoff: true}
}

// begin returns the binding to plan for; false if it is gone. If the binding places an object in
// this cluster, begin first records that the cluster may hold a copy, and then reads the binding
// again. letGo reads in the other order: first the deleted binding, then the records. So either
// letGo finds the record and keeps the finalizer, or begin returns the deleted binding. Otherwise a
// copy could be written for a binding that is gone.
func (q *clusterQueue) begin(name types.NamespacedName) (*workv1alpha2.ResourceBinding, bool) {
	for {
		b, ok := q.applier.bindings.Get(name)
		if !ok {
			return nil, false
		}
		if _, placed := binding.Target(b, q.name()); !placed || !b.DeletionTimestamp.IsZero() {
			return b, true
		}
		q.applier.results.hold(name, b.UID, q.name())
		switch now, ok := q.applier.bindings.Get(name); {
		case ok && now.UID == b.UID:
			return now, true
		default:
			q.applier.results.forget(b.UID) // the binding is gone
		}
	}
}

// once makes one plan for a binding and does its actions. It also records the version of the
// template and the generation of the binding that the plan is for. again is true if the caller must
// plan again at once; otherwise next says when.
func (q *clusterQueue) once(ctx context.Context, b *workv1alpha2.ResourceBinding) (next queue.Next, again bool) {
	// The changes are read before the revision, so that the result is stale if an input changes
	// while the revision is read.
	before, _ := q.applier.results.get(b.UID, q.name())
	r := q.applier.revision(b)
	s := q.applier.results.plan(b.UID, q.name(), r.Version)
	if s.cluster != "" && s.cluster != q.uid { // the state is about another Cluster with this name
		s = state{changes: s.changes}
	}
	t := &task{queue: q, binding: b, changes: before.changes}
	now := q.applier.now()
	s = t.uncontested(s, now)
	t.want(ctx, r)
	decided := int64(0)
	if t.wanted.Decided {
		decided = b.Generation
	}
	q.applier.results.decide(b.UID, q.name(), decided)
	seen := q.seenOf(b, &t.wanted)
	t.at, t.reachable = seen.AtObject.Object, seen.Reachable
	known := q.known(b, &t.wanted, s, now)
	begins := t.wanted.Work.tracked() && t.wanted.Work.Older && seen.At != presence.Present || t.wanted.Work.asked()
	// Only a plan that may remove a copy or begin work needs the check for a restore.
	if t.wanted.Intent != Place || len(seen.Copies) > 1 || begins {
		known.RestoreChecked = q.applier.restoreCheck.done(ctx)
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

// known returns the input of Plan about earlier actions: those in the state s, with the current
// time, whether a restore is suspected, whether the copy is contested, and the fate of an earlier
// copy. It does not set RestoreChecked.
func (q *clusterQueue) known(b *workv1alpha2.ResourceBinding, w *Wanted, s state, now time.Time) Known {
	known := s.acts
	known.Now, known.Restored, known.Contested = now, q.applier.restore.Suspected(), s.contest != Contest{}
	known.Fate = q.applier.fate(b, q.name(), w.Work.Mark)
	return known
}

// reports avoids another full plan after the manifest was applied. It plans with the same wanted
// state, does the actions if all are reports, and returns true. It returns false, without an
// action, if the wanted state must be determined again. That is so after a change of an input, for
// work that is tracked, where replicas move, and if the binding has other copies.
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

// want sets t.wanted to what a revision of the binding wants of the cluster, and t.source and
// t.version to the template of the revision and its version. It also records in the results how
// many replicas the cluster keeps, and makes the mirror list the kind if the cluster is to get a
// copy.
func (t *task) want(ctx context.Context, r Revision) {
	q, a := t.queue, t.queue.applier
	s := a.snapshot(ctx, r, q.member)
	a.release(s, true)
	if s.places() && s.Reachable && s.Served == presence.Present {
		a.mirror.Require(binding.Kind(r.Binding))
	}
	t.wanted, t.source, t.version = Want(s, a.renders, a.standard), r.Template, r.Version
}

// revision returns the latest revision of a binding: the template and override policies that the
// hub has now.
func (a *Applier) revision(b *workv1alpha2.ResourceBinding) Revision {
	r := Revision{Binding: b}
	r.Template, r.State = a.template(b)
	r.Version = versionOf(r.Template)
	r.Overrides, r.Missing = a.overrides.of(r.Template, binding.NeededOverrides(b))
	return r
}

// snapshot gathers the facts of a cluster on which the wanted content depends. release adds those
// about the other clusters. It sends no request to the cluster.
func (a *Applier) snapshot(ctx context.Context, r Revision, m *member.Member) *Snapshot {
	b, c := r.Binding, m.Cluster()
	s := &Snapshot{
		Revision: r, Cluster: c, Reachable: m.Reachable(), Source: a.sourceOf(b, r.Template, c.UID),
		Confirmed: a.decisions.Knows(b.UID, b.Generation, c.Name, c.UID),
	}
	s.API, s.Served = apiOf(m, b)
	if s.intent() == Remove && s.Reachable {
		s.Preserved = a.preservation.copies(ctx, b)
	}
	intent := s.intent()
	if share, counted := s.share(); counted && (intent == Place || intent == Vacate) {
		s.Copy, _ = a.placedAs(b, c.Name)
		s.Unclaimed = a.unclaimed(r.Template, s.Copy, share)
	}
	switch intent {
	case Vacate:
		s.Leaving = a.leaving(ctx, c.Name, c.UID)
		s.Needed = dependency(binding.Kind(b)) && (s.Unclaimed > 0 || evictedFrom(b, c.Name)) && a.neededBy(b, c.Name)
	case Place:
		s.Work = a.work(b, r.Template, c.Name)
		s.OurNamespace = a.mirror.NamespaceMark(c.Name, b.Namespace) == a.hubID
		if b.Namespace != "" {
			s.Namespace, _ = a.hubNamespace(ctx, b.Namespace) // nil if it is unknown
		}
	case Remove, Leave:
	}
	return s
}

// release adds to a snapshot what the other clusters keep, if replicas move out of this cluster.
// With record, it also records in the results how many replicas this cluster keeps, and whether it
// waits to release some. If replicas are counted, release takes a.releasing, so that no other
// cluster decides meanwhile.
func (a *Applier) release(s *Snapshot, record bool) {
	b, cluster := s.Binding, s.Cluster.Name
	switch r := s.replicas(); {
	case r == nil:
		return
	case !r.Counted:
		if record {
			a.results.leave(b.UID, cluster, r.Has, r.Keeps)
		}
		return
	}
	a.releasing.Lock()
	defer a.releasing.Unlock()
	if s.moves() && s.intent() == Place {
		// The copy may have changed since the snapshot, which another cluster that decides may see.
		share, _ := s.share()
		s.Copy, _ = a.placedAs(b, cluster)
		s.Unclaimed = a.unclaimed(s.Template, s.Copy, share)
	}
	if s.moves() { // otherwise it does not matter what the others keep, and there may be a thousand
		s.Placements, s.Asked = a.placements(b, s.Template, cluster), a.asked(b, s.Template)
	}
	if r := s.replicas(); record {
		a.results.leave(b.UID, cluster, r.Has, r.Keeps)
		a.results.wait(b.UID, cluster, r.Waits)
	}
}

// leaving reports whether the Cluster with this name and UID is being deleted, is gone, or cannot
// be read.
func (a *Applier) leaving(ctx context.Context, name string, uid types.UID) bool {
	c := &clusterv1alpha1.Cluster{}
	err := a.hub.Get(ctx, client.ObjectKey{Name: name}, c)
	return err != nil || c.UID != uid || !c.DeletionTimestamp.IsZero()
}

// apiOf returns how a cluster serves the kind of a binding. The presence is that of the template's
// version. If the cluster serves only another version, the API is that version, for copies that
// exist, and the presence is Absent, so that no copy is created. The API is zero if the cluster
// serves no version.
func apiOf(m *member.Member, b *workv1alpha2.ResourceBinding) (member.API, presence.Presence) {
	apis := m.APIs()
	api, served := apis.Kind(binding.Kind(b))
	if served == presence.Absent {
		other := slices.IndexFunc(apis.All(), func(a member.API) bool { return a.GroupVersionKind.GroupKind() == binding.Kind(b).GroupKind() })
		if other >= 0 {
			api = apis.All()[other]
		}
	}
	return api, served
}

// seenOf returns what the mirror shows of the cluster for a binding, as input of Plan. If w has no
// manifest, At and AtObject stay zero.
func (q *clusterQueue) seenOf(b *workv1alpha2.ResourceBinding, w *Wanted) Seen {
	a := q.applier
	s := Seen{Reachable: q.member.Reachable(), Lost: q.member.Lost()}
	if s.Reachable {
		s.Listed = q.complete(b) // read before the copies, so that true covers all of them
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

// copyOf returns an object of the mirror together with what its marks mean for binding b. now is
// the content of the mark that a copy would get now. Only Object is set for an object without
// marks.
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
			from.Placement = 0 // the mark has the generation of another binding
		}
		c.Newer = from.Newer(now)
	}
	return c
}

// sourceOf returns the content of the source mark (work.orrery.dev/source) that a copy would get
// now, in the cluster with the given UID. If source, the template, is nil, the UID and the
// generation of the template come from the binding.
func (a *Applier) sourceOf(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured, cluster types.UID) mark.Source {
	s := mark.Source{
		Template: b.Spec.Resource.UID, Generation: b.Spec.Resource.Generation, Epoch: a.restore.Epoch(),
		Version: version(b.ResourceVersion), Placement: b.Generation, Cluster: cluster,
	}
	if source != nil {
		s.Template, s.Generation = source.GetUID(), source.GetGeneration()
		// The resourceVersion of the binding would change with its status.
		s.Version = version(source.GetResourceVersion())
	}
	return s
}

// complete reports whether the mirror knows every copy of the binding that may be in this cluster.
// It makes the mirror list the type. It is true for a type that the cluster does not serve or that
// has never had copies.
func (q *clusterQueue) complete(b *workv1alpha2.ResourceBinding) bool {
	api, served := apiOf(q.member, b)
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
	api, served := apiOf(q.member, b)
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

// find looks up an object of the cluster in the mirror. It sends no request.
func (q *clusterQueue) find(o Object) (presence.Presence, mirror.Object) {
	return q.applier.mirror.Lookup(q.name(), o.Resource.GroupResource(), o.Namespace, o.Name)
}

// asked returns the number of replicas in the template if they are divided among clusters, without
// the shares of clusters in which the work rests. It is 0 if each cluster has all replicas, and if
// the binding names no cluster.
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

// rests reports whether the work of a binding, such as a Job, has ended in a cluster or is not to
// begin there any more. So no replica is available there that a move could cost. It is false
// without a template.
func (a *Applier) rests(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured, cluster string) bool {
	if source == nil || !interpreter.Ends(binding.Kind(b).GroupKind()) && len(a.runs.of(b)) == 0 {
		return false
	}
	w := a.work(b, source, cluster)
	return w.rests() != ""
}

// placedAs returns the copy of a binding in a cluster that has the template's name; false if there
// is none.
func (a *Applier) placedAs(b *workv1alpha2.ResourceBinding, cluster string) (mirror.Object, bool) {
	placed := a.mirror.PlacedOf(b.UID, cluster)
	i := slices.IndexFunc(placed, func(o mirror.Object) bool { return o.Name == b.Spec.Resource.Name })
	if i < 0 {
		return mirror.Object{}, false
	}
	return placed[i], true
}

// unclaimed returns the number of replicas of copy o above the share of its cluster, which move
// even without an eviction task. It is 0 unless the copy was made from the current template, or
// from a later one that a restored hub lost. The excess then comes from a decision that a restored
// hub does not know, or from an earlier join. A copy from an older template may exceed its share
// because a user scaled the template down. For such a copy only eviction tasks say what moves.
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

// placements returns the input of Release: the current and wanted state of a binding in all
// clusters, sorted by name. asks is the cluster that decides how much to release. For other
// clusters only the replicas count that stay after writes under way. Clusters where the work rests
// are left out unless replicas move out of them. a.releasing must be held.
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
			// The replicas that a shrinking copy keeps serve already, even before the write is done.
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
			continue // no replica will be available there
		}
		of(t.Name).Wanted = 1
		if counted && t.Replicas != nil {
			of(t.Name).Wanted = *t.Replicas
		}
	}
	for _, t := range b.Spec.GracefulEvictionTasks {
		p := of(t.FromCluster)
		if o, there := found[t.FromCluster]; there {
			p.Moving = max(0, o.Replicas-p.Wanted) // the replicas that are still there
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

// countsReplicas reports whether the availability of a template is counted in replicas, and not as
// a whole as for a Job. It is false for nil.
func countsReplicas(source *unstructured.Unstructured) bool {
	if source == nil {
		return false
	}
	replicas := interpreter.Replicas(source)
	asked, _ := interpreter.Availability(source)
	return replicas != nil && asked == *replicas
}

// followingClaim reports whether a binding places a PersistentVolumeClaim that no policy selects,
// only because other placed objects refer to it.
func followingClaim(b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.PlacementHash == "" && len(b.Spec.RequiredBy) > 0 && binding.Kind(b).GroupKind() == schema.GroupKind{Kind: "PersistentVolumeClaim"}
}

// neededBy reports whether a workload in the binding's namespace that also moves out of the cluster
// is still there. The copy of a dependency, such as a Secret, stays until then. A workload that the
// same policy claims counts as moving, even if its own binding does not say so yet.
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
		behind := b.Spec.PlacementHash != "" && other.Spec.PolicyRef == b.Spec.PolicyRef && other.Spec.PlacementHash != b.Spec.PlacementHash
		o, there := a.placedAs(other, cluster)
		if behind || !stays && (evictedFrom(other, cluster) || there && a.unclaimed(source, o, 0) > 0) {
			return true
		}
	}
	return false
}

// template returns the template of a binding from the cache, and Present. An object with another
// UID than the binding names counts as Absent. The template is nil unless it is Present.
func (a *Applier) template(b *workv1alpha2.ResourceBinding) (*unstructured.Unstructured, presence.Presence) {
	o, state := a.templates.Get(binding.Kind(b), b.Namespace, b.Spec.Resource.Name)
	if state == presence.Present && b.Spec.Resource.UID != "" && o.GetUID() != b.Spec.Resource.UID {
		return nil, presence.Absent // another object of the same name
	}
	return o, state
}

// versionOf returns the version that template.Version gives a template; "" for nil.
func versionOf(source *unstructured.Unstructured) string {
	if source == nil {
		return ""
	}
	return template.Version(source)
}
