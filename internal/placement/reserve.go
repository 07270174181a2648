package placement

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/scheduler"
)

const (
	// reservationLimit is how long capacity is reserved for pods that do not appear. Examples: a
	// webhook of the cluster refuses the pods of a ReplicaSet, or the kind does not count its pods.
	// Pods normally appear within seconds after the copy, but an unhealthy cluster may get the copy
	// minutes later.
	reservationLimit = 5 * time.Minute
	// doubtLook is the shortest interval between checks of copies that were unknown.
	doubtLook = 100 * time.Millisecond
)

// reservations reserves free capacity in clusters for the replicas that decisions placed there. A
// reservation ends when the pods exist and count in the measured capacity, or at the time limit.
// Otherwise all decisions of a burst would take the same capacity. Nothing is reserved before
// activate, which the first decision by capacity calls. Reservations are not stored: they follow
// from the bindings and the copies. The type is safe for concurrent use.
type reservations struct {
	fleet  fleetCapacity
	copies copies
	// refused returns the generation of a binding for which a cluster last refused the rendered
	// object; 0: none.
	refused func(binding types.UID, cluster string) (generation int64)
	limit   time.Duration // reservationLimit, except in tests

	// deciding is held during a decision by capacity and its reservation.
	deciding sync.Mutex

	mu     sync.Mutex
	active bool                                  // activate was called
	held   map[binding.Template]*hold            // by template
	owners map[types.UID]binding.Template        // templates with reservations, by UID of the binding
	in     map[string]sets.Set[binding.Template] // templates with reservations, by cluster
	due    []due                                 // sorted by time
	unsure sets.Set[string]                      // clusters whose copies must be read again
	looked time.Time                             // when refresh last read the copies in unsure
}

// fleetCapacity is the part of fleet.Cache that reservations uses. Tests replace it.
type fleetCapacity interface {
	Reserve(cluster string, claim *scheduler.Claim, replicas, objects int64)
	Doubt(cluster string, n int)
	Snapshot() *fleet.Snapshot
}

// hold is what is reserved for one binding, by cluster. It has a share only for a cluster in which
// pods are still missing.
type hold struct {
	uid        types.UID        // UID of the binding, once it is written
	generation int64            // of the binding with these targets; 0: it is not written yet
	claim      *scheduler.Claim // what each replica requires
	shares     map[string]share // by cluster
}

// demand is what an object requires of a cluster: each replica has the claim or, if the object has
// components, all components together are required.
type demand struct {
	claim      *scheduler.Claim
	components []scheduler.Component
}

// pods returns how many pods an object is to have in a target cluster: all pods of its components,
// or else the replicas of the target.
func (d demand) pods(t workv1alpha2.TargetCluster) int64 {
	if d.components == nil {
		return number(t.Replicas)
	}
	var n int64
	for i := range d.components {
		n += d.components[i].Replicas
	}
	return n
}

// grown returns the components that have more replicas than in before, the components in the
// present spec of the binding. Replicas of the result are the additional ones.
func (d demand) grown(before []workv1alpha2.Component) []scheduler.Component {
	more := []scheduler.Component{}
	for _, c := range d.components {
		if i := slices.IndexFunc(before, func(was workv1alpha2.Component) bool { return was.Name == c.Name }); i >= 0 {
			c.Replicas -= int64(before[i].Replicas)
		}
		if c.Replicas > 0 {
			more = append(more, c)
		}
	}
	return more
}

// heldBy returns how many pods the present spec of a binding wants in its target cluster t.
func heldBy(spec *workv1alpha2.BindingSpec, t workv1alpha2.TargetCluster) int64 {
	if spec.Components == nil {
		return number(t.Replicas)
	}
	var n int64
	for _, c := range spec.Components {
		n += int64(c.Replicas)
	}
	return n
}

// share is what is reserved in one cluster for one binding: capacity for the wanted pods less the
// seen ones. For an object with components, all components are reserved until all pods are seen.
// While doubt is true, it is unknown how many pods exist, and so the free capacity of the cluster
// counts as unknown.
type share struct {
	wanted, seen int64 // pods that the binding wants, and that its copy has
	components   []scheduler.Component
	there        bool // the object was placed there before, perhaps with 0 replicas
	doubt        bool
	until        time.Time // the reservation ends then
}

