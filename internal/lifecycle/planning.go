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

// PreflightError means that problems of the hosts, its Findings, prevent a run. The run has changed
// no host. Run and Plan return it.
type PreflightError struct{ Findings []plan.Finding }

// Error lists the host, message and fix of each finding, one per line.
func (e *PreflightError) Error() string {
	lines := make([]string, 0, len(e.Findings))
	for _, f := range e.Findings {
		lines = append(lines, fmt.Sprintf("host %s: %s; %s", f.Host, f.Message, f.Fix))
	}
	return "the hosts are not ready:\n  " + strings.Join(lines, "\n  ")
}

// Preflight inspects the hosts of a spec and returns their problems. Findings about hosts that were
// not reached come first. A finding is no error. Preflight changes nothing on the hosts, but writes
// and removes a short file to measure the disk. It saves nothing. It returns an error for a spec
// that cannot be applied to the cluster.
func (e *Engine) Preflight(ctx context.Context, spec *clusterv1alpha1.Provision) ([]plan.Finding, error) {
	r, err := e.begin(ctx, nil, spec, nil)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.inspect(ctx, r.spec.Hosts); err != nil && (ctx.Err() != nil || len(r.failed) == 0) {
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
// the hosts. It saves the new keys and digests with which the plan is made, so that the run makes
// the same plan. It does not save them while a run has locked the cluster. The error wraps an
// AwayError if a host cannot be reached, and a PreflightError for problems of the reached hosts.
func (e *Engine) Plan(ctx context.Context, spec *clusterv1alpha1.Provision) (*plan.Plan, *plan.Changes, error) {
	return e.plan(ctx, nil, spec)
}

// plan makes the plan for an Operation and returns it with the changes that the run would make. It
// saves new keys and digests, see Plan. If op is nil, it uses the default order and limits of a
// rollout.
func (e *Engine) plan(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) (*plan.Plan, *plan.Changes, error) {
	r, err := e.begin(ctx, op, spec, nil)
	if err != nil {
		return nil, nil, err
	}
	defer r.close()
	wrong := r.inspect(ctx, r.spec.Hosts)
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

// PlanFor returns what an Operation that is not created yet would change. For an Operation that
// deletes nodes or the cluster, these are removals from the cluster, and what is undone on the
// hosts. PlanFor does not change op or the hosts. It saves the new keys with which the plan is
// made, so that the run makes the same plan. A plan for the deletion of the cluster saves nothing.
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
		names, err := r.inspectAll(ctx)
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
	_, names, _, err := r.inspectLeaving(ctx)
	if err != nil {
		return nil, err
	}
	before := maps.Clone(r.state.Renewed)
	if err := r.planLeave(ctx, names); err != nil {
		return nil, err
	}
	if len(r.state.Renewed) == 0 { // if certificates are renewed first, the run asks etcd later
		if err := r.leavable(ctx, names); err != nil {
			return nil, err
		}
	}
	return r.changes, e.keepKeys(ctx, r.state, before)
}

// keepKeys saves the new keys and digests with which a plan was made, from the state made. It also
// saves the UID of kube-system if the stored state has none, and nothing else. If a run has locked
// the cluster, it saves nothing and returns nil, because that run saves its own keys. before are
// the renewed leaves that were stored when the plan began. keepKeys saves the plan's renewed leaves
// only if the stored ones are still those in before.
func (e *Engine) keepKeys(ctx context.Context, made *State, before pki.Bundle) error {
	unlock, err := e.Env.Lock(ctx, e.Cluster)
	if errors.Is(err, ErrLocked) {
		return nil // the run that has the lock saves its own keys
	}
	if err != nil {
		return err
	}
	defer unlock()
	kept, err := e.Env.Load(ctx, e.Cluster) // the stored state, without e.Logins
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

// fill adds to m the entries of from whose keys m lacks. m must not be nil unless from is empty.
func fill[M ~map[string]V, V any](m, from M) {
	for key, value := range from {
		if _, ok := m[key]; !ok {
			m[key] = value
		}
	}
}

// diffApplied adds details to r.changes for the user: how contents differ from those that were
// applied, and which objects would change. The hash of r.changes stays, because changes of objects
// by other clients must not change it. For a cluster that is not built, it does nothing. It returns
// an error if no API server answers, unless the run starts an API server or renews its expired
// certificates.
func (r *run) diffApplied(ctx context.Context) error {
	if r.state.Applied == nil {
		return nil
	}
	in, err := r.input(ctx)
	if err != nil {
		return err
	}
	if in, err = r.appliedInput(ctx, in); err != nil {
		return err
	}
	if old, err := plan.Make(in); err == nil { // without the old plan, only details are missing
		r.changes.Items = plan.Diff(r.plan, r.facts, old).Items
	}
	cfg, err := r.api(ctx)
	if err != nil && r.changes.StartsAPIServer() {
		return nil // the run compares the objects later, when an API server runs
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

// appliedInput returns the input with which the last applied spec is planned: in, with that spec,
// and with the release files, the images and the keys of an external etcd that belong to it. The
// files are for the architectures in in.Files. If the catalog has an image no more, or the keys
// cannot be read any more, those of the input stay.
func (r *run) appliedInput(ctx context.Context, in plan.Input) (plan.Input, error) {
	in.Spec = r.state.Applied
	files := map[string][]catalog.File{}
	for arch := range in.Files {
		list, err := r.Catalog.Files(in.Spec.Kubernetes.Version, arch, plan.FileNames...)
		if err != nil {
			return in, err
		}
		files[arch] = list
	}
	in.Files = files
	if images, err := r.images(in.Spec); err == nil {
		in.Images = images
	}
	if x := in.Spec.Etcd.External; x != nil {
		if keys, err := r.Env.ExternalEtcd(ctx, *x); err == nil {
			in.ExternalEtcd = keys
		}
	}
	return in, nil
}

// images returns the references of the images in plan.ImageNames for a spec, by name.
func (r *run) images(spec *clusterv1alpha1.Provision) (map[string]string, error) {
	images := map[string]string{}
	for _, name := range plan.ImageNames {
		image, err := r.Catalog.Image(spec.Kubernetes.Version, name)
		if err != nil {
			return nil, err
		}
		images[name] = addon.Rewrite(image, spec.Registry)
	}
	return images, nil
}

// input collects everything that the plan depends on. It makes missing keys, and looks up missing
// digests of release files, also over the network. It sets the keys and digests in r.state, which
// it does not save. It also sets r.keys and adds to r.files.
func (r *run) input(ctx context.Context) (plan.Input, error) {
	if err := r.ensureKeys(); err != nil {
		return plan.Input{}, err
	}
	in := plan.Input{
		Name: r.Cluster, ID: r.state.ID, Spec: r.spec, Facts: r.facts, Keys: r.keys, InUse: r.state.InUse(), Now: r.now(),
		Files: map[string][]catalog.File{}, Digests: r.state.Digests,
		Agents: map[string]string{}, EtcdBootstrap: r.state.EtcdBootstrap, HasData: r.state.KubeSystemUID != "",
	}
	version := r.spec.Kubernetes.Version
	var missing []catalog.File
	for _, f := range r.facts {
		if _, ok := in.Files[f.Arch]; ok || !slices.Contains(plan.Architectures, f.Arch) {
			continue // Preflight reports an unknown architecture
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
	var err error
	if in.Images, err = r.images(r.spec); err != nil {
		return in, err
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

// makePlan makes the plan for the reached hosts and the changes that it needs. It sets r.plan,
// r.changes, r.groups, r.cluster, and r.current, the plan with the certificates in use if some are
// renewed. In r.state it sets keys, digests and how new etcd members start, and does not save them.
// It returns a PreflightError for problems of hosts that prevent the run.
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

// fixEtcdBootstrap decides, for each new etcd host, how its etcd starts, and records that in
// r.state.EtcdBootstrap. The hosts of a new cluster start a new etcd together. Hosts that are added
// later join the existing members. If the cluster is not built and no reached host has started
// etcd, the earlier decisions and the UID of kube-system are cleared first. It does nothing for an
// external etcd.
func (r *run) fixEtcdBootstrap() {
	if r.spec.Etcd.Type == plan.EtcdExternal {
		return
	}
	hosts := r.roles[clusterv1alpha1.RoleEtcd]
	if r.state.Applied == nil && !r.etcdStarted() {
		// The decisions are from another spec, and no etcd has started with them.
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

// etcdStarted reports whether etcd was started on any reached host, according to the records of
// applied steps on the hosts.
func (r *run) etcdStarted() bool {
	for _, f := range r.facts {
		if slices.ContainsFunc(f.Applied.Steps, func(s plan.AppliedStep) bool { return s.ID == plan.StepEtcdUnit }) {
			return true
		}
	}
	return false
}

// keepsMachines returns an *intent.InvalidError if a host with an unfinished setup has another
// address now, and the machine at that address belongs to no cluster. The unfinished setup would
// stay on the first machine.
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

// keepsEtcd returns an *intent.InvalidError if the spec lacks an etcd member that an unfinished run
// has begun to set up. In a cluster that is not built, it does so only if etcd was started on a
// reached host. In a built cluster, it does so only if this run would start a new member.
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
