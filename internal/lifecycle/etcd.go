package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// etcdTimeout bounds one request to etcd, and one check of an API server.
const etcdTimeout = 5 * time.Second

// reconfigureTime bounds how long a change of the etcd members is retried. etcd refuses such a
// change until its members have been connected for five seconds.
const reconfigureTime = 20 * time.Second

// etcd returns a client for the etcd member on a host. The client connects through the host at its
// first request, and the caller closes it. A host that was not reached is an error.
func (r *run) etcd(name string) (*clientv3.Client, error) {
	c := r.conns[name]
	if c == nil {
		return nil, fmt.Errorf("etcd of host %s: the host was not reached", name)
	}
	address := net.JoinHostPort(loopback, strconv.Itoa(int(r.spec.Etcd.Port)))
	cli, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{"https://" + address},
		TLS:         trusting(r.keys[plan.AuthorityEtcd], r.keys[plan.LeafEtcdAdmin]),
		DialTimeout: etcdTimeout,
		Logger:      zap.NewNop(), // no log: calls return their errors
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return c.current().Dial(ctx, "tcp", address)
		})},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd of host %s: %w", name, err)
	}
	return cli, nil
}

// members returns the list of etcd members, which a majority of them has confirmed, and a client of
// the member that answered. The caller closes the client. members asks the named hosts one after
// another, without hosts that were not reached. If none of them answers or etcd has no quorum, it
// returns an error, which has the reason for each host.
func (r *run) members(ctx context.Context, hosts []string) (*clientv3.Client, []*etcdserverpb.Member, error) {
	var errs []error
	for _, name := range hosts {
		cli, err := r.etcd(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// The list is linearizable. It needs a quorum, so it is up to date.
		qctx, cancel := context.WithTimeout(ctx, etcdTimeout)
		list, err := cli.MemberList(qctx)
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("etcd of host %s: %w", name, err), cli.Close())
			continue
		}
		return cli, list.Members, nil
	}
	if len(hosts) == 0 {
		errs = append(errs, errors.New("no other host runs etcd"))
	}
	return nil, nil, fmt.Errorf("etcd has no quorum, or none of its hosts answers: nothing is changed; start the members again, or restore a snapshot: %w", errors.Join(errs...))
}

// reconfigure calls change, a function that changes the members of etcd, and returns its error.
// etcd refuses a change with ErrUnhealthy for some seconds after another member was added, removed
// or restarted. In that case, reconfigure calls change again until reconfigureTime is over. Other
// errors are not retried.
func reconfigure(ctx context.Context, change func(context.Context) error) error {
	until := time.Now().Add(reconfigureTime)
	for {
		qctx, cancel := context.WithTimeout(ctx, etcdTimeout)
		err := change(qctx)
		cancel()
		if !errors.Is(err, rpctypes.ErrUnhealthy) || time.Now().After(until) {
			return err
		}
		if e := pause(ctx); e != nil {
			return errors.Join(e, err)
		}
	}
}

// joinEtcd adds a host to the existing etcd cluster as a learner, and calls start, which starts
// etcd on the host. It promotes the learner to a voting member once the learner has caught up. It
// tries that while start runs, and for reconfigureTime afterwards. If the other members do not
// answer, the quorum may depend on this member. If etcd was started on the host before, joinEtcd
// then only calls start.
func (r *run) joinEtcd(ctx context.Context, name string, start func(context.Context) error) error {
	cli, _, err := r.members(ctx, r.otherMembers(name))
	if err != nil && r.hasMember(name) && ctx.Err() == nil {
		return start(ctx) // the quorum of etcd may depend on this member
	}
	if err != nil {
		return err
	}
	_ = cli.Close() // an error of Close does not matter
	if err := r.do(ctx, plan.AddEtcdMember(name)); err != nil {
		return err
	}
	pctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started := make(chan error, 1)
	go func() { // in parallel, since the probe of etcd fails for a learner
		err := start(ctx)
		if err != nil {
			cancel()
		}
		time.AfterFunc(reconfigureTime, cancel)
		started <- err
	}()
	promoted := r.do(pctx, plan.PromoteEtcdMember(name))
	return cmp.Or(<-started, promoted)
}

