package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// Certificates returns the names and expiry dates of the certificates that the hosts use and of the
// authorities, the earliest expiry first. It returns nil for a nil state and for a cluster that is
// not built.
func (s *State) Certificates() []pki.Expiry {
	if s == nil || s.Applied == nil {
		return nil
	}
	return s.InUse().Expiries(plan.Leaves(s.Cluster, s.Applied))
}

// ensureKeys makes the keys and certificates that the spec lacks, in r.state, and sets r.keys to
// those with which the plan is made. It saves nothing. A renewed leaf certificate is in
// State.Renewed, beside the one in use, until the hosts have it. So a second plan uses the same
// certificate.
func (r *run) ensureKeys() error {
	if err := r.state.Mint(r.now(), r.spec); err != nil {
		return err
	}
	r.takeUp(func(leaf string) bool { return leaf == plan.LeafEtcdAdmin }) // no host has this leaf
	r.keys = r.state.Planned()
	return nil
}

// takeUp moves renewed leaf certificates in r.state from Renewed to Keys, the certificates in use.
// It moves those for whose name inUse is true. The name is HOST/LEAF, or LEAF for one that belongs
// to no host.
func (r *run) takeUp(inUse func(leaf string) bool) {
	for name, pair := range r.state.Renewed {
		if inUse(name) {
			r.state.Keys[name] = pair
			delete(r.state.Renewed, name)
		}
	}
}

// tookUp records in r.state that the named hosts use their renewed leaf certificates. The caller
// saves the state.
func (r *run) tookUp(hosts ...string) {
	r.takeUp(func(leaf string) bool {
		name, _, of := strings.Cut(leaf, "/")
		return of && slices.Contains(hosts, name)
	})
}

// tookUpAll records in r.state, at the end of a run, that the reached hosts use their renewed leaf
// certificates. Hosts in r.lost, whose etcd has lost its data, do not. tookUpAll records the same
// of the administrator's certificate, unless a control plane host was not reached or is in r.lost.
// Such a host still has the old kubeconfig. The caller saves the state.
func (r *run) tookUpAll() {
	r.tookUp(slices.DeleteFunc(sortedKeys(r.conns), func(name string) bool { return !r.hasData(name) })...)
	reached := func(name string) bool { return r.conns[name] != nil && r.hasData(name) }
	if !slices.ContainsFunc(r.roles[clusterv1alpha1.RoleControlPlane], func(name string) bool { return !reached(name) }) {
		r.takeUp(func(leaf string) bool { return leaf == plan.LeafAdmin })
	}
}

// expired reports whether a certificate in use on the host has expired and ensureKeys has made its
// successor. Until the host has the successor, the API server may not reach its kubelet.
func (r *run) expired(name string) bool {
	return r.expiredAmong(name, func(string) bool { return true })
}

// servesNobody reports whether a certificate of etcd or of the API server on the host has expired
// and ensureKeys has made its successor. These components then serve no client, so their restart
// only repairs.
func (r *run) servesNobody(name string) bool { return r.expiredAmong(name, plan.IsControlPlaneLeaf) }

// expiredAmong reports whether the host uses an expired certificate for which ensureKeys has made a
// successor. Only certificates whose name (HOST/LEAF) satisfies among count.
func (r *run) expiredAmong(name string, among func(leaf string) bool) bool {
	for leaf := range r.state.Renewed {
		if !strings.HasPrefix(leaf, name+"/") || !among(leaf) {
			continue
		}
		if cert, err := r.state.Keys[leaf].Certificate(); err == nil && r.now().After(cert.NotAfter) {
			return true
		}
	}
	return false
}

// renew installs renewed leaf certificates on all reached hosts, before other changes and without a
// drain. It writes the files on all hosts at once, because etcd members with expired certificates
// need new ones on both sides. Then it restarts the components that read certificates only at their
// start: control planes one by one, and workers as many in parallel as the Operation allows. It
// removes the steps that it has done from r.changes, and saves the state. If no certificate has a
// successor, it does nothing.
//
// A systemd unit may need other changes with its restart than the certificates. If whole is true,
// renew makes these changes, too. If whole is false, renew does not restart such a unit, and the
// caller makes all its changes afterwards.
func (r *run) renew(ctx context.Context, whole bool) error {
	if r.current == nil {
		return nil
	}
	renewals, left := plan.Renewals(r.plan, r.current, r.facts, whole)
	if len(renewals) > 0 {
		r.recordRenewals(renewals)
		if err := r.renewHosts(ctx, renewals, whole); err != nil {
			return err
		}
		r.done(renewals)
	}
	r.tookUp(slices.DeleteFunc(sortedKeys(r.conns), func(name string) bool { return left[name] || !r.hasData(name) })...)
	return r.Env.Save(ctx, r.state)
}

