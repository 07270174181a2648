// Package reconciler has the loop that every controller of Orrery uses. A list of steps brings
// an object to its desired state, and each step sets one condition. The loop writes the
// object's status once, and only if it changed.
package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// Object is an object of the hub that a Loop can reconcile.
type Object interface{ client.Object }

// Loop is a reconcile.Reconciler for objects of one kind; T is the pointer to its Go type. For each
// object it runs a list of steps, sets one condition for each, and writes the status if it changed.
// Its fields Client and Conditions are required, and Finalize if Finalizer is set. Reconcile does
// not change a Loop.
type Loop[T Object] struct {
	// Client reads and writes the objects.
	Client client.Client
	// Ready is the type of the condition that summarizes those of the steps; "" means the type Ready.
	Ready string
	// Finalizer is added to every object, and removed from a deleted object when Finalize has
	// succeeded. "": the objects have none.
	Finalizer string
	// Finalize undoes the work of the steps for an object that is being deleted. While it returns an
	// error, the finalizer stays, and the condition Ready says why.
	Finalize func(ctx context.Context, o T) error
	// Steps run in order. After a step whose condition is not True, the following steps do not
	// run, unless that step is NonBlocking.
	Steps []Step[T]
	// Conditions returns a pointer to the list of an object's conditions.
	Conditions func(o T) *[]metav1.Condition
}

// Step is a part of the work on an object, with a condition that says whether it is done. A Loop
// runs its steps in order.
type Step[T Object] struct {
	// Condition is the type of the condition that the step sets.
	Condition string
	// Run does the work. It may change the status of the object but does not write it. Its error
	// determines the condition: nil means True; results of Stalled, Waiting, Unknown and Done say what
	// they mean. Any other error means False with ReasonError and a retry with backoff. After a
	// conflict, and after the end of ctx, nothing is written and no further step runs.
	Run func(ctx context.Context, o T) error
	// Warnings are types of further conditions that Run sets by itself. The condition Ready ignores
	// them.
	Warnings []string
	// NonBlocking means that the following steps also run if this step's condition is not True.
	NonBlocking bool
	// Applies reports whether the step is for this object. If it is not, Run is not called, and the
	// step's conditions are removed. nil: the step is for all objects.
	Applies func(o T) bool
}

// New returns a new, empty object of the type that the pointer type T points to.
func New[T Object]() T {
	var zero T
	o, _ := reflect.TypeAssert[T](reflect.New(reflect.TypeOf(zero).Elem()))
	return o
}

// Reconcile implements reconcile.Reconciler. An object that does not exist any more is no error.
// After a conflict the result is no error either: the object is reconciled again after
// conflictDelay.
func (l *Loop[T]) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o := New[T]()
	if err := l.Client.Get(ctx, req.NamespacedName, o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	result, err := l.reconcile(ctx, o)
	if apierrors.IsConflict(err) {
		// The object was read from a stale cache. An event with the newer version follows, so
		// this is neither an error nor worth a log line.
		return ctrl.Result{RequeueAfter: conflictDelay}, nil
	}
	return result, err
}

// conflictDelay is the delay before an object is reconciled again after a conflict, so that the
// cache gets the newer version: 50 ms.
const conflictDelay = 50 * time.Millisecond

// reconcile adds the finalizer to o, runs the steps and writes the status. If o is being deleted,
// it finalizes o instead. A conflict is returned as an error.
func (l *Loop[T]) reconcile(ctx context.Context, o T) (ctrl.Result, error) {
	if !o.GetDeletionTimestamp().IsZero() {
		return l.finalize(ctx, o)
	}
	if l.Finalizer != "" && !controllerutil.ContainsFinalizer(o, l.Finalizer) {
		if err := l.patchFinalizers(ctx, o, controllerutil.AddFinalizer); err != nil {
			return ctrl.Result{}, fmt.Errorf("add finalizer %s: %w", l.Finalizer, err)
		}
	}

	before := o.DeepCopyObject()
	result, err := l.run(ctx, o)
	if apierrors.IsConflict(err) || ctx.Err() != nil {
		return ctrl.Result{}, err
	}
	return result, errors.Join(err, l.writeStatus(ctx, before, o))
}

// run calls the steps of o that apply, and sets their conditions and the condition Ready in o. It
// writes nothing to the API server. The delay in the result is the shortest that a step requested;
// with errors that are retried the result is empty. After a conflict, and after the end of ctx, it
// returns the error at once and does not set Ready.
func (l *Loop[T]) run(ctx context.Context, o T) (ctrl.Result, error) {
	var (
		result ctrl.Result
		failed error
		stop   *outcome // outcome of the step after which no step runs; nil: none yet
		at     string   // condition of the step with that outcome
	)
	for _, s := range l.Steps {
		if s.Applies != nil && !s.Applies(o) {
			for _, condition := range append([]string{s.Condition}, s.Warnings...) {
				meta.RemoveStatusCondition(l.Conditions(o), condition)
			}
			continue
		}
		if stop != nil {
			l.block(ctx, o, s.Condition, at, stop.keep)
			continue
		}
		err := s.Run(ctx, o)
		if ctx.Err() != nil || apierrors.IsConflict(err) {
			return ctrl.Result{}, errors.Join(err, ctx.Err())
		}
		v := judge(s.Condition, err)
		l.set(ctx, o, v.condition(s.Condition))
		failed = errors.Join(failed, v.retry)
		if v.after > 0 && (result.RequeueAfter == 0 || v.after < result.RequeueAfter) {
			result.RequeueAfter = v.after
		}
		if v.status != metav1.ConditionTrue && !s.NonBlocking {
			stop, at = &v, s.Condition
		}
	}
	l.set(ctx, o, l.summary(o))
	if failed != nil {
		return ctrl.Result{}, failed
	}
	return result, nil
}

