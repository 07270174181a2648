package node

import (
	"strings"
	"testing"
	"time"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// TestLeaseOfEqualEpochs: at most one holder of an epoch changes a host, also after its lease was
// released, has expired, or belongs to a run that has ended.
func TestLeaseOfEqualEpochs(t *testing.T) {
	now := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	first := plan.Lease{Operation: "a", RunID: "1", Holder: "anna@desk", Epoch: 5, Expires: now.Add(time.Minute)}
	with := func(change func(*plan.Lease)) plan.Lease {
		l := first
		change(&l)
		return l
	}
	another := with(func(l *plan.Lease) { l.Operation, l.RunID, l.Holder = "b", "2", "eve@elsewhere" })
	later := with(func(l *plan.Lease) { l.Operation, l.RunID, l.Holder, l.Epoch = "b", "2", "eve@elsewhere", 6 })
	elsewhere := with(func(l *plan.Lease) { l.Holder = "anna@laptop" })
	namesake := with(func(l *plan.Lease) { l.RunID = "2" })
	const over = "epoch 5 is over"
	for name, tc := range map[string]struct {
		want    plan.Lease
		release bool
		expired bool
		ended   bool
		refused string
	}{
		"SameHolder":          {want: first},
		"SameHolderExpired":   {want: first, expired: true},
		"SameHolderReleased":  {want: first, release: true},
		"Another":             {want: another, refused: "operation a, run by anna@desk"},
		"AnotherReleased":     {want: another, release: true, refused: over},
		"AnotherExpired":      {want: another, expired: true, refused: over},
		"AnotherEnded":        {want: another, ended: true, refused: over},
		"LaterReleased":       {want: later, release: true},
		"LaterExpired":        {want: later, expired: true},
		"LaterEnded":          {want: later, ended: true},
		"SameRunElsewhere":    {want: elsewhere, refused: over},
		"SameRunElsewhereOld": {want: elsewhere, expired: true, refused: over},
		"NamesakeReleased":    {want: namesake, release: true, refused: over},
	} {
		t.Run(name, func(t *testing.T) {
			n := host(t, nil)
			clock := now
			n.Now = func() time.Time { return clock }
			req := request(fileStep("earlier", "/etc/earlier", "x"))
			req.Lease, req.Release = first, tc.release
			done(t, n, req)
			if tc.expired {
				clock = first.Expires
			}
			req = request(fileStep("a", "/etc/a", "a"))
			req.Lease = tc.want
			if tc.ended {
				req.Ended = []string{first.RunID}
			}
			if tc.refused == "" {
				done(t, n, req)
				return
			}
			if e := failed(t, n, req); e.LeaseHeld == nil || !strings.Contains(e.Message, tc.refused) {
				t.Errorf("message %q, lease %+v; want %q", e.Message, e.LeaseHeld, tc.refused)
			}
			if _, ok := tree(t, n, false)["/etc/a"]; ok {
				t.Error("a refused request wrote a file")
			}
		})
	}
}
