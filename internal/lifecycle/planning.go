package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/addon"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// PreflightError has the findings that prevent a run.
type PreflightError struct{ Findings []plan.Finding }

// Error lists the findings with their fixes, one per line.
func (e *PreflightError) Error() string {
	lines := make([]string, 0, len(e.Findings))
	for _, f := range e.Findings {
		lines = append(lines, fmt.Sprintf("host %s: %s; %s", f.Host, f.Message, f.Fix))
	}
	return "the hosts are not ready:\n  " + strings.Join(lines, "\n  ")
}

// Preflight inspects the hosts and returns the findings, including those about hosts that were not
// reached. It changes nothing, but writes and removes a short file to measure the disk.
func (e *Engine) Preflight(ctx context.Context, spec *clusterv1alpha1.Provision) ([]plan.Finding, error) {
	r, err := e.begin(ctx, nil, spec, nil)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.survey(ctx, r.spec.Hosts); err != nil && len(r.failed) == 0 {
		return nil, err
	}
	findings := r.reachFindings()
	if len(r.facts) == 0 {
		return findings, nil
	}
	if err := r.observeHosts(ctx); err != nil {
		return nil, err
	}
	in, err := r.input(ctx)
	if err != nil {
		return nil, err
	}
	return append(findings, plan.Preflight(in)...), nil
}

// Plan returns the plan for a spec, and the changes that a run would make. It changes nothing on
// the hosts. It saves the keys of a new cluster, so that the run makes the same plan. It returns an
// error if a host cannot be reached.
func (e *Engine) Plan(ctx context.Context, spec *clusterv1alpha1.Provision) (*plan.Plan, *plan.Changes, error) {
	return e.plan(ctx, nil, spec)
}

// plan makes the plan for an Operation. If op is nil, it uses default rollout settings.
func (e *Engine) plan(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) (*plan.Plan, *plan.Changes, error) {
	r, err := e.begin(ctx, op, spec, nil)
	if err != nil {
		return nil, nil, err
	}
	defer r.close()
	wrong := r.survey(ctx, r.spec.Hosts)
	_, stop := r.decide(intent.ActionPlan, r.partOf)
	if err := errors.Join(wrong, stop); err != nil {
		return nil, nil, r.report(ctx, err)
	}
	before := maps.Clone(r.state.Renewed)
	if err := r.makePlan(ctx); err != nil {
		return nil, nil, err
	}
	if err := e.keepKeys(ctx, r.state, before); err != nil {
		return nil, nil, err
	}
	if err := r.diffApplied(ctx); err != nil {
		return nil, nil, err
	}
	return r.plan, r.changes, nil
}

// PlanFor returns what an Operation would change that is not created yet. For an Operation that
// deletes nodes or the cluster, that is what is removed from the cluster and undone on the hosts.
func (e *Engine) PlanFor(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) (*plan.Changes, error) {
	undoes := op.Spec.Action == lifecyclev1alpha1.ActionDeleteNode || op.Spec.Action == lifecyclev1alpha1.ActionDelete
	if !undoes {
		_, changes, err := e.plan(ctx, op, spec)
		return changes, err
	}
	r, err := e.begin(ctx, op.DeepCopy(), spec, nil)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if op.Spec.Action == lifecyclev1alpha1.ActionDelete {
		names, err := r.surveyAll(ctx)
		if err != nil {
			return nil, err
		}
		r.planDelete(names)
		return r.changes, nil
	}
	if r.state.Applied == nil {
		return nil, fmt.Errorf("cluster %s was not built from here: there is no host to take out", r.Cluster)
	}
	if err := r.state.Keep(r.Cluster, r.spec, op.Spec.NamedHosts()...); err != nil {
		return nil, err
	}
	_, names, _, err := r.surveyLeaving(ctx)
	if err != nil {
		return nil, err
	}
	before := maps.Clone(r.state.Renewed)
	if err := r.planLeave(ctx, names); err != nil {
		return nil, err
	}
	if len(r.state.Renewed) == 0 { // otherwise the run renews certificates first, and asks etcd then
		if err := r.leavable(ctx, names); err != nil {
			return nil, err
		}
	}
	return r.changes, e.keepKeys(ctx, r.state, before)
}

// keepKeys saves new keys and digests that a plan was made with, and the UID of kube-system if none
// was known. It saves nothing else of the state. If a run holds the lock, keepKeys saves nothing,
// because the run saves its own. Renewed leaves are saved only if the saved ones are still those in
// before.
func (e *Engine) keepKeys(ctx context.Context, made *State, before pki.Bundle) error {
	unlock, err := e.Env.Lock(ctx, e.Cluster)
	if err != nil {
		return nil // the run that has the lock keeps the keys
	}
	defer unlock()
	kept, err := e.Env.Load(ctx, e.Cluster) // without the logins of this run
	if err != nil {
		return err
	}
	if kept == nil {
		kept = &State{Cluster: e.Cluster}
	}
	kept.ID = cmp.Or(kept.ID, made.ID)
	kept.complete()
	fill(kept.Authorities, made.Authorities)
	fill(kept.Keys, made.Keys)
	fill(kept.Digests, made.Digests)
	kept.KubeSystemUID = cmp.Or(kept.KubeSystemUID, made.KubeSystemUID)
	if maps.EqualFunc(kept.Renewed, before, pki.KeyPair.Equal) {
		kept.Renewed = made.Renewed
	}
	return e.Env.Save(ctx, kept)
}

