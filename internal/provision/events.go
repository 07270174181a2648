package provision

import (
	"context"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/neutral"
)

// reportingStore is a lifecycle.Store that reports the progress of a run: Record first calls report
// with the Operation.
type reportingStore struct {
	lifecycle.Store

	report func(*lifecyclev1alpha1.Operation)
}

// Record implements lifecycle.Store. It calls report and then records the Operation.
func (t reportingStore) Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	t.report(op)
	return t.Store.Record(ctx, op)
}

// maxNote is the maximum length, in bytes, of the note of an Event that the API accepts.
const maxNote = 1024

// eventReporter creates the Events of one run. Each Event is created twice, for the Cluster and for
// the Operation. Record of the store calls it, from several goroutines.
type eventReporter struct {
	recorder events.EventRecorder
	objects  [2]runtime.Object
	action   string

	mu    sync.Mutex
	hosts map[string]lifecyclev1alpha1.HostRun // last seen state, by name
}

// newEventReporter returns the reporter for a run of op that begins. States of hosts that are in
// the status of op already come from an earlier attempt, and are not reported again.
func newEventReporter(recorder events.EventRecorder, o *clusterv1alpha1.Cluster, op *lifecyclev1alpha1.Operation) *eventReporter {
	t := &eventReporter{recorder: recorder, objects: [2]runtime.Object{o, op.DeepCopy()}, action: string(op.Spec.Action), hosts: map[string]lifecyclev1alpha1.HostRun{}}
	for _, h := range op.Status.Hosts { // states of an earlier attempt
		t.hosts[h.Name] = h
	}
	return t
}

// say creates an Event for the Cluster and one for the Operation. kind is the type of the Event,
// Normal or Warning. A note that is longer than maxNote is cut at the end of a character. A divided
// character would become three bytes for each of its bytes in JSON.
func (t *eventReporter) say(kind, reason, note string) {
	if note = strings.ToValidUTF8(note, "\ufffd"); len(note) > maxNote {
		note = neutral.Cut(note, maxNote-len("…"))
	}
	for i, o := range t.objects {
		t.recorder.Eventf(o, t.objects[1-i], kind, reason, t.action, "%s", note)
	}
}

// operation returns the name of the Operation that runs.
func (t *eventReporter) operation() string {
	op, ok := t.objects[1].(*lifecyclev1alpha1.Operation)
	if !ok {
		return ""
	}
	return op.Name
}

// began creates the Event that the run has begun.
func (t *eventReporter) began() {
	t.say(corev1.EventTypeNormal, "OperationStarted", "operation "+t.operation()+" ("+t.action+") runs")
}

// record creates Events for stages of hosts that have ended, and for hosts that have failed, since
// the last call. It reads them from the status of op. It takes t.mu.
func (t *eventReporter) record(op *lifecyclev1alpha1.Operation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range op.Status.Hosts {
		before, known := t.hosts[h.Name]
		t.hosts[h.Name] = h
		switch {
		case h.State == lifecyclev1alpha1.StepFailed && before.State != h.State:
			t.say(corev1.EventTypeWarning, "HostFailed", "host "+h.Name+", stage "+h.Stage+": "+h.Message)
		case known && before.State == lifecyclev1alpha1.StepRunning && (h.Stage != before.Stage || h.State == lifecyclev1alpha1.StepChanged):
			t.say(corev1.EventTypeNormal, "StageDone", "host "+h.Name+": "+before.Stage+" is done")
		}
	}
}

// ended creates the Event that the run has ended, with the phase and message in the status of op.
func (t *eventReporter) ended(op *lifecyclev1alpha1.Operation) {
	note := "operation " + op.Name + " (" + t.action + ") has ended: " + string(op.Status.Phase)
	if op.Status.Message != "" {
		note += ": " + op.Status.Message
	}
	t.say(eventType(op.Status.Phase), "Operation"+string(op.Status.Phase), note)
}
