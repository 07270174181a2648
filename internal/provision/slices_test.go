package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	hubserver "orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/testenv"
)

// writer is a client that records its writes of Operations and slices.
type writer struct {
	client.Client

	mu     sync.Mutex
	writes []string // "slice HOST", or "status PHASE"
	fail   error    // of every write of a slice
}

func (w *writer) note(o client.Object) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o := o.(type) {
	case *lifecyclev1alpha1.OperationSlice:
		if w.fail != nil {
			return w.fail
		}
		w.writes = append(w.writes, "slice "+o.Host)
	case *lifecyclev1alpha1.Operation:
		w.writes = append(w.writes, "status "+string(o.Status.Phase))
	}
	return nil
}

func (w *writer) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := w.note(o); err != nil {
		return err
	}
	return w.Client.Create(ctx, o, opts...)
}

func (w *writer) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if err := w.note(o); err != nil {
		return err
	}
	return w.Client.Update(ctx, o, opts...)
}

func (w *writer) Status() client.SubResourceWriter { return statusWriter{w.Client.Status(), w} }

type statusWriter struct {
	client.SubResourceWriter

	w *writer
}

func (s statusWriter) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := s.w.note(o); err != nil {
		return err
	}
	return s.SubResourceWriter.Update(ctx, o, opts...)
}

// taken returns the number of slices and the phases written since the last call.
func (w *writer) taken() (written int, statuses []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, what := range w.writes {
		if phase, ok := strings.CutPrefix(what, "status "); ok {
			statuses = append(statuses, phase)
		} else {
			written++
		}
	}
	w.writes = nil
	return written, statuses
}

// bucket is a rate limiter with a clock that moves only when it is stepped. A waiting caller steps
// it.
type bucket struct {
	clock *clocktesting.FakeClock
	left  int
	full  time.Time
}

func (b *bucket) TryAccept() bool {
	if b.clock.Since(b.full) >= time.Second {
		b.left, b.full = sliceRate, b.clock.Now()
	}
	b.left--
	return b.left >= 0
}

func (b *bucket) Wait(ctx context.Context) error {
	for !b.TryAccept() {
		b.clock.Step(time.Second)
	}
	return ctx.Err()
}

func (*bucket) Accept()      {}
func (*bucket) Stop()        {}
func (*bucket) QPS() float32 { return sliceRate }

// at is a store with a client and a clock that the test moves.
func at(c client.Client, clock *clocktesting.FakeClock) *Store {
	return &Store{Client: c, clock: clock, limiter: &bucket{clock: clock}}
}

