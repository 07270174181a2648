// Package gate decides whether something that disturbs the control plane of a cluster may be done now.
//
// It is pure: how the members of etcd and the API servers are, and what is to be disturbed, go in; a verdict comes out. What
// stands is never given up: an act that would cost the quorum of etcd, or the last API server, is refused with the way out.
// What is down already has nothing to lose, so acts that only mend pass. Package lifecycle observes, and asks before and after
// each act.
package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Health of a member of etcd or of an API server.
type Health string

// The health that is known of something. Only Down is a proof that nothing is lost when it is disturbed.
const (
	// Up: it serves.
	Up Health = "up"
	// Down: it serves nobody, which its host says: nothing listens, its certificate is not valid, or it is not ready.
	Down Health = "down"
	// Unknown: it did not answer in time, or knows no leader. That may pass.
	Unknown Health = "unknown"
	// Unreachable: its host was not reached.
	Unreachable Health = "unreachable"
)

// Member is a member of etcd.
type Member struct {
	ID   uint64
	Host string
	// Learner members have no vote.
	Learner bool
	// Leader is the member that the others follow.
	Leader bool
	Health Health
	// Why it is not Up.
	Why string
}

// APIServer is the API server of a host.
type APIServer struct {
	Host   string
	Health Health
	// Why it is not Up.
	Why string
}

// Snapshot is how a control plane is at one moment.
type Snapshot struct {
	// Members of etcd; none if etcd is not ours, or not there yet.
	Members []Member
	// Quorum is true if a majority of the members confirmed Members. Otherwise they are those that were there last.
	Quorum bool
	// NoSpace is true if the alarm of that name is raised: etcd takes no writes.
	NoSpace bool
	// APIServers of the cluster.
	APIServers []APIServer
}

// Act is something that disturbs a control plane.
type Act struct {
	// Etcd and APIServers name the hosts on which these restart, at the same time.
	Etcd, APIServers []string
	// Leave names the hosts whose members are taken out of etcd, one after another.
	Leave []string
}

// Healthy is a control plane of which everything serves.
func Healthy(etcd, apiServers []string) Snapshot {
	s := Snapshot{Quorum: true}
	for _, h := range etcd {
		s.Members = append(s.Members, Member{Host: h, Health: Up})
	}
	for _, h := range apiServers {
		s.APIServers = append(s.APIServers, APIServer{Host: h, Health: Up})
	}
	return s
}

// Mends reports whether all that an act disturbs is down, so that nothing can be lost by it. Without a quorum of etcd no API
// server serves.
func (s Snapshot) Mends(a Act) bool {
	if len(a.Etcd)+len(a.APIServers) == 0 || len(a.Leave) > 0 {
		return false
	}
	idle := len(s.voters()) > 0 && !s.stands()
	return !slices.ContainsFunc(s.Members, func(m Member) bool { return slices.Contains(a.Etcd, m.Host) && m.Health != Down }) &&
		!slices.ContainsFunc(s.APIServers, func(p APIServer) bool {
			return slices.Contains(a.APIServers, p.Host) && p.Health != Down && (p.Health != Unknown || !idle)
		})
}

// Check says why an act is refused, with the way out; nil allows it.
func (s Snapshot) Check(a Act) error {
	for _, refuse := range []func(Act) error{s.leave, s.restartEtcd, s.restartAPIServers} {
		if err := refuse(a); err != nil {
			return err
		}
	}
	return nil
}

