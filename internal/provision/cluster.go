package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/reconciler"
)

const (
	// hashAnnotation is on the Operations that are made here: the hash of the spec that they bring nearer.
	hashAnnotation = "lifecycle.orrery.dev/spec-hash"
	// firstRetry is the time from the first failure of an Operation until it is tried again, which doubles up to lastRetry.
	firstRetry = time.Minute
	lastRetry  = 15 * time.Minute
	// soon is the time until something is looked at again that another controller is about to change.
	soon = time.Second
)

// Provision is the step of the condition Provisioned: it has what is missing done, and says how that goes.
func (p *Provisioner) Provision(ctx context.Context, o *clusterv1alpha1.Cluster) error {
	ops, err := p.operations(ctx, o)
	if err != nil {
		return err
	}
	if o.Status.Provision == nil {
		o.Status.Provision = &clusterv1alpha1.ProvisionStatus{}
	}
	if len(ops) > 0 {
		o.Status.Provision.Operation = ops[len(ops)-1].Name
	}
	if i := slices.IndexFunc(ops, isUnfinished); i >= 0 {
		return underWay(&ops[i], clusterv1alpha1.ReasonProvisioning)
	}
	// What is renewed is as it was otherwise, so it says nothing about the rest.
	var last *lifecyclev1alpha1.Operation
	if others := slices.DeleteFunc(slices.Clone(ops), isRenewal); len(others) > 0 {
		last = &others[len(others)-1]
	}
	want := desired(o)
	hash, err := hashOf(want)
	if err != nil {
		return err
	}
	known, ok := p.isSettled(o, hash)
	ok = ok && (last == nil || last.Status.Phase == lifecyclev1alpha1.PhaseSucceeded)
	if ok && !p.certificates(o, known, ops) {
		return reconciler.Done(clusterv1alpha1.ReasonProvisioned, "")
	}
	state, err := p.store.Load(ctx, o.Name)
	if err != nil {
		return err
	}
	if err := describe(o.Status.Provision, state); err != nil {
		return err
	}
	// Certificates are renewed before what failed goes on, for it may fail because of them.
	if known = state.Certificates(); p.certificates(o, known, ops) {
		return p.renew(ctx, o, ops)
	}
	next, err := decide(o, want, state.Intent())
	if invalid, ok := errors.AsType[*intent.InvalidError](err); ok {
		return reconciler.Stalled(clusterv1alpha1.ReasonInvalid, "%s", invalid.Error())
	}
	if err != nil {
		return err
	}
	if next == nil {
		return p.arrived(o, hash, last, known)
	}
	return p.next(ctx, o, next, hash, last)
}

// operations are those of a Cluster, oldest first. What an earlier Cluster of the same name did is not its.
func (p *Provisioner) operations(ctx context.Context, o *clusterv1alpha1.Cluster) ([]lifecyclev1alpha1.Operation, error) {
	ops, err := p.store.Operations(ctx, o.Name)
	return slices.DeleteFunc(ops, func(op lifecyclev1alpha1.Operation) bool {
		return op.CreationTimestamp.Before(&o.CreationTimestamp)
	}), err
}

func isUnfinished(op lifecyclev1alpha1.Operation) bool { return lifecycle.Unfinished(&op) }

// underWay says that an Operation has not ended.
func underWay(op *lifecyclev1alpha1.Operation, reason string) error {
	if isRenewal(*op) && !op.Spec.Paused {
		return reconciler.Done(clusterv1alpha1.ReasonProvisioned, "operation %s renews certificates", op.Name)
	}
	if op.Spec.Paused {
		return reconciler.Waiting(clusterv1alpha1.ReasonPaused, 0, "operation %s (%s) is paused: set its spec.paused to false to go on, or spec.canceled to true to end it",
			op.Name, op.Spec.Action)
	}
	return reconciler.Waiting(reason, 0, "operation %s (%s) is under way", op.Name, op.Spec.Action)
}

// arrived says that the hosts are as the spec says. An Operation that a user made may have failed nevertheless.
func (p *Provisioner) arrived(o *clusterv1alpha1.Cluster, hash string, last *lifecyclev1alpha1.Operation, certificates []pki.Expiry) error {
	if last != nil && last.Status.Phase == lifecyclev1alpha1.PhaseFailed && last.Annotations[hashAnnotation] == "" {
		return reconciler.Stalled(clusterv1alpha1.ReasonOperationFailed, "operation %s (%s) failed: %s; correct what is wrong and create another, or delete it",
			last.Name, last.Spec.Action, last.Status.Message)
	}
	p.settle(o.Name, &settled{hash: hash, certificates: certificates})
	return reconciler.Done(clusterv1alpha1.ReasonProvisioned, "")
}