// begin starts an attempt at an Operation as an engine does.
func begin(t *testing.T, s *Store, name string) *lifecyclev1alpha1.Operation {
	t.Helper()
	op, err := s.Operation(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if op.Status.Steps, err = s.Steps(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	op.Status.Attempt++
	op.Status.Phase = lifecyclev1alpha1.PhaseRunning
	if err := s.Record(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	return op
}

func stepOf(host string, n int, state lifecyclev1alpha1.StepState) lifecyclev1alpha1.StepRecord {
	started := metav1.NewMicroTime(time.Date(2026, 1, 1, 0, n/60, n%60, 0, time.UTC))
	r := lifecyclev1alpha1.StepRecord{
		Host: host, ID: fmt.Sprintf("controller-manager/step-%d", n), State: state, Attempt: 1, Started: started, InputHash: strings.Repeat("0", 32),
	}
	if state != lifecyclev1alpha1.StepRunning {
		r.Finished = metav1.NewMicroTime(started.Add(time.Second / 2))
	}
	return r
}

// kept returns the number of steps in slices, by host, and the slices.
func (h *hub) kept(t *testing.T) (steps map[string]int, found []lifecyclev1alpha1.OperationSlice) {
	t.Helper()
	list := &lifecyclev1alpha1.OperationSliceList{}
	eventually(t, "the slices are listed", func() (bool, string) {
		err := h.List(t.Context(), list)
		return err == nil, fmt.Sprint(err)
	})
	steps = map[string]int{}
	for _, o := range list.Items {
		steps[o.Host] += len(o.Steps)
	}
	return steps, list.Items
}

func sizeOf(t *testing.T, o client.Object) int {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return len(text)
}

// TestThousandHosts: during a run over a thousand hosts the Operation stays small. At most 20
// slices are written in a second, and all steps are stored before the run ends.
func TestThousandHosts(t *testing.T) {
	const hosts, steps, most = 1000, 8, 256 << 10
	h := newHub(t)
	h.create(t, operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}))
	w, clock := &writer{Client: h}, clocktesting.NewFakeClock(time.Now())
	s := at(w, clock)
	op := begin(t, s, "oak-1")
	w.taken()
	for i := range hosts {
		op.Status.Hosts = append(op.Status.Hosts, lifecyclev1alpha1.HostRun{
			Name: fmt.Sprintf("host-%04d", i), Stage: "control-plane", State: lifecyclev1alpha1.StepChanged, Done: steps, Total: steps, RoundTrips: 12,
		})
	}
	second := func() (written int) {
		t.Helper()
		clock.Step(time.Second)
		for range 3 { // the engine records more often than the store writes
			if err := s.Record(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
		written, statuses := w.taken()
		if written > sliceRate || len(statuses) > 1 {
			t.Fatalf("%d slices and %d statuses are written in a second", written, len(statuses))
		}
		return written
	}
	for n := range steps {
		for i := range hosts {
			op.Status.Steps = append(op.Status.Steps, stepOf(fmt.Sprintf("host-%04d", i), n, lifecyclev1alpha1.StepChanged))
		}
		if n%2 == 1 {
			second()
		}
	}
	now, err := s.Operation(t.Context(), "oak-1")
	if err != nil {
		t.Fatal(err)
	}
	if size := sizeOf(t, now); size > most || len(now.Status.Hosts) != hosts || len(now.Status.Steps) != summarySteps {
		t.Errorf("while it runs the Operation has %d bytes, %d hosts and %d steps; want at most %d bytes", size, len(now.Status.Hosts), len(now.Status.Steps), most)
	}

	// The largest status: each host has failed with a long message.
	well := op.Status.Hosts
	op.Status.Hosts, op.Status.Message = slices.Clone(well), strings.Repeat("x", 32<<10)
	for i := range op.Status.Hosts {
		op.Status.Hosts[i].State, op.Status.Hosts[i].Message = lifecyclev1alpha1.StepFailed, strings.Repeat("x", 4096)
	}
	second()
	if now, err = s.Operation(t.Context(), "oak-1"); err != nil {
		t.Fatal(err)
	}
	if size := sizeOf(t, now); size > 1<<20 || len(now.Status.Hosts) != hosts {
		t.Errorf("with %d hosts that failed the Operation has %d bytes", len(now.Status.Hosts), size)
	}
	op.Status.Hosts, op.Status.Message = well, ""

	before := clock.Now()
	op.Status.Phase = lifecyclev1alpha1.PhaseSucceeded
	if err := s.Record(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	last := w.writes[len(w.writes)-1]
	w.mu.Unlock()
	written, _ := w.taken()
	if took := clock.Since(before); last != "status Succeeded" || took < time.Duration(written/sliceRate-1)*time.Second {
		t.Errorf("the last write is %q; %d slices were written in %s", last, written, took)
	}
	got, found := h.kept(t)
	if len(found) != hosts || got["host-0000"] != steps || got["host-0999"] != steps {
		t.Errorf("%d slices, with %d and %d steps of the first and the last host", len(found), got["host-0000"], got["host-0999"])
	}
	if size := sizeOf(t, &found[0]); size > 4<<10 {
		t.Errorf("a slice has %d bytes", size)
	}

	// Another server reads what this one wrote, and has nothing to write.
	other := at(w, clock)
	op = begin(t, other, "oak-1")
	w.taken()
	if len(op.Status.Steps) != hosts*steps {
		t.Errorf("%d steps are read", len(op.Status.Steps))
	}
	s = other
	if written := second(); written != 0 {
		t.Errorf("%d slices are written although nothing has changed", written)
	}
}

// TestSlicesWhileRunning: new steps are written at once and later changes after a delay. Failed
// steps are in the Operation.
func TestSlicesWhileRunning(t *testing.T) {
	h := newHub(t)
	h.create(t, operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}))
	w, clock := &writer{Client: h}, clocktesting.NewFakeClock(time.Now())
	s := at(w, clock)
	op := begin(t, s, "oak-1")
	w.taken()
	written := 0
	for n := range 250 {
		state := lifecyclev1alpha1.StepChanged
		if n == 3 {
			state = lifecyclev1alpha1.StepFailed
		}
		op.Status.Steps = append(op.Status.Steps, stepOf("host-1", n, state))
		if n%25 != 0 {
			continue
		}
		clock.Step(time.Second)
		if err := s.Record(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		n, _ := w.taken()
		written += n
	}
	// In ten seconds, three slices are written: each at once when it is new, and then every five
	// seconds.
	if written < 3 || written > 6 {
		t.Errorf("%d writes of 3 slices in 10 s", written)
	}
	now, err := s.Operation(t.Context(), "oak-1")
	if err != nil {
		t.Fatal(err)
	}
	steps := now.Status.Steps
	if len(steps) != summarySteps || steps[0].State != lifecyclev1alpha1.StepFailed || steps[summarySteps-1].ID != "controller-manager/step-225" {
		t.Errorf("the Operation has %d steps from %s to %s", len(steps), steps[0].ID, steps[len(steps)-1].ID)
	}
	op.Status.Phase = lifecyclev1alpha1.PhaseFailed
	if err := s.Record(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	var parts []string
	_, found := h.kept(t)
	for _, o := range found {
		parts = append(parts, fmt.Sprintf("%s %d: %d from %s", o.Host, o.Part, len(o.Steps), o.Steps[0].ID))
	}
	slices.Sort(parts)
	want := []string{
		"host-1 0: 100 from controller-manager/step-0", "host-1 1: 100 from controller-manager/step-100", "host-1 2: 50 from controller-manager/step-200",
	}
	if diff := cmp.Diff(want, parts); diff != "" {
		t.Errorf("slices (-want +got):\n%s", diff)
	}
}

// TestStepsAfterKill: the next server reads the records of a killed server from the slices or the
// status; the newer ones count.
func TestStepsAfterKill(t *testing.T) {
	h := newHub(t)
	h.create(t, operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}))
	clock := clocktesting.NewFakeClock(time.Now())
	s := at(h, clock)
	op := begin(t, s, "oak-1")
	record := func() {
		t.Helper()
		clock.Step(time.Second)
		if err := s.Record(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 120 {
		op.Status.Steps = append(op.Status.Steps, stepOf("host-1", n, lifecyclev1alpha1.StepChanged), stepOf("host-2", n, lifecyclev1alpha1.StepRunning))
	}
	record()
	for i := range op.Status.Steps {
		if r := &op.Status.Steps[i]; r.Host == "host-2" && r.ID == "controller-manager/step-119" {
			*r = stepOf("host-2", 119, lifecyclev1alpha1.StepFailed)
		}
	}
	op.Status.Steps = append(op.Status.Steps, stepOf("host-3", 0, lifecyclev1alpha1.StepRunning))
	record() // too early to write the slices of host-2 again

	// The server is killed.
	s = at(h, clock)
	op = begin(t, s, "oak-1")
	got := map[string]lifecyclev1alpha1.StepState{}
	for _, r := range op.Status.Steps {
		got[r.Host+" "+r.ID] = r.State
	}
	if len(op.Status.Steps) != 241 || len(got) != 241 || got["host-2 controller-manager/step-119"] != lifecyclev1alpha1.StepFailed {
		t.Errorf("%d steps are read, and the last of host-2 is %s", len(got), got["host-2 controller-manager/step-119"])
	}
	op.Status.Phase = lifecyclev1alpha1.PhaseSucceeded
	record()
	if steps, slices := h.kept(t); steps["host-1"] != 120 || steps["host-2"] != 120 || steps["host-3"] != 1 || len(slices) != 5 {
		t.Errorf("%d slices with %v", len(slices), steps)
	}
}

// TestSupersededWritesNothing: a server writes neither slices nor status if another runs its
// Operation, or if the Operation is gone.
func TestSupersededWritesNothing(t *testing.T) {
	for name, supersede := range map[string]func(*testing.T, *hub, *clocktesting.FakeClock){
		"Attempt": func(t *testing.T, h *hub, clock *clocktesting.FakeClock) { begin(t, at(h, clock), "oak-1") },
		"Epoch": func(t *testing.T, h *hub, _ *clocktesting.FakeClock) {
			s := &Store{Client: h}
			op, err := s.Operation(t.Context(), "oak-1")
			if err != nil {
				t.Fatal(err)
			}
			op.Status.Epoch = 7
			if err := h.Status().Update(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		},
		"Recreated": func(t *testing.T, h *hub, _ *clocktesting.FakeClock) {
			op := operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate})
			if err := h.Delete(t.Context(), op); err != nil {
				t.Fatal(err)
			}
			op.ResourceVersion, op.UID = "", ""
			h.create(t, op)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			h.create(t, operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}))
			w, clock := &writer{Client: h}, clocktesting.NewFakeClock(time.Now())
			s := at(w, clock)
			op := begin(t, s, "oak-1")
			op.Status.Steps = []lifecyclev1alpha1.StepRecord{stepOf("host-1", 0, lifecyclev1alpha1.StepRunning)}
			clock.Step(time.Second)
			if err := s.Record(t.Context(), op); err != nil {
				t.Fatal(err)
			}
			supersede(t, h, clock)
			_, before := h.kept(t)
			w.taken()
			op.Status.Steps = []lifecyclev1alpha1.StepRecord{stepOf("host-1", 0, lifecyclev1alpha1.StepChanged), stepOf("host-2", 0, lifecyclev1alpha1.StepChanged)}
			for _, phase := range []lifecyclev1alpha1.Phase{lifecyclev1alpha1.PhaseRunning, lifecyclev1alpha1.PhaseSucceeded} {
				clock.Step(time.Minute)
				op.Status.Phase = phase
				if err := s.Record(t.Context(), op); err == nil || !strings.Contains(err.Error(), "another") {
					t.Errorf("%s: error %v, want one that says that another has it", phase, err)
				}
			}
			if slices, statuses := w.taken(); slices+len(statuses) != 0 {
				t.Errorf("%d slices and %d statuses are written", slices, len(statuses))
			}
			if _, after := h.kept(t); !cmp.Equal(before, after) {
				t.Errorf("slices have changed:\n%s", cmp.Diff(before, after))
			}
		})
	}
}

