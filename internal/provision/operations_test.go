package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
)

func waiting(ctx context.Context, e *fakeEngine, op *lifecyclev1alpha1.Operation, _ *clusterv1alpha1.Provision) error {
	return e.waitAsked(ctx, op)
}

// The Operation of a stopped or killed server is resumed by the next server.
func TestResume(t *testing.T) {
	t.Run("Stopped", func(t *testing.T) {
		h := startHub(t)
		h.onRun(waiting)
		h.create(t, cluster("oak", 1))
		h.untilPhase(t, "oak-1", lifecyclev1alpha1.PhaseRunning)
		h.stop()
		h.untilPhase(t, "oak-1", lifecyclev1alpha1.PhasePaused)
		h.onRun(nil)
		h.start(t)
		h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		want := []string{"oak-1 Create [] attempt 1 on 1 hosts", "oak-1 Create [] attempt 2 on 1 hosts"}
		if diff := cmp.Diff(want, h.ran()); diff != "" {
			t.Errorf("runs (-want +got):\n%s", diff)
		}
	})
	t.Run("Killed", func(t *testing.T) {
		h := newHub(t)
		op := operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate})
		h.create(t, cluster("oak", 1), op)
		op.Status = lifecyclev1alpha1.OperationStatus{Phase: lifecyclev1alpha1.PhaseRunning, Attempt: 1}
		if err := h.Status().Update(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		h.start(t)
		h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		if diff := cmp.Diff([]string{"oak-1 Create [] attempt 2 on 1 hosts"}, h.ran()); diff != "" {
			t.Errorf("runs (-want +got):\n%s", diff)
		}
	})
}

func TestPauseAndCancel(t *testing.T) {
	h := startHub(t)
	h.onRun(waiting)
	h.create(t, cluster("oak", 1))
	h.untilPhase(t, "oak-1", lifecyclev1alpha1.PhaseRunning)
	h.control(t, "oak-1", func(s *lifecyclev1alpha1.OperationSpec) { s.Paused = true })
	h.untilPhase(t, "oak-1", lifecyclev1alpha1.PhasePaused)
	h.until(t, "oak", provisioned, metav1.ConditionFalse, clusterv1alpha1.ReasonPaused)

	h.control(t, "oak-1", func(s *lifecyclev1alpha1.OperationSpec) { s.Paused = false })
	h.untilPhase(t, "oak-1", lifecyclev1alpha1.PhaseRunning)
	h.control(t, "oak-1", func(s *lifecyclev1alpha1.OperationSpec) { s.Canceled = true })
	h.untilPhase(t, "oak-1", lifecyclev1alpha1.PhaseCanceled)
	h.until(t, "oak", provisioned, metav1.ConditionFalse, clusterv1alpha1.ReasonCanceled)

	h.onRun(nil)
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision = provision(1, 2) })
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	want := []string{
		"oak-1 Create [] attempt 1 on 1 hosts", "oak-1 Create [] attempt 2 on 1 hosts", "oak-2 Create [] attempt 1 on 2 hosts",
	}
	if diff := cmp.Diff(want, h.ran()); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

// An Operation that is paused or canceled before it begins does not begin.
func TestNotBegun(t *testing.T) {
	h := newHub(t)
	paused := operation("later", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionApply, Paused: true})
	h.create(t, cluster("oak", 1), paused)
	h.start(t)
	h.untilPhase(t, "later", lifecyclev1alpha1.PhasePaused)
	h.control(t, "later", func(s *lifecyclev1alpha1.OperationSpec) { s.Canceled = true })
	h.untilPhase(t, "later", lifecyclev1alpha1.PhaseCanceled)
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if diff := cmp.Diff([]string{"oak-1 Create [] attempt 1 on 1 hosts"}, h.ran()); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

// A deleted Operation stops.
func TestDeletedWhileRunning(t *testing.T) {
	h := startHub(t)
	h.onRun(waiting)
	h.create(t, cluster("oak", 1))
	op := h.untilPhase(t, "oak-1", lifecyclev1alpha1.PhaseRunning)
	uid := op.UID
	h.onRun(nil)
	h.delete(t, op)
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if op = h.untilPhase(t, "oak-1", lifecyclev1alpha1.PhaseSucceeded); op.UID == uid {
		t.Error("the Operation is the one that was deleted")
	}
}

