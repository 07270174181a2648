package member

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Member is one cluster of the fleet.
type Member struct {
	name     string
	registry *Registry
	limiter  *limiter
	dynamic  dynamic.Interface
	cancel   context.CancelFunc
	// kick triggers a probe now; look triggers a read of the API list now.
	kick, look chan struct{}

	tokens tokens // only the probes use it

	mu         sync.RWMutex
	cluster    *clusterv1alpha1.Cluster
	connection *connection
	contact    contact
	accepted   string // ID with which the cluster is joined; "": it is not accepted
	// This process has decided whether the cluster that answers is the one that was joined.
	judged     bool
	apis       *APIs
	discovered bool             // the API list was requested at least once
	mirrored   bool             // the mirror reported Synced at least once
	expiring   metav1.Condition // the condition for the hub's token; empty: none yet
	since      time.Time
	summarised time.Time // when the resource summary was last written
}

func newMember(r *Registry, cluster *clusterv1alpha1.Cluster) *Member {
	m := &Member{
		name: cluster.Name, registry: r, limiter: newLimiter(), cluster: cluster,
		kick: make(chan struct{}, 1), look: make(chan struct{}, 1),
		apis: &APIs{}, since: time.Now(), cancel: func() {},
	}
	m.connection = brokenConnection(cluster, errNoCredentials)
	// The client has only constants and a transport that finds the current connection. So
	// creating it cannot fail, and it serves for the member's whole life.
	m.dynamic = dynamic.NewForConfigOrDie(m.Config())
	return m
}

// Name returns the name of the cluster.
func (m *Member) Name() string { return m.name }

// Cluster returns the last seen object of the cluster. It is shared: do not change it.
func (m *Member) Cluster() *clusterv1alpha1.Cluster {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.cluster
}

// Leaving reports whether the Cluster is being deleted.
func (m *Member) Leaving() bool { return !m.Cluster().DeletionTimestamp.IsZero() }

// Config returns a configuration for clients of the cluster. All clients share one transport. It
// limits the requests in flight according to the load of the cluster, and follows changes of its
// address and credentials. There is no limit on the rate.
func (m *Member) Config() *rest.Config {
	c := m.current()
	return &rest.Config{
		Host: c.base.String(), Transport: &routed{member: m, base: c.base},
		QPS: -1, UserAgent: userAgent,
	}
}

// Passage returns the transports for requests in the name of users, for the current connection.
func (m *Member) Passage() *Passage {
	p, fence := m.current().passage, m.registry.options.Fence
	return &Passage{Base: p.Base, Requests: fence(p.Requests), Upgrades: fence(p.Upgrades)}
}

// Dynamic returns a client of the cluster, which serves for the member's whole life.
func (m *Member) Dynamic() dynamic.Interface { return m.dynamic }

// Get reads a path of the cluster, as JSON. It is for requests of users through the hub. They do
// not count in the limit on requests in flight, which is for the hub's own work in the cluster.
// The caller has its own limit, and must close the body.
func (m *Member) Get(ctx context.Context, path string) (*http.Response, error) {
	c := m.current()
	return get(ctx, m.registry.options.Fence(c.transport), c.base, path, http.Header{"Accept": {"application/json"}, "User-Agent": {userAgent}})
}

// Limit returns how many requests may be in flight in the cluster now, without watches and
// streams.
func (m *Member) Limit() int { return m.limiter.current() }

// APIs returns the known API list of the cluster. It is never nil.
func (m *Member) APIs() *APIs {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.apis
}

// Reachable reports whether the cluster answers, accepts the hub's credentials, and is the one
// that was joined. Otherwise its contents are unknown.
func (m *Member) Reachable() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.reachable()
}

// ID returns the UID of the cluster that answers (that of its namespace kube-system); "" while it
// is not reachable.
func (m *Member) ID() string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.reachable() {
		return ""
	}
	return m.accepted
}

// Lost reports whether this process has found that the cluster does not answer, rejects the hub's
// credentials, or is not the one that was joined. Before that, the cluster is neither lost nor
// reachable, because the Cluster's status may come from an earlier process or a backup of the
// hub.
func (m *Member) Lost() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.lost()
}

func (m *Member) lost() bool {
	if !m.cluster.DeletionTimestamp.IsZero() && (m.cluster.Status.ID == "" || emptied(m.cluster)) {
		return true // it never was a member, or was cleaned up; it is not asked for its identity again
	}
	return m.contact.state == silent || m.contact.settled(m.discovered) && m.judged && !m.reachable()
}

func (m *Member) reachable() bool {
	return m.contact.state == answering && m.accepted != "" && m.contact.id == m.accepted
}

func (m *Member) current() *connection {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.connection
}

// update changes the member's state, and notifies the subscribers if Reachable or Lost changed.
func (m *Member) update(change func()) {
	if m.set(change) {
		m.registry.notify(Event{Type: Changed, Name: m.name})
	}
}

// set changes the member's state, and reports whether Reachable or Lost changed.
func (m *Member) set(change func()) (news bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	reachable, lost := m.reachable(), m.lost()
	change()
	return reachable != m.reachable() || lost != m.lost()
}

// setCluster stores the Cluster. Subscribers are not notified of changes of the status, which
// this package writes.
func (m *Member) setCluster(cluster *clusterv1alpha1.Cluster) {
	m.mu.Lock()
	old := m.cluster
	m.cluster = cluster
	m.mu.Unlock()
	if old.Generation != cluster.Generation || !maps.Equal(old.Labels, cluster.Labels) ||
		!maps.Equal(old.Annotations, cluster.Annotations) ||
		old.DeletionTimestamp.IsZero() != cluster.DeletionTimestamp.IsZero() {
		m.registry.notify(Event{Type: Changed, Name: m.name})
	}
}

// start watches the cluster until stop is called or ctx ends.
func (m *Member) start(ctx context.Context) {
	ctx, m.cancel = context.WithCancel(ctx)
	go m.watchHealth(ctx)
	go m.watchAPIs(ctx)
}

func (m *Member) stop() {
	m.cancel()
	m.current().close()
	tokenExpiry.DeleteLabelValues(m.name)
}

// nudge sends a signal without blocking.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is pending
	}
}