// Outage says what does not answer while an act is done because the cluster has no spare of it; it is empty if something else
// answers. Such an act is allowed, for there is no better moment.
func (s Snapshot) Outage(a Act) string {
	var parts []string
	if v := s.voters(); len(v) == 1 && v[0].Health != Down && slices.Contains(a.Etcd, v[0].Host) {
		parts = append(parts, "etcd has no quorum")
	}
	if p := s.APIServers; len(p) == 1 && p[0].Health != Down && s.away(p[0], a) {
		parts = append(parts, "no API server answers")
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("while host %s is changed %s: there is no other; pods keep running", slices.Concat(a.Etcd, a.APIServers)[0], strings.Join(parts, " and "))
}

// leave refuses to take members out if those that stay have no quorum.
func (s Snapshot) leave(a Act) error {
	if len(a.Leave) == 0 {
		return nil
	}
	if !s.stands() {
		return refusef(s.wayBack(a.Leave), "etcd has no quorum, so no member can be taken out of it%s", s.sick(nil))
	}
	rest := slices.DeleteFunc(s.voters(), func(m Member) bool { return slices.Contains(a.Leave, m.Host) })
	up := slices.DeleteFunc(slices.Clone(rest), func(m Member) bool { return m.Health != Up })
	if need := majority(len(rest)); len(rest) == 0 || len(up) < need {
		return refusef(s.wayBack(a.Leave), "etcd would lose its quorum: of the %d members that would stay %d answer, and %d are needed%s",
			len(rest), len(up), max(need, 1), s.sick(a.Leave))
	}
	return nil
}

// restartEtcd refuses to restart members if those that go on have no quorum.
func (s Snapshot) restartEtcd(a Act) error {
	voters := s.voters()
	touched := slices.DeleteFunc(slices.Clone(voters), func(m Member) bool { return m.Health == Down || !slices.Contains(a.Etcd, m.Host) })
	left := slices.DeleteFunc(slices.Clone(voters), func(m Member) bool { return m.Health != Up || slices.Contains(a.Etcd, m.Host) })
	need := majority(len(voters))
	switch {
	case len(touched) == 0, len(voters) == 1, len(left) >= need:
		return nil
	case !s.stands():
		return refusef(s.wayBack(a.Etcd), "etcd has no quorum, and its member on %s may be one of those that bring it back%s", names(a.Etcd), s.sick(nil))
	}
	return refusef(s.wayBack(a.Etcd), "etcd would lose its quorum while its member on %s restarts: of %d members %d would be left, and %d are needed%s",
		names(a.Etcd), len(voters), len(left), need, s.sick(a.Etcd))
}

// away reports whether an API server does not answer meanwhile: it goes with the etcd beside it, unless that is down already.
func (s Snapshot) away(p APIServer, a Act) bool {
	return slices.Contains(a.APIServers, p.Host) || slices.Contains(a.Etcd, p.Host) &&
		!slices.ContainsFunc(s.Members, func(m Member) bool { return m.Host == p.Host && m.Health == Down })
}

// restartAPIServers refuses to disturb API servers if none is left, or if they may not get ready again.
func (s Snapshot) restartAPIServers(a Act) error {
	var up, sick []string
	left := 0
	for _, p := range s.APIServers {
		switch {
		case p.Health == Up && s.away(p, a):
			up = append(up, p.Host)
		case p.Health == Up:
			left++
		case !s.away(p, a):
			sick = append(sick, p.Host+": "+p.Why)
		}
	}
	switch {
	case len(up) == 0:
		return nil
	case s.NoSpace && len(a.APIServers) > 0:
		return refusef("compact and defragment it, or raise etcd.quotaBackendBytes alone, then disarm the alarm with etcdctl",
			"etcd takes no writes (alarm NOSPACE), so the API server of %s may not get ready again", names(up))
	case left == 0 && len(s.APIServers) > 1:
		return refusef("mend the others first, as an apply does that changes nothing else, or wait until they answer",
			"no API server but that of %s answers (%s)", names(up), strings.Join(sick, "; "))
	}
	return nil
}

// Lost lists what served before an act, or was disturbed by it, and does not serve now. Nothing else is to be disturbed before
// it is empty.
func (s Snapshot) Lost(before Snapshot, a Act) []string {
	var lost []string
	if before.Quorum && !s.Quorum {
		lost = append(lost, "etcd has no quorum")
	}
	for _, m := range s.Members {
		was := slices.ContainsFunc(before.Members, func(b Member) bool { return b.Host == m.Host && b.Health == Up })
		if m.Health != Up && !slices.Contains(a.Leave, m.Host) && (was || slices.Contains(a.Etcd, m.Host)) {
			lost = append(lost, fmt.Sprintf("etcd of host %s: %s", m.Host, m.Why))
		}
	}
	for _, p := range s.APIServers {
		was := slices.ContainsFunc(before.APIServers, func(b APIServer) bool { return b.Host == p.Host && b.Health == Up })
		if p.Health != Up && (was || slices.Contains(a.APIServers, p.Host)) {
			lost = append(lost, fmt.Sprintf("API server of host %s: %s", p.Host, p.Why))
		}
	}
	return lost
}

// LeaveOrder are the members of hosts in the order in which they are taken out: the dead before the living, since etcd refuses
// to lose a living one while another is dead, and the leader last.
func (s Snapshot) LeaveOrder(leaving []string) []Member {
	rank := func(m Member) int {
		switch {
		case m.Leader:
			return 4
		case m.Learner:
			return 0
		}
		return slices.Index([]Health{Down, Unreachable, Unknown, Up}, m.Health)
	}
	order := slices.DeleteFunc(slices.Clone(s.Members), func(m Member) bool { return !slices.Contains(leaving, m.Host) })
	slices.SortStableFunc(order, func(a, b Member) int { return cmp.Compare(rank(a), rank(b)) })
	return order
}

// Mended is the snapshot when everything on these hosts serves, which is what mending them is for.
func (s Snapshot) Mended(hosts ...string) Snapshot {
	s.Members, s.APIServers = slices.Clone(s.Members), slices.Clone(s.APIServers)
	for i := range s.Members {
		if slices.Contains(hosts, s.Members[i].Host) {
			s.Members[i].Health = Up
		}
	}
	for i := range s.APIServers {
		if slices.Contains(hosts, s.APIServers[i].Host) {
			s.APIServers[i].Health = Up
		}
	}
	return s
}

// Joined is the snapshot when these hosts have become members with a vote.
func (s Snapshot) Joined(hosts ...string) Snapshot {
	s.Members = slices.DeleteFunc(slices.Clone(s.Members), func(m Member) bool { return slices.Contains(hosts, m.Host) })
	for _, h := range hosts {
		s.Members = append(s.Members, Member{Host: h, Health: Up})
	}
	return s
}

// Settling reports whether something may serve in a moment that does not now, such as etcd between two leaders.
func (s Snapshot) Settling() bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.Health == Unknown }) ||
		slices.ContainsFunc(s.APIServers, func(p APIServer) bool { return p.Health == Unknown })
}