// next has something done, unless that failed a moment ago.
func (p *Provisioner) next(ctx context.Context, o *clusterv1alpha1.Cluster, next *intent.Change, hash string, last *lifecyclev1alpha1.Operation) error {
	if last == nil || last.Annotations[hashAnnotation] != hash || last.Spec.Action != next.Action || !slices.Equal(last.Spec.NamedHosts(), next.Hosts) {
		return p.create(ctx, o, changing(o.Name, next), hash, clusterv1alpha1.ReasonProvisioning)
	}
	switch last.Status.Phase {
	case lifecyclev1alpha1.PhaseCanceled:
		return reconciler.Stalled(clusterv1alpha1.ReasonCanceled, "operation %s (%s) was canceled: delete it, or change spec.provision, to go on", last.Name, last.Spec.Action)
	case lifecyclev1alpha1.PhaseFailed:
		return p.retry(ctx, last, clusterv1alpha1.ReasonProvisioning, "delete it to start anew at once")
	case lifecyclev1alpha1.PhaseSucceeded, lifecyclev1alpha1.PhasePending, lifecyclev1alpha1.PhaseRunning, lifecyclev1alpha1.PhasePaused:
	}
	// It succeeded, and yet the same is to be done: our cache is behind, or somebody has changed the Cluster back.
	if at := due(last); time.Now().Before(at) {
		return reconciler.Waiting(clusterv1alpha1.ReasonProvisioning, time.Until(at), "operation %s (%s) has ended; looking what is left to do", last.Name, last.Spec.Action)
	}
	return p.create(ctx, o, changing(o.Name, next), hash, clusterv1alpha1.ReasonProvisioning)
}

// changing is the Operation that makes a change.
func changing(cluster string, change *intent.Change) *lifecyclev1alpha1.OperationSpec {
	spec := &lifecyclev1alpha1.OperationSpec{Cluster: cluster, Action: change.Action}
	if len(change.Hosts) > 0 {
		spec.SetMember(change.Hosts, "", lifecyclev1alpha1.Rollout{})
	}
	return spec
}

// create makes an Operation.
func (p *Provisioner) create(ctx context.Context, o *clusterv1alpha1.Cluster, spec *lifecyclev1alpha1.OperationSpec, hash, reason string) error {
	op := &lifecyclev1alpha1.Operation{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{hashAnnotation: hash}},
		Spec:       *spec,
	}
	err := p.store.Create(ctx, op)
	if apierrors.IsAlreadyExists(err) {
		return reconciler.Waiting(reason, soon, "an operation was just made")
	}
	if err != nil {
		return err
	}
	o.Status.Provision.Operation = op.Name
	return underWay(op, reason)
}

// retry has a failed Operation run again when it is time; reason is that of the condition when it does.
func (p *Provisioner) retry(ctx context.Context, last *lifecyclev1alpha1.Operation, reason, wayOut string) error {
	if at := due(last); time.Now().Before(at) {
		return reconciler.Waiting(clusterv1alpha1.ReasonOperationFailed, time.Until(at), "operation %s (%s) failed: %s; it goes on where it was at %s; %s",
			last.Name, last.Spec.Action, last.Status.Message, at.UTC().Format(time.TimeOnly+" MST"), wayOut)
	}
	return p.resume(ctx, last, reason)
}

// resume has a failed Operation run again.
func (p *Provisioner) resume(ctx context.Context, last *lifecyclev1alpha1.Operation, reason string) error {
	// Written only if it still is as we know it.
	op, err := p.store.Operation(ctx, last.Name)
	if err != nil {
		return err
	}
	if op.Status.Phase == lifecyclev1alpha1.PhaseFailed {
		op.Status.Phase, op.Status.Message = lifecyclev1alpha1.PhasePending, "it failed and is tried again"
		if err := p.store.Client.Status().Update(ctx, op); err != nil {
			return fmt.Errorf("resume operation %s: %w", op.Name, err)
		}
	}
	return underWay(op, reason)
}

// due is when that which an Operation was to do is tried again.
func due(last *lifecyclev1alpha1.Operation) time.Time {
	if last.Status.Finished == nil {
		return time.Time{}
	}
	wait := firstRetry
	for i := int32(1); i < last.Status.Attempt && wait < lastRetry; i++ {
		wait *= 2
	}
	return last.Status.Finished.Add(min(wait, lastRetry))
}

