package member

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bounds of the number of requests in flight in one cluster.
const (
	startLimit = 16
	minLimit   = 1
	maxLimit   = 256
)

// maxRetryAfter limits the pause that a cluster can request.
const maxRetryAfter = 30 * time.Second

// limiter limits the requests in flight in one cluster by additive increase and multiplicative
// decrease. The limit grows while it is used and the cluster keeps up, and is halved when the
// cluster reports or shows overload. There is no limit on the rate.
type limiter struct {
	mu       sync.Mutex
	limit    float64
	steep    bool // grow by one per success, until the first decrease
	inFlight int
	waiting  []chan struct{}
	paused   time.Time // no new request before
	eased    time.Time // when the limit was last decreased

	// Latencies of writes, in seconds. Those of lists vary too much.
	fastest, latency float64
}

func newLimiter() *limiter { return &limiter{limit: startLimit, steep: true} }

func (l *limiter) current() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.limit)
}

// exempt reports whether a request is long-lived. Its duration means nothing, and other requests
// must not wait for it.
func exempt(req *http.Request) bool {
	query := req.URL.Query()
	for _, lasting := range []string{"watch", "follow"} {
		if on, err := strconv.ParseBool(query.Get(lasting)); err == nil && on {
			return true
		}
	}
	return req.Header.Get("Upgrade") != "" || strings.Contains(req.URL.Path, "/watch/")
}

// roundTrip waits for a request slot and sends the request.
func (l *limiter) roundTrip(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
	if err := l.acquire(req.Context()); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for a request slot: %w", err), closeBody(req))
	}
	start := time.Now()
	resp, err := rt.RoundTrip(req)
	l.learn(req, resp, err, start)
	if err != nil {
		l.release()
		return nil, err
	}
	resp.Body = &slot{ReadCloser: resp.Body, release: sync.OnceFunc(l.release)}
	return resp, nil
}

// slot frees the request slot when the response body is closed.
type slot struct {
	io.ReadCloser

	release func()
}

// Close implements io.Closer.
func (s *slot) Close() error {
	defer s.release()
	return s.ReadCloser.Close()
}

func (l *limiter) acquire(ctx context.Context) error {
	l.mu.Lock()
	if len(l.waiting) == 0 && l.room() {
		l.inFlight++
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	l.mu.Unlock()

	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	for i, w := range l.waiting {
		if w == turn {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			l.mu.Unlock()
			return ctx.Err()
		}
	}
	l.mu.Unlock()
	// The slot was granted at the same moment. It goes to the next request.
	l.release()
	return ctx.Err()
}

func (l *limiter) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight--
	l.admit()
}

func (l *limiter) room() bool {
	return l.inFlight < int(l.limit) && !time.Now().Before(l.paused)
}

func (l *limiter) admit() {
	for len(l.waiting) > 0 && l.room() {
		close(l.waiting[0])
		l.waiting = l.waiting[1:]
		l.inFlight++
	}
}

// learn adjusts the limit to the result of a request.
func (l *limiter) learn(req *http.Request, resp *http.Response, err error, start time.Time) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()

	if resp != nil {
		if pause := retryAfter(resp); pause > 0 {
			l.pause(now.Add(pause))
		}
	}
	switch {
	case overloaded(req.Context(), resp, err):
		l.ease(start, now)
	case err != nil:
		// Refused, interrupted or cancelled: this means nothing about the load.
	case req.Method != http.MethodGet && l.slow(now.Sub(start).Seconds()):
		l.ease(start, now)
	case l.inFlight < int(l.limit)/2:
		// The limit was not reached, so a greater one would be a guess.
	case l.steep:
		l.limit = min(l.limit+1, maxLimit)
	default:
		l.limit = min(l.limit+1/l.limit, maxLimit)
	}
	l.admit()
}

// ease halves the limit, once for all requests that were sent under the old one.
func (l *limiter) ease(start, now time.Time) {
	if start.Before(l.eased) {
		return
	}
	l.limit, l.steep, l.eased = max(l.limit/2, minLimit), false, now
}

// slow adds a latency, and reports whether the cluster has become slow: the average is noticeable
// and many times the best.
func (l *limiter) slow(seconds float64) bool {
	if l.latency == 0 {
		l.fastest, l.latency = seconds, seconds
		return false
	}
	l.latency += (seconds - l.latency) / 16
	// The best value is raised slowly, as clusters change.
	l.fastest = min(seconds, l.fastest+(l.latency-l.fastest)/1024)
	return l.latency > 0.5 && l.latency > 10*l.fastest
}

// pause holds back all new requests until a time.
func (l *limiter) pause(until time.Time) {
	if !until.After(l.paused) {
		return
	}
	l.paused = until
	time.AfterFunc(time.Until(until), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.admit()
	})
}

// overloaded reports whether a request failed because of too many requests.
func overloaded(ctx context.Context, resp *http.Response, err error) bool {
	if err != nil {
		return errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded)
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	default:
		return false
	}
}

func retryAfter(resp *http.Response) time.Duration {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds <= 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}
