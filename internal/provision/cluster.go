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
	// hashAnnotation, on Operations that the hub creates, is the hash of the spec that they apply.
	hashAnnotation = "lifecycle.orrery.dev/spec-hash"
	// firstRetry is the delay before the first retry of a failed Operation. It doubles up to
	// lastRetry.
	firstRetry = time.Minute
	lastRetry  = 15 * time.Minute
	// soon is the delay before a check of something that another controller is about to change.
	soon = time.Second
)

// Provision sets the condition Provisioned. It creates or resumes the Operation that is needed
// next, and reports the progress.
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
	// A renewal changes nothing else, so it says nothing about the spec.
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
	// Certificates are renewed before a failed Operation is retried, since they may be the cause.
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

// operations returns the Operations of a Cluster, the oldest first, without those of an earlier
// Cluster of the same name.
func (p *Provisioner) operations(ctx context.Context, o *clusterv1alpha1.Cluster) ([]lifecyclev1alpha1.Operation, error) {
	ops, err := p.store.Operations(ctx, o.Name)
	return slices.DeleteFunc(ops, func(op lifecyclev1alpha1.Operation) bool {
		return op.CreationTimestamp.Before(&o.CreationTimestamp)
	}), err
}

func isUnfinished(op lifecyclev1alpha1.Operation) bool { return lifecycle.Unfinished(&op) }

// underWay returns the result for an Operation that has not ended.
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

// arrived returns the result when the hosts match the spec. An Operation of a user may have failed
// nevertheless.
func (p *Provisioner) arrived(o *clusterv1alpha1.Cluster, hash string, last *lifecyclev1alpha1.Operation, certificates []pki.Expiry) error {
	if last != nil && last.Status.Phase == lifecyclev1alpha1.PhaseFailed && last.Annotations[hashAnnotation] == "" {
		return reconciler.Stalled(clusterv1alpha1.ReasonOperationFailed, "operation %s (%s) failed: %s; correct what is wrong and create another, or delete it",
			last.Name, last.Spec.Action, last.Status.Message)
	}
	p.settle(o.Name, &settled{hash: hash, certificates: certificates})
	return reconciler.Done(clusterv1alpha1.ReasonProvisioned, "")
}

// next creates the Operation for a change. If the same change has failed, next waits and then
// retries.
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
	// It succeeded, but the same change is needed. The cache is behind, or somebody changed the
	// Cluster back.
	if at := due(last); time.Now().Before(at) {
		return reconciler.Waiting(clusterv1alpha1.ReasonProvisioning, time.Until(at), "operation %s (%s) has ended; looking what is left to do", last.Name, last.Spec.Action)
	}
	return p.create(ctx, o, changing(o.Name, next), hash, clusterv1alpha1.ReasonProvisioning)
}

// changing returns the spec of the Operation for a change.
func changing(cluster string, change *intent.Change) *lifecyclev1alpha1.OperationSpec {
	spec := &lifecyclev1alpha1.OperationSpec{Cluster: cluster, Action: change.Action}
	if len(change.Hosts) > 0 {
		spec.SetMember(change.Hosts, "", lifecyclev1alpha1.Rollout{})
	}
	return spec
}

// create creates an Operation.
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

// retry resumes a failed Operation when its delay is over. reason is that of the condition then.
func (p *Provisioner) retry(ctx context.Context, last *lifecyclev1alpha1.Operation, reason, wayOut string) error {
	if at := due(last); time.Now().Before(at) {
		return reconciler.Waiting(clusterv1alpha1.ReasonOperationFailed, time.Until(at), "operation %s (%s) failed: %s; it goes on where it was at %s; %s",
			last.Name, last.Spec.Action, last.Status.Message, at.UTC().Format(time.TimeOnly+" MST"), wayOut)
	}
	return p.resume(ctx, last, reason)
}

// resume sets a failed Operation to pending, so that it runs again.
func (p *Provisioner) resume(ctx context.Context, last *lifecyclev1alpha1.Operation, reason string) error {
	// The update fails if somebody else has changed the Operation.
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

// due returns when a change is tried again that the Operation made or failed to make.
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

// settled describes a cluster whose hosts match its spec.
type settled struct {
	// hash of the spec.
	hash string
	// certificates that the hosts use.
	certificates []pki.Expiry
}

// settle stores that the hosts match the spec. A nil value deletes this record.
func (p *Provisioner) settle(cluster string, known *settled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known == nil {
		delete(p.settled, cluster)
	} else {
		p.settled[cluster] = *known
	}
}

// joined reports whether the Cluster has joined, or its agent has everything it needs to join.
func joined(o *clusterv1alpha1.Cluster) bool {
	return o.Spec.APIEndpoint != "" || o.Spec.SyncMode == clusterv1alpha1.Pull
}

// isSettled reports whether the hosts match the spec with this hash, and returns their
// certificates.
func (p *Provisioner) isSettled(o *clusterv1alpha1.Cluster, hash string) (certificates []pki.Expiry, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.settled[o.Name]
	return known.certificates, ok && joined(o) && known.hash == hash
}

// Dismantle is called for a Cluster that is being deleted, after all else is cleaned up. It waits
// until no run works on its hosts. If spec.provision.deletionPolicy is Delete, it waits until its
// hosts are undone. It returns nil at once for a Cluster without spec.provision.
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

// await waits until an Operation has ended. It cancels the Operation, unless that undoes the hosts
// as wanted.
func (p *Provisioner) await(ctx context.Context, op *lifecyclev1alpha1.Operation, undo bool) error {
	if (op.Spec.Action != lifecyclev1alpha1.ActionDelete || !undo) && !op.Spec.Canceled {
		err := p.store.Control(ctx, op.Name, func(s *lifecyclev1alpha1.OperationSpec) { s.Canceled = true })
		if err != nil {
			return err
		}
	}
	return underWay(op, clusterv1alpha1.ReasonUndoingHosts)
}
