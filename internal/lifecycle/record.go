package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

const (
	// recordEvery is the interval between two writes of the record of a run, if the record has
	// changed. A killed run loses at most the last interval, and each host has its own record of
	// applied steps.
	recordEvery = 300 * time.Millisecond
	// maxMessage is the maximum length, in bytes, of the message of a step or host in the record of a
	// run.
	maxMessage = 4096
)

// clusterHost stands for the name of a host in records of steps in the cluster as a whole, such as
// a drain. This machine performs them, not the agent on a host.
const clusterHost = "cluster"

// recorder keeps the record of a run in op, the Operation, and saves it to the Store in the
// background. Several goroutines use a recorder between start and finish. mu guards op and all
// other fields except engine, stop, done and remark.
type recorder struct {
	engine  *Engine
	mu      sync.Mutex
	op      *lifecyclev1alpha1.Operation
	byStep  map[[2]string]int  // (host, step ID) → index in Status.Steps
	counted map[[2]string]bool // steps that this run has done
	planned bool               // plan was called in this run
	dirty   bool
	stop    context.CancelFunc
	done    chan struct{}
	remark  string                          // message for the user if the run succeeds
	waits   map[int]context.CancelCauseFunc // ends of the contexts that wait has returned
	waited  int                             // key in waits of the next context
}

// newRecorder returns a recorder that keeps its record in op. Nothing is saved before start.
func newRecorder(e *Engine, op *lifecyclev1alpha1.Operation) *recorder {
	rec := &recorder{engine: e, op: op, byStep: map[[2]string]int{}, counted: map[[2]string]bool{}, done: make(chan struct{}), waits: map[int]context.CancelCauseFunc{}}
	rec.index()
	return rec
}

// index rebuilds rec.byStep, which finds a step in the status by host and ID. Only the goroutine of
// the run may call it, before start returns.
func (rec *recorder) index() {
	clear(rec.byStep)
	for i, s := range rec.op.Status.Steps {
		rec.byStep[[2]string{s.Host, s.ID}] = i
	}
}

// load sets the steps in rec.op to those that earlier attempts have stored. It returns an error if
// another process has run the Operation since rec.op was read.
func (rec *recorder) load(ctx context.Context) error {
	kept, err := rec.engine.Env.Operation(ctx, rec.op.Name)
	if err != nil {
		return err
	}
	if kept.Status.Attempt != rec.op.Status.Attempt {
		return fmt.Errorf("operation %s: another process has run it since it was read here, and it is %s now; look at it again", kept.Name, kept.Status.Phase)
	}
	if rec.op.Status.Steps, err = rec.engine.Env.Steps(ctx, kept); err != nil {
		return err
	}
	rec.index()
	return nil
}

// start records the start of an attempt at the Operation: it increases Attempt and sets the phase
// to Running. Then it starts the goroutine that saves the record. After an error no goroutine runs,
// and finish must not be called. It returns an error if another process has run the Operation since
// rec.op was read.
func (rec *recorder) start(ctx context.Context) error {
	if err := rec.load(ctx); err != nil {
		return err
	}
	s := &rec.op.Status
	s.Attempt++
	s.Phase, s.Message, s.Finished = lifecyclev1alpha1.PhaseRunning, "", nil
	meta.RemoveStatusCondition(&s.Conditions, lifecyclev1alpha1.ConditionSucceeded)
	if s.Started == nil {
		s.Started = now()
	}
	if err := rec.engine.Env.Record(ctx, rec.op); err != nil {
		return err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	rec.stop = stop
	go rec.write(background)
	return nil
}

// wait returns a context for code that only waits, and so may be stopped at any time. The context
// ends when ctx ends. It also ends when the Operation is paused or canceled, with ErrPaused or
// ErrCanceled as its cause. The caller calls the returned function when the wait is over.
func (rec *recorder) wait(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	n := rec.waited
	rec.waited++
	rec.waits[n] = cancel
	return ctx, func(cause error) {
		rec.mu.Lock()
		delete(rec.waits, n)
		rec.mu.Unlock()
		cancel(cause)
	}
}

// write saves the record of the run every recordEvery until ctx ends, and then closes rec.done.
// start runs it as a goroutine. If nothing has changed, it saves only every fourth time. Errors are
// logged, and the record is saved again later.
func (rec *recorder) write(ctx context.Context) {
	defer close(rec.done)
	tick := time.NewTicker(recordEvery)
	defer tick.Stop()
	for quiet := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		rec.mu.Lock()
		dirty := rec.dirty
		rec.mu.Unlock()
		// Saving also reads Paused and Canceled from the Store, so it is done from time to time even
		// without changes.
		if quiet++; !dirty && quiet < 4 {
			continue
		}
		quiet = 0
		if err := rec.flush(ctx); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "record operation", "operation", rec.op.Name)
		}
	}
}

