// Package lifecycle builds, changes and removes Kubernetes clusters on Linux hosts.
//
// An Engine asks the hosts for their facts, has package plan make a plan of them and the spec, and has the agent of each
// host (package node) do the steps that differ. It decides nothing about what is on a host, and nothing it does needs more
// than the hosts and a Store: every run is an Operation, whose record is kept as it goes on and which can be resumed by
// any process that has the Store.
package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/addon"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// Engine builds, changes and removes one cluster.
type Engine struct {
	// Cluster is its name.
	Cluster string
	// Store keeps what is known of the cluster, and the records of the runs.
	Store Store
	// Dialer connects to hosts, with what Target says.
	Dialer host.Dialer
	Target func(ctx context.Context, h clusterv1alpha1.Host) (host.Target, error)
	// ExternalEtcd reads the keys of an etcd that is not ours. It is asked only if the spec names one.
	ExternalEtcd func(ctx context.Context, e clusterv1alpha1.ExternalEtcd) (*plan.ExternalEtcd, error)
	// Catalog of versions.
	Catalog *catalog.Catalog
	// Source of the release files, given the base URL of the spec.
	Source func(base string) *catalog.Source
	// Agent returns the file of our agent for an architecture.
	Agent func(arch string) (path string, err error)
	// Fetch reads a manifest or an archive of a chart.
	Fetch func(ctx context.Context, url string) ([]byte, error)
	// Local allows specs to name paths of this machine.
	Local bool
	// Connect makes the configuration of a client of the API server that a host runs. Unset, it goes through the host.
	Connect func(c host.Conn, port int32, keys pki.Bundle) *rest.Config
	// Settle is how long a control plane may take to be well again after something of it was disturbed; zero is a minute.
	Settle time.Duration
	// Progress is told each change of the record, in order. It may be nil.
	Progress func(lifecyclev1alpha1.Operation, lifecyclev1alpha1.StepRecord)
	// Clock tells the time by which certificates are judged. Unset, it is the machine's.
	Clock func() time.Time
	// Holder says in leases who runs this.
	Holder string
	// Built is told the kubeconfig of a cluster once its API server answers and its objects are applied. It may be nil.
	Built func(ctx context.Context, kubeconfig []byte) error
}

// Errors of runs that ended before they were done. The record says the same.
var (
	// ErrPaused: the run was paused, or interrupted; it can be resumed.
	ErrPaused = errors.New("paused")
	// ErrCanceled: the run was canceled.
	ErrCanceled = errors.New("canceled")
)

// InvalidError is a spec, or a change of it, that is refused.
type InvalidError struct{ Problems []string }

// Error lists the problems, one in a line.
func (e *InvalidError) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0]
	}
	return fmt.Sprintf("%d problems:\n  %s", len(e.Problems), strings.Join(e.Problems, "\n  "))
}

// PreflightError is what stands in the way on the hosts.
type PreflightError struct{ Findings []plan.Finding }

// Error lists the findings with their fixes, one in a line.
func (e *PreflightError) Error() string {
	lines := make([]string, 0, len(e.Findings))
	for _, f := range e.Findings {
		lines = append(lines, fmt.Sprintf("host %s: %s; %s", f.Host, f.Message, f.Fix))
	}
	return "the hosts are not ready:\n  " + strings.Join(lines, "\n  ")
}

// Preflight looks at the hosts and says what stands in the way. Nothing is changed, except that a short file is written and
// removed to time the disk.
func (e *Engine) Preflight(ctx context.Context, spec *clusterv1alpha1.Provision) ([]plan.Finding, error) {
	r, err := e.begin(ctx, spec, nil)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.survey(ctx, r.spec.Hosts); err != nil {
		return nil, err
	}
	findings := r.unreachableFindings()
	if len(r.facts) == 0 {
		return findings, nil
	}
	in, err := r.input(ctx)
	if err != nil {
		return nil, err
	}
	return append(findings, plan.Preflight(in)...), nil
}

