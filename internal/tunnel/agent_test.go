package tunnel

import (
	"testing"
	"time"
)

// TestWanted: an agent keeps two spares and as many as were used within a second, up to the
// maximum.
func TestWanted(t *testing.T) {
	at := func(seconds ...float64) []time.Time {
		takes := make([]time.Time, 0, len(seconds))
		for _, s := range seconds {
			takes = append(takes, time.Unix(1_000_000, int64(s*1e9)))
		}
		return takes
	}
	for name, tc := range map[string]struct {
		takes []time.Time
		want  int
	}{
		"None":      {nil, 2},
		"One":       {at(1), 3},
		"OneByOne":  {at(1, 3, 5, 7), 3},
		"Burst":     {at(1, 1.1, 1.2, 1.3, 9), 6},
		"LaterPeak": {at(1, 9, 9.5, 10), 5},
		"TheMost":   {at(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), MaxSpares},
	} {
		t.Run(name, func(t *testing.T) {
			if got := wanted(tc.takes); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}

// TestPause: pauses grow to the maximum, and agents wait for different times.
func TestPause(t *testing.T) {
	timing := DefaultTiming()
	for failures := 1; failures < 100; failures++ {
		most := min(timing.LastRetry, timing.FirstRetry<<min(failures-1, 15))
		seen := map[time.Duration]bool{}
		for range 20 {
			p := pause(timing, failures)
			if p < most/4 || p > most {
				t.Fatalf("after %d failures %s, want between %s and %s", failures, p, most/4, most)
			}
			seen[p] = true
		}
		if len(seen) < 10 {
			t.Fatalf("after %d failures all wait for one of %d times", failures, len(seen))
		}
	}
}

// TestPauseWhileNobodyAnswers: agents are back soon after a hub that restarts.
func TestPauseWhileNobodyAnswers(t *testing.T) {
	timing := DefaultTiming()
	for failures := 1; failures < 100; failures++ {
		l := &loop{agent: &Agent{Timing: timing}, failures: failures, away: true}
		if p := l.pause(); p > min(timing.FirstRetry<<min(failures-1, 15), 3200*time.Millisecond) {
			t.Fatalf("after %d failures %s", failures, p)
		}
	}
}
