// Package lifecycle builds, changes and removes Kubernetes clusters on Linux hosts.
//
// An Engine reads the facts of the hosts, and lets package plan make a plan from the facts and the
// spec. The agent, a program on each host (package node), then performs the steps that differ from
// the state of its host. A run needs only the hosts and a Store. Every run is an Operation: it is
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
// kept, which credentials are used, where files come from, and who receives progress. The Engine
// decides the same in both. The methods may be called from several goroutines.
type Environment interface {
	// Store keeps the state of clusters and the records of runs.
	Store
	// Target returns the address and credentials of a host. After an error the run treats the host as
	// one that refuses the login.
	Target(ctx context.Context, h clusterv1alpha1.Host) (host.Target, error)
	// ExternalEtcd reads the client keys of an etcd that the cluster does not run itself. It is called
	// only if the spec has an external etcd.
	ExternalEtcd(ctx context.Context, e clusterv1alpha1.ExternalEtcd) (*plan.ExternalEtcd, error)
	// Source returns the source from which release files are downloaded. base is the base URL in the
	// spec, or "" for the default source.
	Source(base string) *catalog.Source
	// Agent returns the path of the agent executable for an architecture, such as amd64.
	Agent(arch string) (path string, err error)
	// Fetch reads a manifest or the archive of a chart from a URL.
	Fetch(ctx context.Context, url string) ([]byte, error)
	// Progress receives each new state of a step. The states for one host come in order. step is empty
	// when the run ends. op has the status without steps, hosts and conditions. Progress is called
	// from several goroutines, also at the same time.
	Progress(op lifecyclev1alpha1.Operation, step lifecyclev1alpha1.StepRecord)
	// Built receives the administrator's kubeconfig of a cluster: a command line saves it as a file,
	// and a hub joins the cluster. A run calls Built when the API server answers and the early objects
	// (bootstrap and network) are applied, and when the kubeconfig is renewed. Each run calls it, also
	// for a cluster that was built before. An error fails the run. join is that of the spec. api
	// returns the configuration of a client that connects through a host.
	Built(ctx context.Context, kubeconfig []byte, join clusterv1alpha1.SyncMode, api func(context.Context) (*rest.Config, error)) error
}

// Engine builds, changes and removes one cluster. Its methods do not change its fields. The lock of
// the Store excludes a second run of the same cluster.
type Engine struct {
	// Cluster is the name of the cluster.
	Cluster string
	// Env provides the Store, credentials and files.
	Env Environment
	// Dialer connects to the targets that Env returns.
	Dialer host.Dialer
	// Catalog has the supported versions.
	Catalog *catalog.Catalog
	// Local allows specs to name paths on this machine. It is false on a hub.
	Local bool
	// Logins has hosts with newer logins. They replace the logins in the state for hosts with the same
	// name and address. A run saves them.
	Logins []clusterv1alpha1.Host
	// Holder names this process in the leases of hosts: user@machine for a command line, or the hub.
	Holder string
	// Connect returns the administrator's client configuration for the API server on a host. If nil,
	// clients connect through the connection to the host, see through.
	Connect func(c host.Conn, port int32, keys pki.Bundle) *rest.Config
	// Settle is how long etcd and the API servers may take to recover after a disturbance. Zero means
	// a minute.
	Settle time.Duration
	// Clock gives the time for checks of certificates. If nil, it is the clock of the machine.
	Clock clock.PassiveClock
}

// Errors of runs that ended early because a user or a signal stopped them. The phase of the
// Operation is then Paused or Canceled.
var (
	// ErrPaused means that the run was paused or interrupted. The Operation can be resumed.
	ErrPaused = errors.New("paused")
	// ErrCanceled means that the run was canceled. Changes that were made stay.
	ErrCanceled = errors.New("canceled")
)

// Run performs an Operation that is in the Store. The Operation is new, or it was paused,
// interrupted or killed, or has failed, and is resumed. spec is the wanted spec of a new Operation.
// A resumed Operation uses the spec that it started with. Run locks the cluster while it works. It
// records nothing if it cannot lock the cluster, or if another process has run the Operation since
// op was read. It changes the status of op, and takes over Paused and Canceled from the Store.
//
// The error wraps ErrPaused or ErrCanceled if the run ended early. Canceling ctx pauses the run. If
// the deadline of the Operation or of ctx passes, the run fails. The deadline of the Operation
// applies to each attempt.
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
	// The wanted spec is saved before any host is asked, so that a failed or killed run can be resumed
	// with that spec. A renewal of certificates has no spec of its own. The wanted spec of an earlier
	// run stays.
	if op.Spec.Action != lifecyclev1alpha1.ActionRenewCertificates {
		if err := r.want(ctx); err != nil {
			return err
		}
	}
	return r.release(ctx, interrupted(ctx, do(ctx)))
}

// Check returns an error if Run would refuse a new Operation before it connects to any host: for an
// invalid spec, or a spec that lacks hosts of the cluster. It does not check whether the hosts that
// a deletion names exist, or the hash of a plan. It connects to no host, stores nothing and does
// not change op.
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