// stands reports whether etcd has a quorum.
func (s Snapshot) stands() bool {
	voters := s.voters()
	up := slices.DeleteFunc(slices.Clone(voters), func(m Member) bool { return m.Health != Up })
	return s.Quorum || len(up) >= majority(len(voters))
}

// voters are the members that have a vote.
func (s Snapshot) voters() []Member {
	return slices.DeleteFunc(slices.Clone(s.Members), func(m Member) bool { return m.Learner })
}

// sick lists the voters that are not up, but for those of some hosts.
func (s Snapshot) sick(but []string) string {
	var list []string
	for _, m := range s.voters() {
		if m.Health != Up && !slices.Contains(but, m.Host) {
			list = append(list, m.Host+": "+m.Why)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, "; ") + ")"
}

// wayBack is what brings back the voters that are not up, but for those of some hosts.
func (s Snapshot) wayBack(but []string) string {
	var stopped, gone, waiting []string
	for _, m := range s.voters() {
		switch {
		case slices.Contains(but, m.Host):
		case m.Health == Down:
			stopped = append(stopped, m.Host)
		case m.Health == Unreachable:
			gone = append(gone, m.Host)
		case m.Health == Unknown:
			waiting = append(waiting, m.Host)
		}
	}
	var ways []string
	if len(stopped) > 0 {
		ways = append(ways, fmt.Sprintf("start etcd on %s, as an apply does that changes nothing else", names(stopped)))
	}
	if len(gone) > 0 {
		ways = append(ways, "bring back "+names(gone))
	}
	if len(waiting) > 0 {
		ways = append(ways, fmt.Sprintf("wait until etcd answers on %s, or see its log there", names(waiting)))
	}
	if dead := slices.Concat(stopped, gone); len(dead) > 0 {
		ways = append(ways, fmt.Sprintf("or, if it is gone for good, take it out with %q and add another", "orrery cluster delete-node CLUSTER "+dead[0]+" --forget-unreachable"))
	}
	if len(ways) == 0 {
		return "add a member first"
	}
	return strings.Join(ways, "; ")
}

// RefusedError says that an act is refused.
type RefusedError struct {
	// Reason is what the act would cost, and WayOut what to do instead.
	Reason, WayOut string
}

// Error has both.
func (e *RefusedError) Error() string { return e.Reason + ": " + e.WayOut }

func refusef(wayOut, format string, args ...any) error {
	return &RefusedError{Reason: fmt.Sprintf(format, args...), WayOut: wayOut}
}

func majority(n int) int { return n/2 + 1 }

func names(hosts []string) string {
	if len(hosts) == 1 {
		return "host " + hosts[0]
	}
	return "hosts " + strings.Join(hosts, ", ")
}
