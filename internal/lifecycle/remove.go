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

// removeHosts takes hosts out of the cluster; the spec is what it is to be without them. First the pods move away, then
// etcd lets the members go, then the others are told, and last what was installed on the hosts is undone.
func (r *run) removeHosts(ctx context.Context) error {
	if r.state.Applied == nil {
		return fmt.Errorf("cluster %s was not built from here: there is no host to take out", r.Cluster)
	}
	if err := r.state.Keep(r.Cluster, r.spec, r.op.Spec.NamedHosts()...); err != nil {
		return err
	}
	leaving, names, err := r.surveyLeaving(ctx)
	if err != nil {
		return err
	}
	if err := r.bringAgents(ctx, names...); err != nil {
		return err
	}
	// What is shown is what is compared; what is renewed meanwhile changes nothing of it.
	if err := r.planLeave(ctx, names); err != nil {
		return err
	}
	if err := r.refuseOtherPlan(); err != nil {
		return err
	}
	r.rec.tell(r.changes)
	r.state.Leaving = leaving
	if err := r.Env.Save(ctx, r.state); err != nil {
		return err
	}
	// No pod can be moved by a kubelet whose certificate has ended.
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
	// A node stays cordoned if its drain fails: it is to go.
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
	r.nextEpoch()
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
	if err := r.state.Reach(r.spec, names...); err != nil {
		return err
	}
	return r.Env.Save(ctx, r.state)
}

// surveyLeaving looks at the hosts that are to go, and at those that stay.
func (r *run) surveyLeaving(ctx context.Context) (leaving []clusterv1alpha1.Host, names []string, err error) {
	if leaving, err = r.leaving(); err != nil {
		return nil, nil, err
	}
	if err := r.survey(ctx, slices.Concat(r.spec.Hosts, leaving)); err != nil {
		return nil, nil, err
	}
	for _, h := range leaving {
		names = append(names, h.Name)
		// What cannot be reached is unknown. It is taken out only if that was asked for.
		if err := r.unreachable[h.Name]; err != nil && !r.op.Spec.Forgets() {
			return nil, nil, fmt.Errorf("%w; if the host is gone for good, take it out with --forget-unreachable: then nothing on it is undone", err)
		}
	}
	if err := r.checkIdentity(); err != nil {
		return nil, nil, err
	}
	return leaving, names, r.undoable(names)
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
	for _, name := range r.op.Spec.NamedHosts() {
		if intent.Has(r.spec.Hosts, name) {
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
		if a := r.facts[name].Applied; a.ClusterID != "" && a.ClusterID != r.state.ID {
			errs = append(errs, fmt.Errorf("host %s belongs to another cluster, which is called %s; it is left as it is", name, a.Cluster))
		}
	}
	return errors.Join(errs...)
}

// leavable refuses to take hosts out if that would cost the quorum of etcd.
func (r *run) leavable(ctx context.Context, names []string) error {
	if len(r.leavingMembers(names)) == 0 {
		return nil
	}
	_, err := r.admit(ctx, gate.Act{Leave: names})
	return err
}

// planLeave makes the plan of taking hosts out: what changes on the others, what is done to the cluster, and what is undone.
func (r *run) planLeave(ctx context.Context, names []string) error {
	all := r.facts
	defer func() { r.facts = all }()
	r.facts = without(all, names)
	if err := r.makePlan(ctx); err != nil {
		return err
	}
	r.facts = all
	before, after := r.leaveSteps(names)
	r.changes.SetCluster(slices.Concat(before, r.changes.Steps, after), r.changes.Content)
	reached := slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, ok := all[n]; return !ok })
	r.changes.Undo(all, reached...)
	return nil
}

// leaveSteps are the steps of the cluster that taking hosts out takes.
func (r *run) leaveSteps(names []string) (before, after []plan.ClusterStep) {
	return plan.LeaveSteps(names, r.leavingMembers(names), r.facts)
}

// leavingMembers are those of hosts that have a member of etcd. A host that was only half added may have one already.
func (r *run) leavingMembers(names []string) []string {
	if r.spec.Etcd.Type == plan.EtcdExternal {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return r.state.EtcdBootstrap[n].Members == nil })
}

// without are the facts of all but some hosts.
func without(facts map[string]plan.Facts, names []string) map[string]plan.Facts {
	rest := maps.Clone(facts)
	for _, n := range names {
		delete(rest, n)
	}
	return rest
}

// leaveEtcd takes the members of hosts out of etcd, dead ones first, between two looks at all of them.
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

// known are all hosts on which something may be: those of the spec, and all others that are known.
func (r *run) known() []clusterv1alpha1.Host {
	hosts := slices.Clone(r.spec.Hosts)
	for _, h := range r.state.Known() {
		if !intent.Has(hosts, h.Name) {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// remove takes the whole cluster off its hosts.
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
	r.rec.tell(r.changes)
	r.nextEpoch()
	if err := r.removeAll(ctx, names); err != nil {
		return err
	}
	return r.Env.Remove(ctx, r.state)
}

// surveyAll looks at all hosts of which something may have to be undone.
func (r *run) surveyAll(ctx context.Context) ([]string, error) {
	hosts := r.known()
	if err := r.survey(ctx, hosts); err != nil {
		return nil, err
	}
	if len(r.unreachable) > 0 && !r.op.Spec.Forgets() {
		return nil, fmt.Errorf("%w; if these hosts are gone for good, delete with --forget-unreachable: then nothing on them is undone", r.refuseUnreachable())
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

// planDelete makes the plan of undoing the cluster.
func (r *run) planDelete(names []string) {
	r.changes = plan.Diff(&plan.Plan{Cluster: r.Cluster}, nil, nil)
	r.changes.Undo(r.facts, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return r.conns[n] == nil || !r.holds(n) })...)
	r.changes.Outages = []string{fmt.Sprintf("cluster %s is gone with its data: everything that runs in it ends", r.Cluster)}
}

// refuseOtherPlan refuses a run that is to do another plan than the one that it made. A resumed run goes on with what is left.
func (r *run) refuseOtherPlan() error {
	if want := r.op.Spec.PlanHash; want != "" && want != r.changes.Hash && r.op.Status.PlanHash == "" {
		if len(r.unreachable) > 0 {
			return fmt.Errorf("plan %s cannot be done whole, and nothing of it is done: %w; bring back what does not answer and do it then. "+
				"Without the hash of a plan such hosts stay as they are, and the others are changed", want, r.refuseUnreachable())
		}
		return fmt.Errorf("the plan is %s now, not %s: the hosts, the spec or what it names have changed since it was shown; look at it again with %s",
			r.changes.Hash, want, r.lookAgain())
	}
	return nil
}

// lookAgain names the command that shows the plan of the Operation. Going back is an apply, too, so both are named for one that may be that.
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

// goesBack reports whether the spec is one that a rollback brings about.
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