// flush saves the record of the run, and takes over Paused and Canceled from the Store. If one of
// them is set, it ends the contexts that wait has returned. After an error the record still counts
// as changed.
func (rec *recorder) flush(ctx context.Context) error {
	rec.mu.Lock()
	copied := rec.op.DeepCopy()
	rec.dirty = false
	rec.mu.Unlock()
	if err := rec.engine.Env.Record(ctx, copied); err != nil {
		rec.mu.Lock()
		rec.dirty = true
		rec.mu.Unlock()
		return err
	}
	rec.mu.Lock()
	rec.op.Spec.Paused, rec.op.Spec.Canceled = copied.Spec.Paused, copied.Spec.Canceled
	rec.op.ResourceVersion = copied.ResourceVersion
	rec.mu.Unlock()
	if err := rec.checkpoint(); err != nil {
		rec.mu.Lock()
		defer rec.mu.Unlock()
		for _, end := range rec.waits {
			end(err)
		}
	}
	return nil
}

// checkpoint returns ErrCanceled or ErrPaused if a user has canceled or paused the Operation, else
// nil. A run calls it before each larger step, and stops there.
func (rec *recorder) checkpoint() error {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.op.Spec.Canceled:
		return ErrCanceled
	case rec.op.Spec.Paused:
		return ErrPaused
	}
	return nil
}

// asked returns ErrCanceled or ErrPaused instead of an error that is context.Canceled, if a user
// has canceled or paused the Operation. It returns any other error, and nil, unchanged.
func (rec *recorder) asked(err error) error {
	if asked := rec.checkpoint(); asked != nil && errors.Is(err, context.Canceled) {
		return asked
	}
	return err
}

// set changes the status of the Operation: it calls change with the status while it holds mu.
// change must not call the recorder. The record is saved later.
func (rec *recorder) set(change func(*lifecyclev1alpha1.OperationStatus)) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	change(&rec.op.Status)
	rec.dirty = true
}

// finish stops the background saves, records how the run ended, and returns the error for the user.
// err is the error of the run, or nil for success. ErrCanceled means the phase Canceled, ErrPaused
// and context.Canceled mean Paused, and any other error means Failed. A paused Operation has no
// finish time. An error of the Store is joined to the result.
func (rec *recorder) finish(ctx context.Context, err error) error {
	rec.stop()
	<-rec.done
	err = rec.asked(err)
	rec.mu.Lock()
	s := &rec.op.Status
	s.Finished, s.Estimate = now(), nil
	status := metav1.ConditionFalse
	switch {
	case err == nil:
		s.Phase, s.Message, status = lifecyclev1alpha1.PhaseSucceeded, cutMessage(rec.remark, 8*maxMessage-8), metav1.ConditionTrue
	case errors.Is(err, ErrCanceled):
		s.Phase, s.Message = lifecyclev1alpha1.PhaseCanceled, "canceled; what was done stays"
	case errors.Is(err, ErrPaused), errors.Is(err, context.Canceled):
		s.Phase, s.Message, s.Finished = lifecyclev1alpha1.PhasePaused, "stopped; it can be resumed", nil
		err = fmt.Errorf("operation %s is paused; go on with %q: %w", rec.op.Name, "orrery operation resume "+rec.op.Name, ErrPaused)
	default:
		s.Phase, s.Message = lifecyclev1alpha1.PhaseFailed, cutMessage(err.Error(), 8*maxMessage-8)
	}
	for i := range s.Hosts {
		if s.Hosts[i].State == lifecyclev1alpha1.StepRunning {
			s.Hosts[i].State = lifecyclev1alpha1.StepPending
			if err == nil {
				s.Hosts[i].State = lifecyclev1alpha1.StepChanged
			}
		}
	}
	if s.Phase != lifecyclev1alpha1.PhasePaused {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: lifecyclev1alpha1.ConditionSucceeded, Status: status, Reason: string(s.Phase), Message: s.Message,
			ObservedGeneration: rec.op.Generation,
		})
	}
	copied := rec.op.DeepCopy()
	rec.mu.Unlock()
	rec.report(lifecyclev1alpha1.StepRecord{})
	if e := rec.engine.Env.Record(ctx, copied); e != nil {
		return errors.Join(err, e)
	}
	return err
}

