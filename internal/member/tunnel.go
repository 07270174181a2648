package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/gateway"
)

const (
	// agentsDelay gathers what happens to the agents of a cluster: each connection that is made takes a spare and has another one come.
	agentsDelay = 100 * time.Millisecond
	// sparesInterval is the least time between two writes of a number of spares.
	sparesInterval = 30 * time.Second
	// agentsReturn is how long after a start the agents of all clusters may take to come back: until then nobody says that they are away.
	agentsReturn = 30 * time.Second
)

// Tunnel reaches the clusters whose agents dial the hub. A gateway.Gateway is one.
type Tunnel interface {
	// Dial connects to a destination in a cluster, by an agent of it.
	Dial(ctx context.Context, cluster, destination string) (net.Conn, error)
	// Agents of a cluster that are connected.
	Agents(cluster string) []gateway.Agent
}

// pulls is true of a Cluster whose agent dials the hub.
func pulls(cluster *clusterv1alpha1.Cluster) bool {
	return cluster.Spec.SyncMode == clusterv1alpha1.Pull
}

// awaitsAgent is true of a Cluster of which nothing is known but that its agent is to come: it is no member yet.
func awaitsAgent(cluster *clusterv1alpha1.Cluster) bool {
	return pulls(cluster) && (cluster.Spec.APIEndpoint == "" || cluster.Spec.SecretRef.Name == "")
}

// dialer is how a Cluster is dialled: by the hub, or by its agent, who alone says which address that is. There is no other place
// that decides it.
func (r *Registry) dialer(cluster *clusterv1alpha1.Cluster) Dial {
	if !pulls(cluster) {
		return r.options.Dial
	}
	through, name := r.options.Tunnel, cluster.Name
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		if through == nil {
			return nil, errNoTunnel
		}
		return through.Dial(ctx, name, tunnel.APIServer)
	}
}

// errNoTunnel is why a hub cannot reach a cluster by its agent.
var errNoTunnel = errors.New("the cluster is reached by its agent (syncMode Pull), and this hub accepts no agents; " +
	"join the cluster again with orrery cluster join --cluster-kubeconfig, or start a server that has a tunnel")

// agents of a Cluster that are connected.
func (r *Registry) agents(cluster string) []gateway.Agent {
	if r.options.Tunnel == nil {
		return nil
	}
	return r.options.Tunnel.Agents(cluster)
}

// AgentsChanged has the registry look at the agents of a cluster, which came, went or changed. It does not block.
func (r *Registry) AgentsChanged(cluster string) {
	r.mu.Lock()
	if t := r.trials[cluster]; t != nil && t.agent {
		t.due = time.Time{}
	}
	r.mu.Unlock()
	r.enqueue(cluster, agentsDelay)
	if m, ok := r.Member(cluster); ok && !m.Reachable() && pulls(m.Cluster()) {
		nudge(m.kick) // it may have come back
	}
}

// agentsAway is true while the cluster cannot be asked because none of its agents is connected.
func (m *Member) agentsAway() bool {
	r := m.registry
	return pulls(m.Cluster()) && r.options.Tunnel != nil && len(r.agents(m.name)) == 0
}

// awaitsAgents is true while nothing is known of the cluster in this process, which has just begun, and its agents may be on their way: they cannot come
// while there is no hub, so that they are away says nothing yet.
func (m *Member) awaitsAgents() bool {
	m.mu.RLock()
	undecided := m.contact.state == undecided
	m.mu.RUnlock()
	return undecided && m.registry.beginning() > 0 && m.agentsAway()
}

// beginning is how long agents may still be on their way because this process has just begun.
func (r *Registry) beginning() time.Duration {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return agentsReturn - time.Since(r.began)
}

