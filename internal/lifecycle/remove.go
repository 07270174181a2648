package lifecycle

import (
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
	"orrery.dev/orrery/internal/lifecycle/gate"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

const defaultDrainTimeout = 5 * time.Minute

// removeHosts removes the hosts that the Operation names from the cluster. r.spec is the spec
// without them. It drains their nodes, removes their etcd members, changes the other hosts, and
// then undoes what was installed on the removed hosts.
func (r *run) removeHosts(ctx context.Context) error {
	if r.state.Applied == nil {
		return fmt.Errorf("cluster %s was not built from here: there is no host to take out", r.Cluster)
	}
	if err := r.state.Keep(r.Cluster, r.spec, r.op.Spec.NamedHosts()...); err != nil {
		return err
	}
	leaving, names, left, err := r.surveyLeaving(ctx)
	if err != nil {
		return err
	}
	if err := r.bringAgents(ctx, names...); err != nil {
		return err
	}
	// The plan shown is the plan compared. Renewing certificates later does not change it.
	if err := r.planLeave(ctx, names); err != nil {
		return err
	}
	if err := r.refuseOtherPlan(); err != nil {
		return err
	}
	if err := r.takeLeasesFor(ctx, plan.Works(r.plan, r.changes, r.facts), names...); err != nil {
		return err
	}
	r.rec.tell(r.changes)
	r.state.Leaving = leaving
	if err := r.Env.Save(ctx, r.state); err != nil {
		return err
	}
	// A kubelet with an expired certificate cannot move pods.
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
	// A node stays cordoned if its drain fails, since it is to be removed.
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

// surveyLeaving connects to the hosts that leave and those that stay. It returns the leaving hosts,
// their names, and the hosts that are left as they are.
func (r *run) surveyLeaving(ctx context.Context) (leaving []clusterv1alpha1.Host, names []string, left leftHosts, err error) {
	if leaving, err = r.leaving(); err != nil {
		return nil, nil, nil, err
	}
	if err := r.survey(ctx, slices.Concat(r.spec.Hosts, leaving)); err != nil {
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

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// leaving returns the hosts that the Operation names, as they were applied, or as a failed run
// wanted them.
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
				continue // an earlier attempt has removed it
			}
			return nil, fmt.Errorf("host %s is not part of cluster %s", name, r.Cluster)
		}
		leaving = append(leaving, known[i])
	}
	return leaving, nil
}

// checkIdentity refuses hosts that belong to another cluster.
func (r *run) checkIdentity() error {
	var errs []error
	for _, name := range sortedKeys(r.facts) {
		if a := r.facts[name].Applied; a.ClusterID != "" && a.ClusterID != r.state.ID {
			errs = append(errs, fmt.Errorf("host %s belongs to another cluster, which is called %s; it is left as it is", name, a.Cluster))
		}
	}
	return errors.Join(errs...)
}

// leavable returns an error if removing the hosts would cost etcd its quorum.
func (r *run) leavable(ctx context.Context, names []string) error {
	if len(r.leavingMembers(names)) == 0 {
		return nil
	}
	_, err := r.admit(ctx, gate.Act{Leave: names})
	return err
}

// planLeave makes the plan for removing hosts: changes of the other hosts, steps in the cluster,
// and what is undone on the removed hosts.
func (r *run) planLeave(ctx context.Context, names []string) error {
	all := r.facts
	defer func() { r.facts = all }()
	r.facts = without(all, names)
	if err := r.makePlan(ctx); err != nil {
		return err
	}
	maps.Copy(all, r.facts) // with what the cluster shows of the hosts
	r.facts = all
	before, after := r.leaveSteps(names)
	r.changes.SetCluster(slices.Concat(before, r.changes.Steps, after), r.changes.Content)
	reached := slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, ok := all[n]; return !ok })
	r.changes.Undo(all, reached...)
	return nil
}

