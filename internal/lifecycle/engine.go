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
	"k8s.io/utils/clock"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/addon"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// Environment is all in which a hub differs from a machine with files: where the state is kept, whose credentials are used, where content
// comes from, and who is told. The engine knows no other difference, and its decisions depend on none.
type Environment interface {
	// Store keeps what is known of clusters, and the records of the runs.
	Store
	// Target says how a host is reached, with credentials.
	Target(ctx context.Context, h clusterv1alpha1.Host) (host.Target, error)
	// ExternalEtcd reads the keys of an etcd that is not ours. It is asked only if the spec names one.
	ExternalEtcd(ctx context.Context, e clusterv1alpha1.ExternalEtcd) (*plan.ExternalEtcd, error)
	// Source of the release files, given the base URL of the spec.
	Source(base string) *catalog.Source
	// Agent returns the file of our agent for an architecture.
	Agent(arch string) (path string, err error)
	// Fetch reads a manifest or an archive of a chart by its URL.
	Fetch(ctx context.Context, url string) ([]byte, error)
	// Progress is told each change of the record, in order.
	Progress(op lifecyclev1alpha1.Operation, step lifecyclev1alpha1.StepRecord)
	// Built is told the kubeconfig of a cluster once its API server answers and its objects are applied, and when it is renewed; api makes the
	// configuration of a client that goes through a host. join is that of the spec.
	Built(ctx context.Context, kubeconfig []byte, join clusterv1alpha1.SyncMode, api func(context.Context) (*rest.Config, error)) error
}

// Engine builds, changes and removes one cluster.
type Engine struct {
	// Cluster is its name.
	Cluster string
	// Env is where the engine works.
	Env Environment
	// Dialer connects to hosts, with what Env says.
	Dialer host.Dialer
	// Catalog of versions.
	Catalog *catalog.Catalog
	// Local allows specs to name paths of this machine.
	Local bool
	// Holder says in leases who runs this.
	Holder string
	// Connect makes the configuration of a client of the API server that a host runs. Unset, it goes through the host.
	Connect func(c host.Conn, port int32, keys pki.Bundle) *rest.Config
	// Settle is how long a control plane may take to be well again after something of it was disturbed; zero is a minute.
	Settle time.Duration
	// Clock tells the time by which certificates are judged. Unset, it is the machine's.
	Clock clock.PassiveClock
}

// Errors of runs that ended before they were done. The record says the same.
var (
	// ErrPaused: the run was paused, or interrupted; it can be resumed.
	ErrPaused = errors.New("paused")
	// ErrCanceled: the run was canceled.
	ErrCanceled = errors.New("canceled")
)

// Run runs an Operation that Store has: a new one, or one that was paused, interrupted, killed or has failed. Of a new one
// spec is what the cluster is to be; a resumed one takes up the spec that it was started with.
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
		// What the cluster is to be stays what an earlier run was to bring about.
		return interrupted(ctx, r.renewCertificates(ctx))
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
	return interrupted(ctx, do(ctx))
}

// interrupted is the error of a run: where the run was interrupted, that counts, and not what hosts said as the run let go of them.
func interrupted(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, context.Canceled) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// take is the spec that an Operation brings about.
func (e *Engine) take(ctx context.Context, op *lifecyclev1alpha1.Operation, given *clusterv1alpha1.Provision) (*clusterv1alpha1.Provision, error) {
	state, err := e.load(ctx)
	if err != nil {
		return nil, err
	}
	spec, hash, err := state.Take(e.Cluster, op, given)
	op.Status.SpecHash = cmp.Or(hash, op.Status.SpecHash)
	return spec, err
}

// load loads what is known of the cluster, which at first is nothing.
func (e *Engine) load(ctx context.Context) (*State, error) {
	state, err := e.Env.Load(ctx, e.Cluster)
	if state == nil {
		state = &State{Cluster: e.Cluster}
	}
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

	conns       map[string]*connection
	facts       map[string]plan.Facts
	unreachable map[string]error
	refused     map[string]error // of hosts that were reached and could not be looked at

	keys    pki.Bundle              // with which the plan is made
	files   map[string]catalog.File // by digest
	plan    *plan.Plan
	current *plan.Plan // the same with the leaves that the hosts have, if they get others
	changes *plan.Changes
	cluster plan.ClusterFacts // of the cluster itself, when the plan was made
	groups  []addon.Group     // the objects that belong in the cluster, as the plan says
	ended   []string          // the UIDs of the cluster's runs that have ended
	agents  agents
}

// begin checks the spec and loads the state. Without a recorder the run only looks.
func (e *Engine) begin(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision, rec *recorder) (*run, error) {
	spec = spec.DeepCopy()
	plan.Default(e.Cluster, spec)
	state, err := e.load(ctx)
	if err != nil {
		return nil, err
	}
	state.complete()
	// What is to go need not be what could be built.
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
		conns: map[string]*connection{}, facts: map[string]plan.Facts{}, unreachable: map[string]error{}, refused: map[string]error{},
		files: map[string]catalog.File{}, keys: state.Planned(),
	}
	if rec != nil {
		if err := r.learnEnded(ctx); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// learnEnded lists the runs that have ended: what they left on hosts is no one's.
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

// bring makes the hosts what the spec says.
func (r *run) bring(ctx context.Context) error {
	if err := r.state.Keep(r.Cluster, r.spec); err != nil {
		return err
	}
	wrong := r.survey(ctx, r.spec.Hosts)
	// A host that is part of the cluster and cannot be reached is unknown: it stays as it is, and the others are
	// brought on. One that is new has to be there.
	var left []string
	for _, name := range sortedKeys(r.unreachable) {
		if !r.state.IsPart(name) {
			wrong = errors.Join(wrong, r.unreachable[name])
			continue
		}
		left = append(left, r.unreachable[name].Error())
	}
	if wrong != nil {
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
	if len(left) > 0 && r.op.Spec.Action != lifecyclev1alpha1.ActionAddNode {
		if err := r.Env.Save(ctx, r.state); err != nil {
			return err
		}
		return fmt.Errorf("all other hosts are done, but these were left as they are: %s; resume with %q when they are back",
			strings.Join(left, "; "), "orrery operation resume "+r.op.Name)
	}
	if err := r.state.Reach(r.spec); err != nil {
		return err
	}
	return r.Env.Save(ctx, r.state)
}

// want keeps what the run is to bring about.
func (r *run) want(ctx context.Context) error {
	r.state.Wanted, r.state.WantedBy = r.spec, r.op.Name
	return r.Env.Save(ctx, r.state)
}

func sortedKeys[M ~map[string]V, V any](m M) []string { return slices.Sorted(maps.Keys(m)) }

// attempts is how often a step is tried.
func (r *run) attempts() int32 { return cmp.Or(r.op.Spec.Attempts, 3) }

// observeTimeout bounds how long a look at the objects of a cluster takes.
const observeTimeout = 30 * time.Second

// leaseTime is how long a host stays ours after it was last spoken to, beside the pause between waves. While the agent works it
// holds a lock beside, so this need only be longer than the time between two stages.
const leaseTime = 2 * time.Minute

func now() *metav1.MicroTime {
	t := metav1.NowMicro()
	return &t
}