// Limits for the plan in the status of an Operation: maxPlan bytes in all, and maxPlanned lines for
// each group of hosts with the same changes.
const (
	maxPlan    = 64 << 10
	maxPlanned = 1000
)

// setPlan sets the plan of this attempt, as lines of text, and its hash in the status of the
// Operation.
func (rec *recorder) setPlan(c *plan.Changes) {
	all := plannedChanges(c)
	rec.set(func(s *lifecyclev1alpha1.OperationStatus) { s.PlanHash, s.Plan = c.Hash, all })
}

// plannedChanges returns the changes of a plan as lines of text, once for each group of hosts that
// have the same changes. Lines longer than maxMessage are cut. Left counts the lines that are left
// out because of maxPlan or maxPlanned.
func plannedChanges(c *plan.Changes) []lifecyclev1alpha1.PlannedChanges {
	var all []lifecyclev1alpha1.PlannedChanges
	remaining := maxPlan
	for _, l := range c.Lines(clusterHost) {
		p := lifecyclev1alpha1.PlannedChanges{Hosts: l.Hosts}
		for _, line := range l.Lines {
			line = cutMessage(line, maxMessage)
			if remaining -= len(line); remaining < 0 || len(p.Changes) == maxPlanned {
				p.Left++
				continue
			}
			p.Changes = append(p.Changes, line)
		}
		all = append(all, p)
	}
	return all
}

// plan sets the number of steps of this run, in total and for each host. It counts the steps of
// stages with changes in c, and the steps that the run has already done. It may be called several
// times in a run. The first call resets the counts of earlier attempts.
func (rec *recorder) plan(p *plan.Plan, c *plan.Changes) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	changed := map[[2]string]bool{}
	for _, i := range c.Items {
		changed[[2]string{i.Host, string(i.Stage)}] = true
	}
	status := &rec.op.Status
	if !rec.planned { // the counts in the status are from an earlier attempt
		status.StepsDone = 0
		for i := range status.Hosts {
			status.Hosts[i].Total, status.Hosts[i].Done = 0, 0
		}
	}
	rec.planned = true
	clear(rec.counted)
	total := status.StepsDone
	for _, h := range p.Hosts {
		var n int32
		for _, s := range h.Stages {
			if changed[[2]string{h.Name, string(s.ID)}] {
				n += int32(len(s.Steps)) //nolint:gosec // tens
			}
		}
		hr := rec.host(h.Name)
		hr.Total = hr.Done + n
		if hr.Total == 0 {
			hr.State = lifecyclev1alpha1.StepUnchanged
		}
		total += n
	}
	status.StepsTotal = total
	rec.dirty = true
}

// host returns the record of a host in the status, and adds a pending one if there is none. The
// pointer is valid until another host is added. The caller holds mu.
func (rec *recorder) host(name string) *lifecyclev1alpha1.HostRun {
	s := &rec.op.Status
	for i := range s.Hosts {
		if s.Hosts[i].Name == name {
			return &s.Hosts[i]
		}
	}
	s.Hosts = append(s.Hosts, lifecyclev1alpha1.HostRun{Name: name, State: lifecyclev1alpha1.StepPending})
	return &s.Hosts[len(s.Hosts)-1]
}

// stage records that a host has begun a stage: the state of the host is Running, without a message.
func (rec *recorder) stage(host, stage string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	h := rec.host(host)
	h.Stage, h.State, h.Message = stage, lifecyclev1alpha1.StepRunning, ""
	rec.dirty = true
}

// settle records how the work on a host has ended, and the number of its round trips. If err is not
// nil, the state of the host is Failed, with the error as its message. If err is nil, a Running
// host becomes Changed, and other states stay.
func (rec *recorder) settle(host string, trips int32, err error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	h := rec.host(host)
	h.RoundTrips = trips
	switch {
	case err != nil:
		h.State, h.Message = lifecyclev1alpha1.StepFailed, cutMessage(err.Error(), maxMessage)
	case h.State == lifecyclev1alpha1.StepRunning:
		h.State = lifecyclev1alpha1.StepChanged
	}
	rec.dirty = true
}

