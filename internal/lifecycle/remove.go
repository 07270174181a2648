package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/safety"
	"orrery.dev/orrery/internal/pki"
)

// defaultDrainTimeout bounds the drain of one node if the Operation sets no timeout.
const defaultDrainTimeout = 5 * time.Minute

// removeHosts performs the action DeleteNode: it removes the hosts that the Operation names from
// the cluster. r.spec is the spec without these hosts. First it renews certificates that expire
// soon. Then it drains the nodes of the hosts, removes their etcd members, and changes the other
// hosts. At last it undoes what was installed on the removed hosts, and deletes their Nodes.
//
// An Operation may forget hosts that were not reached. Nothing is undone on such a host. Hosts that
// stay in the cluster and were not reached keep their old configuration, and the message of the
// Operation names them.
func (r *run) removeHosts(ctx context.Context) error {
	if r.state.Applied == nil {
		return fmt.Errorf("cluster %s was not built from here: there is no host to take out", r.Cluster)
	}
	if err := r.state.Keep(r.Cluster, r.spec, r.op.Spec.NamedHosts()...); err != nil {
		return err
	}
	leaving, names, left, err := r.inspectLeaving(ctx)
	if err != nil {
		return err
	}
	if err := r.bringAgents(ctx, names...); err != nil {
		return err
	}
	// The hash is compared before certificates are renewed, because the renewal changes the plan.
	if err := r.planLeave(ctx, names); err != nil {
		return err
	}
	if err := r.refuseOtherPlan(); err != nil {
		return err
	}
	if err := r.takeLeasesFor(ctx, plan.Works(r.plan, r.changes, r.facts), names...); err != nil {
		return err
	}
	r.rec.setPlan(r.changes)
	r.state.Leaving = leaving
	if err := r.Env.Save(ctx, r.state); err != nil {
		return err
	}
	// Certificates are renewed before the drain, because a node whose kubelet has an expired
	// certificate cannot be drained.
	spec, roles := r.spec, r.roles
	if err := r.renewApplied(ctx); err != nil {
		return err
	}
	r.spec, r.roles = spec, roles
	all := r.facts
	if err := r.planLeave(ctx, names); err != nil {
		return err
	}
	before, after := r.leaveSteps(names)
	r.facts = without(all, names)
	r.rec.plan(r.plan, r.changes)
	if err := r.leavable(ctx, names); err != nil {
		return err
	}
	if err := r.Env.Save(ctx, r.state); err != nil {
		return err
	}
	// If its drain fails, a node stays cordoned, since it is to be removed.
	for _, s := range before {
		if s.EtcdMemberRemove != nil {
			continue
		}
		if err := r.do(ctx, s); err != nil {
			return err
		}
	}
	if err := r.leaveEtcd(ctx, names); err != nil {
		return err
	}
	if err := r.converge(ctx); err != nil {
		return err
	}
	r.facts = all
	if err := r.removeAll(ctx, names); err != nil {
		return err
	}
	for _, s := range after {
		if err := r.do(ctx, s); err != nil {
			return err
		}
	}
	for _, n := range names {
		delete(r.state.EtcdBootstrap, n)
		for _, keys := range []pki.Bundle{r.state.Keys, r.state.Renewed} {
			maps.DeleteFunc(keys, func(key string, _ pki.KeyPair) bool { return strings.HasPrefix(key, n+"/") })
		}
	}
	r.tookUpAll()
	if left = left.without(names); len(left) > 0 {
		r.rec.remark = fmt.Sprintf("these hosts were left as they are, and do not know yet that %s is gone: %s; apply the cluster's spec when they are back",
			strings.Join(names, ", "), left)
	}
	if err := r.state.Reach(r.spec, names...); err != nil {
		return err
	}
	return r.Env.Save(ctx, r.state)
}

