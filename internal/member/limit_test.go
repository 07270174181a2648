package member

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// slowServer is a transport that answers after a delay.
type slowServer struct {
	takes              time.Duration
	status             int
	header             http.Header
	inFlight, mostSeen atomic.Int32
	served             atomic.Int32
}

func (s *slowServer) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mostSeen.Store(max(s.mostSeen.Load(), s.inFlight.Add(1)))
	defer s.inFlight.Add(-1)
	defer s.served.Add(1)
	select {
	case <-time.After(s.takes):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	return &http.Response{StatusCode: max(s.status, http.StatusOK), Header: s.header, Body: io.NopCloser(strings.NewReader("{}"))}, nil
}

func send(ctx context.Context, l *limiter, s *slowServer, method, path string) error {
	req, err := http.NewRequestWithContext(ctx, method, "https://member"+path, nil)
	if err != nil {
		return err
	}
	resp, err := l.roundTrip(s, req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// load sends requests from several workers and waits for all of them.
func load(t *testing.T, l *limiter, s *slowServer, workers, each int) {
	t.Helper()
	done := make(chan error)
	for range workers {
		go func() {
			var err error
			for range each {
				err = errors.Join(err, send(t.Context(), l, s, http.MethodPatch, "/api/v1/namespaces/a/pods/b"))
			}
			done <- err
		}()
	}
	for range workers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestLimitGrowsWithSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := newLimiter(), &slowServer{takes: time.Millisecond}
		load(t, l, s, 8, 100)
		// Eight workers use half of the first limit. The limit grows while at least half of it
		// is used.
		if got := l.current(); got > 2*startLimit {
			t.Errorf("limit %d after load that did not need more than %d", got, startLimit)
		}
		load(t, l, s, 500, 10)
		if got := l.current(); got != maxLimit {
			t.Errorf("limit %d after much load and success, want %d", got, maxLimit)
		}
		if got := s.mostSeen.Load(); got > maxLimit {
			t.Errorf("%d requests were in flight, want at most %d", got, maxLimit)
		}
	})
}

func TestLimitHalves(t *testing.T) {
	cases := map[string]struct {
		takes, timeout time.Duration
		status         int
		halves         bool
	}{
		"TooManyRequests":    {status: http.StatusTooManyRequests, halves: true},
		"ServiceUnavailable": {status: http.StatusServiceUnavailable, halves: true},
		"Timeout":            {takes: time.Minute, timeout: time.Second, halves: true},
		"NotFound":           {status: http.StatusNotFound},
		"Conflict":           {status: http.StatusConflict},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tc.timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.timeout)
					defer cancel()
				}
				l := newLimiter()
				// An error is returned to the caller. Here only the limit matters.
				_ = send(ctx, l, &slowServer{takes: tc.takes, status: tc.status}, http.MethodPatch, "/api/v1/namespaces/a/pods/b")
				want := startLimit
				if tc.halves {
					want = startLimit / 2
				}
				if got := l.current(); got != want {
					t.Errorf("limit %d, want %d", got, want)
				}
			})
		})
	}
}

func TestLimitHalvesOnceForOneOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := newLimiter(), &slowServer{takes: time.Millisecond, status: http.StatusTooManyRequests}
		load(t, l, s, startLimit, 1)
		if got := l.current(); got != startLimit/2 {
			t.Errorf("limit %d after one burst was refused, want %d", got, startLimit/2)
		}
	})
}

func TestLimitFollowsLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := newLimiter(), &slowServer{takes: 5 * time.Millisecond}
		load(t, l, s, 64, 20)
		before := l.current()
		s.takes = 2 * time.Second
		load(t, l, s, 64, 20)
		if got := l.current(); got > before/2 {
			t.Errorf("limit %d after latency grew 400 times, want at most half of %d", got, before)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := newLimiter(), &slowServer{status: http.StatusTooManyRequests, header: http.Header{"Retry-After": {"7"}}}
		start := time.Now()
		for range 2 {
			if err := send(t.Context(), l, s, http.MethodGet, "/api"); err != nil {
				t.Fatal(err)
			}
		}
		if got := time.Since(start); got != 7*time.Second {
			t.Errorf("the second request was sent after %s, want 7s", got)
		}
	})
}

func TestWaitingEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := newLimiter(), &slowServer{takes: time.Minute}
		for range startLimit {
			go func() {
				if err := send(t.Context(), l, s, http.MethodGet, "/api"); err != nil {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := send(ctx, l, s, http.MethodGet, "/api"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want that of the context", err)
		}
		if got := s.mostSeen.Load(); got != startLimit {
			t.Errorf("%d requests in flight, want %d", got, startLimit)
		}
		// The cancelled request left the queue, so the next one is sent.
		if err := send(t.Context(), l, s, http.MethodGet, "/api"); err != nil {
			t.Error(err)
		}
	})
}

func TestExempt(t *testing.T) {
	cases := map[string]struct {
		path    string
		upgrade bool
		want    bool
	}{
		"Get":       {path: "/api/v1/pods/a"},
		"Watch":     {path: "/api/v1/pods?watch=true", want: true},
		"WatchOne":  {path: "/api/v1/pods?watch=1&timeoutSeconds=3", want: true},
		"NoWatch":   {path: "/api/v1/pods?watch=false"},
		"WatchPath": {path: "/api/v1/watch/pods", want: true},
		"Logs":      {path: "/api/v1/namespaces/a/pods/b/log?follow=true", want: true},
		"Exec":      {path: "/api/v1/namespaces/a/pods/b/exec", upgrade: true, want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://member"+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tc.upgrade {
				req.Header.Set("Upgrade", "SPDY/3.1")
			}
			if got := exempt(req); got != tc.want {
				t.Errorf("exempt is %t, want %t", got, tc.want)
			}
		})
	}
}

// TestGetIsBesideTheLimit: users' requests to a cluster neither use up the limit of the hub's
// own requests nor wait for it.
func TestGetIsBesideTheLimit(t *testing.T) {
	m := memberAt(t, newHostile(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/apis/metrics.k8s.io/") {
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"b"}}`)
	}))
	for range 6 {
		resp, err := m.Get(t.Context(), "/apis/metrics.k8s.io/v1beta1/pods")
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s %v", resp.Status, err)
		}
	}
	if got := m.Limit(); got != startLimit {
		t.Errorf("limit %d, want %d as before", got, startLimit)
	}
	m.limiter.mu.Lock()
	defer m.limiter.mu.Unlock()
	if !m.limiter.paused.IsZero() {
		t.Errorf("paused until %s", m.limiter.paused)
	}
}