// Plan says what a run with this spec would change. On the hosts nothing is changed; the keys of a new cluster are kept, so
// that the run makes the same plan.
func (e *Engine) Plan(ctx context.Context, spec *clusterv1alpha1.Provision) (*plan.Plan, *plan.Changes, error) {
	r, err := e.begin(ctx, spec, nil)
	if err != nil {
		return nil, nil, err
	}
	defer r.close()
	if err := r.survey(ctx, r.spec.Hosts); err != nil {
		return nil, nil, err
	}
	if err := r.refuseUnreachable(); err != nil {
		return nil, nil, err
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

// keepKeys keeps the keys and digests that a plan was made with, if they are new, and nothing else of what it supposed. While
// a run is under way it keeps its own. Successors of leaves take the place of those that were there before, and of no others.
func (e *Engine) keepKeys(ctx context.Context, made *State, before pki.Bundle) error {
	unlock, err := e.Store.Lock(ctx, e.Cluster)
	if err != nil {
		return nil // the run that has the lock keeps the keys
	}
	defer unlock()
	kept, err := e.Store.Load(ctx, e.Cluster)
	if err != nil {
		return err
	}
	if kept == nil {
		kept = newState(e.Cluster)
	}
	for name, pair := range made.Keys {
		if _, ok := kept.Keys[name]; !ok {
			kept.Keys[name] = pair
		}
	}
	if maps.EqualFunc(kept.Renewed, before, pki.KeyPair.Equal) {
		kept.Renewed = made.Renewed
	}
	for key, digest := range made.Digests {
		if kept.Digests[key] == "" {
			kept.Digests[key] = digest
		}
	}
	return e.Store.Save(ctx, kept)
}

// diffApplied adds to the changes how contents differ from what was applied before, and what would change in the cluster
// itself. The hash stays that of the changes on hosts.
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
	if old, err := plan.Make(in); err == nil { // without it the details are missing, no more
		r.changes.Items = plan.Diff(r.plan, r.facts, old).Items
	}
	cfg, err := r.api(ctx)
	if err != nil && slices.ContainsFunc(r.plan.Hosts, func(h plan.Host) bool { return len(act(r.changes, h.Name).APIServers) > 0 }) {
		return nil // the run starts one, and sees the objects then
	}
	if err != nil && slices.ContainsFunc(r.roles[clusterv1alpha1.RoleControlPlane], r.expired) {
		r.changes.Items = append(r.changes.Items, plan.Change{
			Host: clusterHost, Step: "objects", Kind: "Object", Op: plan.OpChange, Disruption: plan.DisruptionNone,
			Target: "unknown: no API server answers before its certificates are renewed",
		})
		return nil
	}
	if err != nil {
		return err
	}
	groups, err := r.groups(ctx)
	if err != nil {
		return err
	}
	octx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	objects, err := addon.Observe(octx, cfg, groups)
	if err != nil {
		return err
	}
	for _, o := range objects {
		op, target, _ := strings.Cut(o, " ")
		r.changes.Items = append(r.changes.Items, plan.Change{
			Host: clusterHost, Step: "objects", Kind: "Object", Op: plan.Op(op), Target: target, Disruption: plan.DisruptionNone,
		})
	}
	return nil
}

// appliedFiles are the release files of the spec that was applied last.
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

// Run runs an Operation that Store has: a new one, or one that was paused, interrupted, killed or has failed. Of a new one
// spec is what the cluster is to be; a resumed one takes up the spec that it was started with.
func (e *Engine) Run(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) (err error) {
	unlock, err := e.Store.Lock(ctx, e.Cluster)
	if err != nil {
		return err
	}
	defer unlock()
	if d := op.Spec.Deadline; d != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d.Duration, fmt.Errorf("the deadline of %s has passed", d.Duration))
		defer cancel()
	}
	spec, refused := e.intent(ctx, op, spec)
	rec := newRecorder(e, op)
	if err := rec.start(ctx); err != nil {
		return err
	}
	defer func() { err = rec.finish(context.WithoutCancel(ctx), err) }()
	if err := rec.checkpoint(); err != nil {
		return err
	}

	if refused != nil {
		return refused
	}
	r, err := e.begin(ctx, spec, rec)
	if err != nil {
		return err
	}
	defer r.close()
	logr.FromContextOrDiscard(ctx).Info("operation runs", "operation", op.Name, "action", op.Spec.Action, "attempt", op.Status.Attempt)
	var do func(context.Context) error
	switch op.Spec.Action {
	case lifecyclev1alpha1.ActionDelete:
		do = r.remove
	case lifecyclev1alpha1.ActionDeleteNode:
		do = r.removeHosts
	case lifecyclev1alpha1.ActionRenewCertificates:
		// What the cluster is to be stays what an earlier run was to bring about.
		return r.renewCertificates(ctx)
	case lifecyclev1alpha1.ActionCreate, lifecyclev1alpha1.ActionApply, lifecyclev1alpha1.ActionAddNode:
		do = r.bring
	default:
		return fmt.Errorf("operation %s: unknown action %q", op.Name, op.Spec.Action)
	}
	// The spec is kept before anything is asked of the hosts, so that a run that fails or is killed is resumed with what it
	// was to do.
	if err := r.want(ctx); err != nil {
		return err
	}
	return do(ctx)
}