// TestStaleSlice: a slice that an earlier run wrote after the slices were read is overwritten. A
// slice of a later run is not.
func TestStaleSlice(t *testing.T) {
	h := newHub(t)
	h.create(t, operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}))
	clock := clocktesting.NewFakeClock(time.Now())
	s := at(h, clock)
	op := begin(t, s, "oak-1")
	op.Status.Steps = []lifecyclev1alpha1.StepRecord{stepOf("host-1", 0, lifecyclev1alpha1.StepRunning)}
	record := func() error {
		clock.Step(time.Minute)
		return s.Record(t.Context(), op)
	}
	if err := record(); err != nil {
		t.Fatal(err)
	}
	touch := func(attempt int32) {
		t.Helper()
		_, slices := h.kept(t)
		slices[0].Attempt, slices[0].Steps = attempt, nil
		if err := h.Update(t.Context(), &slices[0]); err != nil {
			t.Fatal(err)
		}
	}
	touch(0)
	op.Status.Steps[0] = stepOf("host-1", 0, lifecyclev1alpha1.StepChanged)
	if err := record(); err != nil {
		t.Fatal(err)
	}
	if steps, _ := h.kept(t); steps["host-1"] != 1 {
		t.Error("what an earlier run wrote stays")
	}
	_, slices := h.kept(t)
	if err := h.Delete(t.Context(), &slices[0]); err != nil {
		t.Fatal(err)
	}
	op.Status.Steps = append(op.Status.Steps, stepOf("host-1", 1, lifecyclev1alpha1.StepRunning))
	if err := record(); err != nil {
		t.Fatal(err)
	}
	if steps, _ := h.kept(t); steps["host-1"] != 2 {
		t.Error("a slice that was deleted does not come back")
	}
	touch(9)
	op.Status.Steps[1] = stepOf("host-1", 1, lifecyclev1alpha1.StepChanged)
	if err := record(); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("error %v", err)
	}
	if steps, _ := h.kept(t); steps["host-1"] != 0 {
		t.Error("what a later run wrote is overwritten")
	}
}

