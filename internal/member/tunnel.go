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
	// agentsDelay combines changes of a cluster's agents into one reconcile. Each new connection
	// through an agent uses a spare (a tunnel connection that waits for use), and the agent opens
	// another one.
	agentsDelay = 100 * time.Millisecond
	// sparesInterval is the least time between two writes of the number of spare tunnel connections
	// into a Cluster's status.
	sparesInterval = 30 * time.Second
	// agentsReturn is how long after a start of the hub the agents of all clusters may take to
	// reconnect. Until then, a cluster without a connected agent does not count as unreachable.
	agentsReturn = 30 * time.Second
)

// Tunnel connects to clusters whose agents dial the hub. gateway.Gateway implements Tunnel.
type Tunnel interface {
	// Dial connects to a destination in a cluster, such as tunnel.APIServer, through one of
	// its agents.
	Dial(ctx context.Context, cluster, destination string) (net.Conn, error)
	// Agents returns the connected agents of a cluster. It is empty if there are none, or the
	// cluster is unknown.
	Agents(cluster string) []gateway.Agent
}

// pulls reports whether the Cluster is reached through an agent that dials the hub (syncMode
// Pull).
func pulls(cluster *clusterv1alpha1.Cluster) bool {
	return cluster.Spec.SyncMode == clusterv1alpha1.Pull
}

// awaitsAgent reports whether the Cluster is reached through an agent and lacks an address or
// credentials, because its first agent has not connected yet. The Cluster then is no member.
func awaitsAgent(cluster *clusterv1alpha1.Cluster) bool {
	return pulls(cluster) && (cluster.Spec.APIEndpoint == "" || cluster.Spec.SecretRef.Name == "")
}

// dialer returns the Dial for a Cluster. For syncMode Pull it dials through an agent and ignores
// the address, because only the agent knows the address of the API server. Otherwise it dials the
// address itself. Without a tunnel, the Dial through an agent always returns errNoTunnel.
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

// errNoTunnel is the error of a dial to a cluster with syncMode Pull by a hub that accepts no
// agents.
var errNoTunnel = errors.New("the cluster is reached by its agent (syncMode Pull), and this hub accepts no agents; " +
	"join the cluster again with orrery cluster join --cluster-kubeconfig, or start a server that has a tunnel")

// agents returns the connected agents of the Cluster with this name. It is empty if none is
// connected, or if the hub has no tunnel.
func (r *Registry) agents(cluster string) []gateway.Agent {
	if r.options.Tunnel == nil {
		return nil
	}
	return r.options.Tunnel.Agents(cluster)
}

// AgentsChanged must be called when an agent of a cluster has connected, disconnected or changed.
// The registry then reconciles the Cluster, tries new credentials that wait for an agent, and
// probes the cluster if it was unreachable. AgentsChanged does not block.
func (r *Registry) AgentsChanged(cluster string) {
	r.mu.Lock()
	if t := r.trials[cluster]; t != nil && t.agent {
		t.due = time.Time{}
	}
	r.mu.Unlock()
	r.enqueue(cluster, agentsDelay)
	if m, ok := r.Member(cluster); ok && !m.Reachable() && pulls(m.Cluster()) {
		nudge(m.kick) // the cluster may be reachable again
	}
}

// agentsAway reports whether the cluster cannot be reached because none of its agents is connected.
// It is false for a cluster that is reached without an agent, and for a hub without a tunnel.
func (m *Member) agentsAway() bool {
	r := m.registry
	return pulls(m.Cluster()) && r.options.Tunnel != nil && len(r.agents(m.name)) == 0
}

// awaitsAgents reports whether the state of the cluster is unknown because this process has just
// started and agents may not have reconnected yet. Agents lose their connections when the hub
// stops, so missing agents do not show yet that the cluster is unreachable.
func (m *Member) awaitsAgents() bool {
	m.mu.RLock()
	undecided := m.contact.state == undecided
	m.mu.RUnlock()
	return undecided && m.registry.beginning() > 0 && m.agentsAway()
}

// beginning returns how much longer the agents of all clusters may take to reconnect after the
// start of this process. It is zero or negative when that time is over.
func (r *Registry) beginning() time.Duration {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return agentsReturn - time.Since(r.began)
}

// showAgents writes the state of the agents and the condition AgentConnected into the status of o.
// It records an Event when the first agent has connected and when the last one has disconnected.
// For a cluster without agents (syncMode Push), it removes the state and the condition. For
// agentsReturn after a start, it keeps an earlier state if no agent is connected. It is not a
// reconcile step, since the condition Ready does not depend on it.
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
			r.enqueue(o.Name, wait) // the process has just started, and the agents may reconnect
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

// countSpares writes now, the state of the agents, into the status of o. If only the number of
// spare tunnel connections changed, it writes that at most every sparesInterval, because the number
// changes with each connection. Until then it enqueues the Cluster for later.
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

// summary returns the field status.agent of a Cluster for its connected agents. It has the number
// of agents and spares, the start of the longest connection, the address of the newest one, the
// oldest version, and the first expiry of a certificate. It is never nil.
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

// older reports whether version a of an agent is older than b. An invalid version, such as that of
// a test build, is older than any valid one. Two invalid versions are compared as texts.
func older(a, b string) bool {
	va, errA := version.ParseGeneric(a)
	vb, errB := version.ParseGeneric(b)
	if errA != nil || errB != nil {
		return errA != nil && (errB == nil || a < b)
	}
	return va.LessThan(vb)
}

// waitsForAgent returns the message for the named cluster, whose first agent has not connected yet,
// with what the user must do.
func waitsForAgent(cluster string) string {
	return fmt.Sprintf("no agent of the cluster has connected yet; run orrery cluster join %s --pull, and apply the manifest that it prints in the cluster", cluster)
}
