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
	// Observe returns the mirror's summary of a cluster. nil: every cluster counts as mirrored.
	Observe func(cluster string) Observation
	// Provision builds a Cluster with spec.provision on its hosts. It is the step of the
	// condition Provisioned.
	Provision func(ctx context.Context, o *clusterv1alpha1.Cluster) error
	// Departures are the phases in which a cluster leaves.
	Departures []Departure
	// Dial opens connections to clusters with syncMode Push. The default dials them directly.
	Dial Dial
	// Tunnel connects to clusters with syncMode Pull. nil: they are unknown.
	Tunnel Tunnel
	// Fence wraps the transport to each cluster. It rejects requests that may write once this
	// server must not write any more. nil: none.
	Fence func(http.RoundTripper) http.RoundTripper
	// Clock decides when the hub's tokens in clusters are renewed. The default is the machine's
	// clock.
	Clock clock.PassiveClock
	// HubID is the UID of the hub's kube-system namespace. It prevents the hub from joining
	// itself.
	HubID string
	// dials is the semaphore of probes that dial.
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

// Observation is the mirror's summary of a cluster.
type Observation struct {
	// Synced is true when every selected type was listed at least once, and no repeated list is
	// overdue.
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

// EventType is the kind of an Event.
type EventType string

// The types of events.
const (
	// Joined: the cluster is new to this process. It may not be reachable yet.
	Joined EventType = "Joined"
	// Changed: its reachability, its API list or its Cluster object changed.
	Changed EventType = "Changed"
	// Left: it is no longer a member.
	Left EventType = "Left"
)

// Event is a change of a member.
type Event struct {
	Type EventType
	// Name is that of the cluster.
	Name string
}

// refreshDelay combines several requests to reconcile a Cluster.
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
	trials      map[string]*trial    // candidates that could not be tried yet, by cluster
	counted     map[string]time.Time // last writes of the spares, by cluster
	began       time.Time
	subscribers []func(Event)
	queue       workqueue.TypedRateLimitingInterface[reconcile.Request]

	storing     sync.Mutex
	storedBound bool // the Secrets of earlier versions are bound to their clusters
	bound       reconciler.Attempt
}

// Prepared returns a channel that is closed after the registry's first attempt to write on the
// hub what a start writes, successful or not.
func (r *Registry) Prepared() <-chan struct{} { return r.bound.Ended() }

// Member returns the member with that name; false: there is none.
func (r *Registry) Member(name string) (*Member, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	m, ok := r.members[name]
	return m, ok
}

// Members returns the members, sorted by name.
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

// Subscribe registers f, which is called after each change of a member. f must not block. It is
// not called for members that exist already.
func (r *Registry) Subscribe(f func(Event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscribers = append(r.subscribers, f)
}

// Refresh reconciles a Cluster soon, because the data in its status may have changed.
func (r *Registry) Refresh(cluster string) { r.enqueue(cluster, refreshDelay) }

// Rediscover reads a cluster's API list soon, because its CRDs or APIServices changed.
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
		return // every Cluster is reconciled when the controller starts
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

// ensure returns the member of a Cluster, with the given object. It starts a member that is new.
func (r *Registry) ensure(cluster *clusterv1alpha1.Cluster) *Member {
	r.mu.Lock()
	m, known := r.members[cluster.Name]
	var replaced *Member
	if known && m.Cluster().UID != cluster.UID {
		// Deleted and created again between two reads of the cache: it may be another cluster.
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

// remove stops and deletes a member.
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
	// A cluster that was refused because it was this one may join now.
	for _, other := range r.Members() {
		r.enqueue(other.name, 0)
	}
}

// share returns an equal snapshot of another member, if there is one. Clusters of one version
// mostly serve the same list, and it is the largest part of a member.
func (r *Registry) share(apis *APIs) *APIs {
	for _, m := range r.Members() {
		if held := m.APIs(); held.fingerprint == apis.fingerprint {
			return held
		}
	}
	return apis
}
