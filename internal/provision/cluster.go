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
	// hashAnnotation is an annotation of Operations that the hub creates, with the hash of the spec
	// that they apply. It is "" if they delete the cluster or renew certificates. Operations of users
	// do not have it.
	hashAnnotation = "lifecycle.orrery.dev/spec-hash"
	// firstRetry is the delay before the first retry of a failed Operation. It doubles up to
	// lastRetry.
	firstRetry = time.Minute
	// lastRetry is the longest delay before a retry of a failed Operation.
	lastRetry = 15 * time.Minute
	// soon is the delay before another look at something that changes in a moment, such as a run that
	// is ending.
	soon = time.Second
)

// Provision returns the result for the condition Provisioned of a Cluster with spec.provision, in
// the form of package reconciler. It is a Done result, which is not nil, if the hosts match the
// spec. A Waiting or Stalled result says why they do not. The caller retries after any other error.
//
// Provision creates or resumes the Operation that the Cluster requires next, and does not wait for
// it. While an Operation of the cluster is unfinished, it creates none. It sets status.provision
// and the condition CertificatesExpiring in o, and does not save them.
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
	// Ignore renewals of certificates: they do not apply the spec.
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

// operations returns the Operations of a Cluster from the cache, the oldest first. Their status has
// no steps. Operations of an earlier Cluster with the same name are left out.
func (p *Provisioner) operations(ctx context.Context, o *clusterv1alpha1.Cluster) ([]lifecyclev1alpha1.Operation, error) {
	ops, err := p.store.Operations(ctx, o.Name)
	return slices.DeleteFunc(ops, func(op lifecyclev1alpha1.Operation) bool {
		return op.CreationTimestamp.Before(&o.CreationTimestamp)
	}), err
}

// isUnfinished reports whether an Operation has not ended: it is pending, running or paused.
func isUnfinished(op lifecyclev1alpha1.Operation) bool { return lifecycle.Unfinished(&op) }

// underWay returns the result of Provision while an Operation has not ended, and that of Dismantle
// while a deletion has not ended. It is never nil. For a renewal of certificates the condition is
// True, since the hosts match the spec. Otherwise it is False with the given reason, or
// ReasonPaused if the Operation is paused.
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

// arrived returns the result of Provision if the hosts match the spec, and stores in p.settled that
// they do. last is the last Operation that is no renewal, or nil. If a user created last and it
// failed, arrived returns a Stalled result instead and stores nothing.
func (p *Provisioner) arrived(o *clusterv1alpha1.Cluster, hash string, last *lifecyclev1alpha1.Operation, certificates []pki.Expiry) error {
	if last != nil && last.Status.Phase == lifecyclev1alpha1.PhaseFailed && last.Annotations[hashAnnotation] == "" {
		return reconciler.Stalled(clusterv1alpha1.ReasonOperationFailed, "operation %s (%s) failed: %s; correct what is wrong and create another, or delete it",
			last.Name, last.Spec.Action, last.Status.Message)
	}
	p.settle(o.Name, &settled{hash: hash, certificates: certificates})
	return reconciler.Done(clusterv1alpha1.ReasonProvisioned, "")
}

// next creates the Operation for a change of the hosts, and returns the result of Provision. hash
// is that of the spec. last is the last Operation that is no renewal, or nil.
//
// If last was for the same change and failed, next returns a Waiting result until the retry is due,
// and then resumes last. If a user canceled last, the result is Stalled. If last succeeded, next
// creates another Operation after the same delay.
func (p *Provisioner) next(ctx context.Context, o *clusterv1alpha1.Cluster, next *intent.Change, hash string, last *lifecyclev1alpha1.Operation) error {
	if last == nil || last.Annotations[hashAnnotation] != hash || last.Spec.Action != next.Action || !slices.Equal(last.Spec.NamedHosts(), next.Hosts) {
		return p.create(ctx, o, changing(o.Name, next), hash, clusterv1alpha1.ReasonProvisioning)
	}
	switch {
	case last.Status.Phase == lifecyclev1alpha1.PhaseCanceled && last.Spec.Canceled:
		return reconciler.Stalled(clusterv1alpha1.ReasonCanceled, "operation %s (%s) was canceled: delete it, or change spec.provision, to go on", last.Name, last.Spec.Action)
	case last.Status.Phase == lifecyclev1alpha1.PhaseFailed:
		return p.retry(ctx, last, clusterv1alpha1.ReasonProvisioning, "delete it to start anew at once")
	}
	// The last Operation succeeded, or was overtaken by a change of the Cluster before it began,
	// but the same change is required again. The cache is behind, or somebody has changed the
	// Cluster back.
	if at := due(last); time.Now().Before(at) {
		return reconciler.Waiting(clusterv1alpha1.ReasonProvisioning, time.Until(at), "operation %s (%s) has ended; looking what is left to do", last.Name, last.Spec.Action)
	}
	return p.create(ctx, o, changing(o.Name, next), hash, clusterv1alpha1.ReasonProvisioning)
}