// missing returns the number of pods for which capacity is reserved; 0 or less: the reservation is
// over.
func (s share) missing() int64 { return s.wanted - s.seen }

// due is the time at which the reservation for a template in a cluster ends.
type due struct {
	at      time.Time
	of      binding.Template
	cluster string
}

// newReservations returns reservations that reserve nothing before activate. refused returns the
// generation of a binding for which a cluster last refused the rendered object; nil: none is ever
// refused.
func newReservations(f fleetCapacity, c copies, refused func(types.UID, string) int64) *reservations {
	if refused == nil {
		refused = func(types.UID, string) int64 { return 0 }
	}
	return &reservations{
		fleet: f, copies: c, refused: refused, limit: reservationLimit,
		held: map[binding.Template]*hold{}, owners: map[types.UID]binding.Template{}, in: map[string]sets.Set[binding.Template]{},
		unsure: sets.New[string](),
	}
}

// activate starts the reservations with the present bindings; later calls do nothing. claim returns
// what the template of a binding requires. If the copy of a binding in a cluster is unknown, an
// earlier process placed it, and most of its pods exist. Its share is in doubt until the copy is
// known, at most until the time doubt.
func (r *reservations) activate(
	bindings func() []*workv1alpha2.ResourceBinding, claim func(*workv1alpha2.ResourceBinding) demand, doubt time.Time,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.active {
		return
	}
	r.active = true
	now := time.Now()
	for _, b := range bindings() {
		if b.Spec.Replicas == nil && b.Spec.Components == nil || !b.DeletionTimestamp.IsZero() {
			continue
		}
		h := &hold{uid: b.UID, generation: b.Generation, shares: map[string]share{}}
		for _, t := range b.Spec.Clusters {
			s := share{wanted: heldBy(&b.Spec, t), until: now.Add(r.limit)}
			n, known := r.copies.Pods(b.UID, t.Name)
			if s.seen = n; !known {
				if s.doubt, s.until = true, doubt; !now.Before(doubt) {
					continue
				}
			}
			if s.missing() > 0 {
				h.shares[t.Name] = s
			}
		}
		if len(h.shares) > 0 {
			d := claim(b)
			h.claim = d.claim
			for cluster, s := range h.shares {
				s.components = d.components
				h.shares[cluster] = s
			}
			r.replace(binding.TemplateOf(b), h)
		}
	}
	slices.SortStableFunc(r.due, func(a, b due) int { return a.at.Compare(b.at) })
}

