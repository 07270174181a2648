// Package lifecycle builds, changes and removes Kubernetes clusters on Linux hosts.
//
// An Engine reads the facts of the hosts, lets package plan make a plan from them and the spec, and
// lets the agent on each host (package node) perform the steps that differ. The agent decides what
// to do on its host. A run needs only the hosts and a Store. Every run is an Operation: it is
// recorded while it runs, and any process with the Store can resume it.
package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/addon"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// Environment is everything in which a hub differs from a command line with files: where state is
// kept, which credentials are used, where files come from, and who receives progress. The decisions
// of the engine do not depend on it.
type Environment interface {
	// Store keeps the state of clusters and the records of runs.
	Store
	// Target returns the address and credentials of a host.
	Target(ctx context.Context, h clusterv1alpha1.Host) (host.Target, error)
	// ExternalEtcd reads the client keys of an etcd that the cluster does not run itself. It is called
	// only if the spec has an external etcd.
	ExternalEtcd(ctx context.Context, e clusterv1alpha1.ExternalEtcd) (*plan.ExternalEtcd, error)
	// Source returns the source of the release files. base is the base URL in the spec, or empty.
	Source(base string) *catalog.Source
	// Agent returns the path of the agent's file for an architecture.
	Agent(arch string) (path string, err error)
	// Fetch reads a manifest or the archive of a chart from a URL.
	Fetch(ctx context.Context, url string) ([]byte, error)
	// Progress receives each change of the record, in order. step is empty when the run ends.
	Progress(op lifecyclev1alpha1.Operation, step lifecyclev1alpha1.StepRecord)
	// Built receives the kubeconfig of a cluster when its API server answers and its early objects are
	// applied, and when the kubeconfig is renewed. join is that of the spec. api returns the
	// configuration of a client that connects through a host.
	Built(ctx context.Context, kubeconfig []byte, join clusterv1alpha1.SyncMode, api func(context.Context) (*rest.Config, error)) error
}

// Engine builds, changes and removes one cluster.
type Engine struct {
	// Cluster is the name of the cluster.
	Cluster string
	// Env provides the Store, credentials and files.
	Env Environment
	// Dialer connects to the targets that Env returns.
	Dialer host.Dialer
	// Catalog has the supported versions.
	Catalog *catalog.Catalog
	// Local allows specs to name paths on this machine.
	Local bool
	// Logins has hosts with logins that replace those in the state, for hosts at the same address. A
	// run keeps them.
	Logins []clusterv1alpha1.Host
	// Holder names this process in leases.
	Holder string
	// Connect returns the client configuration for the API server on a host. If nil, clients connect
	// through the host.
	Connect func(c host.Conn, port int32, keys pki.Bundle) *rest.Config
	// Settle is how long a control plane may take to recover after a disturbance. Zero is a minute.
	Settle time.Duration
	// Clock gives the time for checks of certificates. If nil, it is the clock of the machine.
	Clock clock.PassiveClock
}

// Errors of runs that ended early. The record of the Operation has the same phase.
var (
	// ErrPaused means that the run was paused or interrupted. It can be resumed.
	ErrPaused = errors.New("paused")
	// ErrCanceled means that the run was canceled.
	ErrCanceled = errors.New("canceled")
)

// Run performs an Operation of the Store: a new one, or one that was paused, interrupted or killed,
// or failed. spec is the wanted spec of a new Operation. A resumed one uses the spec that it
// started with. Run locks the cluster while it works. It returns an error that wraps ErrPaused or
// ErrCanceled if the run ended early.
func (e *Engine) Run(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) (err error) {
	unlock, err := e.Env.Lock(ctx, e.Cluster)
	if err != nil {
		return err
	}
	defer unlock()
	if d := op.Spec.Deadline; d != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d.Duration, fmt.Errorf("the deadline of %s has passed", d.Duration))
		defer cancel()
	}
	spec, refused := e.take(ctx, op, spec)
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
	r, err := e.begin(ctx, op, spec, rec)
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
		do = r.renewCertificates
	case lifecyclev1alpha1.ActionCreate, lifecyclev1alpha1.ActionApply, lifecyclev1alpha1.ActionAddNode:
		do = r.bring
	default:
		return fmt.Errorf("operation %s: unknown action %q", op.Name, op.Spec.Action)
	}
	// The spec is saved before any host is asked. A run that fails or is killed then resumes with it.
	// A renewal has none: the wanted spec stays that of an earlier run.
	if op.Spec.Action != lifecyclev1alpha1.ActionRenewCertificates {
		if err := r.want(ctx); err != nil {
			return err
		}
	}
	return r.release(ctx, interrupted(ctx, do(ctx)))
}

// Check returns the error with which Run refuses a new Operation before it connects to any host. It
// stores nothing.
func (e *Engine) Check(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
	op = op.DeepCopy()
	spec, err := e.take(ctx, op, spec)
	if err != nil {
		return err
	}
	r, err := e.begin(ctx, op, spec, nil)
	if err != nil {
		return err
	}
	defer r.close()
	switch op.Spec.Action {
	case lifecyclev1alpha1.ActionCreate, lifecyclev1alpha1.ActionApply, lifecyclev1alpha1.ActionAddNode, lifecyclev1alpha1.ActionDeleteNode:
		return r.state.Keep(r.Cluster, r.spec, op.Spec.NamedHosts()...)
	case lifecyclev1alpha1.ActionDelete, lifecyclev1alpha1.ActionRenewCertificates:
	}
	return nil
}