// Operations of users are run one after another, or refused with a reason.
func TestOperationsOfUsers(t *testing.T) {
	h := startHub(t)
	h.create(t, cluster("oak", 1, 2))
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	h.create(t,
		operation("repair", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionApply}),
		operation("repair-again", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionApply}),
	)
	h.untilPhase(t, "repair", lifecyclev1alpha1.PhaseSucceeded)
	h.untilPhase(t, "repair-again", lifecyclev1alpha1.PhaseSucceeded)
	want := []string{
		"oak-1 Create [] attempt 1 on 2 hosts", "repair Apply [] attempt 1 on 2 hosts", "repair-again Apply [] attempt 1 on 2 hosts",
	}
	if diff := cmp.Diff(want, h.ran()); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}

	refused := map[string]struct {
		spec lifecyclev1alpha1.OperationSpec
		want string
	}{
		"no-cluster":  {spec: lifecyclev1alpha1.OperationSpec{Cluster: "elm", Action: lifecyclev1alpha1.ActionApply}, want: "there is no Cluster elm"},
		"no-deletion": {spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionDelete}, want: "delete the Cluster instead"},
		"no-host": {
			spec: lifecyclev1alpha1.OperationSpec{
				Cluster: "oak", Action: lifecyclev1alpha1.ActionDeleteNode, DeleteNode: &lifecyclev1alpha1.DeleteNodeAction{Hosts: []string{"host-7"}},
			},
			want: "host host-7 is not part of cluster oak",
		},
	}
	for name, tc := range refused {
		h.create(t, operation(name, tc.spec))
		if op := h.untilPhase(t, name, lifecyclev1alpha1.PhaseFailed); !strings.Contains(op.Status.Message, tc.want) {
			t.Errorf("%s: the message %q does not have %q", name, op.Status.Message, tc.want)
		}
	}
	// A failed Operation blocks others until it is dismissed.
	h.until(t, "oak", provisioned, metav1.ConditionFalse, clusterv1alpha1.ReasonOperationFailed)
	for name := range refused {
		h.delete(t, operation(name, lifecyclev1alpha1.OperationSpec{}))
	}
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if n := len(h.ran()); n != len(want) {
		t.Errorf("%d runs, want %d: %q", n, len(want), h.ran())
	}
}

// An Operation that waits for a slot does not take a host out that the user has put back meanwhile.
func TestHostIsPutBackBeforeItsOperationBegins(t *testing.T) {
	h := startHub(t)
	h.create(t, cluster("oak", 1, 2))
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	release := make(chan struct{})
	h.onRun(func(ctx context.Context, e *fakeEngine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
		if e.cluster == "oak" {
			return e.apply(ctx, op, spec)
		}
		select {
		case <-release:
			return errors.New("it was stopped")
		case <-ctx.Done():
			return context.Canceled
		}
	})
	for i := range maxRuns {
		h.create(t, cluster(fmt.Sprintf("elm-%d", i), 1))
	}
	eventually(t, "all slots are taken", func() (bool, string) {
		ran := h.ran()
		taken := sets.New[string]() // a run whose status was not stored runs again
		for _, run := range ran {
			if operation, _, _ := strings.Cut(run, " "); strings.HasPrefix(operation, "elm-") {
				taken.Insert(operation)
			}
		}
		return taken.Len() == maxRuns, fmt.Sprint(ran)
	})
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision = provision(1) })
	eventually(t, "the operation waits", func() (bool, string) {
		err := h.Get(t.Context(), client.ObjectKey{Name: "oak-2"}, &lifecyclev1alpha1.Operation{})
		return err == nil, fmt.Sprint(err)
	})
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision = provision(1, 2) })
	close(release)
	op := h.untilPhase(t, "oak-2", lifecyclev1alpha1.PhaseCanceled)
	if want := "nothing was done: spec.provision of Cluster oak has host-2"; !strings.Contains(op.Status.Message, want) {
		t.Errorf("the message %q does not have %q", op.Status.Message, want)
	}
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if ran := h.ran(); slices.ContainsFunc(ran, func(run string) bool { return strings.Contains(run, "DeleteNode") }) {
		t.Errorf("the host was taken out: %q", ran)
	}
	// The hub, and not a user, canceled the Operation: the host may leave later.
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision = provision(1) })
	h.untilPhase(t, "oak-3", lifecyclev1alpha1.PhaseSucceeded)
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if ran := h.ran(); !slices.ContainsFunc(ran, func(run string) bool { return strings.HasPrefix(run, "oak-3 DeleteNode [host-2]") }) {
		t.Errorf("the host was not taken out: %q", ran)
	}
}

