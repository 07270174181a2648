package lifecycle

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/safety"
)

// settleTime returns how long etcd and the API servers may take to recover after work on a host:
// Engine.Settle, or a minute. The time begins when the probes on the host have succeeded. An
// election and the reconnection of API servers to etcd may follow.
func (e *Engine) settleTime() time.Duration { return cmp.Or(e.Settle, time.Minute) }

// electionTime returns how long an election of etcd may take: two election timeouts and one
// request, at most settleTime. rehearse waits that long for a leader before it decides which work
// only repairs. For a run that removes nodes, rehearse waits no longer for any component.
func (r *run) electionTime() time.Duration {
	election := time.Duration(r.spec.Etcd.ElectionTimeout) * time.Millisecond
	return min(2*election+etcdTimeout, r.settleTime())
}

// actOf returns the input of the safety checks for restarts on a host: whether its etcd member and
// its API server restart. The result is empty if neither does.
func actOf(name string, restarts plan.Restarts) safety.Act {
	var a safety.Act
	if restarts.Etcd {
		a.Etcd = []string{name}
	}
	if restarts.APIServer {
		a.APIServers = []string{name}
	}
	return a
}

// outages describes the outages that the changes of the plan cause and that cannot be avoided. They
// occur where the cluster has only one etcd member or only one API server. There is one text for
// each host. The result is nil for a cluster that is not built.
func (r *run) outages() []string {
	if r.state.Applied == nil {
		return nil
	}
	etcd := r.roles[clusterv1alpha1.RoleEtcd]
	if r.spec.Etcd.Type == plan.EtcdExternal {
		etcd = nil
	}
	well := safety.Healthy(etcd, r.roles[clusterv1alpha1.RoleControlPlane])
	var outages []string
	for _, h := range r.plan.Hosts {
		if outage := well.Outage(actOf(h.Name, r.changes.Restarts(h.Name))); outage != "" {
			outages = append(outages, outage)
		}
	}
	return outages
}

// rehearse checks, before a run changes the first host, whether the safety checks will allow the
// work. It returns the work, and sets repairs for work that only repairs components that are down.
// If the safety checks would refuse other work even after these repairs, it waits for settleTime
// and then returns the error. A component that does not answer may only be slow.
//
// An Operation that deletes nodes waits only for electionTime. It then leaves out the refused work
// instead of failing. If the work disturbs no control plane or the cluster was never built,
// rehearse asks no host and returns the work unchanged.
func (r *run) rehearse(ctx context.Context, work []hostWork) ([]hostWork, error) {
	if r.state.Applied == nil || !slices.ContainsFunc(work, func(w hostWork) bool { return w.Restarts.ControlPlane() }) {
		return work, nil
	}
	var (
		marked, refused []hostWork
		first           error
	)
	limit, deletes := r.settleTime(), r.op.Spec.Action == lifecyclev1alpha1.ActionDeleteNode
	if deletes {
		limit = r.electionTime()
	}
	elected := time.Now().Add(r.electionTime())
	// During an election it is unknown whether etcd is down, so the check is repeated.
	if _, err := r.awaitHealth(ctx, limit, func(s safety.Snapshot) error {
		if marked, refused, first = r.foresee(s, slices.Clone(work)); first == nil && !s.Quorum && s.Settling() && time.Now().Before(elected) {
			return errUnsettled
		}
		return first
	}); err != nil && !errors.Is(err, first) && !errors.Is(err, errUnsettled) {
		return nil, err
	}
	if first != nil && deletes {
		// A dead etcd member must be removed before other hosts can be restarted. Refused work on these
		// hosts therefore does not stop the removal.
		for _, w := range refused {
			w.conn.notef("left as it is: %v", first)
		}
		return slices.DeleteFunc(marked, func(w hostWork) bool {
			return slices.ContainsFunc(refused, func(x hostWork) bool { return x.Host.Name == w.Host.Name })
		}), nil
	}
	return marked, first
}

// errUnsettled means that etcd has no leader, which an election may change within electionTime.
// Only rehearse uses it.
var errUnsettled = errors.New("etcd has no leader")