// inspectLeaving connects to the hosts that the Operation removes and to those that stay. leaving
// are the hosts to remove, and names their names. left are hosts that were not reached and that the
// run leaves unchanged. It returns an error if an unreached host stops the action, or if a host
// belongs to another cluster. It also returns an error for hosts that cannot be undone, see
// undoable.
func (r *run) inspectLeaving(ctx context.Context) (leaving []clusterv1alpha1.Host, names []string, left leftHosts, err error) {
	if leaving, err = r.leaving(); err != nil {
		return nil, nil, nil, err
	}
	if err := r.inspect(ctx, slices.Concat(r.spec.Hosts, leaving)); err != nil {
		return nil, nil, nil, err
	}
	for _, h := range leaving {
		names = append(names, h.Name)
	}
	left, stop := r.decide(r.op.Spec.Action, func(name string) intent.Part {
		if slices.Contains(names, name) {
			return intent.Leaving
		}
		return intent.Staying
	})
	if stop != nil {
		return nil, nil, nil, fmt.Errorf("%w; %sif the host is gone for good, take it out with --forget-unreachable: then nothing on it is undone", stop, r.newLogin())
	}
	if err := r.checkIdentity(); err != nil {
		return nil, nil, nil, err
	}
	return leaving, names, left, r.undoable(names)
}

// ignoreNotFound returns nil if err is a NotFound error of an API server, and err otherwise.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// leaving returns the hosts that the Operation removes, with addresses and logins: those that were
// applied, or else those of an unfinished run. It returns an error if r.spec still has such a host,
// or if the cluster has no such host. After the first attempt it leaves out unknown hosts instead,
// because an earlier attempt may have removed them.
func (r *run) leaving() ([]clusterv1alpha1.Host, error) {
	known := r.state.Known()
	var leaving []clusterv1alpha1.Host
	for _, name := range r.op.Spec.NamedHosts() {
		if intent.Has(r.spec.Hosts, name) {
			return nil, fmt.Errorf("host %s is to be taken out of cluster %s, and its spec has it still", name, r.Cluster)
		}
		i := slices.IndexFunc(known, func(h clusterv1alpha1.Host) bool { return h.Name == name })
		if i < 0 {
			if r.op.Status.Attempt > 1 {
				continue // an earlier attempt has removed the host
			}
			return nil, fmt.Errorf("host %s is not part of cluster %s", name, r.Cluster)
		}
		leaving = append(leaving, known[i])
	}
	return leaving, nil
}

// checkIdentity returns an error that names the reached hosts which belong to another cluster. It
// returns nil if there are none.
func (r *run) checkIdentity() error {
	var errs []error
	for _, name := range sortedKeys(r.facts) {
		if a := r.facts[name].Applied; a.ClusterID != "" && a.ClusterID != r.state.ID {
			errs = append(errs, fmt.Errorf("host %s belongs to another cluster, which is called %s; it is left as it is", name, a.Cluster))
		}
	}
	return errors.Join(errs...)
}

// leavable returns an error if removing the etcd members of the named hosts would cost etcd its
// quorum. If the cause may be transient, such as an election, it waits up to settleTime. It returns
// nil if none of the hosts has an etcd member.
func (r *run) leavable(ctx context.Context, names []string) error {
	if len(r.leavingMembers(names)) == 0 {
		return nil
	}
	_, err := r.admit(ctx, safety.Act{Leave: names})
	return err
}

// planLeave makes the plan for removing the named hosts: the changes of the other hosts, the steps
// in the cluster, and what is undone on those named hosts that were reached. It sets the same
// fields of r as makePlan, and returns the same errors. r.facts has all reached hosts afterwards.
func (r *run) planLeave(ctx context.Context, names []string) error {
	all := r.facts
	defer func() { r.facts = all }()
	r.facts = without(all, names)
	if err := r.makePlan(ctx); err != nil {
		return err
	}
	maps.Copy(all, r.facts) // makePlan has set Presence in r.facts
	r.facts = all
	before, after := r.leaveSteps(names)
	r.changes.SetCluster(slices.Concat(before, r.changes.Steps, after), r.changes.Content)
	reached := slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, ok := all[n]; return !ok })
	r.changes.Undo(all, reached...)
	return nil
}

