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
	"orrery.dev/orrery/internal/lifecycle/gate"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// settleTime returns how long a control plane may take to recover after a disturbance. The
// probes on the host have succeeded by then. An election and the reconnection of API servers to
// etcd may follow.
func (e *Engine) settleTime() time.Duration { return cmp.Or(e.Settle, time.Minute) }

// electionTime returns how long the run waits if an act is refused for a transient reason. An
// election of etcd takes up to two election timeouts.
func (r *run) electionTime() time.Duration {
	election := time.Duration(r.spec.Etcd.ElectionTimeout) * time.Millisecond
	return min(2*election+etcdTimeout, r.settleTime())
}

// actOf returns the act of restarting components of a host.
func actOf(name string, restarts plan.Restarts) gate.Act {
	var a gate.Act
	if restarts.Etcd {
		a.Etcd = []string{name}
	}
	if restarts.APIServer {
		a.APIServers = []string{name}
	}
	return a
}

// outages describes the parts of the control plane without a spare, which do not answer while the
// changes are made. It is empty for a cluster that is not built.
func (r *run) outages() []string {
	if r.state.Applied == nil {
		return nil
	}
	etcd := r.roles[clusterv1alpha1.RoleEtcd]
	if r.spec.Etcd.Type == plan.EtcdExternal {
		etcd = nil
	}
	well := gate.Healthy(etcd, r.roles[clusterv1alpha1.RoleControlPlane])
	var outages []string
	for _, h := range r.plan.Hosts {
		if outage := well.Outage(actOf(h.Name, r.changes.Restarts(h.Name))); outage != "" {
			outages = append(outages, outage)
		}
	}
	return outages
}

// rehearse checks the control plane before a run changes it. It returns the work, and marks
// work that only repairs. It returns an error if the safety checks would refuse other work even
// after these repairs. It asks no host if the control plane is not disturbed or the cluster was
// never built. An Operation that deletes nodes leaves out the refused work instead.
func (r *run) rehearse(ctx context.Context, work []hostWork) ([]hostWork, error) {
	if r.state.Applied == nil || !slices.ContainsFunc(work, func(w hostWork) bool { return w.Restarts.ControlPlane() }) {
		return work, nil
	}
	var (
		marked, refused []hostWork
		first           error
	)
	// During an election it is unknown whether etcd is down.
	if _, err := r.awaitHealth(ctx, r.electionTime(), func(s gate.Snapshot) error {
		if marked, refused, first = r.foresee(s, slices.Clone(work)); first == nil && !s.Quorum && s.Settling() {
			return errUnsettled
		}
		return first
	}); err != nil && !errors.Is(err, first) && !errors.Is(err, errUnsettled) {
		return nil, err
	}
	if first != nil && r.op.Spec.Action == lifecyclev1alpha1.ActionDeleteNode {
		// A dead member must be removed before other hosts can be restarted, so refused work does not
		// stop the removal.
		for _, w := range refused {
			w.conn.notef("left as it is: %v", first)
		}
		return slices.DeleteFunc(marked, func(w hostWork) bool {
			return slices.ContainsFunc(refused, func(x hostWork) bool { return x.Host.Name == w.Host.Name })
		}), nil
	}
	return marked, first
}

// errUnsettled means that etcd has no leader, which may change within electionTime.
var errUnsettled = errors.New("etcd has no leader")

// foresee marks work that only repairs, and simulates the rest in the order of the run. It
// returns the refused work and the first error.
func (r *run) foresee(s gate.Snapshot, work []hostWork) (marked, refused []hostWork, first error) {
	noAPI := !slices.ContainsFunc(s.APIServers, func(p gate.APIServer) bool { return p.Health == gate.Up })
	next := s
	for i, w := range work {
		drains := plan.Worse(w.Restarts.Worst, plan.DisruptionRestart)
		work[i].mends = s.Mends(w.act) && (noAPI || !drains)
		switch {
		case r.joins(w.Host.Name) && w.starts(plan.StageEtcd) && (work[i].mends || !w.Restarts.ControlPlane()):
			next = next.Joined(w.Host.Name)
		case work[i].mends || !plan.Worse(w.Restarts.Worst, plan.DisruptionReload):
			next = next.Mended(w.Host.Name)
		}
	}
	for _, w := range work {
		if w.mends || !w.Restarts.ControlPlane() {
			continue
		}
		if err := next.Check(w.act); err != nil {
			refused, first = append(refused, w), cmp.Or(first, fmt.Errorf("host %s is not changed: %w", w.Host.Name, err))
			continue
		}
		next = next.Mended(w.Host.Name)
	}
	return work, refused, first
}