// foresee decides, for rehearse, which work the safety checks would allow in the control plane
// state s. It sets repairs in work that only repairs components that are down. It simulates the
// other work in the order of the run. marked is work itself, whose elements are changed. refused is
// the work that would be refused, and first the first reason, which is nil if nothing is refused.
func (r *run) foresee(s safety.Snapshot, work []hostWork) (marked, refused []hostWork, first error) {
	noAPI := !slices.ContainsFunc(s.APIServers, func(p safety.APIServer) bool { return p.Health == safety.Up })
	next := s
	for i, w := range work {
		drains := plan.Worse(w.Restarts.Worst, plan.DisruptionRestart)
		work[i].repairs = s.Repairs(w.act) && (noAPI || !drains)
		switch {
		case r.joins(w.Host.Name) && w.starts(plan.StageEtcd) && (work[i].repairs || !w.Restarts.ControlPlane()):
			next = next.Joined(w.Host.Name)
		case work[i].repairs || !plan.Worse(w.Restarts.Worst, plan.DisruptionReload):
			next = next.Repaired(w.Host.Name)
		}
	}
	for _, w := range work {
		if w.repairs || !w.Restarts.ControlPlane() {
			continue
		}
		if err := next.Check(w.act); err != nil {
			refused, first = append(refused, w), cmp.Or(first, fmt.Errorf("host %s is not changed: %w", w.Host.Name, err))
			continue
		}
		next = next.Repaired(w.Host.Name)
	}
	return work, refused, first
}

// withSafetyChecks calls do, which disturbs the control plane of a host, between two safety checks.
// Both are recorded as steps of the cluster. act says which components of the host do restarts.
//
// The first check fails if do would cost etcd its quorum or stop all API servers, except if the
// cluster has only one. do is then not called. The second check waits until the control plane has
// recovered, and fails after settleTime. There is no second check if do fails. If the cluster is
// not built, do is called without checks.
func (r *run) withSafetyChecks(ctx context.Context, name string, act safety.Act, do func() error) error {
	if r.state.Applied == nil {
		return do()
	}
	var before safety.Snapshot
	if err := r.rec.do("gate/"+name+"/before", func() (_ bool, err error) {
		before, err = r.admit(ctx, act)
		return false, err
	}); err != nil {
		return fmt.Errorf("host %s is not changed: %w", name, err)
	}
	if err := do(); err != nil {
		if _, failed := errors.AsType[*StepError](err); failed {
			return fmt.Errorf("%w; no other host of the control plane is disturbed: correct what was changed and apply it, or resume", err)
		}
		return err
	}
	if err := r.rec.do("gate/"+name+"/after", func() (bool, error) { return false, r.recovered(ctx, before, act) }); err != nil {
		return fmt.Errorf("host %s was changed: %w", name, err)
	}
	return nil
}

// admit waits until the safety checks allow an act that disturbs the control plane, and returns the
// state of the control plane. If the cause of a refusal may be transient, such as an election or a
// stall of etcd, it waits up to settleTime. The error says why the act is not allowed. admit logs
// an outage that cannot be avoided, because the cluster has only one etcd member or API server.
func (r *run) admit(ctx context.Context, act safety.Act) (safety.Snapshot, error) {
	s, err := r.awaitHealth(ctx, r.settleTime(), func(s safety.Snapshot) error { return s.Check(act) })
	if err != nil {
		return s, err
	}
	if outage := s.Outage(act); outage != "" {
		logr.FromContextOrDiscard(ctx).Info("an outage that cannot be avoided", "outage", outage)
	}
	return s, nil
}

// recovered waits, after an act, until the etcd members and API servers are up that were up before
// the act or that the act disturbed. After settleTime it returns an error that names the others.
func (r *run) recovered(ctx context.Context, before safety.Snapshot, act safety.Act) error {
	limit := r.settleTime()
	_, err := r.awaitHealth(ctx, limit, func(s safety.Snapshot) error {
		lost := s.Lost(before, act)
		if len(lost) == 0 {
			return nil
		}
		return &unwellError{fmt.Sprintf("the control plane is not well after %s (%s), so no other host of it is disturbed: "+
			"correct what was changed and apply it, which starts what is stopped, or see the log of the component on its host and resume",
			limit, strings.Join(lost, "; "))}
	})
	return err
}

// unwellError means that the control plane has not recovered yet, so awaitHealth continues to wait.
type unwellError struct{ message string }

// Error returns the message.
func (e *unwellError) Error() string { return e.message }

