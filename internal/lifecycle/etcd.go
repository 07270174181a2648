package lifecycle

import (
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

// etcdTimeout bounds one question to etcd.
const etcdTimeout = 5 * time.Second

// reconfigureTime bounds how long a change of the members of etcd is tried: etcd wants its members to have been connected for
// five seconds.
const reconfigureTime = 20 * time.Second

// etcd connects to the etcd that a host runs, through the host.
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
		Logger:      zap.NewNop(), // what it would say comes back as an error
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return c.current().Dial(ctx, "tcp", address)
		})},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd of host %s: %w", name, err)
	}
	return cli, nil
}

// members lists the members of etcd as a host that has one sees them; the host is tried in turn until one answers.
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
		// A linearizable list needs a quorum, so an answer is true.
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

// reconfigure changes the members of etcd. It refuses that for some seconds after another member has come, gone or restarted,
// which is waited for.
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
	others := slices.DeleteFunc(slices.Clone(r.roles[clusterv1alpha1.RoleEtcd]), func(h string) bool { return h == name })
	cli, members, err := r.members(ctx, others)
	if err != nil && r.hasMember(name) && ctx.Err() == nil {
		return start(ctx) // it may be what the quorum lacks
	}
	if err != nil {
		return err
	}
	defer cli.Close() //nolint:errcheck // nothing is lost with it
	peer := r.peerURL(name)
	var id uint64
	learner := true
	for _, m := range members {
		if slices.Contains(m.PeerURLs, peer) {
			id, learner = m.ID, m.IsLearner
		}
	}
	if id == 0 {
		if err := reconfigure(ctx, func(ctx context.Context) error {
			added, err := cli.MemberAddAsLearner(ctx, []string{peer})
			if err == nil {
				id = added.Member.ID
			}
			return err
		}); err != nil {
			return fmt.Errorf("add the etcd of host %s: %w", name, err)
		}
	}
	if !learner {
		return start(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- start(ctx) }()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-started:
			return err // the probe of the stage fails as long as the member is a learner
		case <-tick.C:
		}
		pctx, stop := context.WithTimeout(ctx, etcdTimeout)
		_, err := cli.MemberPromote(pctx, id)
		stop()
		if err == nil || errors.Is(err, rpctypes.ErrMemberNotLearner) {
			return <-started
		}
	}
}

func memberName(m *etcdserverpb.Member) string {
	if m.Name != "" {
		return m.Name
	}
	return strings.Join(m.PeerURLs, ",")
}

// memberHost is the host of a member, by its peer URL.
func (r *run) memberHost(m *etcdserverpb.Member) string {
	for name := range r.state.EtcdBootstrap {
		if slices.Contains(m.PeerURLs, r.peerURL(name)) {
			return name
		}
	}
	return m.Name
}

// peerURL of the etcd of a host, as it first started.
func (r *run) peerURL(name string) string { return r.state.EtcdBootstrap[name].Members[name] }