// gated calls do, which disturbs the control plane of a host, between two safety checks. The first
// one refuses an act that would cost etcd its quorum or stop all API servers, unless the cluster
// has only one. The second one waits until the control plane has recovered. A cluster that is not
// built is not checked.
func (r *run) gated(ctx context.Context, name string, act gate.Act, do func() error) error {
	if r.state.Applied == nil {
		return do()
	}
	var before gate.Snapshot
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

// admit returns the state of the control plane if the act is allowed. It waits electionTime for a
// transient cause to pass.
func (r *run) admit(ctx context.Context, act gate.Act) (gate.Snapshot, error) {
	s, err := r.awaitHealth(ctx, r.electionTime(), func(s gate.Snapshot) error { return s.Check(act) })
	if err != nil {
		return s, err
	}
	if outage := s.Outage(act); outage != "" {
		logr.FromContextOrDiscard(ctx).Info("an outage that cannot be avoided", "outage", outage)
	}
	return s, nil
}

// recovered waits, at most settleTime, until everything answers that answered before or was
// disturbed.
func (r *run) recovered(ctx context.Context, before gate.Snapshot, act gate.Act) error {
	limit := r.settleTime()
	_, err := r.awaitHealth(ctx, limit, func(s gate.Snapshot) error {
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

// unwellError means that the control plane has not recovered yet.
type unwellError struct{ message string }

func (e *unwellError) Error() string { return e.message }

// awaitHealth checks the control plane until want returns nil, the cause cannot pass by itself, or
// limit is over. It returns the last state and the last error of want. Pausing or canceling the
// Operation ends the wait.
func (r *run) awaitHealth(ctx context.Context, limit time.Duration, want func(gate.Snapshot) error) (gate.Snapshot, error) {
	if r.rec != nil {
		waiting, end := r.rec.wait(ctx)
		defer end(nil)
		ctx = waiting
	}
	until := time.Now().Add(limit)
	for {
		s := r.health(ctx)
		err := want(s)
		if ctx.Err() != nil {
			return s, context.Cause(ctx)
		}
		_, recovers := errors.AsType[*unwellError](err)
		if err == nil || time.Now().After(until) || !recovers && !s.Settling() {
			return s, err
		}
		if e := pause(ctx); e != nil {
			return s, e
		}
	}
}

// health reads the state of all etcd members and API servers, in parallel.
func (r *run) health(ctx context.Context) gate.Snapshot {
	hosts := sortedKeys(r.state.EtcdBootstrap)
	if r.spec.Etcd.Type == plan.EtcdExternal {
		hosts = nil
	}
	planes := r.roles[clusterv1alpha1.RoleControlPlane]
	answers, servers := make([]etcdAnswer, len(hosts)), make([]gate.APIServer, len(planes))
	group, gctx := errgroup.WithContext(ctx)
	for i, name := range hosts {
		group.Go(func() error { answers[i] = r.askEtcd(gctx, name); return nil })
	}
	for i, name := range planes {
		group.Go(func() error {
			health, why := r.askAPIServer(gctx, name)
			servers[i] = gate.APIServer{Host: name, Health: health, Why: why}
			return nil
		})
	}
	_ = group.Wait() // it returns none
	s := gate.Snapshot{APIServers: servers}
	for _, a := range answers {
		s.NoSpace = s.NoSpace || a.alarms[etcdserverpb.AlarmType_NOSPACE] != nil
		if !s.Quorum && a.list != nil {
			s.Quorum = true
			for _, m := range a.list {
				s.Members = append(s.Members, r.memberHealth(m, hosts, answers))
			}
			slices.SortFunc(s.Members, func(a, b gate.Member) int { return strings.Compare(a.Host, b.Host) })
		}
	}
	if s.Quorum {
		return s
	}
	for i, name := range hosts {
		if r.hasMember(name) {
			s.Members = append(s.Members, gate.Member{ID: answers[i].id, Host: name, Health: answers[i].health, Why: answers[i].why})
		}
	}
	return s
}

// hasMember reports whether the etcd of a host was started. For a host that was not reached, it
// reports whether the host is part of the cluster.
func (r *run) hasMember(name string) bool {
	if f, reached := r.facts[name]; reached {
		return slices.ContainsFunc(f.Applied.Steps, func(s plan.AppliedStep) bool { return s.ID == plan.StepEtcdUnit })
	}
	return r.state.IsPart(name)
}

// memberHealth returns the state of a member, from the answer of its host and the alarms.
func (r *run) memberHealth(m *etcdserverpb.Member, hosts []string, answers []etcdAnswer) gate.Member {
	of := gate.Member{ID: m.ID, Host: cmp.Or(r.memberHost(m), memberName(m)), Learner: m.IsLearner, Health: gate.Unreachable, Why: "no host of the cluster has it"}
	i := slices.Index(hosts, of.Host)
	if i < 0 {
		return of
	}
	a := answers[i]
	of.Health, of.Why, of.Leader = a.health, a.why, a.leader == m.ID
	for _, other := range answers {
		if slices.Contains(other.alarms[etcdserverpb.AlarmType_CORRUPT], m.ID) {
			of.Health, of.Why = gate.Down, "its data are corrupt (alarm CORRUPT)"
		}
	}
	return of
}

// etcdAnswer is the answer of the etcd on a host.
type etcdAnswer struct {
	health gate.Health
	why    string
	id     uint64
	leader uint64
	// list has the members if a majority confirmed them, else nil.
	list []*etcdserverpb.Member
	// alarms has the IDs of the members with an alarm, by its kind.
	alarms map[etcdserverpb.AlarmType][]uint64
}

// askEtcd reads the state of the etcd on a host.
func (r *run) askEtcd(ctx context.Context, name string) etcdAnswer {
	c := r.conns[name]
	if c == nil {
		return etcdAnswer{health: gate.Unreachable, why: "its host was not reached"}
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
	defer cli.Close() //nolint:errcheck // nothing is lost with it
	status, err := cli.Status(ctx, cli.Endpoints()[0])
	if err != nil {
		return failedAnswer(err)
	}
	a := etcdAnswer{health: gate.Up, id: status.Header.MemberId, leader: status.Leader}
	switch {
	case status.Leader == 0:
		a.health, a.why = gate.Unknown, "it knows no leader"
		return a
	case status.IsLearner:
		return a // a learner answers nothing else
	}
	// The list is linearizable: the member is up to date, and a majority has confirmed the list.
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

// knock connects to the etcd port of a host. The client of etcd retries and does not report a
// refused connection.
func (r *run) knock(ctx context.Context, c *connection) error {
	conn, err := c.current().Dial(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(r.spec.Etcd.Port))))
	if err != nil {
		return err
	}
	return conn.Close()
}

func failedAnswer(err error) etcdAnswer {
	health, why := judge(err)
	return etcdAnswer{health: health, why: why}
}

// askAPIServer reads whether the API server of a host is ready.
func (r *run) askAPIServer(ctx context.Context, name string) (gate.Health, string) {
	if r.conns[name] == nil {
		return gate.Unreachable, "its host was not reached"
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	if _, err := r.readyAPI(ctx, name); err != nil {
		return judge(err)
	}
	return gate.Up, ""
}

// judge returns what an error means for the health of a server, and a message. Down means that the
// server does not run or has an invalid certificate. All other errors mean Unknown.
func judge(err error) (gate.Health, string) {
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
		return gate.Unknown, "it is " + err.Error()
	case errors.As(err, &invalid), errors.As(err, &expired):
		return gate.Down, "its certificate is not valid: " + err.Error()
	case errors.Is(err, syscall.ECONNREFUSED), errors.As(err, &refused) && refused.Reason == ssh.ConnectionFailed:
		return gate.Down, "it does not run: " + err.Error()
	case errors.As(err, &status):
		return gate.Unknown, "it is not ready: " + err.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return gate.Unknown, fmt.Sprintf("it does not answer within %s", etcdTimeout)
	}
	return gate.Unknown, "it does not answer: " + err.Error()
}
