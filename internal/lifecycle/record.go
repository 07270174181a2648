package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

const (
	// recordEvery is the interval between writes of a changed record. A killed run loses at most that
	// much of the record, and the hosts know what was done.
	recordEvery = 300 * time.Millisecond
	// maxMessage bounds a message, in bytes.
	maxMessage = 4096
)

// clusterHost is the host name in records of steps that are done through the API server.
const clusterHost = "cluster"

// recorder keeps and saves the record of a run. mu guards the record and the waits.
type recorder struct {
	engine  *Engine
	mu      sync.Mutex
	op      *lifecyclev1alpha1.Operation
	byStep  map[[2]string]int  // (host, step ID) → index in Status.Steps
	counted map[[2]string]bool // steps that this run has done
	planned bool               // this run has recorded its totals
	dirty   bool
	stop    context.CancelFunc
	done    chan struct{}
	remark  string                          // message for the user if the run succeeds
	waits   map[int]context.CancelCauseFunc // end when the Operation is paused or canceled
	waited  int                             // number of waits so far, the key of the next
}

func newRecorder(e *Engine, op *lifecyclev1alpha1.Operation) *recorder {
	rec := &recorder{engine: e, op: op, byStep: map[[2]string]int{}, counted: map[[2]string]bool{}, done: make(chan struct{}), waits: map[int]context.CancelCauseFunc{}}
	rec.index()
	return rec
}

// index rebuilds byStep.
func (rec *recorder) index() {
	clear(rec.byStep)
	for i, s := range rec.op.Status.Steps {
		rec.byStep[[2]string{s.Host, s.ID}] = i
	}
}

// load reads the steps that earlier attempts recorded. It returns an error if another process has
// run the Operation since rec.op was read.
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

// start records the start of an attempt, and starts the goroutine that saves the record.
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

// wait returns a context for code that only waits. The context ends when the Operation is paused or
// canceled. The caller calls the returned function when the wait is over.
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

// write saves the record when it has changed, until ctx ends.
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
		// Saving also reads Paused and Canceled, so it happens every fourth time without changes.
		if quiet++; !dirty && quiet < 4 {
			continue
		}
		quiet = 0
		if err := rec.flush(ctx); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "record operation", "operation", rec.op.Name)
		}
	}
}

// flush saves the record and takes over Paused and Canceled from the Store. If one is set, all
// waits end.
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

// checkpoint returns ErrCanceled or ErrPaused if the run must stop, else nil.
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

// set changes the status under the lock.
func (rec *recorder) set(change func(*lifecyclev1alpha1.OperationStatus)) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	change(&rec.op.Status)
	rec.dirty = true
}

// finish records how the run ended, and returns the error for the user. A paused run has no finish
// time.
func (rec *recorder) finish(ctx context.Context, err error) error {
	rec.stop()
	<-rec.done
	if asked := rec.checkpoint(); asked != nil && errors.Is(err, context.Canceled) {
		err = asked
	}
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

// Bounds for the plan in the status of an Operation: bytes in all, and lines for each group of
// hosts.
const (
	maxPlan    = 64 << 10
	maxPlanned = 1000
)

// tell records the plan of this attempt in the status.
func (rec *recorder) tell(c *plan.Changes) {
	all := told(c)
	rec.set(func(s *lifecyclev1alpha1.OperationStatus) { s.PlanHash, s.Plan = c.Hash, all })
}

// told returns the changes as lines by groups of hosts. Lines beyond the bounds are counted in
// Left.
func told(c *plan.Changes) []lifecyclev1alpha1.PlannedChanges {
	var all []lifecyclev1alpha1.PlannedChanges
	room := maxPlan
	for _, l := range c.Lines(clusterHost) {
		p := lifecyclev1alpha1.PlannedChanges{Hosts: l.Hosts}
		for _, line := range l.Lines {
			line = cutMessage(line, maxMessage)
			if room -= len(line); room < 0 || len(p.Changes) == maxPlanned {
				p.Left++
				continue
			}
			p.Changes = append(p.Changes, line)
		}
		all = append(all, p)
	}
	return all
}

// plan records how many steps this run has, in addition to those that it has done already.
func (rec *recorder) plan(p *plan.Plan, c *plan.Changes) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	changed := map[[2]string]bool{}
	for _, i := range c.Items {
		changed[[2]string{i.Host, string(i.Stage)}] = true
	}
	status := &rec.op.Status
	if !rec.planned { // the counts are from an earlier attempt
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

// host returns the record of a host, and adds one if needed. The caller holds mu.
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

// stage records that a host begins a stage.
func (rec *recorder) stage(host, stage string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	h := rec.host(host)
	h.Stage, h.State, h.Message = stage, lifecyclev1alpha1.StepRunning, ""
	rec.dirty = true
}

// settle records the result of a host. err is nil if its work is done.
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

// step records a state of a step, and reports it to the Environment.
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
			rec.counted[key] = true // a stage that is retried repeats its steps
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

// estimate extrapolates the end of the run from its duration so far, once a tenth of the steps is
// done. The caller holds mu.
func (rec *recorder) estimate() {
	s := &rec.op.Status
	if s.StepsTotal == 0 || s.StepsDone*10 < s.StepsTotal || s.Started == nil {
		return
	}
	took := time.Since(s.Started.Time)
	left := took * time.Duration(max(s.StepsTotal-s.StepsDone, 0)) / time.Duration(s.StepsDone)
	s.Estimate = new(metav1.NewMicroTime(time.Now().Add(left)))
}

func (rec *recorder) report(r lifecyclev1alpha1.StepRecord) {
	rec.mu.Lock()
	op := lifecyclev1alpha1.Operation{ObjectMeta: rec.op.ObjectMeta, Spec: rec.op.Spec}
	s := rec.op.Status
	s.Steps, s.Hosts, s.Conditions = nil, nil, nil
	op.Status = s
	rec.mu.Unlock()
	rec.engine.Env.Progress(op, r)
}

// do calls f, which works through the API server, and records it as the step id of the cluster.
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

func cutMessage(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n/2] + " … " + s[len(s)-n/2+8:]
}