// step records the state of a step of a host or of the cluster, and reports it to
// Environment.Progress. It replaces the earlier record of the step and sets Attempt. If r has no
// start time or hash, those of the earlier record stay. A step that is done on a host counts once
// in a run, even if it is repeated.
func (rec *recorder) step(r lifecyclev1alpha1.StepRecord) {
	r.Message = cutMessage(r.Message, maxMessage)
	rec.mu.Lock()
	s := &rec.op.Status
	key := [2]string{r.Host, r.ID}
	i, ok := rec.byStep[key]
	if !ok {
		i = len(s.Steps)
		rec.byStep[key] = i
		s.Steps = append(s.Steps, lifecyclev1alpha1.StepRecord{Host: r.Host, ID: r.ID})
	}
	old := s.Steps[i]
	switch r.State {
	case lifecyclev1alpha1.StepRunning, lifecyclev1alpha1.StepPending:
		r.Attempt = old.Attempt + 1
	case lifecyclev1alpha1.StepUnchanged, lifecyclev1alpha1.StepChanged, lifecyclev1alpha1.StepReverted, lifecyclev1alpha1.StepFailed:
		r.Attempt = max(old.Attempt, 1)
		if r.Started.IsZero() {
			r.Started = old.Started
		}
		if r.InputHash == "" {
			r.InputHash = old.InputHash
		}
		if r.State != lifecyclev1alpha1.StepFailed && r.Host != clusterHost && !rec.counted[key] {
			rec.counted[key] = true // a retried stage repeats its steps, which count once
			rec.host(r.Host).Done++
			s.StepsDone++
		}
	}
	s.Steps[i] = r
	rec.estimate()
	rec.dirty = true
	rec.mu.Unlock()
	rec.report(r)
}

// estimate sets Estimate in the status: the expected end of the run, extrapolated from the time for
// the steps done so far. It changes nothing before a tenth of the steps is done. The caller holds
// mu.
func (rec *recorder) estimate() {
	s := &rec.op.Status
	if s.StepsTotal == 0 || s.StepsDone*10 < s.StepsTotal || s.Started == nil {
		return
	}
	took := time.Since(s.Started.Time)
	left := took * time.Duration(max(s.StepsTotal-s.StepsDone, 0)) / time.Duration(s.StepsDone)
	s.Estimate = new(metav1.NewMicroTime(time.Now().Add(left)))
}

// report passes the state of a step to Environment.Progress, or an empty record at the end of the
// run. The caller must not hold mu.
func (rec *recorder) report(r lifecyclev1alpha1.StepRecord) {
	rec.mu.Lock()
	op := lifecyclev1alpha1.Operation{ObjectMeta: rec.op.ObjectMeta, Spec: rec.op.Spec}
	s := rec.op.Status
	s.Steps, s.Hosts, s.Conditions = nil, nil, nil
	op.Status = s
	rec.mu.Unlock()
	rec.engine.Env.Progress(op, r)
}

// do performs a step in the cluster as a whole: it calls f, records the result under the ID id, and
// returns the error of f. The step is recorded as failed, or as changed or unchanged as f reports.
// f runs without the lock, and the record is saved later.
func (rec *recorder) do(id string, f func() (changed bool, err error)) error {
	r := lifecyclev1alpha1.StepRecord{Host: clusterHost, ID: id, State: lifecyclev1alpha1.StepRunning, Started: *now()}
	rec.stage(clusterHost, id)
	rec.step(r)
	changed, err := f()
	r.Finished = *now()
	switch {
	case err != nil:
		r.State, r.Message = lifecyclev1alpha1.StepFailed, err.Error()
	case changed:
		r.State = lifecyclev1alpha1.StepChanged
	default:
		r.State = lifecyclev1alpha1.StepUnchanged
	}
	rec.step(r)
	rec.settle(clusterHost, 0, err)
	return err
}

// cutMessage shortens a message to at most n bytes: it replaces the middle by " … ". A message of
// at most n bytes is returned unchanged. The result contains no broken character.
func cutMessage(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n/2], "") + " … " + strings.ToValidUTF8(s[len(s)-n/2+8:], "")
}
