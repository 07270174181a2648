// Package safety has the safety checks for acts that disturb the control plane of a cluster, such
// as a restart of etcd.
//
// The package is pure: it asks no component itself. Its input is the state of the etcd members and
// API servers, and the act. An act that would cost the quorum of etcd or the last API server is
// refused, with advice on what to do. Acts that only repair components that are down are allowed.
// Package lifecycle reads the state and calls this package before and after each act.
package safety

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Health is the state of an etcd member or an API server.
type Health string

// Values of Health. Only Down proves that disturbing the component loses nothing.
const (
	// Up: the component serves.
	Up Health = "up"
	// Down: the host shows that the component serves no client. Nothing listens, or its certificate is
	// invalid.
	Down Health = "down"
	// Unknown: the component did not answer in time, is not ready, or knows no leader. That may be
	// transient.
	Unknown Health = "unknown"
	// Unreachable: the host of the component was not reached.
	Unreachable Health = "unreachable"
)

// Member is the state of an etcd member. Host is the host on which the member runs.
type Member struct {
	ID   uint64
	Host string
	// Learner members do not vote.
	Learner bool
	// Leader is true for the leader of etcd.
	Leader bool
	Health Health
	// Why is the reason why it is not Up.
	Why string
}

// APIServer is the state of the API server on a host.
type APIServer struct {
	Host   string
	Health Health
	// Why is the reason why it is not Up.
	Why string
}

// Snapshot is the state of a control plane at one moment. Its methods do not change it.
type Snapshot struct {
	// Members of etcd. The list is empty if etcd is external or does not exist yet.
	Members []Member
	// Quorum is true if a majority of the etcd members confirmed the list Members. Otherwise Members
	// are the last known ones.
	Quorum bool
	// NoSpace is true if etcd has raised the alarm NOSPACE, because its database is full. It then
	// accepts no writes.
	NoSpace bool
	// APIServers of the cluster.
	APIServers []APIServer
}

// Act says what a run is about to disturb in a control plane, for the safety checks. The zero value
// disturbs nothing.
type Act struct {
	// Etcd and APIServers are the hosts whose etcd members and API servers restart, all at the same
	// time.
	Etcd, APIServers []string
	// Leave are the hosts whose members are removed from etcd, one after another.
	Leave []string
}

// Healthy returns the state of a control plane in which every component is Up. etcd names the hosts
// with voting etcd members, and apiServers those with API servers.
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

// Repairs reports whether everything that an act disturbs is down, so that the act only repairs. It
// is false for an act that removes members, and for an act that disturbs nothing.
//
// A learner counts as down, because etcd does not depend on it, unless an API server on its host is
// Up. If etcd has no quorum, an API server whose state is Unknown counts as down.
func (s Snapshot) Repairs(a Act) bool {
	if len(a.Etcd)+len(a.APIServers) == 0 || len(a.Leave) > 0 {
		return false
	}
	idle := len(s.voters()) > 0 && !s.stands()
	return !slices.ContainsFunc(s.Members, func(m Member) bool { return slices.Contains(a.Etcd, m.Host) && m.Health != Down && !m.Learner }) &&
		!slices.ContainsFunc(s.APIServers, func(p APIServer) bool {
			return s.away(p, a) && p.Health == Up ||
				slices.Contains(a.APIServers, p.Host) && p.Health != Down && (p.Health != Unknown || !idle)
		})
}

// Check returns nil if an act is allowed, else a *RefusedError. It checks the removal of etcd
// members first, then restarts of etcd, then those of API servers. The error has the first reason
// that it finds.
func (s Snapshot) Check(a Act) error {
	for _, refuse := range []func(Act) error{s.leave, s.restartEtcd, s.restartAPIServers} {
		if err := refuse(a); err != nil {
			return err
		}
	}
	return nil
}

// Outage describes the outage during an act on the only etcd member or the only API server of a
// cluster. It is "" if the cluster has a second one, or if the only one is down already. Check
// allows such an act, because no later time would be better.
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
	return fmt.Sprintf("while host %s is changed %s, because this host has the only one; pods keep running", slices.Concat(a.Etcd, a.APIServers)[0], strings.Join(parts, " and "))
}

// leave is the part of Check about the removal of etcd members (a.Leave). It returns a RefusedError
// if etcd has no quorum now, or if the remaining members would have none.
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

