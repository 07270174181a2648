// Package member manages the clusters of the fleet. It joins them, keeps one connection to each,
// watches their health, identity and API lists, and removes them when they leave.
//
// Other packages see a cluster as a Member of the Registry. They must check its Reachable method
// before each decision: the state of a cluster that does not answer, rejects the hub's
// credentials or is not the one that was joined is unknown, never empty.
package member

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

// Options of the registry. The zero value is valid except for HubID.
type Options struct {
	// Observe returns the mirror's summary of a cluster. It must not block. nil: every cluster
	// counts as mirrored.
	Observe func(cluster string) Observation
	// Provision builds a Cluster with spec.provision on its hosts. It is the step of the
	// condition Provisioned. nil: it does nothing.
	Provision func(ctx context.Context, o *clusterv1alpha1.Cluster) error
	// Departures are the phases in which a cluster leaves.
	Departures []Departure
	// Dial opens connections to clusters with syncMode Push. The default dials them directly.
	Dial Dial
	// Tunnel connects to clusters with syncMode Pull. nil: they cannot be reached, and their
	// state is unknown.
	Tunnel Tunnel
	// Fence wraps the transport to each cluster. It rejects requests that may write once another
	// server of the hub may have taken over. nil: nothing is rejected.
	Fence func(http.RoundTripper) http.RoundTripper
	// Clock decides when the hub's tokens in clusters are renewed. The default is the machine's
	// clock.
	Clock clock.PassiveClock
	// HubID is the UID of the hub's kube-system namespace. It prevents the hub from joining
	// itself, and identifies the hub in a cluster that several hubs use.
	HubID string
	// dials limits the number of probes that open connections at the same time.
	dials chan struct{}
	// ProbeInterval is the time between two probes of a healthy cluster. The default is that of
	// DefaultProbes.
	ProbeInterval time.Duration
	// ProbeTimeout is how long a cluster may take to answer each request of a probe. The default
	// is that of DefaultProbes.
	ProbeTimeout time.Duration
	// FailureThreshold is how many probes in a row must fail before a cluster counts as
	// unreachable. The default is that of DefaultProbes.
	FailureThreshold int
	// DiscoveryInterval is the time between two reads of a cluster's API list. The default is
	// 60s.
	DiscoveryInterval time.Duration

	// probed is called after each probe, from the goroutine of the cluster. Tests set it.
	probed func(cluster string)
}

// withDefaults returns the options with a default in each field that is nil, zero or negative and
// has one, and with a new semaphore dials.
func (o Options) withDefaults() Options {
	if o.Observe == nil {
		o.Observe = func(string) Observation { return Observation{Synced: true} }
	}
	if o.Provision == nil {
		o.Provision = func(context.Context, *clusterv1alpha1.Cluster) error { return nil }
	}
	if o.Dial == nil {
		o.Dial = dialDirectly
	}
	if o.Fence == nil {
		o.Fence = func(rt http.RoundTripper) http.RoundTripper { return rt }
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	o.dials = make(chan struct{}, dialsAtOnce)
	if o.ProbeInterval <= 0 {
		o.ProbeInterval = DefaultProbes.Interval
	}
	if o.ProbeTimeout <= 0 {
		o.ProbeTimeout = DefaultProbes.Timeout
	}
	if o.FailureThreshold <= 0 {
		o.FailureThreshold = DefaultProbes.Failures
	}
	if o.DiscoveryInterval <= 0 {
		o.DiscoveryInterval = time.Minute
	}
	if o.probed == nil {
		o.probed = func(string) {}
	}
	return o
}

// Observation is the summary that the hub's mirror has of a cluster. The mirror copies the objects
// of clusters to SQL.
type Observation struct {
	// Synced is true when every type that the Cluster selects for the mirror was listed at least once,
	// and no repeated list is overdue. It stays true while a watch is interrupted.
	Synced bool
	// NotStored is true while observations cannot be stored, or were lost. An earlier Synced then
	// no longer counts.
	NotStored bool
	// Message is what is missing while Synced is false.
	Message string
	// Notice is a known problem while Synced is true; "": none.
	Notice string
	// Nodes is the summary of the nodes; nil while they are unknown.
	Nodes *clusterv1alpha1.NodeSummary
	// Resources is the sum of the capacity; nil while it is unknown.
	Resources *clusterv1alpha1.ResourceSummary
}

// EventType is what happened to a member: Joined, Changed or Left.
type EventType string

// The types of events that subscribers of a Registry receive.
const (
	// Joined means that the cluster is new to this process, or that its Cluster was replaced. It may
	// not be reachable yet.
	Joined EventType = "Joined"
	// Changed means that the reachability, the API list, the connection or the Cluster object of the
	// member changed. Such an event may come without a difference.
	Changed EventType = "Changed"
	// Left is the type of the last event of a cluster: it is no longer a member.
	Left EventType = "Left"
)

// Event reports a change of a member to the subscribers of a Registry.
type Event struct {
	Type EventType
	// Name is that of the cluster.
	Name string
}

// refreshDelay is the delay after which Registry.Refresh reconciles a Cluster. Several calls in
// that time cause one reconcile.
const refreshDelay = time.Second

// Registry holds the members of the fleet, by name. Add makes it. Several goroutines may use it.
type Registry struct {
	options Options
	client  client.Client
	events  events.EventRecorder
	reader  client.Reader // reads Secrets, which are not cached

	mu          sync.RWMutex
	ctx         context.Context //nolint:containedctx // the lifetime of the members' goroutines, set when the controller starts
	members     map[string]*Member
	trials      map[string]*trial    // candidates that could not be tried yet, by cluster
	counted     map[string]time.Time // last writes of the counts of spare connections, by cluster
	began       time.Time
	subscribers []func(Event)
	queue       workqueue.TypedRateLimitingInterface[reconcile.Request]

	storing     sync.Mutex
	storedBound bool // the Secrets of earlier versions are bound to their clusters
	bound       reconciler.Attempt
}

// Prepared returns a channel that is closed after the registry's first attempt to bind the Secrets
// of earlier versions to their Clusters (bindStored), successful or not. The registry writes
// nothing else on the hub at a start. The server counts as ready when its components are prepared.
func (r *Registry) Prepared() <-chan struct{} { return r.bound.Ended() }

// Member returns the member with that name. It returns false if there is none. A member may be
// unreachable.
func (r *Registry) Member(name string) (*Member, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	m, ok := r.members[name]
	return m, ok
}

// Members returns the members, sorted by name. The slice belongs to the caller.
func (r *Registry) Members() []*Member {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make([]*Member, 0, len(r.members))
	for _, m := range r.members {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *Member) int { return strings.Compare(a.name, b.name) })
	return all
}

