package provision

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
)

// told is a Store that calls tell before each Record.
type told struct {
	lifecycle.Store

	tell func(*lifecyclev1alpha1.Operation)
}

// Record implements lifecycle.Store.
func (t told) Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	t.tell(op)
	return t.Store.Record(ctx, op)
}

// maxNote is the maximum length of an Event's note in the API.
const maxNote = 1024

// teller creates Events of a run on its Cluster and Operation.
type teller struct {
	recorder events.EventRecorder
	objects  [2]runtime.Object
	action   string

	mu    sync.Mutex
	hosts map[string]lifecyclev1alpha1.HostRun // last reported state
}

func newTeller(recorder events.EventRecorder, o *clusterv1alpha1.Cluster, op *lifecyclev1alpha1.Operation) *teller {
	t := &teller{recorder: recorder, objects: [2]runtime.Object{o, op.DeepCopy()}, action: string(op.Spec.Action), hosts: map[string]lifecyclev1alpha1.HostRun{}}
	for _, h := range op.Status.Hosts { // of an earlier attempt
		t.hosts[h.Name] = h
	}
	return t
}

func (t *teller) say(kind, reason, note string) {
	if len(note) > maxNote {
		note = note[:maxNote-len("…")] + "…"
	}
	for i, o := range t.objects {
		t.recorder.Eventf(o, t.objects[1-i], kind, reason, t.action, "%s", note)
	}
}

func (t *teller) operation() string {
	op, ok := t.objects[1].(*lifecyclev1alpha1.Operation)
	if !ok {
		return ""
	}
	return op.Name
}

// began reports that the run begins.
func (t *teller) began() {
	t.say(corev1.EventTypeNormal, "OperationStarted", "operation "+t.operation()+" ("+t.action+") runs")
}

// record reports the stages that have ended and the hosts that have failed since the last call.
func (t *teller) record(op *lifecyclev1alpha1.Operation) {
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

// ended reports how the run ended.
func (t *teller) ended(op *lifecyclev1alpha1.Operation) {
	note := "operation " + op.Name + " (" + t.action + ") has ended: " + string(op.Status.Phase)
	if op.Status.Message != "" {
		note += ": " + op.Status.Message
	}
	t.say(eventType(op.Status.Phase), "Operation"+string(op.Status.Phase), note)
}