// restartEtcd is the part of Check about restarts of etcd members (a.Etcd). It returns a
// RefusedError if the other members have no quorum meanwhile. It allows the restart of the only
// voting member, of learners, and of members that are down.
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

// away reports whether an act interrupts an API server. The act restarts that server, or it
// restarts the etcd on the same host, unless that etcd is down already.
func (s Snapshot) away(p APIServer, a Act) bool {
	return slices.Contains(a.APIServers, p.Host) || slices.Contains(a.Etcd, p.Host) &&
		!slices.ContainsFunc(s.Members, func(m Member) bool { return m.Host == p.Host && m.Health == Down })
}

// restartAPIServers is the part of Check about API servers that are Up and that an act interrupts.
// It returns a RefusedError if no other API server is Up, unless the cluster has only one. It also
// returns one if the act restarts an API server while etcd accepts no writes (NoSpace), because the
// server may then not become ready.
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
		return refusef("repair the others first, as an apply does that changes nothing else, or wait until they answer",
			"no API server but that of %s answers (%s)", names(up), strings.Join(sick, "; "))
	}
	return nil
}

// Lost describes, one text each, the components that are not up in s although they were up before
// an act or the act disturbed them. Members that the act removes do not count. While there are such
// components, a run must disturb nothing else.
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

// LeaveOrder returns the etcd members of the leaving hosts in the order in which a run removes
// them. Learners are first. Dead members follow, because etcd refuses to remove a living member
// while another is dead. The leader is last. Hosts without a member are left out.
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

// Repaired returns a copy of the state in which every etcd member and API server on these hosts is
// Up. It simulates work that repairs them. Learners stay learners.
func (s Snapshot) Repaired(hosts ...string) Snapshot {
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

// Joined returns a copy of the state in which each of these hosts has a voting etcd member that is
// Up. It simulates that these hosts join etcd. Other members on these hosts are dropped.
func (s Snapshot) Joined(hosts ...string) Snapshot {
	s.Members = slices.DeleteFunc(slices.Clone(s.Members), func(m Member) bool { return slices.Contains(hosts, m.Host) })
	for _, h := range hosts {
		s.Members = append(s.Members, Member{Host: h, Health: Up})
	}
	return s
}

// Settling reports whether the health of any component is Unknown, as during an election of etcd,
// so that waiting may help.
func (s Snapshot) Settling() bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.Health == Unknown }) ||
		slices.ContainsFunc(s.APIServers, func(p APIServer) bool { return p.Health == Unknown })
}

// stands reports whether etcd has a quorum: a majority confirmed the list of members (s.Quorum), or
// a majority of the voting members is Up. Without voting members the result is s.Quorum.
func (s Snapshot) stands() bool {
	voters := s.voters()
	up := slices.DeleteFunc(slices.Clone(voters), func(m Member) bool { return m.Health != Up })
	return s.Quorum || len(up) >= majority(len(voters))
}

// voters returns the voting members.
func (s Snapshot) voters() []Member {
	return slices.DeleteFunc(slices.Clone(s.Members), func(m Member) bool { return m.Learner })
}

// sick returns the end of a message: the voting etcd members that are not Up, and why, such as "
// (h-1: stopped; h-2: no answer)". It leaves out members on the hosts in but. It is "" if there are
// none.
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

// wayBack returns advice for the user on how to bring back the voting etcd members that are not Up.
// It leaves out members on the hosts in but. If there are none, the advice is to add a member.
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

// RefusedError means that Check refuses an act that would disturb the control plane too much.
type RefusedError struct {
	// Reason is what the act would cost. WayOut is what the user can do instead.
	Reason, WayOut string
}

// Error returns the reason, and what the user can do.
func (e *RefusedError) Error() string { return e.Reason + ": " + e.WayOut }

// refusef returns a *RefusedError with the given WayOut, and a reason formatted as by fmt.Sprintf.
func refusef(wayOut, format string, args ...any) error {
	return &RefusedError{Reason: fmt.Sprintf(format, args...), WayOut: wayOut}
}

// majority returns how many of n etcd members are a quorum. It is 1 for n = 0.
func majority(n int) int { return n/2 + 1 }

// names returns the hosts as text for a message: "host A" or "hosts A, B".
func names(hosts []string) string {
	if len(hosts) == 1 {
		return "host " + hosts[0]
	}
	return "hosts " + strings.Join(hosts, ", ")
}
