package hub

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// reading is a transport that calls before and then reads the whole body of a request.
type reading struct{ before func() }

// RoundTrip implements http.RoundTripper.
func (r reading) RoundTrip(req *http.Request) (*http.Response, error) {
	r.before()
	if req.Body != nil {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestFence(t *testing.T) {
	const sent, leaseDuration = time.Hour, 12 * time.Second
	for name, c := range map[string]struct {
		method string
		now    time.Duration // when the request is made
		later  time.Duration // when its body is read
		closed bool          // the Lease was given up
		passes bool
	}{
		"Renewed":             {method: http.MethodPatch, now: sent, later: sent, passes: true},
		"JustNotOver":         {method: http.MethodPut, now: sent + leaseDuration - 1, later: sent + leaseDuration - 1, passes: true},
		"Over":                {method: http.MethodPut, now: sent + leaseDuration, later: sent + leaseDuration},
		"OverWhileItDials":    {method: http.MethodPost, now: sent, later: sent + time.Minute},
		"AfterAMinute":        {method: http.MethodDelete, now: sent + time.Minute, later: sent + time.Minute},
		"GivenUp":             {method: http.MethodPatch, now: sent, later: sent, closed: true},
		"ReadsPass":           {method: http.MethodGet, now: sent + time.Minute, later: sent + time.Minute, passes: true},
		"ReadsPassWhenClosed": {method: http.MethodHead, closed: true, passes: true},
	} {
		t.Run(name, func(t *testing.T) {
			now := c.now
			f := &fence{now: func() time.Duration { return now }, lasts: leaseDuration}
			f.renewed(sent)
			if c.closed {
				f.close()
			}
			req, err := http.NewRequestWithContext(t.Context(), c.method, "https://hub", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.wrap(reading{before: func() { now = c.later }}).RoundTrip(req)
			if passes := err == nil; passes != c.passes || err != nil && !errors.Is(err, errLeaseNotHeld) {
				t.Errorf("passes: %v, want %v; %v", passes, c.passes, err)
			}
		})
	}
	if rt := (*fence)(nil).wrap(reading{}); rt == nil {
		t.Error("a hub without a Lease has no transport")
	}
}

// answeredLock is a Lease that the API server writes, or whose answers are lost.
type answeredLock struct {
	resourcelock.Interface

	err error
}

func (l *answeredLock) Identity() string { return "one" }

func (l *answeredLock) Update(context.Context, resourcelock.LeaderElectionRecord) error { return l.err }

// TestRenewalsOfOneSecond: another server compares Leases with the time in whole seconds, so it
// counts from the first renewal of a second. The fence counts from that one, too, also if its
// answer was lost.
func TestRenewalsOfOneSecond(t *testing.T) {
	const lasts = 12 * time.Second
	now := time.Hour
	stored := &answeredLock{}
	l := &fencedLock{Interface: stored, fence: &fence{now: func() time.Duration { return now }, lasts: lasts}}
	begin := time.Unix(1_000_000, 0)
	for _, step := range []struct {
		after time.Duration // since the first renewal, on both clocks
		lost  bool
		until time.Duration // end of the allowed writes, since the first renewal
	}{
		{0, true, 0},
		{300 * time.Millisecond, false, lasts},
		{900 * time.Millisecond, false, lasts},
		{1100 * time.Millisecond, false, 1100*time.Millisecond + lasts},
	} {
		stored.err = nil
		if step.lost {
			stored.err = context.DeadlineExceeded
		}
		now = time.Hour + step.after
		record := resourcelock.LeaderElectionRecord{HolderIdentity: "one", RenewTime: metav1.NewTime(begin.Add(step.after))}
		if err := l.Update(t.Context(), record); !errors.Is(err, stored.err) {
			t.Fatal(err)
		}
		want := time.Duration(0)
		if step.until > 0 {
			want = time.Hour + step.until
		}
		if l.fence.until != want {
			t.Errorf("after %s, writes are allowed until %s, want %s", step.after, l.fence.until, want)
		}
	}
}