// otherMembers returns the hosts that the spec gives the role etcd, except the named one.
func (r *run) otherMembers(name string) []string {
	return slices.DeleteFunc(slices.Clone(r.roles[clusterv1alpha1.RoleEtcd]), func(h string) bool { return h == name })
}

// observeMember reports whether a step that adds, promotes or removes an etcd member is already
// done. It asks the members on the other hosts. No answer is an error, except for a promotion: that
// counts as not done, because the member is still starting and the error may be transient.
func (r *run) observeMember(ctx context.Context, s plan.ClusterStep) (bool, error) {
	name := s.Target()
	cli, members, err := r.members(ctx, r.otherMembers(name))
	if err != nil && s.EtcdMemberPromote != nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_ = cli.Close() // an error of Close does not matter
	m := r.memberOf(members, name)
	switch {
	case s.EtcdMemberAdd != nil:
		return m != nil, nil
	case s.EtcdMemberPromote != nil:
		return m != nil && !m.IsLearner, nil
	}
	return m == nil, nil
}

// changeMember performs a step that adds, promotes or removes an etcd member. It asks the members
// on the other hosts. It does nothing if the member to add already exists, or the member to remove
// does not exist.
func (r *run) changeMember(ctx context.Context, s plan.ClusterStep) error {
	if s.EtcdMemberPromote != nil {
		return r.promote(ctx, s.Target())
	}
	name := s.Target()
	cli, members, err := r.members(ctx, r.otherMembers(name))
	if err != nil {
		return err
	}
	defer cli.Close() //nolint:errcheck // an error of Close does not matter
	m := r.memberOf(members, name)
	switch {
	case s.EtcdMemberAdd != nil && m == nil:
		if err := reconfigure(ctx, func(ctx context.Context) error {
			_, err := cli.MemberAddAsLearner(ctx, []string{r.peerURL(name)})
			return err
		}); err != nil {
			return fmt.Errorf("add the etcd of host %s: %w", name, err)
		}
	case s.EtcdMemberRemove != nil && m != nil:
		err := reconfigure(ctx, func(ctx context.Context) error {
			_, err := cli.MemberRemove(ctx, m.ID)
			return err
		})
		if err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) { // the member was removed before
			return err
		}
	}
	return nil
}

// promote makes the learner on a host a voting member. It retries until the learner has caught up.
// Only the end of ctx stops it. It then returns the last error of etcd.
func (r *run) promote(ctx context.Context, name string) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := r.promoteNow(ctx, name)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("promote the etcd of host %s: %w", name, err)
		case <-tick.C:
		}
	}
}

// promoteNow makes one attempt to promote the learner on a host to a voting member. It returns nil
// if the member is a voting one already, and an error if etcd has no member on the host.
func (r *run) promoteNow(ctx context.Context, name string) error {
	cli, members, err := r.members(ctx, r.otherMembers(name))
	if err != nil {
		return err
	}
	defer cli.Close() //nolint:errcheck // an error of Close does not matter
	m := r.memberOf(members, name)
	if m == nil {
		return errors.New("etcd does not have it")
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	if _, err := cli.MemberPromote(ctx, m.ID); !errors.Is(err, rpctypes.ErrMemberNotLearner) {
		return err
	}
	return nil
}

// memberOf returns the one of the etcd members that runs on a host, or nil if none does.
func (r *run) memberOf(members []*etcdserverpb.Member, name string) *etcdserverpb.Member {
	for _, m := range members {
		if cmp.Or(r.memberHost(m), memberName(m)) == name {
			return m
		}
	}
	return nil
}

// memberName returns the name of a member, or its peer URLs if it has not started yet.
func memberName(m *etcdserverpb.Member) string {
	if m.Name != "" {
		return m.Name
	}
	return strings.Join(m.PeerURLs, ",")
}

// memberHost returns the host of an etcd member, by the peer URLs in r.state. If no host has a peer
// URL of the member, it returns the name of the member. That name is "" until the member has
// started.
func (r *run) memberHost(m *etcdserverpb.Member) string {
	for name := range r.state.EtcdBootstrap {
		if slices.Contains(m.PeerURLs, r.peerURL(name)) {
			return name
		}
	}
	return m.Name
}

// peerURL returns the peer URL with which the etcd of a host first started, or "" if r.state has no
// entry for the host.
func (r *run) peerURL(name string) string { return r.state.EtcdBootstrap[name].Members[name] }
