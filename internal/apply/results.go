package apply

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Result is how the last attempt to bring a binding's object to a cluster ended.
type Result struct {
	// Applied is true when the cluster has the manifest as it is to be now.
	Applied bool
	Reason  string // a reason of ConditionFullyApplied
	Message string // when Applied what the cluster has otherwise than it was applied, mostly nothing

	// What the result is about: the generation of the binding, the version of the template (see
	// template.Version), and the digest of the manifest, empty when there is none.
	Generation int64
	Template   string
	Digest     string
	// Stale is true when something that the manifest depends on changed since: the result is
	// about the past.
	Stale bool
}

// state is what is known of one binding in one cluster. Records keep the part of it that the
// mirror cannot tell again after a restart.
type state struct {
	cluster types.UID // of the Cluster that all of it is about

	result  Result
	known   bool   // result is set
	changes int    // of what the manifest depends on
	about   int    // the changes that result knew
	planned string // the version of the template that the last plan was made for
	plans   int    // how often what the binding wants was gathered and planned for
	decided int64  // the generation of the binding that the last plan was made for, if it was decided

	acts     Known // but for Now and Restored
	refusals int   // of the manifest acts.Refused, in a row

	// row are the last writes that put the copy back, replaced and never changed, and contest what they mean.
	row     []putBack
	contest Contest

	run  runState
	busy bool // the manifest is being applied: what is observed now is our own doing
	gone bool // the cluster holds nothing of the binding, and the binding does not name it
}

// current is the result as it is to be read now.
func (s *state) current() Result {
	r := s.result
	r.Stale = s.changes != s.about
	return r
}

// results holds the states by binding and cluster.
type results struct {
	mu          sync.RWMutex
	states      map[types.UID]map[string]state
	waits       map[types.UID]sets.Set[string]
	left        map[types.UID]map[string]int32
	subscribers []func(types.NamespacedName)
}

func newResults() *results {
	return &results{states: map[types.UID]map[string]state{}, waits: map[types.UID]sets.Set[string]{}, left: map[types.UID]map[string]int32{}}
}

// leave notes that a cluster, whose copy of a binding has so many replicas, was told to leave fewer of them: from then on the others are gone for every other
// cluster, though the write may still be on its way.
func (r *results) leave(binding types.UID, cluster string, has, leaves int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before, told := r.left[binding][cluster]; told && r.states[binding][cluster].acts.Unsure {
		leaves = min(leaves, before) // what was asked for may still be done
	}
	if leaves >= has {
		if delete(r.left[binding], cluster); len(r.left[binding]) == 0 {
			delete(r.left, binding)
		}
		return
	}
	if r.left[binding] == nil {
		r.left[binding] = map[string]int32{}
	}
	r.left[binding][cluster] = leaves
}

// leaves is how many of a copy's replicas are sure to stay.
func (r *results) leaves(binding types.UID, cluster string, has int32) int32 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if n, ok := r.left[binding][cluster]; ok {
		return min(n, has)
	}
	return has
}

// wait notes whether a copy stays as it is until others are available, though no eviction task says so.
func (r *results) wait(binding types.UID, cluster string, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !waits {
		if r.waits[binding].Delete(cluster); len(r.waits[binding]) == 0 {
			delete(r.waits, binding)
		}
		return
	}
	if r.waits[binding] == nil {
		r.waits[binding] = sets.Set[string]{}
	}
	r.waits[binding].Insert(cluster)
}

// waiting are the clusters whose copies of a binding wait so.
func (r *results) waiting(binding types.UID) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits[binding].UnsortedList()
}

func (r *results) subscribe(f func(types.NamespacedName)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscribers = append(r.subscribers, f)
}

// waitingIn are the bindings whose copies in a cluster wait so.
func (r *results) waitingIn(cluster string) []types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []types.UID
	for binding, clusters := range r.waits {
		if clusters.Has(cluster) {
			found = append(found, binding)
		}
	}
	return found
}

func (r *results) get(binding types.UID, cluster string) (state, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s, ok := r.states[binding][cluster]
	return s, ok
}