// interrupted returns the error for the end of a run. If ctx was canceled, it puts the cause of ctx
// before err, because err then often reports only lost connections. It returns err unchanged if the
// deadline of ctx has passed, and nil if err is nil.
func interrupted(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, context.Canceled) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// take returns the spec, with defaults, that an Operation must use: the given one, or for a resumed
// Operation the one that it started with. It sets the hash of the spec in the status of op, and
// stores nothing. given may be nil for a resumed Operation. It returns an error if the state cannot
// be read, or if the spec of a resumed Operation was not kept.
func (e *Engine) take(ctx context.Context, op *lifecyclev1alpha1.Operation, given *clusterv1alpha1.Provision) (*clusterv1alpha1.Provision, error) {
	state, err := e.load(ctx)
	if err != nil {
		return nil, err
	}
	spec, hash, err := state.Take(e.Cluster, op, given)
	op.Status.SpecHash = cmp.Or(hash, op.Status.SpecHash)
	return spec, err
}

// load returns the stored state of the cluster, with the logins in e.Logins. The state is empty,
// not nil, if the Store has none, and also together with an error.
func (e *Engine) load(ctx context.Context) (*State, error) {
	state, err := e.Env.Load(ctx, e.Cluster)
	if state == nil {
		state = &State{Cluster: e.Cluster}
	}
	state.Login(e.Logins)
	return state, err
}

// run is one run of the Engine, that is one attempt at an Operation. A plan or preflight uses a run
// without a recorder (rec is nil). begin makes it and close ends it. While hosts are changed,
// several goroutines read its maps.
type run struct {
	*Engine
	rec   *recorder
	op    *lifecyclev1alpha1.Operation
	spec  *clusterv1alpha1.Provision
	roles map[clusterv1alpha1.Role][]string
	state *State

	conns  map[string]*connection // by name of the host, of hosts that were reached
	facts  map[string]plan.Facts
	away   map[string]away  // by name of the host, of hosts that were not reached
	failed map[string]error // by name of the host: errors of hosts whose facts could not be read
	lost   []plan.Finding   // findings about reached hosts that have lost the data of etcd

	keys    pki.Bundle              // the keys with which the plan is made
	files   map[string]catalog.File // release files, by digest
	plan    *plan.Plan
	current *plan.Plan // the plan with the certificates in use; nil unless some are renewed
	changes *plan.Changes
	cluster plan.ClusterFacts // the state of the cluster when the plan was made
	groups  []addon.Group     // the objects of the cluster
	ended   []string          // UIDs of the Operations of the cluster that have ended
	keeper  *leaseKeeper      // nil until the run has leases
	agents  agents

	identity sync.Mutex      // guards state.KubeSystemUID
	changing map[string]bool // hosts that have work in converge
	applied  map[string]bool // names of groups in which this run has changed objects
}

// begin returns a run for a copy of the spec with defaults, and for the state in the Store. The
// caller closes the run. If rec is nil, the run only reads, for a preflight or plan, and op may be
// nil. begin returns an *intent.InvalidError for a spec that cannot be applied to the cluster,
// unless the Operation deletes the cluster. It connects to no host and stores nothing.
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

// learnEnded sets r.ended to the UIDs of the other Operations of the cluster that have ended.
// Requests to hosts carry them, so that the hosts drop leases of these runs.
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

// close ends the run: it closes the connections to all hosts.
func (r *run) close() {
	for _, c := range r.conns {
		c.close()
	}
}

// has reports whether the spec of the run gives a host this role.
func (r *run) has(name string, role clusterv1alpha1.Role) bool {
	return slices.Contains(r.roles[role], name)
}

// bring performs the actions Create, Apply and AddNode: it changes the hosts and the cluster to
// match the spec, and saves the state. It changes nothing and returns an error if an unreachable
// host stops the action, or a finding blocks it. The same holds if the Operation names the hash of
// another plan. Some unreachable hosts do not stop the action. bring leaves them unchanged, and may
// return an error about them after all other hosts are done.
func (r *run) bring(ctx context.Context) error {
	if err := r.state.Keep(r.Cluster, r.spec); err != nil {
		return err
	}
	wrong := r.inspect(ctx, r.spec.Hosts)
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
	r.rec.setPlan(r.changes)
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

// want saves the spec of the run as the wanted one in the state, with the name of the Operation. A
// run that fails or is killed can then be resumed with this spec.
func (r *run) want(ctx context.Context) error {
	r.state.Wanted, r.state.WantedBy = r.spec, r.op.Name
	return r.Env.Save(ctx, r.state)
}

// sortedKeys returns the keys of a map in ascending order.
func sortedKeys[M ~map[string]V, V any](m M) []string { return slices.Sorted(maps.Keys(m)) }

// attempts returns how often a run tries a request to a host: the number in the Operation, or 3.
func (r *run) attempts() int32 { return cmp.Or(r.op.Spec.Attempts, 3) }

// observeTimeout bounds how long a plan may compare the objects of a built cluster.
const observeTimeout = 30 * time.Second

// now returns the present time of this machine, for the record of a run.
func now() *metav1.MicroTime {
	t := metav1.NowMicro()
	return &t
}