// run is one run of the engine.
type run struct {
	*Engine
	rec   *recorder
	op    *lifecyclev1alpha1.Operation
	spec  *clusterv1alpha1.Provision
	roles map[clusterv1alpha1.Role][]string
	state *State

	conns       map[string]*connection
	facts       map[string]plan.Facts
	unreachable map[string]error

	keys    pki.Bundle              // with which the plan is made
	files   map[string]catalog.File // by digest
	plan    *plan.Plan
	current *plan.Plan // the same with the leaves that the hosts have, if they get others
	changes *plan.Changes
	ended   []string // the UIDs of the cluster's runs that have ended
}

// begin checks the spec and loads the state. Without a recorder the run only looks.
func (e *Engine) begin(ctx context.Context, spec *clusterv1alpha1.Provision, rec *recorder) (*run, error) {
	spec = spec.DeepCopy()
	plan.Default(e.Cluster, spec)
	state, err := e.Store.Load(ctx, e.Cluster)
	if err != nil {
		return nil, err
	}
	if state == nil {
		state = newState(e.Cluster)
	}
	// What is to go need not be what could be built.
	if rec == nil || rec.op.Spec.Action != lifecyclev1alpha1.ActionDelete {
		if err := Check(e.Cluster, spec, state.Applied); err != nil {
			return nil, err
		}
	}
	roles, err := plan.Expand(spec.RoleGroups)
	if err != nil {
		return nil, err
	}
	r := &run{
		Engine: e, rec: rec, spec: spec, roles: roles, state: state,
		conns: map[string]*connection{}, facts: map[string]plan.Facts{}, unreachable: map[string]error{},
		files: map[string]catalog.File{}, keys: state.Keys.With(state.Renewed),
	}
	if rec != nil {
		r.op = rec.op
		if err := r.learnEnded(ctx); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// learnEnded lists the runs that have ended: what they left on hosts is no one's.
func (r *run) learnEnded(ctx context.Context) error {
	ops, err := r.Store.Operations(ctx, r.Cluster)
	if err != nil {
		return err
	}
	for _, op := range ops {
		if !Unfinished(&op) && op.UID != "" && op.UID != r.op.UID {
			r.ended = append(r.ended, string(op.UID))
		}
	}
	return nil
}

func (r *run) close() {
	for _, c := range r.conns {
		c.close()
	}
}

// input gathers what the plan depends on. Keys that are missing are minted; they are kept only when the run changes
// something.
func (r *run) input(ctx context.Context) (plan.Input, error) {
	if err := r.ensureKeys(); err != nil {
		return plan.Input{}, err
	}
	in := plan.Input{
		Name: r.Cluster, Spec: r.spec, Facts: r.facts, Keys: r.keys, InUse: r.state.Keys, Now: r.now(),
		Files: map[string][]catalog.File{}, Digests: r.state.Digests, Images: map[string]string{},
		EtcdBootstrap: r.state.EtcdBootstrap,
	}
	version := r.spec.Kubernetes.Version
	var missing []catalog.File
	for _, f := range r.facts {
		if _, ok := in.Files[f.Arch]; ok || !slices.Contains(plan.Architectures, f.Arch) {
			continue // what cannot be served is a finding of the preflight, which names the host
		}
		files, err := r.Catalog.Files(version, f.Arch, plan.FileNames...)
		if err != nil {
			return in, err
		}
		in.Files[f.Arch] = files
		for _, file := range files {
			if r.state.Digests[file.Key()] == "" {
				missing = append(missing, file)
			}
		}
	}
	if len(missing) > 0 {
		digests, err := r.Source(r.spec.Source).Resolve(ctx, missing)
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
		keys, err := r.ExternalEtcd(ctx, *x)
		if err != nil {
			return in, err
		}
		in.ExternalEtcd = keys
	}
	return in, nil
}

// makePlan makes the plan for all hosts that were reached, and how they differ from it.
func (r *run) makePlan(ctx context.Context) error {
	if err := r.keepsEtcd(); err != nil {
		return err
	}
	r.fixEtcdBootstrap()
	in, err := r.input(ctx)
	if err != nil {
		return err
	}
	var blocking []plan.Finding
	for _, f := range plan.Preflight(in) {
		if f.Severity == plan.SeverityError {
			blocking = append(blocking, f)
		}
	}
	if len(blocking) > 0 {
		return &PreflightError{Findings: blocking}
	}
	if r.plan, err = plan.Make(in); err != nil {
		return err
	}
	r.changes = plan.Diff(r.plan, r.facts, nil)
	r.changes.Outages = r.outages()
	if r.current = nil; len(r.state.Renewed) > 0 {
		in.Keys = r.state.Keys
		r.current, err = plan.Make(in)
	}
	return err
}

// fixEtcdBootstrap fixes for each new etcd host how its etcd starts: the hosts of a new cluster together, later ones by
// joining those that are there.
func (r *run) fixEtcdBootstrap() {
	if r.spec.Etcd.Type == plan.EtcdExternal {
		return
	}
	hosts := r.roles[clusterv1alpha1.RoleEtcd]
	if r.state.Applied == nil && !r.etcdStarted() {
		clear(r.state.EtcdBootstrap) // what was fixed was of another spec, and no etcd has started with it
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

// etcdStarted reports whether etcd was started on a host.
func (r *run) etcdStarted() bool {
	for _, f := range r.facts {
		if slices.ContainsFunc(f.Applied.Steps, func(s plan.AppliedStep) bool { return s.ID == plan.StepEtcdUnit }) {
			return true
		}
	}
	return false
}

// has reports whether a host has a role.
func (r *run) has(name string, role clusterv1alpha1.Role) bool {
	return slices.Contains(r.roles[role], name)
}

// bring makes the hosts what the spec says.
func (r *run) bring(ctx context.Context) error {
	if err := r.keepsHosts(); err != nil {
		return err
	}
	if err := r.survey(ctx, r.spec.Hosts); err != nil {
		return err
	}
	if err := r.bringAgents(ctx); err != nil {
		return err
	}
	if err := r.keepsMachines(); err != nil {
		return err
	}
	known := map[string]bool{}
	if r.state.Applied != nil {
		for _, h := range r.state.Applied.Hosts {
			known[h.Name] = true
		}
	}
	// A host that is part of the cluster and cannot be reached is unknown: it stays as it is, and the others are
	// brought on. One that is new has to be there.
	var left []string
	for _, name := range sortedKeys(r.unreachable) {
		if !known[name] {
			return r.unreachable[name]
		}
		left = append(left, r.unreachable[name].Error())
	}
	if err := r.makePlan(ctx); err != nil {
		return err
	}
	if want := r.op.Spec.PlanHash; want != "" && want != r.changes.Hash && r.op.Status.PlanHash == "" {
		return fmt.Errorf("the plan is %s now, not %s: the hosts or the spec have changed since it was shown; look at it again with %q",
			r.changes.Hash, want, "orrery cluster plan")
	}
	r.rec.set(func(s *lifecyclev1alpha1.OperationStatus) { s.PlanHash = r.changes.Hash })
	for _, h := range r.spec.Hosts {
		i := slices.IndexFunc(r.state.Begun, func(b clusterv1alpha1.Host) bool { return b.Name == h.Name })
		switch {
		case known[h.Name]:
		case i < 0:
			r.state.Begun = append(r.state.Begun, h)
		default:
			r.state.Begun[i] = h
		}
	}
	if err := r.Store.Save(ctx, r.state); err != nil {
		return err
	}
	if err := r.renew(ctx, false); err != nil {
		return err
	}
	r.rec.plan(r.plan, r.changes)
	if err := r.converge(ctx); err != nil {
		return err
	}
	r.tookUpAll()
	if len(left) > 0 && r.op.Spec.Action != lifecyclev1alpha1.ActionAddNode {
		if err := r.Store.Save(ctx, r.state); err != nil {
			return err
		}
		return fmt.Errorf("all other hosts are done, but these were left as they are: %s; resume with %q when they are back",
			strings.Join(left, "; "), "orrery operation resume "+r.op.Name)
	}
	r.applied()
	return r.Store.Save(ctx, r.state)
}

// applied notes that the spec was reached. Hosts that it has are begun no more.
func (r *run) applied() {
	r.state.Applied = r.spec
	there := func(h clusterv1alpha1.Host) bool { return hasHost(r.spec.Hosts, h.Name) }
	r.state.Begun, r.state.Leaving = slices.DeleteFunc(r.state.Begun, there), slices.DeleteFunc(r.state.Leaving, there)
}

// want keeps what the run is to bring about.
func (r *run) want(ctx context.Context) error {
	r.state.Wanted, r.state.WantedBy = r.spec, r.op.Name
	return r.Store.Save(ctx, r.state)
}

func sortedKeys[M ~map[string]V, V any](m M) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// attempts is how often a step is tried.
func (r *run) attempts() int32 { return cmp.Or(r.op.Spec.Attempts, 3) }

// observeTimeout bounds how long a look at the objects of a cluster takes.
const observeTimeout = 30 * time.Second

// leaseTime is how long a host stays ours after it was last spoken to. While the agent works it holds a lock beside, so this
// need only be longer than the pause between two stages.
const leaseTime = 2 * time.Minute

func now() *metav1.MicroTime {
	t := metav1.NowMicro()
	return &t
}
