package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// elapsed is the time before each line.
var elapsed = regexp.MustCompile(`\[ *[0-9a-z]+\]`)

func runningOn(hosts ...lifecyclev1alpha1.HostRun) *lifecyclev1alpha1.Operation {
	op := &lifecyclev1alpha1.Operation{}
	op.Status.Phase, op.Status.Hosts = lifecyclev1alpha1.PhaseRunning, hosts
	return op
}

func hostRun(name, stage string, state lifecyclev1alpha1.StepState) lifecyclev1alpha1.HostRun {
	return lifecyclev1alpha1.HostRun{Name: name, Stage: stage, State: state}
}

func TestRunProgressInLines(t *testing.T) {
	const running, changed, failed = lifecyclev1alpha1.StepRunning, lifecyclev1alpha1.StepChanged, lifecyclev1alpha1.StepFailed
	for name, tc := range map[string]struct {
		records []*lifecyclev1alpha1.Operation
		want    []string
	}{
		"StageByStage": {
			records: []*lifecyclev1alpha1.Operation{
				runningOn(hostRun("a", "system", running)),
				runningOn(hostRun("a", "etcd", running), hostRun("b", "system", running)),
				runningOn(hostRun("a", "etcd", changed), hostRun("b", "system", running)),
			},
			want: []string{"a system begins", "a system done", "a etcd begins", "b system begins", "a etcd done"},
		},
		"NothingNewIsSilent": {
			records: []*lifecyclev1alpha1.Operation{
				runningOn(hostRun("a", "system", running)), runningOn(hostRun("a", "system", running)),
			},
			want: []string{"a system begins"},
		},
		"UnchangedHostIsSilent": {
			records: []*lifecyclev1alpha1.Operation{runningOn(hostRun("a", "", lifecyclev1alpha1.StepUnchanged))},
		},
		"FailureHasItsMessage": {
			records: []*lifecyclev1alpha1.Operation{
				runningOn(hostRun("a", "node", running)),
				runningOn(lifecyclev1alpha1.HostRun{Name: "a", Stage: "node", State: failed, Message: "no space"}),
			},
			want: []string{"a node begins", "a node failed: no space"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			p := newRunProgress(&out, false)
			for _, op := range tc.records {
				p.record(op)
			}
			var got []string
			for line := range strings.Lines(out.String()) {
				got = append(got, strings.TrimSpace(elapsed.ReplaceAllString(line, "")))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRunProgressOfSteps(t *testing.T) {
	var out bytes.Buffer
	p := newRunProgress(&out, true)
	for _, r := range []lifecyclev1alpha1.StepRecord{
		{Host: "host-1", ID: "kubelet/config", State: lifecyclev1alpha1.StepRunning},
		{Host: "host-1", ID: "kubelet/config", State: lifecyclev1alpha1.StepFailed, Message: "no space"},
		{}, // the run has ended
	} {
		p.step(r)
	}
	p.record(runningOn(hostRun("host-1", "node", lifecyclev1alpha1.StepRunning)))
	want := "[] host-1 kubelet/config Running\n[] host-1 kubelet/config Failed: no space\n"
	if diff := cmp.Diff(want, elapsed.ReplaceAllString(out.String(), "[]")); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestRunProgressOnTerminal(t *testing.T) {
	var out bytes.Buffer
	p := newRunProgress(&out, false)
	p.terminal, p.width = true, 40
	op := runningOn(
		lifecyclev1alpha1.HostRun{Name: "a", Stage: "etcd", State: lifecyclev1alpha1.StepRunning, Done: 3, Total: 4},
		lifecyclev1alpha1.HostRun{Name: "b", Stage: "system", State: lifecyclev1alpha1.StepRunning, Done: 1, Total: 4},
		lifecyclev1alpha1.HostRun{Name: "c", Stage: "node", State: lifecyclev1alpha1.StepFailed, Done: 2, Total: 4, Message: "a message that is longer than the line"},
		lifecyclev1alpha1.HostRun{Name: "d", Stage: "node", State: lifecyclev1alpha1.StepChanged, Done: 4, Total: 4},
	)
	op.Status.StepsDone, op.Status.StepsTotal = 10, 16
	p.step(lifecyclev1alpha1.StepRecord{Host: "a", ID: "etcd/unit", State: lifecyclev1alpha1.StepRunning})
	p.record(op)
	want := "[] 10/16 steps\r\n" +
		"c 2/4 node failed: a message that is l…\r\n" +
		"b 1/4 system\r\n" +
		"a 3/4 etcd etcd/unit\r\n"
	if diff := cmp.Diff(want, elapsed.ReplaceAllString(out.String(), "[]")); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	out.Reset()
	op.Status.Phase = lifecyclev1alpha1.PhaseSucceeded
	p.record(op)
	if diff := cmp.Diff("\x1b[4A\r\x1b[J", out.String()); diff != "" {
		t.Errorf("erasing (-want +got):\n%s", diff)
	}
}