// TestPhaseAfterSteps: a run does not end before its steps are stored. A paused run does not wait
// long.
func TestPhaseAfterSteps(t *testing.T) {
	h := newHub(t)
	h.create(t, operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}))
	w, clock := &writer{Client: h, fail: apierrors.NewInternalError(errors.New("the database is down"))}, clocktesting.NewFakeClock(time.Now())
	s := at(w, clock)
	op := begin(t, s, "oak-1")
	for i := range 1000 {
		op.Status.Steps = append(op.Status.Steps, stepOf(fmt.Sprintf("host-%d", i), 0, lifecyclev1alpha1.StepChanged))
	}
	op.Status.Phase = lifecyclev1alpha1.PhaseSucceeded
	if err := s.Record(t.Context(), op); err == nil || !strings.Contains(err.Error(), "the database is down") {
		t.Errorf("error %v", err)
	}
	if now, err := s.Operation(t.Context(), "oak-1"); err != nil || now.Status.Phase != lifecyclev1alpha1.PhaseRunning {
		t.Errorf("the phase is %s though the steps are not kept; error %v", now.Status.Phase, err)
	}
	steps := op.Status.Steps
	op = begin(t, s, "oak-1")
	op.Status.Steps, op.Status.Phase = steps, lifecyclev1alpha1.PhasePaused
	w.fail = nil
	if err := s.Record(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	now, err := s.Operation(t.Context(), "oak-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, slices := h.kept(t); now.Status.Phase != lifecyclev1alpha1.PhasePaused || len(slices) == 0 || len(slices) > 7*sliceRate {
		t.Errorf("phase %s with %d slices", now.Status.Phase, len(slices))
	}
}