// Subscribe registers f, which is called after each change of a member, until the process ends. f
// must not block, and several goroutines may call it at once. f is not called for members that
// exist already when Subscribe is called.
func (r *Registry) Subscribe(f func(Event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscribers = append(r.subscribers, f)
}

// Refresh reconciles a Cluster within about a second, because the mirror's summary of that cluster
// may have changed. It does not block.
func (r *Registry) Refresh(cluster string) { r.enqueue(cluster, refreshDelay) }

// Rediscover reads a cluster's API list soon, and twice more in the next seconds, because its
// CRDs or APIServices changed. It does not block, and does nothing for a cluster that is no
// member.
func (r *Registry) Rediscover(cluster string) {
	if m, ok := r.Member(cluster); ok {
		m.rediscover()
	}
}

// enqueue makes the controller reconcile the Cluster after the given time. It does nothing before
// the controller has started, because every Cluster is reconciled then.
func (r *Registry) enqueue(cluster string, after time.Duration) {
	r.mu.RLock()
	queue := r.queue
	r.mu.RUnlock()
	if queue == nil {
		return // every Cluster is reconciled when the controller starts
	}
	queue.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: cluster}}, after)
}

// notify calls all subscribers, one after the other. The caller must not hold r.mu or a
// member's mu.
func (r *Registry) notify(e Event) {
	r.mu.RLock()
	subscribers := r.subscribers
	r.mu.RUnlock()
	for _, f := range subscribers {
		f(e)
	}
}

// ensure returns the member of a Cluster, and stores the given object in it. If there is none, it
// creates and starts the member, with an Event Joined for the subscribers. A member for a Cluster
// of the same name with another UID is stopped and replaced.
func (r *Registry) ensure(cluster *clusterv1alpha1.Cluster) *Member {
	r.mu.Lock()
	m, known := r.members[cluster.Name]
	var replaced *Member
	if known && m.Cluster().UID != cluster.UID {
		// The Cluster was deleted and created again, and may be another cluster now.
		replaced, known = m, false
	}
	if !known {
		m = newMember(r, cluster)
		r.members[cluster.Name] = m
	}
	ctx := r.ctx
	r.mu.Unlock()

	if replaced != nil {
		replaced.stop()
		r.notify(Event{Type: Left, Name: cluster.Name})
	}
	if !known {
		m.start(ctx)
		r.notify(Event{Type: Joined, Name: cluster.Name})
		return m
	}
	m.setCluster(cluster)
	return m
}

// remove stops and deletes the member with this name, notifies the subscribers, and enqueues all
// other Clusters. It does nothing if there is no such member.
func (r *Registry) remove(name string) {
	r.mu.Lock()
	m, ok := r.members[name]
	delete(r.members, name)
	delete(r.counted, name)
	r.mu.Unlock()
	if !ok {
		return
	}
	m.stop()
	r.notify(Event{Type: Left, Name: name})
	// A cluster that was refused because it was the same as the removed one may join now.
	for _, other := range r.Members() {
		r.enqueue(other.name, 0)
	}
}

// share returns the API list of a member that equals apis, or apis if no member has an equal list.
// So clusters with the same types share one list, which is the largest part of a member.
func (r *Registry) share(apis *APIs) *APIs {
	for _, m := range r.Members() {
		if held := m.APIs(); held.fingerprint == apis.fingerprint {
			return held
		}
	}
	return apis
}