// Only the last Operations and their logs are kept.
func TestHistory(t *testing.T) {
	h := newHub(t)
	dir := filepath.Join(h.dataDir, "logs", "operations")
	for i := range lifecycle.MaxEnded + 3 {
		op := operation(fmt.Sprintf("old-%02d", i), lifecyclev1alpha1.OperationSpec{Cluster: "elm", Action: lifecyclev1alpha1.ActionApply})
		h.create(t, op)
		op.Status.Phase = lifecyclev1alpha1.PhaseSucceeded
		if err := errors.Join(h.Status().Update(t.Context(), op), os.MkdirAll(filepath.Join(dir, op.Name), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "unknown"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.start(t)
	eventually(t, "the oldest are gone", func() (bool, string) {
		list := &lifecyclev1alpha1.OperationList{}
		if err := h.List(t.Context(), list); err != nil {
			return false, err.Error()
		}
		logs, err := os.ReadDir(dir)
		if err != nil {
			return false, err.Error()
		}
		got := fmt.Sprintf("%d Operations and %d logs from %s", len(list.Items), len(logs), logs[0].Name())
		return got == fmt.Sprintf("%d Operations and %d logs from old-03", lifecycle.MaxEnded, lifecycle.MaxEnded), got
	})
}

// A run is reported by Events on its Cluster and its Operation, and counted in metrics.
func TestEventsAndMetrics(t *testing.T) {
	h := startHub(t)
	runs := testutil.ToFloat64(metrics.operations.WithLabelValues("Create", "Succeeded"))
	steps := testutil.ToFloat64(metrics.steps.WithLabelValues("Changed"))
	o := cluster("oak", 1)
	h.create(t, o)
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	op := h.untilPhase(t, "oak-1", lifecyclev1alpha1.PhaseSucceeded)
	for _, about := range []client.Object{o, op} {
		eventually(t, "the events of "+about.GetName(), func() (bool, string) {
			list := &eventsv1.EventList{}
			if err := h.List(t.Context(), list); err != nil {
				return false, err.Error()
			}
			got := map[string]string{}
			for _, e := range list.Items {
				if e.Regarding.UID == about.GetUID() {
					got[e.Reason] = e.Note
				}
			}
			diff := cmp.Diff(map[string]string{
				"OperationStarted":   "operation oak-1 (Create) runs",
				"StageDone":          "host host-1: prepare is done",
				"OperationSucceeded": "operation oak-1 (Create) has ended: Succeeded",
			}, got)
			return diff == "", diff
		})
	}
	eventually(t, "the run is counted", func() (bool, string) {
		got := testutil.ToFloat64(metrics.operations.WithLabelValues("Create", "Succeeded")) - runs
		return got == 1, fmt.Sprint(got)
	})
	if got := testutil.ToFloat64(metrics.steps.WithLabelValues("Changed")) - steps; got != 1 {
		t.Errorf("%v steps are counted, want 1", got)
	}
}

// control changes the spec of an Operation.
func (h *hub) control(t *testing.T, name string, change func(*lifecyclev1alpha1.OperationSpec)) {
	t.Helper()
	s := &Store{Client: h}
	eventually(t, "the spec of operation "+name+" is changed", func() (bool, string) {
		err := s.Control(t.Context(), name, change)
		return err == nil, fmt.Sprint(err)
	})
}

// A failed Operation continues where it stopped when the retry is due.
func TestRetry(t *testing.T) {
	h := newHub(t)
	o := cluster("oak", 1)
	h.create(t, o)
	hash, err := hashOf(desired(o))
	if err != nil {
		t.Fatal(err)
	}
	op := operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate})
	op.Annotations = map[string]string{hashAnnotation: hash}
	h.create(t, op)
	past := metav1.NewMicroTime(metav1.Now().Add(-lastRetry))
	op.Status = lifecyclev1alpha1.OperationStatus{Phase: lifecyclev1alpha1.PhaseFailed, Attempt: 3, Finished: &past}
	if err := h.Status().Update(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	h.start(t)
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if diff := cmp.Diff([]string{"oak-1 Create [] attempt 4 on 1 hosts"}, h.ran()); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}