// TestStepsOfEarlierVersion: steps recorded by a version without slices are shown. They stay in the
// status until they are in slices.
func TestStepsOfEarlierVersion(t *testing.T) {
	h := newHub(t)
	old := operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate})
	h.create(t, old)
	old.Status = lifecyclev1alpha1.OperationStatus{Phase: lifecyclev1alpha1.PhaseFailed, Attempt: 1}
	const hosts = 50
	for n := range 4 {
		for i := range hosts {
			old.Status.Steps = append(old.Status.Steps, stepOf(fmt.Sprintf("host-%d", i), n, lifecyclev1alpha1.StepChanged))
		}
	}
	if err := h.Status().Update(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakeClock(time.Now())
	s := at(h, clock)
	now := func() []lifecyclev1alpha1.StepRecord {
		t.Helper()
		op, err := s.Operation(t.Context(), "oak-1")
		if err != nil {
			t.Fatal(err)
		}
		return op.Status.Steps
	}
	// A server that does not run the Operation leaves the steps unchanged.
	op, err := s.Operation(t.Context(), "oak-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Record(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	if len(now()) != 4*hosts {
		t.Errorf("%d steps are shown", len(now()))
	}

	op = begin(t, s, "oak-1")
	if len(op.Status.Steps) != 4*hosts {
		t.Errorf("%d steps are read", len(op.Status.Steps))
	}
	for second := range 4 {
		steps, _ := h.kept(t)
		if all := len(steps) == hosts; all != (len(now()) == summarySteps) {
			t.Errorf("after %d s %d hosts have slices, and the status has %d steps", second, len(steps), len(now()))
		}
		clock.Step(time.Second)
		if err := s.Record(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	if steps, _ := h.kept(t); len(steps) != hosts || steps["host-7"] != 4 || len(now()) != summarySteps {
		t.Errorf("%d hosts have slices, and the status has %d steps", len(steps), len(now()))
	}
}

// TestSliceNames: slices of long names, of names with dots, and of a deleted Operation do not
// collide. All are deleted with their Operation.
func TestSliceNames(t *testing.T) {
	h := newHub(t)
	clock := clocktesting.NewFakeClock(time.Now())
	long, host := strings.Repeat("o", 62)+"."+strings.Repeat(strings.Repeat("p", 62)+".", 3)+"q", strings.Repeat("h", 63)
	want := map[string]int{"b.c": 1, "c": 1, host: 150}
	record := func(name, host string, n int) *lifecyclev1alpha1.Operation {
		t.Helper()
		h.create(t, operation(name, lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}))
		s := at(h, clock)
		op := begin(t, s, name)
		if len(op.Status.Steps) != 0 {
			t.Errorf("operation %s has steps of another", name)
		}
		for i := range n {
			op.Status.Steps = append(op.Status.Steps, stepOf(host, i, lifecyclev1alpha1.StepChanged))
		}
		op.Status.Phase = lifecyclev1alpha1.PhaseSucceeded
		if err := s.Record(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		return op
	}
	a := record("a", "b.c", 1)
	record("a.b", "c", 1)
	op := record(long, host, 150)
	if got, _ := h.kept(t); !cmp.Equal(want, got) {
		t.Errorf("slices (-want +got):\n%s", cmp.Diff(want, got))
	}
	// No garbage collector runs here. The slices of a deleted Operation stay, and belong to no other.
	if err := h.Delete(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	record("a", "b.c", 1)

	s := &Store{Client: h}
	steps, err := s.Steps(t.Context(), op)
	if err != nil || len(steps) != 150 || steps[149].ID != "controller-manager/step-149" {
		t.Errorf("%d steps of the long names, error %v", len(steps), err)
	}
	_, slices := h.kept(t)
	for _, o := range slices {
		owner := o.OwnerReferences
		if len(owner) != 1 || owner[0].Kind != "Operation" || owner[0].Name != o.Operation || string(owner[0].UID) != o.Labels[labelOperationUID] {
			t.Errorf("slice %s of operation %s is owned by %v", o.Name, o.Operation, owner)
		}
		if label, ok := o.Labels[labelOperation]; ok != (len(o.Operation) <= 63) || ok && label != o.Operation {
			t.Errorf("slice %s of operation %s has label %q", o.Name, o.Operation, label)
		}
	}
}

// TestSlicesGoWithTheirOperation: on a complete hub, only the slices of a deleted Operation are
// deleted.
func TestSlicesGoWithTheirOperation(t *testing.T) {
	own, err := hubserver.Start(t.Context(), hubserver.Options{DataDir: filepath.Join(t.TempDir(), "hub"), KubeBinary: testenv.KubeBinary(), UnsafeNoFsync: true}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Wait(); err != nil {
			t.Error(err)
		}
	})
	if err := testenv.InstallCRDs(own.Config()); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := lifecyclev1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(own.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	h := &hub{Client: c}
	for _, name := range []string{"oak-1", "elm-1"} {
		h.create(t, operation(name, lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}))
		s := &Store{Client: c}
		op := begin(t, s, name)
		for i := range 120 {
			op.Status.Steps = append(op.Status.Steps, stepOf("host-of-"+name, i, lifecyclev1alpha1.StepChanged))
		}
		op.Status.Phase = lifecyclev1alpha1.PhaseSucceeded
		if err := s.Record(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	h.delete(t, operation("oak-1", lifecyclev1alpha1.OperationSpec{}))
	eventually(t, "the slices of oak-1 are gone", func() (bool, string) {
		steps, _ := h.kept(t)
		return cmp.Equal(map[string]int{"host-of-elm-1": 120}, steps), fmt.Sprint(steps)
	})
}
