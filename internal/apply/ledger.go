package apply

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Result is how the last attempt to bring a binding's object to a cluster ended.
type Result struct {
	// Applied is true when the cluster has the manifest as it is to be now.
	Applied bool
	Reason  string // a reason of ConditionFullyApplied
	Message string // empty when Applied

	// What the result is about: the generation of the binding, the version of the template (see
	// template.Version), and the digest of the manifest, empty when there is none.
	Generation int64
	Template   string
	Digest     string
	// Stale is true when something that the manifest depends on changed since: the result is
	// about the past.
	Stale bool
}

// entry is what is known of one binding in one cluster. It is kept in memory only: after
// a restart it is learnt again from the mirror, without a call.
type entry struct {
	result Result
	known  bool // result is set

	// digest of the manifest that the cluster has, and the hash of the fields that were
	// ours then. Another hash later means that somebody took fields from us.
	digest string
	fields uint64

	refused string    // digest of the manifest that the cluster rejected
	retry   time.Time // not to be sent again before
	repairs int       // repairs of drift in a row, none longer ago than driftMemory
	drifted time.Time // the last repair

	// unsure: a request was sent and never answered, so that the cluster may have what
	// the mirror has not seen.
	unsure bool
	busy   bool // the lane is applying: what is observed now is its own doing
	gone   bool // the cluster holds nothing of the binding, and the binding does not name it
	held   bool // what it holds is to go, but waits for another copy to be healthy
}

// ledger holds the entries.
type ledger struct {
	mu          sync.Mutex
	entries     map[types.UID]map[string]entry
	subscribers []func(types.NamespacedName)
}

func newLedger() *ledger { return &ledger{entries: map[types.UID]map[string]entry{}} }

func (l *ledger) subscribe(f func(types.NamespacedName)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscribers = append(l.subscribers, f)
}

func (l *ledger) get(binding types.UID, cluster string) (entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.entries[binding][cluster]
	return e, ok
}

// update changes an entry and tells those concerned if its result or gone changed. Only
// the lane of the cluster changes an entry, one binding at a time.
func (l *ledger) update(name types.NamespacedName, binding types.UID, cluster string, change func(*entry)) {
	l.mu.Lock()
	clusters := l.entries[binding]
	if clusters == nil {
		clusters = map[string]entry{}
		l.entries[binding] = clusters
	}
	before := clusters[cluster]
	after := before
	change(&after)
	clusters[cluster] = after
	subscribers := l.subscribers
	l.mu.Unlock()
	if before.result == after.result && before.known == after.known && before.gone == after.gone {
		return
	}
	for _, f := range subscribers {
		f(name)
	}
}

// clusters are those with an entry for a binding of which something is true.
func (l *ledger) clusters(binding types.UID, is func(entry) bool) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for cluster, e := range l.entries[binding] {
		if is(e) {
			found = append(found, cluster)
		}
	}
	return found
}

func (l *ledger) forget(binding types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.entries, binding)
}

func (l *ledger) forgetCluster(cluster string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, clusters := range l.entries {
		delete(clusters, cluster)
	}
}
