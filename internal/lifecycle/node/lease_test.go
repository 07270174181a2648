package node

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

func TestLease(t *testing.T) {
	now := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	held := plan.Lease{Operation: "a", Holder: "anna@desk", Epoch: 5, Expires: now.Add(time.Minute)}
	cases := map[string]struct {
		held    plan.Lease
		want    plan.Lease
		release bool
		refused string
	}{
		"Free":             {want: plan.Lease{Operation: "b", Epoch: 1}},
		"SameRunAgain":     {held: held, want: plan.Lease{Operation: "a", Holder: "anna@desk", Epoch: 5}},
		"Resumed":          {held: held, want: plan.Lease{Operation: "a", Epoch: 6}},
		"EarlierRun":       {held: held, want: plan.Lease{Operation: "a", Epoch: 4}, refused: "epoch 4 is over"},
		"Another":          {held: held, want: plan.Lease{Operation: "b", Epoch: 9}, refused: "operation a, run by anna@desk"},
		"AnotherIsTooOld":  {held: plan.Lease{Operation: "a", Epoch: 5, Expires: now}, want: plan.Lease{Operation: "b", Epoch: 4}, refused: "epoch 4 is over"},
		"Expired":          {held: plan.Lease{Operation: "a", Epoch: 5, Expires: now}, want: plan.Lease{Operation: "b", Epoch: 6}},
		"Released":         {held: held, release: true, want: plan.Lease{Operation: "b", Epoch: 6}},
		"ReleasedButOlder": {held: held, release: true, want: plan.Lease{Operation: "b", Epoch: 4}, refused: "epoch 4 is over"},
		"NoOperation":      {want: plan.Lease{Epoch: 1}, refused: "without an operation"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := host(t, nil)
			n.Now = func() time.Time { return now }
			if c.held.Operation != "" {
				req := request(fileStep("earlier", "/etc/earlier", "x"))
				req.Lease, req.Release = c.held, c.release
				done(t, n, req)
			}
			req := request(fileStep("a", "/etc/a", "a"))
			req.Lease = c.want
			if c.refused == "" {
				done(t, n, req)
				return
			}
			e := failed(t, n, req)
			if !strings.Contains(e.Message, c.refused) {
				t.Errorf("message %q, want %q in it", e.Message, c.refused)
			}
			if (e.LeaseHeld != nil) != (c.held.Operation != "") {
				t.Errorf("lease held: %+v", e.LeaseHeld)
			}
			if _, ok := tree(t, n, false)["/etc/a"]; ok {
				t.Error("a refused request wrote a file")
			}
		})
	}
}

func TestHostOfAnotherCluster(t *testing.T) {
	n := host(t, nil)
	done(t, n, request(fileStep("a", "/etc/a", "a")))
	for _, req := range []Request{request(fileStep("a", "/etc/a", "b")), removal()} {
		req.Cluster, req.ClusterID = "beta", "sha256:beta"
		if e := failed(t, n, req); !strings.Contains(e.Message, "host belongs to cluster alpha") {
			t.Errorf("message %q", e.Message)
		}
	}
	if got := tree(t, n, false)["/etc/a"]; got != "-rw-r--r-- a" {
		t.Errorf("/etc/a is %q", got)
	}
}

// waiting is a System whose probes never succeed. The first one closes asked.
type waiting struct {
	*Recorder
	asked chan struct{}
}

func (w waiting) Probe(context.Context, plan.Probe) error {
	select {
	case <-w.asked:
	default:
		close(w.asked)
	}
	return context.DeadlineExceeded
}

// TestTakenOver: an agent waits although its client was killed. A resumed run takes over at once,
// and the two agents never write at the same time.
func TestTakenOver(t *testing.T) {
	n := host(t, nil)
	stuck := waiting{n.System.(*Recorder), make(chan struct{})}
	first := *n
	first.System = stuck
	req := request(plan.Step{ID: "probe", Probe: &plan.Probe{TCP: "x", Timeout: time.Hour}}, fileStep("a", "/etc/a", "first"))
	ended := make(chan Event, 1)
	go func() { ended <- failed(t, &first, req) }()
	<-stuck.asked

	resumed := request(fileStep("a", "/etc/a", "second"))
	resumed.Lease.Epoch++
	done(t, n, resumed)
	if e := <-ended; e.Step != "probe" || e.LeaseHeld == nil || e.LeaseHeld.Epoch != resumed.Lease.Epoch {
		t.Errorf("the first run ended with %+v", e)
	}
	if got := tree(t, n, false)["/etc/a"]; got != "-rw-r--r-- second" {
		t.Errorf("/etc/a is %q", got)
	}
}

// TestWaitsForAnotherAgent waits for the lock until its context ends.
func TestWaitsForAnotherAgent(t *testing.T) {
	n := host(t, nil)
	done(t, n, request(fileStep("earlier", "/etc/earlier", "x")))
	unlock, err := lock(t.Context(), n.dir("lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var out strings.Builder
	if err := n.Apply(ctx, input(t, request(fileStep("a", "/etc/a", "a"))), &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "another agent that is at work") || strings.Contains(out.String(), string(lifecyclev1alpha1.StepChanged)) {
		t.Errorf("events: %s", out.String())
	}
}

// TestExtendsLease: a request without work takes or extends the lease while another agent works on
// the host. It writes nothing else. On a host without a directory of the agent it does nothing.
func TestExtendsLease(t *testing.T) {
	n := host(t, map[string]string{"/etc/a": "a"})
	before := tree(t, n, true)
	done(t, n, request())
	sameTree(t, "after a lease of a free host", tree(t, n, true), before)

	done(t, n, request(fileStep("earlier", "/etc/earlier", "x")))
	record, err := os.ReadFile(n.dir("state.json"))
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := lock(t.Context(), n.dir("lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	later := request()
	later.Lease.Expires = later.Lease.Expires.Add(time.Hour).UTC().Truncate(time.Second)
	done(t, n, later)
	if held, err := n.lease(); err != nil || !held.Expires.Equal(later.Lease.Expires) {
		t.Errorf("the lease is %+v, %v; want its end at %s", held, err, later.Lease.Expires)
	}
	other := request()
	other.Lease.Operation = "apply-alpha"
	if e := failed(t, n, other); e.LeaseHeld == nil {
		t.Errorf("another run: %+v", e)
	}
	foreign := request()
	foreign.ClusterID = "sha256:beta"
	if e := failed(t, n, foreign); !strings.Contains(e.Message, "host belongs to cluster alpha") {
		t.Errorf("another cluster: %+v", e)
	}
	if now, err := os.ReadFile(n.dir("state.json")); err != nil || string(now) != string(record) {
		t.Errorf("the record has changed (%v): %s", err, now)
	}
}

func TestProbeFails(t *testing.T) {
	n := host(t, nil)
	n.System = waiting{n.System.(*Recorder), make(chan struct{})}
	e := failed(t, n, request(plan.Step{ID: "probe", Probe: &plan.Probe{TCP: "x", Timeout: time.Millisecond, Unit: "orrery-etcd"}}))
	for _, want := range []string{"not so after 1ms", context.DeadlineExceeded.Error(), "log of orrery-etcd"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("message %q, want %q in it", e.Message, want)
		}
	}
}
