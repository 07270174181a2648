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

// Member is one cluster of the fleet. The Registry creates it for a Cluster that has an API server
// to connect to, and keeps it until the Cluster has left. Several goroutines may use it.
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
	// accountLeft means that the Cluster leaves and requires the hub's ServiceAccount no more.
	accountLeft bool
	// This process has decided whether the cluster that answers is the one that was joined.
	judged     bool
	apis       *APIs
	discovered bool             // the API list was requested at least once
	mirrored   bool             // the mirror reported Synced at least once
	expiring   metav1.Condition // the condition for the hub's token; empty: none yet
	since      time.Time
	contacted  time.Time // Contact.Since
	probed     bool      // Contact.Probed was true once
	summarised time.Time // when the resource summary was last written
}

// newMember returns a member for the Cluster without a usable connection: its requests fail until
// Registry.connect has read the credentials. Its probes begin with start.
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

// Cluster returns the last seen Cluster object of the member. It is never nil. The object is
// shared: do not change it.
func (m *Member) Cluster() *clusterv1alpha1.Cluster {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.cluster
}

// Leaving reports whether the Cluster is being deleted.
func (m *Member) Leaving() bool { return !m.Cluster().DeletionTimestamp.IsZero() }

// Config returns a configuration for clients of the cluster, which can be used for the member's
// whole life. The transport in it follows changes of the cluster's address and credentials. It
// limits the requests in flight of all clients together, according to the load of the cluster.
// There is no limit on the rate. Requests fail while there are no usable credentials.
func (m *Member) Config() *rest.Config {
	c := m.current()
	return &rest.Config{
		Host: c.base.String(), Transport: &routed{member: m, base: c.base},
		QPS: -1, UserAgent: userAgent,
	}
}

// Passage returns the transports for requests to the cluster in the name of users. It is never nil;
// its requests fail while there are no usable credentials. The result does not follow changes of
// address and credentials, so the caller must get a new one for each request.
func (m *Member) Passage() *Passage {
	p, fence := m.current().passage, m.registry.options.Fence
	return &Passage{Base: p.Base, Requests: fence(p.Requests), Upgrades: fence(p.Upgrades)}
}

// Dynamic returns a dynamic client of the cluster with the configuration of Config. It can be used
// for the member's whole life.
func (m *Member) Dynamic() dynamic.Interface { return m.dynamic }

// Get reads a path of the cluster, as JSON, with the hub's own rights. The caller reads for a user,
// so it must check the rights of that user. Get returns a response of any HTTP status; a redirect
// is an error. The request does not count in the member's limit on requests in flight, which is for
// the hub's own work. The caller has a limit of its own, and must close the body.
func (m *Member) Get(ctx context.Context, path string) (*http.Response, error) {
	c := m.current()
	return get(ctx, m.registry.options.Fence(c.transport), c.base, path, http.Header{"Accept": {"application/json"}, "User-Agent": {userAgent}})
}

// Limit returns how many requests may be in flight in the cluster now. It does not count watches
// and streams. The number changes with the load of the cluster.
func (m *Member) Limit() int { return m.limiter.current() }

// APIs returns the types that the cluster serves, as far as they are known. It is never nil. Before
// the first read, everything in it is unknown.
func (m *Member) APIs() *APIs {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.apis
}

// Reachable reports whether the cluster answers, accepts the hub's credentials, and is the one that
// was joined. If it is false, the contents of the cluster are unknown, and must not count as empty.
func (m *Member) Reachable() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.reachable()
}

// ID returns the UID of the cluster that answers (that of its namespace kube-system). It is ""
// while the cluster is not Reachable.
func (m *Member) ID() string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.reachable() {
		return ""
	}
	return m.accepted
}

// Lost reports whether this process has found that the cluster does not answer, rejects the hub's
// credentials, or is not the one that was joined. It is also true for a cluster that is being
// deleted and was cleaned up or never joined. Before the first result of the probes, both Lost and
// Reachable are false, because the Cluster's status may come from an earlier process or a backup of
// the hub.
func (m *Member) Lost() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.lost()
}

// Contact is what this process knows of the contact with a cluster.
type Contact struct {
	// Reachable is the result of the method Reachable. Silent is true if the cluster does not answer.
	// It is false for one that answers and rejects the hub's credentials, or that the hub has none
	// for: that is no failure of the cluster.
	Reachable, Silent bool
	// Probed is false until the first result of the probes. It then stays true.
	Probed bool
	// Since is when Reachable or Silent last changed; zero: never.
	Since time.Time
}

// Contact returns what is known of the contact with the cluster.
func (m *Member) Contact() Contact {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return Contact{Reachable: m.reachable(), Silent: m.silent(), Probed: m.probed || m.reachable() || m.lost(), Since: m.contacted}
}

// silent is Contact.Silent for a caller that holds m.mu.
func (m *Member) silent() bool {
	return m.contact.state == silent && !m.contact.untrusted && m.connection.problem == nil
}

// lost is Lost for a caller that holds m.mu.
func (m *Member) lost() bool {
	if !m.cluster.DeletionTimestamp.IsZero() && (m.cluster.Status.ID == "" || emptied(m.cluster)) {
		return true // never joined, or cleaned up; its identity is not requested again
	}
	return m.contact.state == silent || m.contact.settled(m.discovered) && m.judged && !m.reachable()
}

// reachable is Reachable for a caller that holds m.mu.
func (m *Member) reachable() bool {
	return m.contact.state == answering && m.accepted != "" && m.contact.id == m.accepted
}

// current returns the connection of the member. It is never nil, but its requests may all fail.
func (m *Member) current() *connection {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.connection
}

// update calls change while it holds m.mu. It notifies the subscribers afterwards if change changed
// Reachable, Lost or Contact.
func (m *Member) update(change func()) {
	if m.set(change) {
		m.registry.notify(Event{Type: Changed, Name: m.name})
	}
}

// set calls change while it holds m.mu, and reports whether change changed Reachable, Lost or
// Contact.
func (m *Member) set(change func()) (news bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	reachable, lost, silent := m.reachable(), m.lost(), m.silent()
	change()
	m.probed = m.probed || m.reachable() || m.lost()
	if reachable != m.reachable() || silent != m.silent() {
		m.contacted, news = time.Now(), true
	}
	return news || lost != m.lost()
}

// setCluster stores a newer object of the member's Cluster. It notifies the subscribers if the
// spec, labels or annotations changed, or the deletion began. It does not notify them of changes of
// the status, which this package writes.
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

// start begins to probe the cluster and to read its API list, in two goroutines, until stop is
// called or ctx ends. It is called once.
func (m *Member) start(ctx context.Context) {
	ctx, m.cancel = context.WithCancel(ctx)
	go m.watchHealth(ctx)
	go m.watchAPIs(ctx)
}

// stop ends the goroutines of start without waiting for them, and closes the connections.
func (m *Member) stop() {
	m.cancel()
	m.current().close()
	tokenExpiry.DeleteLabelValues(m.name)
}

// nudge sends a signal on c without blocking. If c is full, it sends nothing, because a signal is
// pending already.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is pending
	}
}