// showAgents says in the status of a Cluster what is known of its agents. It is no step of its own: Ready does not depend on it.
func (c *clusters) showAgents(o *clusterv1alpha1.Cluster) {
	if !pulls(o) {
		o.Status.Agent = nil
		meta.RemoveStatusCondition(&o.Status.Conditions, clusterv1alpha1.ConditionAgentConnected)
		return
	}
	r := c.registry
	now := summary(r.agents(o.Name))
	said := meta.FindStatusCondition(o.Status.Conditions, clusterv1alpha1.ConditionAgentConnected)
	if now.Replicas == 0 && said != nil && said.Status == metav1.ConditionTrue {
		if wait := r.beginning(); wait > 0 {
			r.enqueue(o.Name, wait) // this process has just begun, and they are on their way
			return
		}
	}
	c.countSpares(o, now)
	condition := metav1.Condition{
		Type: clusterv1alpha1.ConditionAgentConnected, Status: metav1.ConditionTrue, Reason: clusterv1alpha1.ReasonAgentConnected,
	}
	if now.Replicas == 0 {
		condition.Status, condition.Reason = metav1.ConditionUnknown, clusterv1alpha1.ReasonNoAgent
		condition.Message = "no agent of the cluster is connected; in the cluster, see kubectl logs -n " + tunnel.Namespace + " deployment/orrery-agent"
		if awaitsAgent(o) {
			condition.Reason, condition.Message = clusterv1alpha1.ReasonWaitingForAgent, waitsForAgent(o.Name)
		}
	}
	switch was := said != nil && said.Status == metav1.ConditionTrue; {
	case now.Replicas > 0 && !was:
		c.recorder.Eventf(o, nil, corev1.EventTypeNormal, "AgentConnected", "Tunnel", "an agent of version %s is connected from %s", now.Version, now.Address)
	case now.Replicas == 0 && was:
		c.recorder.Eventf(o, nil, corev1.EventTypeWarning, "AgentLost", "Tunnel", "no agent of the cluster is connected any more")
	}
	reconciler.SetCondition(&o.Status.Conditions, condition, o.Generation)
}

// countSpares writes what is known of the agents; their number of spares, which changes with each connection, now and then.
func (c *clusters) countSpares(o *clusterv1alpha1.Cluster, now *clusterv1alpha1.AgentStatus) {
	old := o.Status.Agent
	if equality.Semantic.DeepEqual(old, now) {
		return
	}
	r := c.registry
	r.mu.Lock()
	wait := sparesInterval - time.Since(r.counted[o.Name])
	r.mu.Unlock()
	if old != nil && wait > 0 {
		same := *now
		same.Spares = old.Spares
		if equality.Semantic.DeepEqual(old, &same) {
			r.enqueue(o.Name, wait)
			return
		}
	}
	r.mu.Lock()
	r.counted[o.Name] = time.Now()
	r.mu.Unlock()
	o.Status.Agent = now
}

// summary is what is shown of agents. It depends on their order in nothing.
func summary(agents []gateway.Agent) *clusterv1alpha1.AgentStatus {
	s := &clusterv1alpha1.AgentStatus{Replicas: int32(len(agents))} //nolint:gosec // a gateway bounds them
	if len(agents) == 0 {
		return s
	}
	// The status keeps seconds.
	second := func(t time.Time) *metav1.Time { return new(metav1.NewTime(t.Truncate(time.Second))) }
	agents = slices.Clone(agents)
	slices.SortFunc(agents, func(a, b gateway.Agent) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Replica, b.Replica))
	})
	first, last := agents[0], agents[len(agents)-1]
	s.ConnectedSince = second(first.Since)
	host, _, err := net.SplitHostPort(last.Address)
	if s.Address = host; err != nil {
		s.Address = last.Address
	}
	ends := first.CertificateEnds
	for _, a := range agents {
		s.Spares += int32(a.Spares) //nolint:gosec // a gateway bounds them
		if s.Version == "" || older(a.Version, s.Version) {
			s.Version = a.Version
		}
		if a.CertificateEnds.Before(ends) {
			ends = a.CertificateEnds
		}
	}
	s.CertificateExpires = second(ends)
	return s
}

// older compares the versions of agents. What is no version, such as that of a build for a test, is older than any.
func older(a, b string) bool {
	va, errA := version.ParseGeneric(a)
	vb, errB := version.ParseGeneric(b)
	if errA != nil || errB != nil {
		return errA != nil && (errB == nil || a < b)
	}
	return va.LessThan(vb)
}

// waitsForAgent says what is to be done for the agent of a cluster to come.
func waitsForAgent(cluster string) string {
	return fmt.Sprintf("no agent of the cluster has come yet; run orrery cluster join %s --pull, and apply the manifest that it prints in the cluster", cluster)
}