// changing returns the spec of the Operation for a change, with the default rollout to the hosts.
func changing(cluster string, change *intent.Change) *lifecyclev1alpha1.OperationSpec {
	spec := &lifecyclev1alpha1.OperationSpec{Cluster: cluster, Action: change.Action}
	if len(change.Hosts) > 0 {
		spec.SetMember(change.Hosts, "", lifecyclev1alpha1.Rollout{})
	}
	return spec
}

// create creates an Operation with this spec and the hashAnnotation, and sets its name in the
// status of o. It returns the result of underWay for it with the given reason. If the cache lacks a
// new Operation of the cluster, the result is Waiting. o.Status.Provision must be set.
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

// retry resumes the failed Operation last when its delay is over, and returns the result of
// underWay for it with the given reason. Before that, it returns a Waiting result. wayOut says at
// the end of the message what the user can do meanwhile.
func (p *Provisioner) retry(ctx context.Context, last *lifecyclev1alpha1.Operation, reason, wayOut string) error {
	if at := due(last); time.Now().Before(at) {
		return reconciler.Waiting(clusterv1alpha1.ReasonOperationFailed, time.Until(at), "operation %s (%s) failed: %s; it goes on where it was at %s; %s",
			last.Name, last.Spec.Action, last.Status.Message, at.UTC().Format(time.TimeOnly+" MST"), wayOut)
	}
	return p.resume(ctx, last, reason)
}

// resume sets the phase of the failed Operation last to Pending, so that the controller runs it
// again. It returns the result of underWay for it with the given reason. If the stored phase is no
// longer Failed, it changes nothing. The update fails if another client has just changed the
// Operation.
func (p *Provisioner) resume(ctx context.Context, last *lifecyclev1alpha1.Operation, reason string) error {
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

// due returns when the change of an ended Operation may be tried again. This is its end plus a
// delay that doubles with each attempt, from firstRetry up to lastRetry. It is the zero time if the
// Operation has not ended.
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

// settled describes a cluster whose hosts are known to match its spec. Provision then does not load
// the state of the cluster.
type settled struct {
	// hash of the spec that the hosts match.
	hash string
	// certificates are the expiries of the certificates on the hosts, the earliest first.
	certificates []pki.Expiry
}

// settle stores in p.settled that the hosts of a cluster match the spec. nil deletes this
// knowledge, because an Operation begins or the Cluster is deleted. It takes p.mu.
func (p *Provisioner) settle(cluster string, known *settled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known == nil {
		delete(p.settled, cluster)
	} else {
		p.settled[cluster] = *known
	}
}

// joined reports whether the Cluster has joined the hub, or its agent was installed so that it will
// join.
func joined(o *clusterv1alpha1.Cluster) bool {
	return o.Spec.APIEndpoint != "" || o.Spec.SyncMode == clusterv1alpha1.Pull
}

// isSettled reports whether the hosts are known to match the spec with this hash, and the Cluster
// has joined. certificates are those that settle has stored, also if ok is false; they may then be
// those of another spec, or nil. It takes p.mu.
func (p *Provisioner) isSettled(o *clusterv1alpha1.Cluster, hash string) (certificates []pki.Expiry, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.settled[o.Name]
	return known.certificates, ok && joined(o) && known.hash == hash
}

// Dismantle is called for a Cluster that is being deleted, after everything else is cleaned up. It
// is called until it returns nil, and does not block. It returns nil at once for a Cluster without
// spec.provision or without stored state.
//
// Dismantle cancels an unfinished Operation, unless that undoes the hosts as wanted. It returns a
// result in the form of package reconciler until no run works on the hosts.
//
// If spec.provision.deletionPolicy is Delete, it then creates an Operation that undoes the hosts.
// It retries that Operation if it fails, and returns nil when the stored state is removed. With
// another policy the hosts and the stored keys stay: Dismantle creates an Event and returns nil.
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
		return p.store.Remove(ctx, state) // the state has only keys that were never used
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

// await returns the result of Dismantle while an Operation has not ended, and does not block. It
// cancels the Operation, unless the hosts are to be undone (undo) and the Operation does that. The
// result is always Waiting, also for a renewal of certificates.
func (p *Provisioner) await(ctx context.Context, op *lifecyclev1alpha1.Operation, undo bool) error {
	if op.Spec.Action == lifecyclev1alpha1.ActionDelete && undo {
		return underWay(op, clusterv1alpha1.ReasonUndoingHosts)
	}
	if !op.Spec.Canceled {
		err := p.store.Control(ctx, op.Name, func(s *lifecyclev1alpha1.OperationSpec) { s.Canceled = true })
		if err != nil {
			return err
		}
	}
	return reconciler.Waiting(clusterv1alpha1.ReasonUndoingHosts, 0, "operation %s (%s) was canceled, because the cluster is being deleted, and is ending", op.Name, op.Spec.Action)
}