// leaveSteps returns the steps in the cluster before and after the other hosts change.
func (r *run) leaveSteps(names []string) (before, after []plan.ClusterStep) {
	return plan.LeaveSteps(names, r.leavingMembers(names), r.facts)
}

// leavingMembers returns the names of hosts with an etcd member. A host that was only half added
// may have one already.
func (r *run) leavingMembers(names []string) []string {
	if r.spec.Etcd.Type == plan.EtcdExternal {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return r.state.EtcdBootstrap[n].Members == nil })
}

// without returns the facts of all hosts except names.
func without(facts map[string]plan.Facts, names []string) map[string]plan.Facts {
	rest := maps.Clone(facts)
	for _, n := range names {
		delete(rest, n)
	}
	return rest
}

// leaveEtcd removes the etcd members of hosts, dead ones first. It checks etcd before the first and
// after each removal.
func (r *run) leaveEtcd(ctx context.Context, leaving []string) error {
	if len(r.leavingMembers(leaving)) == 0 {
		return nil
	}
	act := gate.Act{Leave: leaving}
	before, err := r.admit(ctx, act)
	if err != nil {
		return err
	}
	for _, m := range before.LeaveOrder(leaving) {
		if err := r.do(ctx, plan.RemoveEtcdMember(m.Host)); err != nil {
			return fmt.Errorf("take the etcd of host %s out: %w", m.Host, err)
		}
		if err := r.recovered(ctx, before, act); err != nil {
			return fmt.Errorf("after the etcd of host %s was taken out: %w", m.Host, err)
		}
	}
	return nil
}

// known returns all hosts on which something may be installed: those of the spec and of the state.
func (r *run) known() []clusterv1alpha1.Host {
	hosts := slices.Clone(r.spec.Hosts)
	for _, h := range r.state.Known() {
		if !intent.Has(hosts, h.Name) {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// remove undoes the whole cluster on its hosts and removes its state.
func (r *run) remove(ctx context.Context) error {
	names, err := r.surveyAll(ctx)
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
	r.rec.tell(r.changes)
	if err := r.removeAll(ctx, names); err != nil {
		return err
	}
	return r.Env.Remove(ctx, r.state)
}

// surveyAll connects to all known hosts and returns their names. Hosts that were not reached are an
// error unless the Operation forgets them.
func (r *run) surveyAll(ctx context.Context) ([]string, error) {
	hosts := r.known()
	if err := r.survey(ctx, hosts); err != nil {
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

// planDelete makes the plan for undoing the cluster.
func (r *run) planDelete(names []string) {
	r.changes = plan.Diff(&plan.Plan{Cluster: r.Cluster}, nil, nil)
	r.changes.Undo(r.facts, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return r.conns[n] == nil || !r.holds(n) })...)
	r.changes.Outages = []string{fmt.Sprintf("cluster %s is gone with its data: everything that runs in it ends", r.Cluster)}
}

// refuseOtherPlan returns an error if the Operation names the hash of another plan. A resumed run
// does not compare, because it only does what is left.
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

// lookAgain returns the quoted command that shows the plan of the Operation. A rollback is an
// apply, too, so both commands are named if the spec may come from a rollback.
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
			return fmt.Sprintf("%q, or with %q if that showed it", again, "orrery cluster rollback "+spec.Cluster+" --dry-run")
		}
	case lifecyclev1alpha1.ActionCreate, lifecyclev1alpha1.ActionRenewCertificates:
	}
	return strconv.Quote(again)
}

// goesBack reports whether the spec may come from a rollback.
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

// removeAll undoes everything on the hosts that were reached.
func (r *run) removeAll(ctx context.Context, names []string) error {
	group, gctx := errgroup.WithContext(ctx)
	for _, name := range names {
		c := r.conns[name]
		if c == nil || !r.holds(name) {
			continue // not reached, or nothing of ours is on it
		}
		group.Go(func() error {
			if err := r.rec.checkpoint(); err != nil {
				return err
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
	return group.Wait()
}