// interrupted puts the cause first if the run was interrupted. Hosts then report only errors of the
// disconnection.
func interrupted(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, context.Canceled) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// take returns the spec for an Operation, and records its hash in the status.
func (e *Engine) take(ctx context.Context, op *lifecyclev1alpha1.Operation, given *clusterv1alpha1.Provision) (*clusterv1alpha1.Provision, error) {
	state, err := e.load(ctx)
	if err != nil {
		return nil, err
	}
	spec, hash, err := state.Take(e.Cluster, op, given)
	op.Status.SpecHash = cmp.Or(hash, op.Status.SpecHash)
	return spec, err
}

// load returns the state of the cluster, with the logins of the Engine. It is empty if nothing is
// known of the cluster.
func (e *Engine) load(ctx context.Context) (*State, error) {
	state, err := e.Env.Load(ctx, e.Cluster)
	if state == nil {
		state = &State{Cluster: e.Cluster}
	}
	state.Login(e.Logins)
	return state, err
}

// run is one run of the engine.
type run struct {
	*Engine
	rec   *recorder
	op    *lifecyclev1alpha1.Operation
	spec  *clusterv1alpha1.Provision
	roles map[clusterv1alpha1.Role][]string
	state *State

	conns  map[string]*connection // of the hosts that were reached
	facts  map[string]plan.Facts
	away   map[string]away  // hosts that were not reached
	failed map[string]error // by host: reached, but its facts could not be read
	lost   []plan.Finding   // of reached hosts whose data renewApplied found lost

	keys    pki.Bundle              // for the plan
	files   map[string]catalog.File // by digest
	plan    *plan.Plan
	current *plan.Plan // the plan with the certificates in use; nil unless some are renewed
	changes *plan.Changes
	cluster plan.ClusterFacts // when the plan was made
	groups  []addon.Group     // the objects of the cluster
	ended   []string          // UIDs of the runs of the cluster that have ended
	keeper  *leaseKeeper      // nil until the run has leases
	agents  agents

	identity sync.Mutex      // guards state.KubeSystemUID
	changing map[string]bool // hosts that converge changes
	applied  map[string]bool // groups of objects that were applied and differed
}

// begin checks the spec and loads the state. If rec is nil, the run only reads, for a preflight or
// plan.
func (e *Engine) begin(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision, rec *recorder) (*run, error) {
	spec = spec.DeepCopy()
	plan.Default(e.Cluster, spec)
	state, err := e.load(ctx)
	if err != nil {
		return nil, err
	}
	state.complete()
	// A cluster can be deleted although its spec is invalid.
	if op == nil || op.Spec.Action != lifecyclev1alpha1.ActionDelete {
		if err := state.Check(e.Cluster, spec); err != nil {
			return nil, err
		}
	}
	roles, err := plan.Expand(spec.RoleGroups)
	if err != nil {
		return nil, err
	}
	r := &run{
		Engine: e, rec: rec, op: op, spec: spec, roles: roles, state: state,
		conns: map[string]*connection{}, facts: map[string]plan.Facts{}, away: map[string]away{}, failed: map[string]error{},
		files: map[string]catalog.File{}, keys: state.Planned(),
		changing: map[string]bool{}, applied: map[string]bool{},
	}
	if rec != nil {
		if err := r.learnEnded(ctx); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// learnEnded lists the runs that have ended. The hosts may drop leases of these runs.
func (r *run) learnEnded(ctx context.Context) error {
	ops, err := r.Env.Operations(ctx, r.Cluster)
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

// has reports whether a host has a role.
func (r *run) has(name string, role clusterv1alpha1.Role) bool {
	return slices.Contains(r.roles[role], name)
}

// bring changes the hosts and the cluster to match the spec.
func (r *run) bring(ctx context.Context) error {
	if err := r.state.Keep(r.Cluster, r.spec); err != nil {
		return err
	}
	wrong := r.survey(ctx, r.spec.Hosts)
	left, stop := r.decide(r.op.Spec.Action, r.partOf)
	if wrong = errors.Join(wrong, stop); wrong != nil {
		return r.report(ctx, wrong)
	}
	if err := r.bringAgents(ctx); err != nil {
		return err
	}
	if err := r.keepsMachines(); err != nil {
		return err
	}
	if err := r.makePlan(ctx); err != nil {
		return err
	}
	if err := r.refuseOtherPlan(); err != nil {
		return err
	}
	if err := r.takeLeasesFor(ctx, plan.Works(r.plan, r.changes, r.facts)); err != nil {
		return err
	}
	r.rec.tell(r.changes)
	r.state.Begin(r.spec.Hosts)
	if err := r.Env.Save(ctx, r.state); err != nil {
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
	if left.fails() {
		if err := r.Env.Save(ctx, r.state); err != nil {
			return err
		}
		return fmt.Errorf("all other hosts are done, but these were left as they are: %s; %s", left, r.wayBack())
	}
	if len(left) > 0 {
		r.rec.remark = fmt.Sprintf("these hosts were left as they are: %s; apply the cluster's spec when they are back", left)
	}
	if err := r.state.Reach(r.spec); err != nil {
		return err
	}
	return r.Env.Save(ctx, r.state)
}

// want saves the spec as the wanted one, before the run begins.
func (r *run) want(ctx context.Context) error {
	r.state.Wanted, r.state.WantedBy = r.spec, r.op.Name
	return r.Env.Save(ctx, r.state)
}

func sortedKeys[M ~map[string]V, V any](m M) []string { return slices.Sorted(maps.Keys(m)) }

// attempts returns how often a step is tried: 3 by default.
func (r *run) attempts() int32 { return cmp.Or(r.op.Spec.Attempts, 3) }

// observeTimeout bounds how long reading the objects of a cluster takes.
const observeTimeout = 30 * time.Second

func now() *metav1.MicroTime {
	t := metav1.NowMicro()
	return &t
}
