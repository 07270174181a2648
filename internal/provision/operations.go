package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/member"
)

const (
	// runRetry is the delay before the controller tries again to run an Operation that could not be
	// run or recorded.
	runRetry = 5 * time.Second
	// joinPatience is how long the hub tries to join a built cluster, whose new API server may not
	// serve everything yet.
	joinPatience = time.Minute
	// joinRetry is the interval between two attempts to join a built cluster.
	joinRetry = 2 * time.Second
	// checkTimeout bounds each request to a built cluster.
	checkTimeout = 30 * time.Second
)

// Reconcile implements reconcile.Reconciler for the Operations of one cluster, whose name is that
// of the request. If no Operation of the cluster runs in this process, it starts the oldest one
// that has not ended, in the background. It cancels a run whose Operation was deleted. It also
// deletes Operations that lifecycle.Outdated returns, and calls Refresh.
func (p *Provisioner) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := req.Name
	ops, err := p.store.Operations(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	p.options.Refresh(cluster)
	if name := p.runs.operation(cluster); name != "" {
		if !slices.ContainsFunc(ops, func(op lifecyclev1alpha1.Operation) bool { return op.Name == name }) {
			p.runs.cancel(cluster) // the Operation was deleted
		}
		return ctrl.Result{}, nil
	}
	if err := p.prune(ctx, ops); err != nil {
		return ctrl.Result{}, err
	}
	i := slices.IndexFunc(ops, func(op lifecyclev1alpha1.Operation) bool { return lifecycle.Unfinished(&op) })
	if i < 0 {
		return ctrl.Result{}, nil
	}
	// Read the stored Operation, since the cached one may have ended a moment ago.
	op, err := p.store.Operation(ctx, ops[i].Name)
	if err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return ctrl.Result{}, p.advance(ctx, op)
}

// advance starts a run of an Operation in the background, unless prepare says that none runs. A run
// may wait long for a slot, so the run itself prepares the Operation again before it begins: what
// was wanted when the Operation was queued may not be wanted any more.
func (p *Provisioner) advance(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	if cluster, _, err := p.prepare(ctx, op); err != nil || cluster == nil {
		return err
	}
	p.settle(op.Spec.Cluster, nil)
	p.runs.start(op.Spec.Cluster, op.Name, //nolint:contextcheck // a run outlives this look at its Operation
		func(ctx context.Context) time.Duration { return p.runPrepared(ctx, op.Name) },
		func(again time.Duration) { p.queue.AddAfter(request(op.Spec.Cluster), again) })
	return nil
}

// runPrepared reads the Operation with this name again, and runs it unless prepare says that it
// does not run. The result is that of run.
func (p *Provisioner) runPrepared(ctx context.Context, name string) (again time.Duration) {
	log := ctrl.LoggerFrom(ctx).WithValues("operation", name)
	op, err := p.store.Operation(ctx, name)
	if apierrors.IsNotFound(err) {
		return 0
	}
	var cluster *clusterv1alpha1.Cluster
	var spec *clusterv1alpha1.Provision
	if err == nil {
		cluster, spec, err = p.prepare(ctx, op)
	}
	switch {
	case ctx.Err() != nil:
		return 0 // interrupted: the next server resumes
	case err != nil:
		log.Error(err, "the operation could not begin; it is tried again")
		return runRetry
	case cluster == nil:
		return 0
	}
	return p.run(ctx, cluster, op, spec)
}

// prepare returns the Cluster of an Operation as it is now, and the result of target, if the
// Operation is to run. The Cluster is nil if the Operation is paused, canceled or has ended.
// prepare ends an Operation that is canceled, or that cannot run, with the reason in its status.
// For an Operation that spec.paused pauses it records the phase Paused.
func (p *Provisioner) prepare(ctx context.Context, op *lifecyclev1alpha1.Operation) (*clusterv1alpha1.Cluster, *clusterv1alpha1.Provision, error) {
	switch {
	case !lifecycle.Unfinished(op):
		return nil, nil, nil
	case op.Spec.Canceled:
		return nil, nil, p.end(ctx, op, lifecyclev1alpha1.PhaseCanceled, "canceled; what was done stays")
	case op.Spec.Paused && op.Status.Phase == lifecyclev1alpha1.PhasePaused:
		return nil, nil, nil
	case op.Spec.Paused:
		op.Status.Phase, op.Status.Message = lifecyclev1alpha1.PhasePaused, "it can be resumed"
		return nil, nil, p.store.Record(ctx, op)
	}
	cluster := &clusterv1alpha1.Cluster{}
	err := p.store.Client.Get(ctx, client.ObjectKey{Name: op.Spec.Cluster}, cluster)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, p.end(ctx, op, lifecyclev1alpha1.PhaseFailed,
			fmt.Sprintf("spec.cluster: there is no Cluster %s; create it first, with spec.provision", op.Spec.Cluster))
	case err != nil:
		return nil, nil, fmt.Errorf("get cluster %s: %w", op.Spec.Cluster, err)
	}
	spec, err := p.target(ctx, cluster, op)
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return nil, nil, p.end(ctx, op, refused.phase, refused.Error())
	case err != nil:
		return nil, nil, err
	}
	return cluster, spec, nil
}