// awaitHealth reads the state of the control plane and calls want with it, until want returns nil.
// It also ends when limit is over, or when the error of want cannot pass by itself. It returns the
// last state and the last error of want.
//
// The last check begins after limit is over, even if an earlier check ends later. This process may
// have been stopped during the earlier check, so its timeouts prove nothing. If ctx ends, or the
// Operation is paused or canceled, awaitHealth returns that cause (ErrPaused or ErrCanceled)
// instead.
func (r *run) awaitHealth(ctx context.Context, limit time.Duration, want func(safety.Snapshot) error) (safety.Snapshot, error) {
	if r.rec != nil {
		waiting, end := r.rec.wait(ctx)
		defer end(nil)
		ctx = waiting
	}
	until := time.Now().Add(limit)
	for {
		began := time.Now()
		s := r.health(ctx)
		err := want(s)
		if ctx.Err() != nil {
			return s, context.Cause(ctx)
		}
		_, recovers := errors.AsType[*unwellError](err)
		if err == nil || began.After(until) || !recovers && !s.Settling() {
			return s, err
		}
		if e := pause(ctx); e != nil {
			return s, e
		}
	}
}

// health reads the state of all etcd members and API servers, in parallel. Components that do not
// answer are in the Snapshot, with the reason. Without a quorum of etcd, its members are taken from
// the hosts on which etcd was started. The Snapshot has no members if etcd is external.
func (r *run) health(ctx context.Context) safety.Snapshot {
	hosts := sortedKeys(r.state.EtcdBootstrap)
	if r.spec.Etcd.Type == plan.EtcdExternal {
		hosts = nil
	}
	planes := r.roles[clusterv1alpha1.RoleControlPlane]
	answers, servers := make([]etcdAnswer, len(hosts)), make([]safety.APIServer, len(planes))
	group, gctx := errgroup.WithContext(ctx)
	for i, name := range hosts {
		group.Go(func() error { answers[i] = r.askEtcd(gctx, name); return nil })
	}
	for i, name := range planes {
		group.Go(func() error {
			health, why := r.askAPIServer(gctx, name)
			servers[i] = safety.APIServer{Host: name, Health: health, Why: why}
			return nil
		})
	}
	_ = group.Wait() // no goroutine returns an error
	s := safety.Snapshot{APIServers: servers}
	for _, a := range answers {
		s.NoSpace = s.NoSpace || a.alarms[etcdserverpb.AlarmType_NOSPACE] != nil
		if !s.Quorum && a.list != nil {
			s.Quorum = true
			for _, m := range a.list {
				s.Members = append(s.Members, r.memberHealth(m, hosts, answers))
			}
			slices.SortFunc(s.Members, func(a, b safety.Member) int { return strings.Compare(a.Host, b.Host) })
		}
	}
	if s.Quorum {
		return s
	}
	for i, name := range hosts {
		if r.hasMember(name) {
			s.Members = append(s.Members, safety.Member{ID: answers[i].id, Host: name, Health: answers[i].health, Why: answers[i].why})
		}
	}
	return s
}

// hasMember reports whether etcd was started on a host, according to the host's record of applied
// steps. For a host that was not reached, it reports whether the host is in the applied spec.
func (r *run) hasMember(name string) bool {
	if f, reached := r.facts[name]; reached {
		return slices.ContainsFunc(f.Applied.Steps, func(s plan.AppliedStep) bool { return s.ID == plan.StepEtcdUnit })
	}
	return r.state.IsPart(name)
}

// memberHealth returns the state of an etcd member. hosts are the hosts that were asked, and
// answers are their answers in the same order. A member that is on none of these hosts is
// Unreachable. A member with the alarm CORRUPT is Down.
func (r *run) memberHealth(m *etcdserverpb.Member, hosts []string, answers []etcdAnswer) safety.Member {
	of := safety.Member{ID: m.ID, Host: cmp.Or(r.memberHost(m), memberName(m)), Learner: m.IsLearner, Health: safety.Unreachable, Why: "no host of the cluster has it"}
	i := slices.Index(hosts, of.Host)
	if i < 0 {
		return of
	}
	a := answers[i]
	of.Health, of.Why, of.Leader = a.health, a.why, a.leader == m.ID
	for _, other := range answers {
		if slices.Contains(other.alarms[etcdserverpb.AlarmType_CORRUPT], m.ID) {
			of.Health, of.Why = safety.Down, "its data are corrupt (alarm CORRUPT)"
		}
	}
	return of
}