// take reserves what a decision on the template k wants beyond what its binding b wants now. b is
// nil if there is no binding yet, and want is nil if nothing was decided. d is what the template
// requires. Before activate, take does nothing. The caller calls undo if the decision cannot be
// written: that restores the former reservation, unless the reservation has changed since.
func (r *reservations) take(
	k binding.Template, b *workv1alpha2.ResourceBinding, d demand, want *workv1alpha2.BindingSpec,
) (undo func()) {
	var before workv1alpha2.BindingSpec
	if b != nil {
		before = b.Spec
	}
	if want == nil || slices.EqualFunc(before.Clusters, want.Clusters, sameTarget) && slices.Equal(before.Components, want.Components) {
		return func() {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.active {
		return func() {}
	}
	was := make(map[string]int64, len(before.Clusters))
	for _, t := range before.Clusters {
		was[t.Name] = heldBy(&before, t)
	}
	previous := r.held[k]
	next := &hold{claim: d.claim, shares: map[string]share{}}
	mine := previous // nil if the template was created again and has another binding
	if b == nil || previous != nil && previous.uid != b.UID {
		mine = nil
	}
	if b != nil {
		next.uid = b.UID
	}
	for _, t := range want.Clusters {
		s, held := mine.share(t.Name)
		if !held {
			n, there := was[t.Name]
			s = share{seen: n, there: there} // presumably all of the pods exist
		}
		if s.components = d.components; !held && s.there && d.components != nil {
			s.components = d.grown(before.Components)
		}
		if s.wanted = d.pods(t); s.wanted > was[t.Name] || !held {
			s.until = time.Now().Add(r.limit)
		}
		if b != nil && (held || s.wanted > was[t.Name]) {
			s = r.look(b.UID, t.Name, s)
		}
		if s.missing() > 0 {
			next.shares[t.Name] = s
		}
	}
	r.replace(k, next)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.held[k] == next || r.held[k] == nil && len(next.shares) == 0 {
			r.replace(k, previous)
			r.lookAt(k)
		}
	}
}

// share returns what is reserved in a cluster; false if nothing is, or h is nil.
func (h *hold) share(cluster string) (share, bool) {
	if h == nil {
		return share{}, false
	}
	s, ok := h.shares[cluster]
	return s, ok
}

// written records that the binding b of the template k was written with a decision, and reads its
// copies again. If a cluster has refused the rendered object of this generation, the reservation
// there ends.
func (r *reservations) written(k binding.Template, b *workv1alpha2.ResourceBinding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.held[k]
	if h == nil || h.generation == b.Generation && h.uid == b.UID {
		return
	}
	h.uid, h.generation = b.UID, b.Generation
	r.owners[b.UID] = k
	r.lookAt(k)
	r.lookForRefusals(k)
}

// forget ends the reservations for the binding with this UID, which is deleted. An unknown binding
// is ignored.
func (r *reservations) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k, ok := r.owners[uid]; ok {
		r.replace(k, nil)
	}
}

// observed updates the reservation for the binding with this UID in a cluster, because its copy
// there changed. If uid is "", more copies in the cluster may have become known: the next refresh
// reads all of them again.
func (r *reservations) observed(cluster string, uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid == "" {
		if len(r.in[cluster]) > 0 {
			r.unsure.Insert(cluster)
		}
		return
	}
	if k, ok := r.owners[uid]; ok {
		r.update(k, cluster)
	}
}

// answered ends the reservations for the binding with this UID in clusters that have refused its
// present manifest. An unknown binding is ignored.
func (r *reservations) answered(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k, ok := r.owners[uid]; ok {
		r.lookForRefusals(k)
	}
}

// refresh ends the reservations that have expired at the time now. It also reads copies again whose
// state was unknown, at most once in doubtLook.
func (r *reservations) refresh(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.due) > 0 && !now.Before(r.due[0].at) {
		d := r.due[0]
		r.due = r.due[1:]
		if s, held := r.held[d.of].share(d.cluster); held && !now.Before(s.until) {
			r.set(d.of, d.cluster, share{})
		}
	}
	if now.Sub(r.looked) < doubtLook {
		return
	}
	r.looked = now
	snapshot := r.fleet.Snapshot()
	for cluster := range r.unsure {
		if c, ok := snapshot.Cluster(cluster); ok && !c.Reachable {
			continue // its copies stay unknown, and no decision places anything in it
		}
		r.unsure.Delete(cluster)
		for k := range r.in[cluster].Clone() {
			r.update(k, cluster)
		}
	}
}

// The caller of each method below holds r.mu.

// look returns the share s of a binding with the pods that its copy in the cluster has now. If the
// copy is unknown, it returns s, and refresh reads the copy again later. The caller holds r.mu.
func (r *reservations) look(uid types.UID, cluster string, s share) share {
	n, known := r.copies.Pods(uid, cluster)
	if !known {
		r.unsure.Insert(cluster)
		return s
	}
	if s.doubt {
		s.doubt, s.until = false, time.Now().Add(r.limit)
	}
	s.seen = n
	return s
}

// update reads the copy of the template k in a cluster again, if its binding is written and has a
// reservation there. The caller holds r.mu.
func (r *reservations) update(k binding.Template, cluster string) {
	if s, held := r.held[k].share(cluster); held && r.held[k].uid != "" {
		r.set(k, cluster, r.look(r.held[k].uid, cluster, s))
	}
}