// refusal is an error that says why an Operation does not run. It ends the Operation with the
// phase, Failed or Canceled. After other errors the Operation is tried again.
type refusal struct {
	error
	phase lifecyclev1alpha1.Phase
}

// refuse returns a *refusal with a formatted message that ends the Operation as failed.
func refuse(format string, args ...any) error { return failed(fmt.Errorf(format, args...)) }

// failed returns a *refusal that ends the Operation as failed.
func failed(err error) error { return &refusal{err, lifecyclev1alpha1.PhaseFailed} }

// target returns the spec, with defaults, that a run of an Operation applies to the hosts or
// undoes. It returns a *refusal if the Operation cannot run. Another error means that the state of
// the cluster cannot be loaded.
func (p *Provisioner) target(ctx context.Context, o *clusterv1alpha1.Cluster, op *lifecyclev1alpha1.Operation) (*clusterv1alpha1.Provision, error) {
	if o.Spec.Provision == nil {
		return nil, refuse("Cluster %s has no spec.provision: it was not built from here", o.Name)
	}
	state, err := p.store.Load(ctx, o.Name)
	if err != nil {
		return nil, err
	}
	specs, leaving, begun := state.Intent(), !o.DeletionTimestamp.IsZero(), op.Status.Attempt > 0
	switch op.Spec.Action {
	case lifecyclev1alpha1.ActionDelete:
		if !leaving || o.Spec.Provision.DeletionPolicy != clusterv1alpha1.DeletionDelete {
			return nil, refuse("spec.action Delete: delete the Cluster instead, with spec.provision.deletionPolicy Delete")
		}
		spec := specs.Everything()
		if spec == nil {
			return nil, refuse("nothing was done on the hosts of cluster %s, so there is nothing to undo", o.Name)
		}
		return spec, nil
	case lifecyclev1alpha1.ActionDeleteNode:
		if back := listed(desired(o), op.Spec.NamedHosts()); !begun && len(back) > 0 {
			return nil, &refusal{fmt.Errorf("nothing was done: spec.provision of Cluster %s has %s; to take a host out, remove it from spec.provision",
				o.Name, strings.Join(back, ", ")), lifecyclev1alpha1.PhaseCanceled}
		}
		spec, err := specs.Without(o.Name, op.Spec.NamedHosts(), begun)
		if err != nil {
			return nil, failed(err)
		}
		return spec, nil
	case lifecyclev1alpha1.ActionCreate, lifecyclev1alpha1.ActionApply, lifecyclev1alpha1.ActionAddNode, lifecyclev1alpha1.ActionRenewCertificates:
	}
	want := desired(o)
	switch gone, half := specs.Lost(want); {
	case leaving:
		return nil, refuse("Cluster %s is being deleted", o.Name)
	case op.Spec.Action == lifecyclev1alpha1.ActionRenewCertificates:
		// Renew the certificates of the applied spec, with the logins of the present spec.
		spec, _, err := specs.Take(o.Name, op, want)
		if err != nil {
			return nil, failed(err)
		}
		return spec, nil
	case len(gone) > 0:
		return nil, refuse("spec.provision of Cluster %s has no %s, which the cluster has: hosts are taken out by an Operation with action DeleteNode",
			o.Name, strings.Join(gone, ", "))
	case specs.Applied == nil && len(half) > 0 && !begun: // an Operation that has begun keeps its spec
		return nil, failed(lostBeforeBuilt(o.Name, half))
	case want.Join == clusterv1alpha1.Pull && !joinedByAgent(o):
		if err := p.reachable(ctx); err != nil {
			return nil, failed(err)
		}
	}
	return want, nil
}

// listed returns those of the hosts that a spec has.
func listed(spec *clusterv1alpha1.Provision, hosts []string) []string {
	return slices.DeleteFunc(slices.Clone(hosts), func(name string) bool { return !intent.Has(spec.Hosts, name) })
}

