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
	// kick asks for a probe now; look asks for the API list now.
	kick, look chan struct{}

	tokens tokens // the probes alone use it

	mu         sync.RWMutex
	cluster    *clusterv1alpha1.Cluster
	connection *connection
	contact    contact
	accepted   string // the id with which the cluster is joined
	judged     bool   // it was decided in this process whether what answers is the cluster that was joined
	apis       *APIs
	discovered bool             // the API list was asked for at least once
	mirrored   bool             // the mirror said Synced at least once
	expiring   metav1.Condition // what is to be said of the hub's token; empty while nothing is
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
	// The client is made of constants and a transport that finds the connection of the
	// day, so it cannot fail and serves for the member's whole life.
	m.dynamic = dynamic.NewForConfigOrDie(m.Config())
	return m
}

// Name of the cluster.
func (m *Member) Name() string { return m.name }

// Cluster is the cluster's object as last seen. It is shared: do not change it.
func (m *Member) Cluster() *clusterv1alpha1.Cluster {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.cluster
}

// Leaving is true once the Cluster is being deleted.
func (m *Member) Leaving() bool { return !m.Cluster().DeletionTimestamp.IsZero() }

// Config returns a configuration for clients of the cluster. All of them share one
// transport, which limits the requests in flight by how the cluster copes and follows
// changes of its address and credentials; there is no limit on the rate.
func (m *Member) Config() *rest.Config {
	c := m.current()
	return &rest.Config{
		Host: c.base.String(), Transport: &routed{member: m, base: c.base},
		QPS: -1, UserAgent: userAgent,
	}
}

// Passage is for requests in the name of users, now.
func (m *Member) Passage() *Passage {
	p, fence := m.current().passage, m.registry.options.Fence
	return &Passage{Base: p.Base, Requests: fence(p.Requests), Upgrades: fence(p.Upgrades)}
}

// Dynamic is a client of the cluster for the member's whole life.
func (m *Member) Dynamic() dynamic.Interface { return m.dynamic }

// Get reads a path of the cluster, as JSON. It is for what users ask of it by way of the hub: it has no part in the limit of the requests in
// flight, from which what the hub itself does in the cluster lives, and the caller has one of its own.
func (m *Member) Get(ctx context.Context, path string) (*http.Response, error) {
	c := m.current()
	return get(ctx, m.registry.options.Fence(c.transport), c.base, path, http.Header{"Accept": {"application/json"}, "User-Agent": {userAgent}})
}

// Limit is how many requests may be in flight in the cluster now, watches and streams
// not counted.
func (m *Member) Limit() int { return m.limiter.current() }

// APIs is what the cluster serves as far as is known. It is never nil.
func (m *Member) APIs() *APIs {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.apis
}

// Reachable is true while the cluster answers, accepts our credentials, and is the one
// that was joined. Otherwise whatever is in it is unknown.
func (m *Member) Reachable() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.reachable()
}

// ID is the UID of the cluster that answers (that of its namespace kube-system); "" while it is
// not reachable.
func (m *Member) ID() string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.reachable() {
		return ""
	}
	return m.accepted
}

// Lost is true once this process has found out that the cluster does not answer, does not accept our credentials, or is not
// the one that was joined. Until then it is neither lost nor reachable: what the Cluster's status says may be of an earlier
// process, or of the time at which a backup of the hub was made.
func (m *Member) Lost() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.lost()
}

func (m *Member) lost() bool {
	if !m.cluster.DeletionTimestamp.IsZero() && (m.cluster.Status.ID == "" || emptied(m.cluster)) {
		return true // it never was a member, or is none any more, and nobody asks again who it is
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

// update changes the member's state and tells those concerned if whether it is reachable, or lost, did.
func (m *Member) update(change func()) {
	if m.set(change) {
		m.registry.notify(Event{Type: Changed, Name: m.name})
	}
}

// set changes the member's state, and says whether those concerned are to be told.
func (m *Member) set(change func()) (news bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	reachable, lost := m.reachable(), m.lost()
	change()
	return reachable != m.reachable() || lost != m.lost()
}

// setCluster remembers the Cluster. What the status says is our own doing and no news.
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

// start watches the cluster until stop or the end of ctx.
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

// nudge asks for something now without waiting for it.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it was asked for already
	}
}