// lookAt reads the copies of the template k again in all clusters in which capacity is reserved for
// it. The caller holds r.mu.
func (r *reservations) lookAt(k binding.Template) {
	for cluster := range r.sharesOf(k) {
		r.update(k, cluster)
	}
}

// lookForRefusals ends the reservations for the template k in clusters that refused its present
// manifest. The caller holds r.mu.
func (r *reservations) lookForRefusals(k binding.Template) {
	for cluster := range r.sharesOf(k) {
		if h := r.held[k]; h != nil && h.generation > 0 && r.refused(h.uid, cluster) >= h.generation {
			r.set(k, cluster, share{})
		}
	}
}

// sharesOf returns the clusters in which capacity is reserved for the template k; nil: none. The
// caller holds r.mu.
func (r *reservations) sharesOf(k binding.Template) sets.Set[string] {
	if h := r.held[k]; h != nil {
		return sets.KeySet(h.shares)
	}
	return nil
}

// set replaces what is reserved for the template k in a cluster. A share without missing pods ends
// the reservation. k must have a hold. The caller holds r.mu.
func (r *reservations) set(k binding.Template, cluster string, s share) {
	h := r.held[k]
	before := h.shares[cluster]
	r.count(h, cluster, s, 1) // first, so that the capacity is never free in between
	r.count(h, cluster, before, -1)
	if h.shares[cluster] = s; s.until != before.until {
		r.due = append(r.due, due{at: s.until, of: k, cluster: cluster})
	}
	if s.missing() > 0 {
		return
	}
	delete(h.shares, cluster)
	r.leave(k, cluster)
	if len(h.shares) == 0 {
		delete(r.held, k)
		delete(r.owners, h.uid)
	}
}

// replace replaces all that is reserved for the template k by next. If next is nil or has no
// shares, all its reservations end. The caller holds r.mu.
func (r *reservations) replace(k binding.Template, next *hold) {
	before := r.held[k]
	delete(r.held, k)
	if next != nil && len(next.shares) > 0 {
		r.held[k] = next
		for cluster, s := range next.shares {
			r.count(next, cluster, s, 1)
			r.due = append(r.due, due{at: s.until, of: k, cluster: cluster})
			if r.in[cluster] == nil {
				r.in[cluster] = sets.New[binding.Template]()
			}
			r.in[cluster].Insert(k)
			if s.doubt {
				r.unsure.Insert(cluster)
			}
		}
	}
	if before != nil {
		delete(r.owners, before.uid)
		for cluster, s := range before.shares {
			r.count(before, cluster, s, -1)
			if _, still := r.held[k].share(cluster); !still {
				r.leave(k, cluster)
			}
		}
	}
	if h := r.held[k]; h != nil && h.uid != "" {
		r.owners[h.uid] = k
	}
}

// leave removes the template k from those with a reservation in a cluster. The caller holds r.mu.
func (r *reservations) leave(k binding.Template, cluster string) {
	if r.in[cluster].Delete(k); r.in[cluster].Len() == 0 {
		delete(r.in, cluster)
		r.unsure.Delete(cluster)
	}
}

// count adds a share of the hold h to the capacity that the fleet has reserved in a cluster (sign
// 1), or subtracts it (sign -1). A share in doubt instead makes the free capacity of the cluster
// unknown. The caller holds r.mu.
func (r *reservations) count(h *hold, cluster string, s share, sign int) {
	switch {
	case s.missing() <= 0:
	case s.doubt:
		r.fleet.Doubt(cluster, sign)
	default:
		objects := int64(0)
		if !s.there && s.seen == 0 { // the object is not in the cluster yet, as far as is known
			objects = 1
		}
		if s.components != nil {
			for i := range s.components {
				c := &s.components[i]
				r.fleet.Reserve(cluster, c.Claim, int64(sign)*c.Replicas, int64(sign)*objects)
				objects = 0
			}
			return
		}
		r.fleet.Reserve(cluster, h.claim, int64(sign)*s.missing(), int64(sign)*objects)
	}
}