// settled is what is known of a cluster whose hosts are as its spec says.
type settled struct {
	// hash of the spec.
	hash string
	// certificates that the hosts have.
	certificates []pki.Expiry
}

// settle remembers what is known of a cluster; nil forgets it.
func (p *Provisioner) settle(cluster string, known *settled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known == nil {
		delete(p.settled, cluster)
	} else {
		p.settled[cluster] = *known
	}
}

// joined is true of a Cluster that has joined, or whose agent has all that it needs for that.
func joined(o *clusterv1alpha1.Cluster) bool {
	return o.Spec.APIEndpoint != "" || o.Spec.SyncMode == clusterv1alpha1.Pull
}

// isSettled reports whether the hosts are known to be as a spec with this hash says, and then which certificates they have.
func (p *Provisioner) isSettled(o *clusterv1alpha1.Cluster, hash string) (certificates []pki.Expiry, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.settled[o.Name]
	return known.certificates, ok && joined(o) && known.hash == hash
}

// Dismantle is what a Cluster that is being deleted, and in which nothing is left to clean up, waits for: that no run works on
// its hosts and, if spec.provision.deletionPolicy says so, that what was done on them is undone. A Cluster that was joined as
// it is waits for nothing.
func (p *Provisioner) Dismantle(ctx context.Context, o *clusterv1alpha1.Cluster) error {
	if o.Spec.Provision == nil {
		return nil
	}
	ops, err := p.operations(ctx, o)
	if err != nil {
		return err
	}
	undo := o.Spec.Provision.DeletionPolicy == clusterv1alpha1.DeletionDelete
	if i := slices.IndexFunc(ops, isUnfinished); i >= 0 {
		return p.await(ctx, &ops[i], undo)
	}
	if p.runs.operation(o.Name) != "" {
		return reconciler.Waiting(clusterv1alpha1.ReasonUndoingHosts, soon, "a run is ending")
	}
	p.settle(o.Name, nil)
	metrics.forget(o.Name)
	state, err := p.store.Load(ctx, o.Name)
	if err != nil || state == nil {
		return err
	}
	if !undo {
		p.recorder.Eventf(o, nil, corev1.EventTypeNormal, "HostsLeft", "Unjoin", "the hosts stay as they are; the cluster's keys stay in Secret %s/%s, and those of each host beside it",
			clusterv1alpha1.SecretNamespace, objectName(o.Name))
		return nil
	}
	if state.Everything() == nil {
		return p.store.Remove(ctx, state) // keys that were never used
	}
	if n := len(ops); n > 0 && ops[n-1].Spec.Action == lifecyclev1alpha1.ActionDelete {
		switch last := &ops[n-1]; last.Status.Phase {
		case lifecyclev1alpha1.PhaseFailed:
			return p.retry(ctx, last, clusterv1alpha1.ReasonUndoingHosts,
				"to leave the hosts as they are set spec.provision.deletionPolicy to Orphan; for hosts that are gone for good create an Operation with action Delete and delete.unreachable Forget")
		case lifecyclev1alpha1.PhaseCanceled:
			return reconciler.Waiting(clusterv1alpha1.ReasonCanceled, 0,
				"operation %s (Delete) was canceled: delete it to go on, or set spec.provision.deletionPolicy to Orphan", last.Name)
		case lifecyclev1alpha1.PhaseSucceeded, lifecyclev1alpha1.PhasePending, lifecyclev1alpha1.PhaseRunning, lifecyclev1alpha1.PhasePaused:
		}
	}
	if o.Status.Provision == nil {
		o.Status.Provision = &clusterv1alpha1.ProvisionStatus{}
	}
	return p.create(ctx, o, &lifecyclev1alpha1.OperationSpec{Cluster: o.Name, Action: lifecyclev1alpha1.ActionDelete}, "", clusterv1alpha1.ReasonUndoingHosts)
}

// await waits until an Operation has ended. All but one that undoes the hosts are ended for that.
func (p *Provisioner) await(ctx context.Context, op *lifecyclev1alpha1.Operation, undo bool) error {
	if (op.Spec.Action != lifecyclev1alpha1.ActionDelete || !undo) && !op.Spec.Canceled {
		err := p.store.Control(ctx, op.Name, func(s *lifecyclev1alpha1.OperationSpec) { s.Canceled = true })
		if err != nil {
			return err
		}
	}
	return underWay(op, clusterv1alpha1.ReasonUndoingHosts)
}