// fill copies entries that m lacks.
func fill[M ~map[string]V, V any](m, from M) {
	for key, value := range from {
		if _, ok := m[key]; !ok {
			m[key] = value
		}
	}
}

// diffApplied adds to the changes how contents differ from those applied before, and which objects
// would change. It keeps the hash. The hash covers the inputs of objects, and changes by other
// clients do not count.
func (r *run) diffApplied(ctx context.Context) error {
	if r.state.Applied == nil {
		return nil
	}
	in, err := r.input(ctx)
	if err != nil {
		return err
	}
	in.Spec = r.state.Applied
	if in.Files, err = r.appliedFiles(in); err != nil {
		return err
	}
	if old, err := plan.Make(in); err == nil { // without it only details are missing
		r.changes.Items = plan.Diff(r.plan, r.facts, old).Items
	}
	cfg, err := r.api(ctx)
	if err != nil && r.changes.StartsAPIServer() {
		return nil // the run starts an API server, and compares the objects then
	}
	if err != nil && slices.ContainsFunc(r.roles[clusterv1alpha1.RoleControlPlane], r.expired) {
		r.changes.Items = append(r.changes.Items, plan.Change{
			Host: clusterHost, Step: "objects", Kind: plan.KindObject, Op: plan.OpChange, Disruption: plan.DisruptionNone,
			Target: "unknown: no API server answers before its certificates are renewed",
		})
		return nil
	}
	if err != nil {
		return err
	}
	octx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	objects, err := addon.Observe(octx, cfg, r.groups)
	if err != nil {
		return err
	}
	for _, o := range objects {
		op, target, _ := strings.Cut(o, " ")
		r.changes.Items = append(r.changes.Items, plan.Change{
			Host: clusterHost, Step: "objects", Kind: plan.KindObject, Op: plan.Op(op), Target: target, Disruption: plan.DisruptionNone,
		})
	}
	return nil
}

// appliedFiles returns the release files for the Kubernetes version that was applied last.
func (r *run) appliedFiles(in plan.Input) (map[string][]catalog.File, error) {
	files := map[string][]catalog.File{}
	for arch := range in.Files {
		list, err := r.Catalog.Files(r.state.Applied.Kubernetes.Version, arch, plan.FileNames...)
		if err != nil {
			return nil, err
		}
		files[arch] = list
	}
	return files, nil
}

// input collects everything that the plan depends on. It mints missing keys in memory, and looks up
// missing digests of release files.
func (r *run) input(ctx context.Context) (plan.Input, error) {
	if err := r.ensureKeys(); err != nil {
		return plan.Input{}, err
	}
	in := plan.Input{
		Name: r.Cluster, ID: r.state.ID, Spec: r.spec, Facts: r.facts, Keys: r.keys, InUse: r.state.InUse(), Now: r.now(),
		Files: map[string][]catalog.File{}, Digests: r.state.Digests, Images: map[string]string{},
		Agents: map[string]string{}, EtcdBootstrap: r.state.EtcdBootstrap, HasData: r.state.KubeSystemUID != "",
	}
	version := r.spec.Kubernetes.Version
	var missing []catalog.File
	for _, f := range r.facts {
		if _, ok := in.Files[f.Arch]; ok || !slices.Contains(plan.Architectures, f.Arch) {
			continue // the preflight reports an unknown architecture, with the host
		}
		files, err := r.Catalog.Files(version, f.Arch, plan.FileNames...)
		if err != nil {
			return in, err
		}
		in.Files[f.Arch] = files
		agent, err := r.agent(f.Arch)
		if err != nil {
			return in, err
		}
		in.Agents[f.Arch] = agent.digest
		for _, file := range files {
			if r.state.Digests[file.Key()] == "" {
				missing = append(missing, file)
			}
		}
	}
	if len(missing) > 0 {
		digests, err := r.Env.Source(r.spec.Source).Resolve(ctx, missing)
		if err != nil {
			return in, err
		}
		maps.Copy(r.state.Digests, digests)
	}
	for _, files := range in.Files {
		for _, file := range files {
			r.files[r.state.Digests[file.Key()]] = file
		}
	}
	for _, name := range plan.ImageNames {
		image, err := r.Catalog.Image(version, name)
		if err != nil {
			return in, err
		}
		in.Images[name] = addon.Rewrite(image, r.spec.Registry)
	}
	if x := r.spec.Etcd.External; x != nil {
		keys, err := r.Env.ExternalEtcd(ctx, *x)
		if err != nil {
			return in, err
		}
		in.ExternalEtcd = keys
	}
	return in, nil
}