// renewHosts writes renewed certificates on hosts and restarts what reads them, in the order that
// renew describes. renewals has the stages for each host, from plan.Renewals. It returns the first
// error. Restarts on a control plane host run between safety checks, unless the certificates of its
// etcd or API server have expired.
func (r *run) renewHosts(ctx context.Context, renewals []plan.Host, whole bool) error {
	if whole { // changes other than certificates may need release files
		names := make([]string, 0, len(renewals))
		for _, h := range renewals {
			names = append(names, h.Name)
		}
		if err := r.distribute(ctx, names); err != nil {
			return err
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxDials)
	for _, h := range renewals {
		if h.Stages[0].ID == plan.StageCertificates {
			group.Go(func() error { return r.renewHost(gctx, h, h.Stages[:1]) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var workers []plan.Host
	// A host with expired certificates serves no client. So it is repaired before a working host is
	// disturbed.
	ended := func(h plan.Host) int {
		if r.expired(h.Name) {
			return 0
		}
		return 1
	}
	for _, h := range slices.SortedStableFunc(slices.Values(renewals), func(a, b plan.Host) int { return cmp.Compare(ended(a), ended(b)) }) {
		if !r.has(h.Name, clusterv1alpha1.RoleControlPlane) && !r.has(h.Name, clusterv1alpha1.RoleEtcd) {
			workers = append(workers, h)
			continue
		}
		stages := restarts(h)
		restart := func() error { return r.renewHost(ctx, h, stages) }
		if restarts := plan.RestartsOfStages(stages); !r.servesNobody(h.Name) && restarts.ControlPlane() {
			inner := restart
			restart = func() error { return r.withSafetyChecks(ctx, h.Name, actOf(h.Name, restarts), inner) }
		}
		if err := restart(); err != nil {
			return err
		}
	}
	group, gctx = errgroup.WithContext(ctx)
	group.SetLimit(max(1, int(r.op.Spec.Order().MaxUnavailable)))
	for _, h := range workers {
		group.Go(func() error { return r.renewHost(gctx, h, restarts(h)) })
	}
	return group.Wait()
}

// restarts returns the stages of a renewal that restart components: all except the stage
// StageCertificates, which writes the files.
func restarts(h plan.Host) []plan.Stage {
	if h.Stages[0].ID == plan.StageCertificates {
		return h.Stages[1:]
	}
	return h.Stages
}

// renewHost runs stages of a certificate renewal on a host, with retries, and records the result of
// the host. If the Operation is paused or canceled, it stops between two stages and returns
// ErrPaused or ErrCanceled.
func (r *run) renewHost(ctx context.Context, h plan.Host, stages []plan.Stage) (err error) {
	c := r.conns[h.Name]
	defer func() { r.rec.settle(h.Name, c.trips.Load(), err) }()
	for _, stage := range stages {
		if err := r.rec.checkpoint(); err != nil {
			return err
		}
		r.rec.stage(h.Name, string(stage.ID))
		c.notef("renewal of certificates: %s", stage.ID)
		req := node.Request{Steps: stage.Steps}
		if err := r.retry(ctx, c, func(ctx context.Context) error { return r.request(ctx, c, req) }); err != nil {
			return err
		}
	}
	return nil
}

// recordRenewals sets the number of steps in the record of the run to those of the certificate
// renewal, which comes before all other work.
func (r *run) recordRenewals(renewals []plan.Host) {
	changes := &plan.Changes{Cluster: r.Cluster}
	for _, h := range renewals {
		for _, stage := range h.Stages {
			changes.Items = append(changes.Items, plan.Change{Host: h.Name, Stage: stage.ID})
		}
	}
	r.rec.plan(&plan.Plan{Cluster: r.Cluster, Hosts: renewals}, changes)
}

// done records that a certificate renewal is done: it removes its steps from r.changes, and adds
// them to the applied steps in r.facts.
func (r *run) done(renewals []plan.Host) {
	steps := map[[2]string]bool{}
	for _, h := range renewals {
		f := r.facts[h.Name]
		f.Applied.Steps = slices.Clone(f.Applied.Steps)
		for _, stage := range h.Stages {
			for _, s := range stage.Steps {
				steps[[2]string{h.Name, s.ID}] = true
				is := plan.AppliedStep{ID: s.ID, Hash: s.Hash(), Complete: true}
				if i := slices.IndexFunc(f.Applied.Steps, func(a plan.AppliedStep) bool { return a.ID == s.ID }); i >= 0 {
					f.Applied.Steps[i] = is
				} else {
					f.Applied.Steps = append(f.Applied.Steps, is)
				}
			}
		}
		r.facts[h.Name] = f
	}
	r.changes.Items = slices.DeleteFunc(r.changes.Items, func(c plan.Change) bool { return steps[[2]string{c.Host, c.Step}] })
}

// renewApplied renews the certificates that expire soon on the reached hosts, with the spec that
// was last applied. It replaces r.spec and r.roles by those of that spec. It sets r.lost to
// findings about hosts whose etcd has lost its data. These hosts keep their certificates, because
// nothing starts there, and do not stop the others. If a certificate must be renewed, it takes
// leases, replaces r.plan, r.current and r.changes, and saves the state. The cluster must be built.
func (r *run) renewApplied(ctx context.Context) error {
	r.spec = r.state.Renewable(r.spec)
	var err error
	if r.roles, err = plan.Expand(r.spec.RoleGroups); err != nil {
		return err
	}
	r.lost = r.lostData()
	if err := r.ensureKeys(); err != nil || len(r.state.Renewed) == 0 {
		return err
	}
	in, err := r.input(ctx)
	if err != nil {
		return err
	}
	in.Facts = maps.Clone(r.facts)
	maps.DeleteFunc(in.Facts, func(name string, _ plan.Facts) bool { return !r.hasData(name) })
	if r.plan, err = plan.Make(in); err != nil {
		return err
	}
	in.Keys = r.state.InUse()
	if r.current, err = plan.Make(in); err != nil {
		return err
	}
	r.changes = plan.Diff(r.plan, in.Facts, nil)
	if err := r.takeLeasesFor(ctx, plan.Works(r.plan, r.changes, r.facts)); err != nil {
		return err
	}
	// The new certificates are saved before a host has them, so that a resumed run uses the same ones.
	if err := r.Env.Save(ctx, r.state); err != nil {
		return err
	}
	return r.renew(ctx, true)
}

// renewCertificates performs the action RenewCertificates: it renews the certificates that expire
// soon, and changes nothing else. If a host was not reached or has lost the data of its etcd, it
// returns an error after all other hosts are done. If no host was reached, it returns their errors
// at once.
func (r *run) renewCertificates(ctx context.Context) error {
	if r.state.Applied == nil {
		return fmt.Errorf("cluster %s is not built yet: there is nothing to renew", r.Cluster)
	}
	if err := r.inspect(ctx, r.spec.Hosts); err != nil {
		return err
	}
	left, stop := r.decide(r.op.Spec.Action, r.partOf)
	if stop != nil || len(r.conns) == 0 {
		return cmp.Or(stop, r.awayError())
	}
	if err := r.checkIdentity(); err != nil {
		return err
	}
	if err := r.bringAgents(ctx); err != nil {
		return err
	}
	if err := r.observeHosts(ctx); err != nil {
		return err
	}
	if err := r.renewApplied(ctx); err != nil {
		return err
	}
	if _, due := r.state.Renewed[plan.LeafAdmin]; due {
		kubeconfig, err := r.kubeconfig()
		if err != nil {
			return err
		}
		if err := r.rec.do("kubeconfig", func() (bool, error) { return true, r.Env.Built(ctx, kubeconfig, r.spec.Join, r.api) }); err != nil {
			return err
		}
	}
	r.tookUpAll()
	if err := r.Env.Save(ctx, r.state); err != nil {
		return err
	}
	if len(r.lost) > 0 {
		return fmt.Errorf("these hosts keep their certificates: %w", &PreflightError{Findings: r.lost})
	}
	if left.fails() {
		return fmt.Errorf("the certificates of all other hosts are renewed, but these hosts keep theirs: %s; %s", left, r.wayBack())
	}
	return nil
}

// now returns the time by which certificates are checked: that of e.Clock, or of the machine if
// Clock is nil.
func (e *Engine) now() time.Time {
	if e.Clock != nil {
		return e.Clock.Now()
	}
	return time.Now()
}
