// Package member knows the clusters of the fleet: it joins them, keeps one connection to
// each, watches their health, identity and API lists, and lets them leave.
//
// The rest of Orrery sees a cluster as a Member of the Registry. Its Reachable method is
// the gate of every decision: a cluster that does not answer, refuses our credentials or
// is not the one that was joined is unknown, never empty.
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

// Options of the registry. The zero value is good but for HubID.
type Options struct {
	// Observe tells what the mirror knows of a cluster. Unset: nothing is observed, and
	// every cluster counts as mirrored.
	Observe func(cluster string) Observation
	// Provision brings the hosts of a Cluster with spec.provision to it. It is the step of the condition Provisioned.
	Provision func(ctx context.Context, o *clusterv1alpha1.Cluster) error
	// Departures are the phases in which a cluster leaves.
	Departures []Departure
	// Dial opens the connections to clusters with syncMode Push. The default dials them directly.
	Dial Dial
	// Tunnel reaches clusters with syncMode Pull. Unset: they are unknown.
	Tunnel Tunnel
	// Fence wraps the transport to each cluster: it refuses requests that may write once this server must not. Unset: none.
	Fence func(http.RoundTripper) http.RoundTripper
	// Clock tells when the hub's tokens in clusters are to be renewed. The default is the machine's.
	Clock clock.PassiveClock
	// HubID is the UID of the hub's kube-system namespace: the hub cannot join itself.
	HubID string
	// dials is held by probes that dial.
	dials chan struct{}
	// ProbeInterval is the time between two probes of a healthy cluster. The default is that of
	// DefaultProbes.
	ProbeInterval time.Duration
	// ProbeTimeout is how long a cluster may take to answer each question of a probe. The default
	// is that of DefaultProbes.
	ProbeTimeout time.Duration
	// FailureThreshold is how many probes in a row must fail before a cluster counts as
	// unreachable. The default is that of DefaultProbes.
	FailureThreshold int
	// DiscoveryInterval is the time between two looks at a cluster's API list. The default
	// is 60s.
	DiscoveryInterval time.Duration

	// probed is called after each probe.
	probed func(cluster string)
}

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

// Observation is what the mirror knows of a cluster.
type Observation struct {
	// Synced is true when every selected type was listed at least once, and no list that is repeated
	// is overdue.
	Synced bool
	// NotStored is true while what was observed cannot be stored, or was lost: that the
	// cluster was mirrored before says nothing then.
	NotStored bool
	// Message says what is missing while Synced is false.
	Message string
	// Notice says what is known to be amiss while Synced is true; "": nothing.
	Notice string
	// Nodes counts the nodes; nil while they are unknown.
	Nodes *clusterv1alpha1.NodeSummary
	// Resources adds up the capacity; nil while it is unknown.
	Resources *clusterv1alpha1.ResourceSummary
}

// EventType says what happened to a member.
type EventType string

// The types of events.
const (
	// Joined: the cluster is new to this process. It may not be reachable yet.
	Joined EventType = "Joined"
	// Changed: its reachability, its API list or its Cluster object changed.
	Changed EventType = "Changed"
	// Left: it is no member any more.
	Left EventType = "Left"
)

// Event is something that happened to a member.
type Event struct {
	Type EventType
	// Name of the cluster.
	Name string
}

// refreshDelay coalesces the requests to look at a Cluster again.
const refreshDelay = time.Second

// Registry holds the members of the fleet.
type Registry struct {
	options Options
	client  client.Client
	events  events.EventRecorder
	reader  client.Reader // reads Secrets, which are not cached

	mu          sync.RWMutex
	ctx         context.Context //nolint:containedctx // the lifetime of the members' goroutines, set when the controller starts
	members     map[string]*Member
	trials      map[string]*trial    // by cluster: candidates that could not be tried yet
	counted     map[string]time.Time // when the spares of a cluster were written last
	began       time.Time
	subscribers []func(Event)
	queue       workqueue.TypedRateLimitingInterface[reconcile.Request]

	storing     sync.Mutex
	storedBound bool // what an earlier version stored is bound to its clusters
	bound       reconciler.Attempt
}

// Prepared returns a channel that is closed once the registry has written what a start writes on the hub, or has failed to once.
func (r *Registry) Prepared() <-chan struct{} { return r.bound.Ended() }

// Member returns the cluster of that name.
func (r *Registry) Member(name string) (*Member, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	m, ok := r.members[name]
	return m, ok
}

// Members returns the clusters by name.
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

// Subscribe calls f after each change of a member. f must not block; it is not told of
// the members that are there already.
func (r *Registry) Subscribe(f func(Event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscribers = append(r.subscribers, f)
}

// Refresh has a Cluster's status written again soon, because what is observed of it may
// have changed.
func (r *Registry) Refresh(cluster string) { r.enqueue(cluster, refreshDelay) }

// Rediscover has a cluster's API list read again soon, because its CRDs or APIServices
// changed.
func (r *Registry) Rediscover(cluster string) {
	if m, ok := r.Member(cluster); ok {
		m.rediscover()
	}
}

func (r *Registry) enqueue(cluster string, after time.Duration) {
	r.mu.RLock()
	queue := r.queue
	r.mu.RUnlock()
	if queue == nil {
		return // every Cluster is looked at when the controller starts
	}
	queue.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: cluster}}, after)
}

func (r *Registry) notify(e Event) {
	r.mu.RLock()
	subscribers := r.subscribers
	r.mu.RUnlock()
	for _, f := range subscribers {
		f(e)
	}
}

// ensure returns the member of a Cluster as it is now, starting to watch it if it is new.
func (r *Registry) ensure(cluster *clusterv1alpha1.Cluster) *Member {
	r.mu.Lock()
	m, known := r.members[cluster.Name]
	var replaced *Member
	if known && m.Cluster().UID != cluster.UID {
		// Deleted and created again between two looks: another cluster, for all we know.
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

// remove forgets a member.
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
	// A cluster that was refused because this one was it may join now.
	for _, other := range r.Members() {
		r.enqueue(other.name, 0)
	}
}

// share returns a snapshot that another member holds already if it is the same: clusters
// of one version mostly serve the same list, and it is the largest thing a member holds.
func (r *Registry) share(apis *APIs) *APIs {
	for _, m := range r.Members() {
		if held := m.APIs(); held.fingerprint == apis.fingerprint {
			return held
		}
	}
	return apis
}