// makePlan makes the plan and changes for all reached hosts. It returns a PreflightError if a
// finding is an error.
func (r *run) makePlan(ctx context.Context) error {
	if err := r.keepsEtcd(); err != nil {
		return err
	}
	r.fixEtcdBootstrap()
	if err := r.observeHosts(ctx); err != nil {
		return err
	}
	in, err := r.input(ctx)
	if err != nil {
		return err
	}
	if blocking := r.blocking(in); len(blocking) > 0 {
		return &PreflightError{Findings: blocking}
	}
	if r.plan, err = plan.Make(in); err != nil {
		return err
	}
	r.changes = plan.Diff(r.plan, r.facts, nil)
	r.changes.Outages = r.outages()
	if err := r.observeCluster(ctx); err != nil {
		return err
	}
	if r.groups, err = r.makeGroups(ctx); err != nil {
		return err
	}
	content, works := r.content(in), plan.Works(r.plan, r.changes, r.facts)
	r.changes.Rollout = r.makeRollout(works, nil)
	r.changes.SetCluster(plan.ClusterSteps(r.plan, works, r.changes.Rollout, r.cluster, content.Objects), content)
	if r.current = nil; len(r.state.Renewed) > 0 {
		in.Keys = r.state.InUse()
		r.current, err = plan.Make(in)
	}
	return err
}

// fixEtcdBootstrap records for each new etcd host how its etcd starts. The hosts of a new cluster
// start together. Later ones join the existing members.
func (r *run) fixEtcdBootstrap() {
	if r.spec.Etcd.Type == plan.EtcdExternal {
		return
	}
	hosts := r.roles[clusterv1alpha1.RoleEtcd]
	if r.state.Applied == nil && !r.etcdStarted() {
		// The record is from another spec, and no etcd has started with it.
		clear(r.state.EtcdBootstrap)
		r.state.KubeSystemUID = ""
	}
	fresh := len(r.state.EtcdBootstrap) == 0
	var members []string
	for _, h := range hosts {
		if _, ok := r.state.EtcdBootstrap[h]; ok {
			members = append(members, h)
		}
	}
	for _, h := range hosts {
		switch _, ok := r.state.EtcdBootstrap[h]; {
		case ok:
		case fresh:
			r.state.EtcdBootstrap[h] = plan.EtcdBootstrap{Members: plan.EtcdPeers(r.spec, hosts)}
		default:
			members = append(members, h)
			r.state.EtcdBootstrap[h] = plan.EtcdBootstrap{Members: plan.EtcdPeers(r.spec, members), Join: true}
		}
	}
}

// etcdStarted reports whether etcd was started on any reached host.
func (r *run) etcdStarted() bool {
	for _, f := range r.facts {
		if slices.ContainsFunc(f.Applied.Steps, func(s plan.AppliedStep) bool { return s.ID == plan.StepEtcdUnit }) {
			return true
		}
	}
	return false
}

// keepsMachines refuses a new address of a host whose setup has begun, if another machine answers
// there. The unfinished setup is on the first machine.
func (r *run) keepsMachines() error {
	var problems []string
	for _, h := range r.spec.Hosts {
		i := slices.IndexFunc(r.state.Begun, func(b clusterv1alpha1.Host) bool { return b.Name == h.Name })
		f, reached := r.facts[h.Name]
		if i < 0 || !reached || r.state.Begun[i].Address == h.Address || f.Applied.ClusterID != "" {
			continue
		}
		problems = append(problems, fmt.Sprintf("spec.provision.hosts: host %s was at %s when an unfinished run began there, and nothing of that is on the machine at %s: "+
			"set the address back, or take the host out first", h.Name, r.state.Begun[i].Address, h.Address))
	}
	if len(problems) > 0 {
		return &intent.InvalidError{Problems: problems}
	}
	return nil
}

// keepsEtcd refuses a spec that would start etcd with other members than it has. An unfinished run
// may have begun a member that the spec lacks now. Then no first etcd continues, and no member is
// added.
func (r *run) keepsEtcd() error {
	members := r.roles[clusterv1alpha1.RoleEtcd]
	starts := slices.ContainsFunc(members, func(name string) bool { _, fixed := r.state.EtcdBootstrap[name]; return !fixed })
	way := "take it out first"
	if r.state.Applied == nil {
		starts, way = r.etcdStarted(), "undo all of the cluster and begin anew"
	}
	if !starts {
		return nil
	}
	for _, name := range sortedKeys(r.state.EtcdBootstrap) {
		if !slices.Contains(members, name) {
			return intent.Invalidf("spec.provision.roleGroups: an unfinished run has begun to make host %s a member of the etcd of cluster %s: "+
				"put it back in group etcd, or %s", name, r.Cluster, way)
		}
	}
	return nil
}
