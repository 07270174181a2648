package hub

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"orrery.dev/orrery/internal/testenv"
)

func TestLeaseFlags(t *testing.T) {
	for name, c := range map[string]struct {
		flags    string
		embedded bool
		wants    []string // texts in the error; none: the flags are accepted
	}{
		"Defaults":         {},
		"DefaultsEmbedded": {embedded: true},
		"Shortest":         {flags: "--lease-duration=2s --lease-renew-deadline=1s --lease-retry-period=200ms"},
		"Short":            {flags: "--lease-duration=3s --lease-renew-deadline=2s --lease-retry-period=500ms"},
		"Longest":          {flags: "--lease-duration=10m"},
		"NoMargin":         {flags: "--lease-renew-deadline=10s"},
		"Embedded": {
			flags: "--lease-duration=20s --lease-renew-deadline=9s --lease-retry-period=1s", embedded: true,
			wants: []string{"--lease-duration 20s: works only with --kubeconfig", "--lease-renew-deadline 9s: works only", "--lease-retry-period 1s: works only"},
		},
		"DurationZero":     {flags: "--lease-duration=0", wants: []string{"--lease-duration 0s: want 2s to 10m0s"}},
		"DurationMinus":    {flags: "--lease-duration=-12s", wants: []string{"--lease-duration -12s: want 2s to 10m0s"}},
		"DurationShort":    {flags: "--lease-duration=1s --lease-renew-deadline=1s --lease-retry-period=200ms", wants: []string{"--lease-duration 1s: want 2s to 10m0s"}},
		"DurationLong":     {flags: "--lease-duration=601s", wants: []string{"--lease-duration 10m1s: want 2s to 10m0s"}},
		"DurationFraction": {flags: "--lease-duration=12500ms", wants: []string{"--lease-duration 12.5s: is not in whole seconds", "set it to 12s or 13s"}},
		"DeadlineAbove":    {flags: "--lease-renew-deadline=12s", wants: []string{"--lease-duration 12s: is less than 14s", "--lease-renew-deadline 12s", "raise --lease-duration or lower --lease-renew-deadline"}},
		"DeadlineNear":     {flags: "--lease-renew-deadline=10001ms", wants: []string{"--lease-duration 12s: is less than 12.001s"}},
		"OnlyTheDuration":  {flags: "--lease-duration=5s", wants: []string{"--lease-duration 5s: is less than 10s"}},
		"DeadlineZero":     {flags: "--lease-renew-deadline=0", wants: []string{"--lease-renew-deadline 0s: is less than 1s", "set it to 1s or more"}},
		"PeriodAbove":      {flags: "--lease-retry-period=9s", wants: []string{"--lease-renew-deadline 8s: is not more than 10.8s", "--lease-retry-period 9s", "lower --lease-retry-period"}},
		"PeriodJitters":    {flags: "--lease-retry-period=6667ms", wants: []string{"--lease-renew-deadline 8s: is not more than 8.0004s"}},
		"PeriodShort":      {flags: "--lease-retry-period=199ms", wants: []string{"--lease-retry-period 199ms: is less than 200ms", "set it to 200ms or more"}},
		"PeriodZero":       {flags: "--lease-retry-period=0", wants: []string{"--lease-retry-period 0s: is less than 200ms"}},
		"PeriodMinus":      {flags: "--lease-retry-period=-2s", wants: []string{"--lease-retry-period -2s: is less than 200ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{}
			fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
			o.AddFlags(fs)
			if err := fs.Parse(strings.Fields(c.flags)); err != nil {
				t.Fatal(err)
			}
			err := o.Lease.validate(!c.embedded)
			if len(c.wants) == 0 && err != nil {
				t.Errorf("refused: %v", err)
			}
			for _, want := range c.wants {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q in it", err, want)
				}
			}
		})
	}
}

// TestLeaseTimes draws random times. If they are valid, client-go accepts them, and they close
// the fence of a server before the Lease ends for another server.
func TestLeaseTimes(t *testing.T) {
	random := testenv.Rand(t)
	accepted := 0
	for range 20_000 {
		l := LeaseTimes{Duration: draw(random, 15), RenewDeadline: draw(random, 12), RetryPeriod: draw(random, 4)}
		if l.validate(true) != nil {
			continue
		}
		l = l.orDefault() // as the server does; zero times become the defaults
		accepted++
		ctx, cancel := context.WithCancel(logr.NewContext(t.Context(), logr.Discard()))
		lock := &recordedLock{created: cancel}
		elector, err := leaderelection.NewLeaderElector(l.config(lock, leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {},
		}))
		if err != nil {
			t.Fatalf("client-go refuses %+v: %v", l, err)
		}
		elector.Run(ctx)
		// Another server sees the renewal at the earliest when it was sent.
		const sent = time.Minute
		f := newFence(l.Duration)
		f.now = func() time.Duration { return sent + time.Duration(lock.seconds)*time.Second }
		f.renewed(sent)
		if f.check() == nil {
			t.Fatalf("with %+v a server still writes when another takes the Lease, after %d s", l, lock.seconds)
		}
		f.now = func() time.Duration { return sent + l.RenewDeadline + l.RetryPeriod - 1 }
		if f.check() != nil {
			t.Fatalf("with %+v a server does not write any more when it tries to renew the Lease again", l)
		}
	}
	if accepted < 100 {
		t.Errorf("only %d of the times were accepted: that shows little", accepted)
	}
}

// recordedLock is a Lease that does not exist until it is created. It records its duration.
type recordedLock struct {
	resourcelock.Interface

	created func()
	seconds int // duration that the Lease states
}

// Get implements resourcelock.Interface.
func (l *recordedLock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return nil, nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), leaseName)
}

// Create implements resourcelock.Interface.
func (l *recordedLock) Create(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	l.seconds = record.LeaseDurationSeconds
	l.created()
	return nil
}

// RecordEvent implements resourcelock.Interface.
func (l *recordedLock) RecordEvent(string) {}

// Identity implements resourcelock.Interface.
func (l *recordedLock) Identity() string { return "this" }

// Describe implements resourcelock.Interface.
func (l *recordedLock) Describe() string { return leaseName }

// draw returns a random time of up to most seconds, in quarters of a second.
func draw(random *rand.Rand, most int64) time.Duration {
	return time.Duration(random.Int64N(4*most+1)) * time.Second / 4
}