// leaveSteps returns the steps in the cluster for removing the named hosts. before is done before
// the other hosts change, and after is done when the removed hosts are undone.
func (r *run) leaveSteps(names []string) (before, after []plan.ClusterStep) {
	return plan.LeaveSteps(names, r.leavingMembers(names), r.facts)
}

// leavingMembers returns the named hosts that have an etcd member according to r.state. A host that
// an unfinished run has begun to add may have a member already. The result is nil for an external
// etcd.
func (r *run) leavingMembers(names []string) []string {
	if r.spec.Etcd.Type == plan.EtcdExternal {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return r.state.EtcdBootstrap[n].Members == nil })
}

// without returns a copy of the facts of hosts, by name, without the hosts in names.
func without(facts map[string]plan.Facts, names []string) map[string]plan.Facts {
	rest := maps.Clone(facts)
	for _, n := range names {
		delete(rest, n)
	}
	return rest
}

// leaveEtcd removes the etcd members of the hosts that the Operation removes, dead members first
// and the leader last. It checks the quorum before the first removal and waits for etcd after each.
// It returns an error if etcd does not recover.
func (r *run) leaveEtcd(ctx context.Context, leaving []string) error {
	if len(r.leavingMembers(leaving)) == 0 {
		return nil
	}
	act := safety.Act{Leave: leaving}
	before, err := r.admit(ctx, act)
	if err != nil {
		return err
	}
	for _, m := range before.LeaveOrder(leaving) {
		if err := r.do(ctx, plan.RemoveEtcdMember(m.Host)); err != nil {
			return fmt.Errorf("take the etcd of host %s out: %w", m.Host, err)
		}
		if err := r.recovered(ctx, before, act); err != nil {
			return fmt.Errorf("check etcd after the member on host %s was removed: %w", m.Host, err)
		}
	}
	return nil
}