// etcdAnswer is what the etcd on one host answers about itself and the other members.
type etcdAnswer struct {
	health safety.Health
	why    string // the reason if health is not Up
	id     uint64 // ID of the member; zero if unknown
	leader uint64 // ID of the leader that the member knows, or zero
	// list has the members of etcd if a majority of them confirmed the list, else nil.
	list []*etcdserverpb.Member
	// alarms maps each kind of alarm to the IDs of the members that raised it.
	alarms map[etcdserverpb.AlarmType][]uint64
}

// askEtcd asks the etcd on a host for its state, within etcdTimeout. A failure is no Go error:
// health and why of the answer describe it. A learner that runs is Up, and its answer has no list
// of members. A member that knows no leader is Unknown.
func (r *run) askEtcd(ctx context.Context, name string) etcdAnswer {
	c := r.conns[name]
	if c == nil {
		return etcdAnswer{health: safety.Unreachable, why: "its host was not reached"}
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	if err := r.knock(ctx, c); err != nil {
		return failedAnswer(err)
	}
	cli, err := r.etcd(name)
	if err != nil {
		return failedAnswer(err)
	}
	defer cli.Close() //nolint:errcheck // an error of Close does not matter
	status, err := cli.Status(ctx, cli.Endpoints()[0])
	if err != nil {
		return failedAnswer(err)
	}
	a := etcdAnswer{health: safety.Up, id: status.Header.MemberId, leader: status.Leader}
	switch {
	case status.Leader == 0:
		a.health, a.why = safety.Unknown, "it knows no leader"
		return a
	case status.IsLearner:
		return a // a learner answers no other request
	}
	// The list of members is linearizable. The member that answers is up to date, and a majority has
	// confirmed the list.
	list, err := cli.MemberList(ctx)
	if err != nil {
		failed := failedAnswer(err)
		a.health, a.why = failed.health, failed.why
		return a
	}
	a.list, a.alarms = list.Members, map[etcdserverpb.AlarmType][]uint64{}
	if len(status.Errors) == 0 {
		return a
	}
	alarms, err := cli.AlarmList(ctx)
	if err != nil {
		failed := failedAnswer(err)
		a.health, a.why = failed.health, failed.why
		return a
	}
	for _, alarm := range alarms.Alarms {
		a.alarms[alarm.Alarm] = append(a.alarms[alarm.Alarm], alarm.MemberID)
	}
	return a
}

// knock checks whether anything listens on the etcd port of a host: it connects and closes the
// connection. It returns an error if the connection fails. The etcd client would retry instead of
// reporting a refused connection.
func (r *run) knock(ctx context.Context, c *connection) error {
	conn, err := c.current().Dial(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(r.spec.Etcd.Port))))
	if err != nil {
		return err
	}
	return conn.Close()
}

// failedAnswer returns the answer for an etcd member whose request failed with err. Its health is
// Down or Unknown, as judge decides.
func failedAnswer(err error) etcdAnswer {
	health, why := judge(err)
	return etcdAnswer{health: health, why: why}
}

// askAPIServer returns the state of the API server of a host, and the reason unless the server is
// Up. It takes at most etcdTimeout. The server of a host that was not reached is Unreachable.
func (r *run) askAPIServer(ctx context.Context, name string) (safety.Health, string) {
	if r.conns[name] == nil {
		return safety.Unreachable, "its host was not reached"
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	if _, err := r.readyAPI(ctx, name); err != nil {
		return judge(err)
	}
	return safety.Up, ""
}

// judge derives the health of an etcd member or API server from the error of a request, and returns
// it with a message. The health is Down if nothing listens or the certificate is invalid, else
// Unknown. err must not be nil.
func judge(err error) (safety.Health, string) {
	var (
		refused *ssh.OpenChannelError
		invalid *tls.CertificateVerificationError
		expired x509.CertificateInvalidError
		status  apierrors.APIStatus
		timeout net.Error
		unready *notReadyError
	)
	switch {
	case errors.As(err, &unready):
		return safety.Unknown, "it is " + err.Error()
	case errors.As(err, &invalid), errors.As(err, &expired):
		return safety.Down, "its certificate is not valid: " + err.Error()
	case errors.Is(err, syscall.ECONNREFUSED), errors.As(err, &refused) && refused.Reason == ssh.ConnectionFailed:
		return safety.Down, "it does not run: " + err.Error()
	case errors.As(err, &status):
		return safety.Unknown, "it is not ready: " + err.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return safety.Unknown, fmt.Sprintf("it does not answer within %s", etcdTimeout)
	}
	return safety.Unknown, "it does not answer: " + err.Error()
}