// run runs an Operation until the run ends, and creates Events and metrics for it. spec is the
// result of target.
//
// It returns the delay after which the Operations of the cluster must be reconciled again. This is
// runRetry if the Operation could not be run or recorded, else 0. If ctx ends, the run is
// interrupted and returns 0. A later run, of this or another server, resumes the Operation.
func (p *Provisioner) run(ctx context.Context, o *clusterv1alpha1.Cluster, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) (again time.Duration) {
	log := ctrl.LoggerFrom(ctx).WithValues("cluster", o.Name, "operation", op.Name)
	ctx = ctrl.LoggerInto(ctx, log)
	began, done := time.Now(), metrics.begin()
	defer done()
	reporter := newEventReporter(p.recorder, o, op)
	reporter.began()
	env := environment{
		reportingStore: reportingStore{Store: p.store, report: reporter.record}, credentials: credentials{reader: p.store.Client, cluster: o.Name}, hub: p,
	}
	err := p.options.Engine(o.Name, env).Run(ctx, op, spec)
	if ctx.Err() != nil {
		return 0 // interrupted: the next server resumes
	}
	now, e := p.store.Operation(ctx, op.Name)
	if e != nil {
		log.Error(errors.Join(err, e), "the end of an operation is not known")
		return runRetry
	}
	if lifecycle.Unfinished(now) && !errors.Is(err, lifecycle.ErrPaused) {
		log.Error(err, "the operation could not be run or recorded; it is tried again")
		return runRetry
	}
	reporter.ended(now)
	metrics.end(now, time.Since(began))
	return 0
}

// built joins a built cluster, or renews the hub's credentials for a cluster that has joined. It
// uses the administrator's kubeconfig. While the cluster cannot be reached it retries, for at most
// joinPatience.
func (p *Provisioner) built(ctx context.Context, cluster string, kubeconfig []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, joinPatience, fmt.Errorf("it did not join within %s", joinPatience))
	defer cancel()
	for {
		_, err := member.Join(ctx, p.store.Client, member.JoinOptions{Name: cluster, Kubeconfig: kubeconfig, HubID: p.options.HubID})
		refused, ok := errors.AsType[*member.JoinError](err)
		passing := apierrors.IsConflict(err) || ok && (refused.Reason == clusterv1alpha1.ReasonUnreachable || refused.Reason == member.ReasonNotConfirmed)
		if err == nil || !passing {
			return joinError(err)
		}
		select {
		case <-ctx.Done():
			return joinError(errors.Join(err, context.Cause(ctx)))
		case <-time.After(joinRetry):
		}
	}
}

// joinError returns err with a text which says that the cluster is built but does not join. It
// returns nil for nil.
func joinError(err error) error {
	if err != nil {
		return fmt.Errorf("the cluster is built but does not join the hub: %w", err)
	}
	return nil
}

// end records that an Operation has ended without a run, with this phase and message. It changes
// and stores the status of op, with the condition Succeeded False. It also counts the Operation and
// creates an Event.
func (p *Provisioner) end(ctx context.Context, op *lifecyclev1alpha1.Operation, phase lifecyclev1alpha1.Phase, message string) error {
	op.Status.Phase, op.Status.Message = phase, message
	now := metav1.NowMicro()
	op.Status.Finished = &now
	meta.SetStatusCondition(&op.Status.Conditions, metav1.Condition{
		Type: lifecyclev1alpha1.ConditionSucceeded, Status: metav1.ConditionFalse, Reason: string(phase), Message: message,
		ObservedGeneration: op.Generation,
	})
	if err := p.store.Record(ctx, op); err != nil {
		return err
	}
	metrics.end(op, 0)
	p.recorder.Eventf(op, nil, eventType(phase), "Operation"+string(phase), string(op.Spec.Action), "%s", message)
	return nil
}

// prune deletes those of ops that lifecycle.Outdated returns, with their logs. ops are all
// Operations of a cluster, the oldest first.
func (p *Provisioner) prune(ctx context.Context, ops []lifecyclev1alpha1.Operation) error {
	for _, op := range lifecycle.Outdated(ops) {
		if err := p.store.Client.Delete(ctx, &op); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete operation %s, which is an old one: %w", op.Name, err)
		}
		if err := p.store.removeLogs(op.Name); err != nil {
			return err
		}
	}
	return nil
}

// eventType returns the type of the Event about the end of a run: Warning for the phase Failed,
// Normal for other phases.
func eventType(phase lifecyclev1alpha1.Phase) string {
	if phase == lifecyclev1alpha1.PhaseFailed {
		return corev1.EventTypeWarning
	}
	return corev1.EventTypeNormal
}