// known returns all hosts on which something of the cluster may be installed, for its deletion:
// those of the spec and then those of the state.
func (r *run) known() []clusterv1alpha1.Host {
	hosts := slices.Clone(r.spec.Hosts)
	for _, h := range r.state.Known() {
		if !intent.Has(hosts, h.Name) {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// remove performs the action Delete: it undoes the cluster on its reached hosts and removes its
// state from the Store. If it returns an error, the state stays.
func (r *run) remove(ctx context.Context) error {
	names, err := r.inspectAll(ctx)
	if err != nil {
		return err
	}
	if err := r.bringAgents(ctx, names...); err != nil {
		return err
	}
	r.planDelete(names)
	if err := r.refuseOtherPlan(); err != nil {
		return err
	}
	if err := r.takeLeases(ctx, names); err != nil {
		return err
	}
	r.rec.setPlan(r.changes)
	if err := r.removeAll(ctx, names); err != nil {
		return err
	}
	return r.Env.Remove(ctx, r.state)
}

// inspectAll connects to all hosts of a cluster that is to be deleted, and returns their names in
// the order of known. It returns an error if a host was not reached, unless the Operation forgets
// such hosts. It also returns an error if a host belongs to another cluster or cannot be undone,
// see undoable.
func (r *run) inspectAll(ctx context.Context) ([]string, error) {
	hosts := r.known()
	if err := r.inspect(ctx, hosts); err != nil {
		return nil, err
	}
	if _, stop := r.decide(r.op.Spec.Action, func(string) intent.Part { return intent.Leaving }); stop != nil {
		return nil, fmt.Errorf("%w; %sif these hosts are gone for good, delete with --forget-unreachable: then nothing on them is undone", stop, r.newLogin())
	}
	names := make([]string, 0, len(hosts))
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	if err := r.checkIdentity(); err != nil {
		return nil, err
	}
	return names, r.undoable(names)
}

// planDelete sets r.changes to the changes for undoing the cluster, which is to be deleted, on the
// named hosts. Hosts that were not reached or have nothing to undo are left out.
func (r *run) planDelete(names []string) {
	r.changes = plan.Diff(&plan.Plan{Cluster: r.Cluster}, nil, nil)
	r.changes.Undo(r.facts, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return r.conns[n] == nil || !r.holds(n) })...)
	r.changes.Outages = []string{fmt.Sprintf("cluster %s is gone with its data: everything that runs in it ends", r.Cluster)}
}

// refuseOtherPlan returns an error if the Operation names the hash of a plan that the user has
// seen, and r.changes has another hash now. An attempt after one that has recorded its plan is not
// compared, because it only does what is left.
func (r *run) refuseOtherPlan() error {
	if want := r.op.Spec.PlanHash; want != "" && want != r.changes.Hash && r.op.Status.PlanHash == "" {
		if len(r.away) > 0 {
			return fmt.Errorf("plan %s cannot be done whole, and nothing of it is done: %w; bring back what does not answer and do it then. "+
				"Without the hash of a plan such hosts stay as they are, and the others are changed", want, r.awayError())
		}
		return fmt.Errorf("the plan is %s now, not %s: the hosts, the spec or what it names have changed since it was shown; look at it again with %s",
			r.changes.Hash, want, r.lookAgain())
	}
	return nil
}

// lookAgain returns the quoted command with which the user looks at the plan of the Operation
// again. If the spec may come from a rollback, it names the command for that, too.
func (r *run) lookAgain() string {
	spec := r.op.Spec
	again := "orrery cluster plan"
	switch spec.Action {
	case lifecyclev1alpha1.ActionDelete:
		again = "orrery cluster delete " + spec.Cluster + " --dry-run"
	case lifecyclev1alpha1.ActionDeleteNode:
		again = "orrery cluster delete-node " + spec.Cluster + " " + strings.Join(spec.NamedHosts(), " ") + " --dry-run"
	case lifecyclev1alpha1.ActionAddNode:
		again = "orrery cluster add-node --dry-run"
	case lifecyclev1alpha1.ActionApply:
		if r.goesBack() {
			return fmt.Sprintf("%q, or with %q if that command showed the plan", again, "orrery cluster rollback "+spec.Cluster+" --dry-run")
		}
	case lifecyclev1alpha1.ActionCreate, lifecyclev1alpha1.ActionRenewCertificates:
	}
	return strconv.Quote(again)
}

// goesBack reports whether the spec of the run may come from a rollback: it has the same effect as
// the applied spec, or as the spec that State.Rollback returns.
func (r *run) goesBack() bool {
	specs := []*clusterv1alpha1.Provision{r.state.Applied}
	if back, err := r.state.Rollback(); err == nil {
		specs = append(specs, back)
	}
	now, err := intent.Hash(r.spec)
	return err == nil && slices.ContainsFunc(specs, func(spec *clusterv1alpha1.Provision) bool {
		if spec == nil {
			return false
		}
		hash, err := intent.Hash(spec)
		return err == nil && hash == now
	})
}

// removeAll undoes everything on those of the named hosts that were reached and have something of
// the cluster. It works on maxDials hosts in parallel and gives up their leases. It returns the
// first error. If the Operation is paused or canceled, it begins no further host, waits for those
// that it has begun, and returns ErrPaused or ErrCanceled.
func (r *run) removeAll(ctx context.Context, names []string) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxDials)
	stopped := make(chan error, len(names))
	for _, name := range names {
		c := r.conns[name]
		if c == nil || !r.holds(name) {
			continue // the host was not reached, or has nothing to undo
		}
		group.Go(func() error {
			if err := r.rec.checkpoint(); err != nil {
				stopped <- err
				return nil // an error would end the work on other hosts
			}
			if gctx.Err() != nil {
				return context.Cause(gctx)
			}
			r.rec.stage(name, "remove")
			// An extension of the lease would create the agent's directory again.
			c.extends.Lock()
			defer c.extends.Unlock()
			err := r.retry(gctx, c, func(ctx context.Context) error {
				return r.request(ctx, c, node.Request{RemoveAll: true, Release: true})
			})
			r.rec.settle(name, c.trips.Load(), err)
			return err
		})
	}
	err := group.Wait()
	close(stopped)
	return cmp.Or(err, <-stopped)
}
