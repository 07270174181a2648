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

// etcdTimeout bounds one request to etcd or an API server.
const etcdTimeout = 5 * time.Second

// reconfigureTime bounds how long a change of the etcd members is retried. etcd refuses a change
// until its members have been connected for five seconds.
const reconfigureTime = 20 * time.Second

// etcd returns a client for the etcd on a host, connected through the host. The caller closes it.
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
		Logger:      zap.NewNop(), // errors are returned
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return c.current().Dial(ctx, "tcp", address)
		})},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd of host %s: %w", name, err)
	}
	return cli, nil
}

// members returns the etcd members and a client of the host that listed them. It asks the hosts one
// after the other until one answers. The caller closes the client.
func (r *run) members(ctx context.Context, hosts []string) (*clientv3.Client, []*etcdserverpb.Member, error) {
	var errs []error
	for _, name := range hosts {
		if r.conns[name] == nil {
			continue
		}
		cli, err := r.etcd(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// A linearizable list needs a quorum, so it is up to date.
		qctx, cancel := context.WithTimeout(ctx, etcdTimeout)
		list, err := cli.MemberList(qctx)
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("etcd of host %s: %w", name, err), cli.Close())
			continue
		}
		return cli, list.Members, nil
	}
	return nil, nil, fmt.Errorf("etcd has no quorum, or none of its hosts answers: nothing is changed; start the members again, or restore a snapshot: %w", errors.Join(errs...))
}

// reconfigure changes the members of etcd. etcd refuses a change for some seconds after another
// member was added, removed or restarted. reconfigure retries for reconfigureTime.
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

// joinEtcd adds a host to etcd as a learner, starts it, and promotes it once it has caught up.
func (r *run) joinEtcd(ctx context.Context, name string, start func(context.Context) error) error {
	cli, _, err := r.members(ctx, r.otherMembers(name))
	if err != nil && r.hasMember(name) && ctx.Err() == nil {
		return start(ctx) // the quorum may depend on this member
	}
	if err != nil {
		return err
	}
	_ = cli.Close() // nothing is lost with it
	if err := r.do(ctx, plan.AddEtcdMember(name)); err != nil {
		return err
	}
	pctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started := make(chan error, 1)
	go func() { // the probe of the stage fails as long as the member is a learner
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

// otherMembers returns the hosts with the etcd role except one.
func (r *run) otherMembers(name string) []string {
	return slices.DeleteFunc(slices.Clone(r.roles[clusterv1alpha1.RoleEtcd]), func(h string) bool { return h == name })
}

// observeMember reports whether a step about an etcd member is done. If etcd does not answer, a
// promotion counts as not done: the member is starting, so the error may be transient.
func (r *run) observeMember(ctx context.Context, s plan.ClusterStep) (bool, error) {
	name := s.Target()
	cli, members, err := r.members(ctx, r.otherMembers(name))
	if err != nil && s.EtcdMemberPromote != nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_ = cli.Close() // nothing is lost with it
	m := r.memberOf(members, name)
	switch {
	case s.EtcdMemberAdd != nil:
		return m != nil, nil
	case s.EtcdMemberPromote != nil:
		return m != nil && !m.IsLearner, nil
	}
	return m == nil, nil
}

// changeMember adds, promotes or removes an etcd member, through the other members.
func (r *run) changeMember(ctx context.Context, s plan.ClusterStep) error {
	if s.EtcdMemberPromote != nil {
		return r.promote(ctx, s.Target())
	}
	name := s.Target()
	cli, members, err := r.members(ctx, r.otherMembers(name))
	if err != nil {
		return err
	}
	defer cli.Close() //nolint:errcheck // nothing is lost with it
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
		if err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) { // removed, but the answer was lost
			return err
		}
	}
	return nil
}

// promote retries until the learner has caught up and is a voting member, or ctx ends.
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

func (r *run) promoteNow(ctx context.Context, name string) error {
	cli, members, err := r.members(ctx, r.otherMembers(name))
	if err != nil {
		return err
	}
	defer cli.Close() //nolint:errcheck // nothing is lost with it
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

// memberOf returns the member of a host, or nil.
func (r *run) memberOf(members []*etcdserverpb.Member, name string) *etcdserverpb.Member {
	for _, m := range members {
		if cmp.Or(r.memberHost(m), memberName(m)) == name {
			return m
		}
	}
	return nil
}

func memberName(m *etcdserverpb.Member) string {
	if m.Name != "" {
		return m.Name
	}
	return strings.Join(m.PeerURLs, ",")
}

// memberHost returns the host of a member, by its peer URL. Otherwise it returns the member's name,
// which is empty until the member has started.
func (r *run) memberHost(m *etcdserverpb.Member) string {
	for name := range r.state.EtcdBootstrap {
		if slices.Contains(m.PeerURLs, r.peerURL(name)) {
			return name
		}
	}
	return m.Name
}

// peerURL returns the peer URL with which the etcd of a host first started.
func (r *run) peerURL(name string) string { return r.state.EtcdBootstrap[name].Members[name] }