// block sets the condition of a step that did not run, because an earlier step's condition, at, is
// not True. It becomes Unknown with the reason WaitingForAT. If keep is true, an existing condition
// stays as it is.
func (l *Loop[T]) block(ctx context.Context, o T, condition, at string, keep bool) {
	if keep && meta.FindStatusCondition(*l.Conditions(o), condition) != nil {
		return
	}
	l.set(ctx, o, metav1.Condition{
		Type: condition, Status: metav1.ConditionUnknown,
		Reason: "WaitingFor" + at, Message: at + " must be True first",
	})
}

// summary returns the condition Ready. It repeats status, reason and message of the first step
// whose condition is not True. If there is none, Ready is True. Steps without a condition are
// ignored.
func (l *Loop[T]) summary(o T) metav1.Condition {
	for _, s := range l.Steps {
		if c := meta.FindStatusCondition(*l.Conditions(o), s.Condition); c != nil && c.Status != metav1.ConditionTrue {
			return metav1.Condition{Type: l.ready(), Status: c.Status, Reason: c.Reason, Message: c.Message}
		}
	}
	return metav1.Condition{Type: l.ready(), Status: metav1.ConditionTrue, Reason: l.ready()}
}

// ready returns the type of the condition that summarizes the others.
func (l *Loop[T]) ready() string {
	if l.Ready != "" {
		return l.Ready
	}
	return "Ready"
}

// set stores a condition in the status of o, as observed for o's generation. It logs the condition
// if its status or reason changed. It does not write to the API server.
func (l *Loop[T]) set(ctx context.Context, o T, c metav1.Condition) {
	conditions := l.Conditions(o)
	old := meta.FindStatusCondition(*conditions, c.Type)
	if old == nil || old.Status != c.Status || old.Reason != c.Reason {
		ctrl.LoggerFrom(ctx).Info("condition changed",
			"condition", c.Type, "status", c.Status, "reason", c.Reason, "message", c.Message)
	}
	SetCondition(conditions, c, o.GetGeneration())
}

// SetCondition stores c in a list of conditions, as observed for a generation of the object; that
// overwrites c.ObservedGeneration. It reports whether the list changed. The transition time changes
// only with the status.
func SetCondition(conds *[]metav1.Condition, c metav1.Condition, generation int64) (changed bool) {
	c.ObservedGeneration = generation
	return meta.SetStatusCondition(conds, c)
}

// finalize calls Finalize for an object that is being deleted, and then removes the finalizer on
// the API server. If Finalize fails, it writes the error to the condition Ready and keeps the
// finalizer. For an object without the finalizer it does nothing.
func (l *Loop[T]) finalize(ctx context.Context, o T) (ctrl.Result, error) {
	if l.Finalizer == "" || !controllerutil.ContainsFinalizer(o, l.Finalizer) {
		return ctrl.Result{}, nil
	}
	before := o.DeepCopyObject()
	err := l.Finalize(ctx, o)
	if err == nil {
		if err := l.patchFinalizers(ctx, o, controllerutil.RemoveFinalizer); client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, fmt.Errorf("remove finalizer %s: %w", l.Finalizer, err)
		}
		return ctrl.Result{}, nil
	}
	if apierrors.IsConflict(err) || ctx.Err() != nil {
		return ctrl.Result{}, err
	}
	v := judge(l.ready(), err)
	l.set(ctx, o, v.condition(l.ready()))
	return ctrl.Result{RequeueAfter: v.after}, errors.Join(v.retry, l.writeStatus(ctx, before, o))
}

// patchFinalizers writes the finalizers of o, after change has added or removed l.Finalizer in a
// copy of o. Then o gets the new finalizers and resource version. If o is not the newest version,
// the error is a conflict. Otherwise the JSON merge patch, which replaces the whole list, could
// drop a finalizer that another client added.
func (l *Loop[T]) patchFinalizers(ctx context.Context, o T, change func(client.Object, string) bool) error {
	patched, _ := o.DeepCopyObject().(T)
	change(patched, l.Finalizer)
	err := l.Client.Patch(ctx, patched, client.MergeFromWithOptions(o, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return err
	}
	o.SetFinalizers(patched.GetFinalizers())
	o.SetResourceVersion(patched.GetResourceVersion())
	return nil
}

// writeStatus writes the status of o with a patch if it differs from that of before, the object as
// it was read. Then o has the content that the API server returns. If o is not the newest version,
// the error is a conflict, so that conditions from a stale cache do not overwrite newer ones. An
// object that does not exist any more is no error.
func (l *Loop[T]) writeStatus(ctx context.Context, before any, o T) error {
	old, _ := before.(client.Object)
	diff, err := client.MergeFrom(old).Data(o)
	if err != nil {
		return fmt.Errorf("compare status: %w", err)
	}
	var changed struct {
		Status json.RawMessage `json:"status"`
	}
	if err := json.Unmarshal(diff, &changed); err != nil {
		return fmt.Errorf("compare status: %w", err)
	}
	if changed.Status == nil {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"resourceVersion": o.GetResourceVersion()},
		"status":   changed.Status,
	})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	err = l.Client.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, patch))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}