// update changes a state and tells the subscribers if its result, as it is to be read now, gone
// or contest changed.
func (r *results) update(name types.NamespacedName, binding types.UID, cluster string, change func(*state)) {
	r.mu.Lock()
	clusters := r.states[binding]
	if clusters == nil {
		clusters = map[string]state{}
		r.states[binding] = clusters
	}
	before := clusters[cluster]
	after := before
	change(&after)
	clusters[cluster] = after
	subscribers := r.subscribers
	r.mu.Unlock()
	if before.current() == after.current() && before.known == after.known && before.gone == after.gone && before.contest == after.contest {
		return
	}
	for _, f := range subscribers {
		f(name)
	}
}

// tell tells the subscribers of a binding.
func (r *results) tell(name types.NamespacedName) {
	r.mu.RLock()
	subscribers := r.subscribers
	r.mu.RUnlock()
	for _, f := range subscribers {
		f(name)
	}
}

// changed notes that something changed that the manifest in a cluster depends on.
func (r *results) changed(name types.NamespacedName, binding types.UID, cluster string) {
	r.update(name, binding, cluster, func(s *state) { s.changes++ })
}

// plan notes the version of the template that a plan is about to be made for, and returns what is known.
func (r *results) plan(binding types.UID, cluster, version string) state {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.states[binding] == nil {
		r.states[binding] = map[string]state{}
	}
	s := r.states[binding][cluster]
	s.planned, s.plans = version, s.plans+1
	r.states[binding][cluster] = s
	return s
}

// decide notes that the last plan for a cluster was made for a generation of the binding, and that placement had decided on it; 0: it had
// not.
func (r *results) decide(binding types.UID, cluster string, generation int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.states[binding][cluster]; ok {
		s.decided = generation
		r.states[binding][cluster] = s
	}
}

// moves is true where replicas of a copy move, or wait for others to be available before they do.
func (r *results) moves(binding types.UID, cluster string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, leaves := r.left[binding][cluster]
	return leaves || r.waits[binding].Has(cluster)
}

// edited notes that the template is of a version, empty when it is not known, unless the last plan was made for that: the events of what is listed at a start
// come after it can be read, and a result that is there by then is not about the past.
func (r *results) edited(name types.NamespacedName, binding types.UID, cluster, version string) (news bool) {
	r.update(name, binding, cluster, func(s *state) {
		if news = version == "" || s.planned != version; news {
			s.changes++
		}
	})
	return news
}

// load takes in what an earlier process recorded, unless this one knows better.
func (r *results) load(binding types.UID, cluster string, s state) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.states[binding] == nil {
		r.states[binding] = map[string]state{}
	}
	if now := r.states[binding][cluster]; now.cluster == "" && !now.known {
		s.changes, s.about, s.planned, s.plans, s.decided = now.changes, now.about, now.planned, now.plans, now.decided
		r.states[binding][cluster] = s
	}
}

// clusters are those with a state for a binding of which something is true.
func (r *results) clusters(binding types.UID, is func(state) bool) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []string
	for cluster, s := range r.states[binding] {
		if is(s) {
			found = append(found, cluster)
		}
	}
	return found
}

// heldIn returns the bindings whose copies a cluster may hold, as far as its state says.
func (r *results) heldIn(cluster string) []types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	var held []types.UID
	for binding, clusters := range r.states {
		if s, ok := clusters[cluster]; ok && !s.gone {
			held = append(held, binding)
		}
	}
	return held
}

func (r *results) forget(binding types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.states, binding)
	delete(r.waits, binding)
	delete(r.left, binding)
}

func (r *results) forgetCluster(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, clusters := range r.states {
		delete(clusters, cluster)
	}
	for _, clusters := range r.waits {
		clusters.Delete(cluster)
	}
	for _, clusters := range r.left {
		delete(clusters, cluster)
	}
}

// How long a manifest that a cluster rejected is not sent again: the first time, and at most.
const (
	firstRefusal = 2 * time.Second
	lastRefusal  = 5 * time.Minute
)

// refused notes that the cluster rejected a manifest.
func (s *state) refused(digest string, now time.Time) {
	if s.acts.Refused != digest {
		s.refusals = 0 // another manifest: patience starts anew
	}
	s.acts.Refused = digest
	s.acts.RetryAt = now.Add(min(firstRefusal<<min(s.refusals, 16), lastRefusal))
	s.refusals++
}
