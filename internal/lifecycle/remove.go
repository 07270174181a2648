package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/drain"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/gate"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

const defaultDrainTimeout = 5 * time.Minute

// removeHosts takes hosts out of the cluster; the spec is what it is to be without them. First the pods move away, then
// etcd lets the members go, then the others are told, and last what was installed on the hosts is undone.
func (r *run) removeHosts(ctx context.Context) error {
	if r.state.Applied == nil {
		return fmt.Errorf("cluster %s was not built from here: there is no host to take out", r.Cluster)
	}
	if err := r.keepsHosts(); err != nil {
		return err
	}
	leaving, err := r.leaving()
	if err != nil {
		return err
	}
	if err := r.survey(ctx, slices.Concat(r.spec.Hosts, leaving)); err != nil {
		return err
	}
	names := make([]string, 0, len(leaving))
	for _, h := range leaving {
		names = append(names, h.Name)
		// What cannot be reached is unknown. It is taken out only if that was asked for.
		if err := r.unreachable[h.Name]; err != nil && r.op.Spec.Unreachable != lifecyclev1alpha1.UnreachableForget {
			return fmt.Errorf("%w; if the host is gone for good, take it out with --forget-unreachable: then nothing on it is undone", err)
		}
	}
	if err := r.checkIdentity(); err != nil {
		return err
	}
	if err := r.undoable(names); err != nil {
		return err
	}
	if err := r.bringAgents(ctx, names...); err != nil {
		return err
	}
	r.state.Leaving = leaving
	if err := r.Store.Save(ctx, r.state); err != nil {
		return err
	}
	oldRoles, err := plan.Expand(r.state.Applied.RoleGroups)
	if err != nil {
		return err
	}
	// No pod can be moved by a kubelet whose certificate has ended.
	spec, roles := r.spec, r.roles
	if err := r.renewApplied(ctx); err != nil {
		return err
	}
	r.spec, r.roles = spec, roles
	rest := maps.Clone(r.facts)
	for _, n := range names {
		delete(rest, n)
	}
	all := r.facts
	r.facts = rest
	if err := r.makePlan(ctx); err != nil {
		return err
	}
	if err := r.leaveEtcd(ctx, oldRoles[clusterv1alpha1.RoleEtcd], names, true); err != nil {
		return err
	}
	r.rec.set(func(s *lifecyclev1alpha1.OperationStatus) { s.PlanHash = r.changes.Hash })
	r.rec.plan(r.plan, r.changes)
	if err := r.Store.Save(ctx, r.state); err != nil {
		return err
	}
	cs, err := r.clientset(ctx)
	if err != nil {
		return err
	}
	for _, n := range names {
		if r.unreachable[n] != nil {
			continue // its pods are gone with it, and those that are not cannot be asked
		}
		if err := r.rec.do("drain/"+n, func() (bool, error) { return true, r.drain(ctx, cs, n) }); err != nil {
			return err
		}
	}
	if err := r.leaveEtcd(ctx, oldRoles[clusterv1alpha1.RoleEtcd], names, false); err != nil {
		return err
	}
	if err := r.converge(ctx); err != nil {
		return err
	}
	r.facts = all
	r.nextEpoch()
	if err := r.removeAll(ctx, names); err != nil {
		return err
	}
	for _, n := range names {
		if err := r.rec.do("node/"+n, func() (bool, error) {
			err := cs.CoreV1().Nodes().Delete(ctx, n, metav1.DeleteOptions{})
			return err == nil, ignoreNotFound(err)
		}); err != nil {
			return fmt.Errorf("delete node %s: %w", n, err)
		}
		delete(r.state.EtcdBootstrap, n)
		for _, keys := range []pki.Bundle{r.state.Keys, r.state.Renewed} {
			maps.DeleteFunc(keys, func(key string, _ pki.KeyPair) bool { return strings.HasPrefix(key, n+"/") })
		}
	}
	r.tookUpAll()
	var left []string
	for _, h := range r.spec.Hosts {
		if err := r.unreachable[h.Name]; err != nil {
			left = append(left, err.Error())
		}
	}
	if len(left) > 0 {
		r.rec.remark = fmt.Sprintf("these hosts were left as they are, and do not know yet that %s is gone: %s; apply the cluster's spec when they are back",
			strings.Join(names, ", "), strings.Join(left, "; "))
	}
	r.applied()
	gone := func(h clusterv1alpha1.Host) bool { return slices.Contains(names, h.Name) }
	r.state.Begun, r.state.Leaving = slices.DeleteFunc(r.state.Begun, gone), slices.DeleteFunc(r.state.Leaving, gone)
	return r.Store.Save(ctx, r.state)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// leaving are the hosts that the Operation names, as they were applied, or were to be by a run that failed.
func (r *run) leaving() ([]clusterv1alpha1.Host, error) {
	known := r.state.Known()
	var leaving []clusterv1alpha1.Host
	for _, name := range r.op.Spec.Hosts {
		if hasHost(r.spec.Hosts, name) {
			return nil, fmt.Errorf("host %s is to be taken out of cluster %s, and its spec has it still", name, r.Cluster)
		}
		i := slices.IndexFunc(known, func(h clusterv1alpha1.Host) bool { return h.Name == name })
		if i < 0 {
			if r.op.Status.Attempt > 1 {
				continue // a resumed run that had come that far
			}
			return nil, fmt.Errorf("host %s is not part of cluster %s", name, r.Cluster)
		}
		leaving = append(leaving, known[i])
	}
	return leaving, nil
}

// checkIdentity refuses hosts that belong to another cluster than ours.
func (r *run) checkIdentity() error {
	var errs []error
	for _, name := range sortedKeys(r.facts) {
		if a := r.facts[name].Applied; a.ClusterID != "" && a.ClusterID != r.state.Keys.ID() {
			errs = append(errs, fmt.Errorf("host %s belongs to another cluster, which is called %s; it is left as it is", name, a.Cluster))
		}
	}
	return errors.Join(errs...)
}

// leaveEtcd takes hosts out of etcd, or only checks whether that can be done.
func (r *run) leaveEtcd(ctx context.Context, hosts, leaving []string, check bool) error {
	// A host that was only half added may be a member already.
	member := func(n string) bool { return slices.Contains(hosts, n) || r.state.EtcdBootstrap[n].Members != nil }
	if r.spec.Etcd.Type == plan.EtcdExternal || !slices.ContainsFunc(leaving, member) {
		return nil
	}
	act := gate.Act{Leave: leaving}
	before, err := r.admit(ctx, act)
	if err != nil || check {
		return err
	}
	staying := slices.DeleteFunc(slices.Clone(hosts), func(n string) bool { return slices.Contains(leaving, n) })
	for _, m := range before.LeaveOrder(leaving) {
		if err := r.rec.do("etcd/remove-"+m.Host, func() (bool, error) { return true, r.removeMember(ctx, staying, m.ID) }); err != nil {
			return fmt.Errorf("take the etcd of host %s out: %w", m.Host, err)
		}
		if err := r.recovered(ctx, before, act); err != nil {
			return fmt.Errorf("after the etcd of host %s was taken out: %w", m.Host, err)
		}
	}
	return nil
}

// removeMember takes a member out of etcd, by way of one that stays.
func (r *run) removeMember(ctx context.Context, staying []string, id uint64) error {
	cli, _, err := r.members(ctx, staying)
	if err != nil {
		return err
	}
	defer cli.Close() //nolint:errcheck // nothing is lost with it
	err = reconfigure(ctx, func(ctx context.Context) error {
		_, err := cli.MemberRemove(ctx, id)
		return err
	})
	if errors.Is(err, rpctypes.ErrMemberNotFound) {
		return nil // it was taken out when the answer was lost
	}
	return err
}

// remove takes the whole cluster off its hosts: those of the spec, and all others that are known.
func (r *run) remove(ctx context.Context) error {
	hosts := slices.Clone(r.spec.Hosts)
	for _, h := range r.state.Known() {
		if !hasHost(hosts, h.Name) {
			hosts = append(hosts, h)
		}
	}
	if err := r.survey(ctx, hosts); err != nil {
		return err
	}
	if len(r.unreachable) > 0 && r.op.Spec.Unreachable != lifecyclev1alpha1.UnreachableForget {
		return fmt.Errorf("%w; if these hosts are gone for good, delete with --forget-unreachable: then nothing on them is undone", r.refuseUnreachable())
	}
	if err := r.checkIdentity(); err != nil {
		return err
	}
	names := make([]string, 0, len(hosts))
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	if err := r.undoable(names); err != nil {
		return err
	}
	if err := r.bringAgents(ctx, names...); err != nil {
		return err
	}
	r.nextEpoch()
	if err := r.removeAll(ctx, names); err != nil {
		return err
	}
	return r.Store.Remove(ctx, r.Cluster)
}

// removeAll undoes everything on hosts, as far as they were reached.
func (r *run) removeAll(ctx context.Context, names []string) error {
	group, gctx := errgroup.WithContext(ctx)
	for _, name := range names {
		c := r.conns[name]
		if c == nil || !r.holds(name) {
			continue // it cannot be reached, or there is nothing of ours
		}
		group.Go(func() error {
			if err := r.rec.checkpoint(); err != nil {
				return err
			}
			r.rec.stage(name, "remove")
			err := r.retry(gctx, c, func(ctx context.Context) error {
				return r.request(ctx, c, node.Request{RemoveAll: true, Release: true})
			})
			r.rec.settle(name, c.trips.Load(), err)
			return err
		})
	}
	return group.Wait()
}

// drain moves the pods of a node away; disruption budgets are honoured.
func (r *run) drain(ctx context.Context, cs kubernetes.Interface, name string) error {
	timeout := defaultDrainTimeout
	if d := r.op.Spec.DrainTimeout; d != nil {
		timeout = d.Duration
	}
	n, err := cs.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("drain node %s: %w", name, err)
	}
	log := &lines{log: logr.FromContextOrDiscard(ctx)}
	helper := &drain.Helper{
		Ctx: ctx, Client: cs, Timeout: timeout, GracePeriodSeconds: -1,
		IgnoreAllDaemonSets: true, DeleteEmptyDirData: true, Force: true,
		Out: log, ErrOut: log,
	}
	if err := drain.RunCordonOrUncordon(helper, n, true); err != nil {
		return fmt.Errorf("cordon node %s: %w", name, err)
	}
	if err := drain.RunNodeDrain(helper, name); err != nil {
		return fmt.Errorf("drain node %s: %w; a disruption budget may forbid it: give its workload more replicas, or wait, and resume; the node stays cordoned", name, err)
	}
	return nil
}

// cordon sets whether a node takes new pods.
func cordon(ctx context.Context, cs kubernetes.Interface, name string, cordoned bool) error {
	n, err := cs.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	if n.Spec.Unschedulable == cordoned {
		return nil
	}
	log := &lines{log: logr.FromContextOrDiscard(ctx)}
	helper := &drain.Helper{Ctx: ctx, Client: cs, Out: log, ErrOut: log}
	if err := drain.RunCordonOrUncordon(helper, n, cordoned); err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	return nil
}

// lines logs what is written to it.
type lines struct{ log logr.Logger }

func (l *lines) Write(p []byte) (int, error) {
	l.log.V(1).Info(strings.TrimSpace(string(p)))
	return len(p), nil
}
