package apply

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Result is how the last attempt to apply a binding's object in a cluster ended.
type Result struct {
	// Applied is true if the cluster has the manifest that is wanted now.
	Applied bool
	Reason  string // a reason of ConditionFullyApplied
	// Message says why the manifest is not applied or, if Applied, what the cluster changed in the
	// manifest; "" if nothing.
	Message string

	// The versions that the result is for: the generation of the binding, the version of the
	// template (see template.Recorded), and the digest of the manifest, "" if there is none.
	Generation int64
	Template   string
	Digest     string
	// Stale is true if an input of the manifest has changed since: the result is about an earlier
	// state.
	Stale bool
}

// state is what is known of one binding in one cluster. Parts of it are in the records, because the
// mirror cannot show them after a restart. A state is copied, and shares no memory that is
// modified.
type state struct {
	cluster types.UID // the UID of the Cluster of this state

	result  Result
	known   bool   // result is set
	changes int    // number of changes of inputs of the manifest
	about   int    // the value of changes for result
	planned string // the version of the template in the last plan
	plans   int    // the number of plans
	decided int64  // the generation of the binding in the last plan; 0: it was not decided

	acts     Known // without Now and Restored
	refusals int   // of the manifest acts.Refused, in a row

	// row holds the last writes that put the copy back, and contest what follows from them. row is
	// replaced and never modified.
	row     []putBack
	contest Contest

	run  runState
	busy bool // the manifest is being applied: what is observed now is our own write
	// gone is true while the cluster holds nothing of the binding, and no plan that places the
	// binding there has begun since that was seen.
	gone bool
}

// current returns the result of the state. Stale is set if an input of the manifest has changed
// since.
func (s *state) current() Result {
	r := s.result
	r.Stale = s.changes != s.about
	return r
}

// results holds the states by binding and cluster. waits has, by binding, the clusters for which
// wait was called with true. left has, by binding and cluster, the replicas that leave recorded.
// The methods may be called by several goroutines.
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

// leave records that a cluster whose copy has a number of replicas (has) was asked to keep only
// some of them (leaves). From then on the difference counts as gone for every other cluster, even
// while the write is under way. If leaves is not less than has, leave removes the record.
func (r *results) leave(binding types.UID, cluster string, has, leaves int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before, asked := r.left[binding][cluster]; asked && r.states[binding][cluster].acts.Unsure {
		leaves = min(leaves, before) // an earlier request that was not answered may still be done
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

// leaves returns how many of a copy's replicas (has) are sure to stay: at most the number that
// leave recorded, or all if there is no record.
func (r *results) leaves(binding types.UID, cluster string, has int32) int32 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if n, ok := r.left[binding][cluster]; ok {
		return min(n, has)
	}
	return has
}

// wait records whether the copy of a binding in a cluster keeps replicas only until replicas
// elsewhere are available, and no eviction task says so. It notifies no subscriber.
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

// waiting returns, in no order, the clusters whose copies of a binding keep replicas until replicas
// elsewhere are available; see wait.
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

// waitingIn returns, in no order, the bindings whose copies in a cluster keep replicas until
// replicas elsewhere are available; see wait.
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

// get returns the state of a binding in a cluster; false and zero if there is none. It may be
// the state of another Cluster that had this name.
func (r *results) get(binding types.UID, cluster string) (state, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s, ok := r.states[binding][cluster]
	return s, ok
}

// update changes the state of a binding in a cluster by the function change, and creates the state
// if necessary. It notifies the subscribers if the current result, known, gone or contest changed.
// change is called with the lock held and must not call r.
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

// hold records that a cluster may hold a copy of a binding from now on, until the state is gone
// again. It notifies the subscribers if the state was gone.
func (r *results) hold(name types.NamespacedName, binding types.UID, cluster string) {
	r.update(name, binding, cluster, func(s *state) { s.gone = false })
}

// tell notifies the subscribers about a binding.
func (r *results) tell(name types.NamespacedName) {
	r.mu.RLock()
	subscribers := r.subscribers
	r.mu.RUnlock()
	for _, f := range subscribers {
		f(name)
	}
}

// changed records that an input of the manifest in a cluster changed, which makes the result
// stale, and notifies the subscribers.
func (r *results) changed(name types.NamespacedName, binding types.UID, cluster string) {
	r.update(name, binding, cluster, func(s *state) { s.changes++ })
}

// plan records that a plan is about to be made for a version of the template, and returns the state
// of the binding in the cluster. A new state has only that record. It notifies no subscriber.
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

// decide records the generation of the binding that the last plan was made for; 0 if placement had
// not decided that generation yet. Applier.decided compares it with later decisions. It does
// nothing if there is no state.
func (r *results) decide(binding types.UID, cluster string, generation int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.states[binding][cluster]; ok {
		s.decided = generation
		r.states[binding][cluster] = s
	}
}

// moves reports whether replicas of a copy are being released, or wait to be released until
// replicas elsewhere are available.
func (r *results) moves(binding types.UID, cluster string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, leaves := r.left[binding][cluster]
	return leaves || r.waits[binding].Has(cluster)
}

// edited makes the result in a cluster stale because the template changed to version, and notifies
// the subscribers. It does nothing if the last plan was already made for this version. A version ""
// is unknown and counts as changed. news is true if a change was recorded. The comparison is
// necessary because templates can be read before the events of the first list come. Such an event
// must not make a result stale.
func (r *results) edited(name types.NamespacedName, binding types.UID, cluster, version string) (news bool) {
	r.update(name, binding, cluster, func(s *state) {
		if news = version == "" || s.planned != version; news {
			s.changes++
		}
	})
	return news
}

// load sets the state s that an earlier process recorded, unless this process already has a result
// or a state from a Cluster. It notifies no subscriber.
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

// clusters returns the clusters, in no order, whose state for the binding satisfies the
// predicate.
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

// heldIn returns, in no order, the bindings whose copies the cluster may hold: those with a state
// that is not gone.
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

// unsureIn returns, in no order, the bindings with a request that the cluster, the Cluster with
// this UID, has not answered.
func (r *results) unsureIn(cluster string, uid types.UID) []types.UID {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var unsure []types.UID
	for binding, clusters := range r.states {
		if s := clusters[cluster]; s.cluster == uid && s.acts.Unsure {
			unsure = append(unsure, binding)
		}
	}
	return unsure
}

// forget removes all states of a binding. It notifies no subscriber.
func (r *results) forget(binding types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.states, binding)
	delete(r.waits, binding)
	delete(r.left, binding)
}

// forgetCluster removes the states of all bindings in a cluster. It notifies no subscriber.
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

// The pause before a rejected manifest is sent again: the first time, and at most.
const (
	firstRefusal = 2 * time.Second
	lastRefusal  = 5 * time.Minute
)

// refused records that the cluster rejected a manifest, and when it may be sent again: the
// pause doubles with each refusal of the same manifest.
func (s *state) refused(digest string, now time.Time) {
	if s.acts.Refused != digest {
		s.refusals = 0 // another manifest begins with the first pause
	}
	s.acts.Refused = digest
	s.acts.RetryAt = now.Add(min(firstRefusal<<min(s.refusals, 16), lastRefusal))
	s.refusals++
}
