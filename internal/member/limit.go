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

// Limits of the number of requests in flight in one cluster: the first one, the least and the
// greatest.
const (
	startLimit = 16
	minLimit   = 1
	maxLimit   = 256
)

// maxRetryAfter is the longest pause for which a cluster can ask with the header Retry-After.
const maxRetryAfter = 30 * time.Second

// limiter limits the requests in flight in one cluster by additive increase and multiplicative
// decrease. The limit grows while it is used and the cluster keeps up, and is halved when the
// cluster reports or shows overload. There is no limit on the rate. It may be used from
// several goroutines.
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

// newLimiter returns a limiter that allows startLimit requests in flight.
func newLimiter() *limiter { return &limiter{limit: startLimit, steep: true} }

// current returns the present limit of requests in flight.
func (l *limiter) current() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.limit)
}

// exempt reports whether a request is long-lived, so that the limit on requests in flight does not
// apply to it: a watch, a followed log or an upgrade.
func exempt(req *http.Request) bool {
	query := req.URL.Query()
	for _, lasting := range []string{"watch", "follow"} {
		if on, err := strconv.ParseBool(query.Get(lasting)); err == nil && on {
			return true
		}
	}
	return req.Header.Get("Upgrade") != "" || strings.Contains(req.URL.Path, "/watch/")
}

// roundTrip waits until the limit allows another request, and sends the request through rt. The
// request counts until the caller closes the body of the response, which it must do. If the context
// of the request ends first, roundTrip closes the body of the request and returns an error.
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

// slot is the body of a response of a limited request. When it is closed, the request no longer
// counts in the limit.
type slot struct {
	io.ReadCloser

	release func()
}

// Close implements io.Closer.
func (s *slot) Close() error {
	defer s.release()
	return s.ReadCloser.Close()
}

// acquire waits until a request may be sent, in the order of the calls. nil means that the caller
// holds a slot, which it must release. If ctx ends first, acquire returns the error of ctx, and the
// caller holds no slot.
func (l *limiter) acquire(ctx context.Context) error {
	l.mu.Lock()
	if len(l.waiting) == 0 && l.slotFree() {
		l.inFlight++
		l.mu.Unlock()
		return nil
	}
	admitted := make(chan struct{})
	l.waiting = append(l.waiting, admitted)
	l.mu.Unlock()

	select {
	case <-admitted:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	for i, w := range l.waiting {
		if w == admitted {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			l.mu.Unlock()
			return ctx.Err()
		}
	}
	l.mu.Unlock()
	// This request got a slot at the moment when ctx ended. The slot goes to the next request.
	l.release()
	return ctx.Err()
}

// release frees a request slot, and gives it to the oldest waiting request.
func (l *limiter) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight--
	l.admit()
}

// slotFree reports whether another request may be sent now: the limit is not reached, and no pause
// is in force. The caller holds l.mu.
func (l *limiter) slotFree() bool {
	return l.inFlight < int(l.limit) && !time.Now().Before(l.paused)
}

// admit lets waiting requests be sent, the oldest first, as long as the limit allows it. The caller
// holds l.mu.
func (l *limiter) admit() {
	for len(l.waiting) > 0 && l.slotFree() {
		close(l.waiting[0])
		l.waiting = l.waiting[1:]
		l.inFlight++
	}
}

// learn adjusts the limit to the result of the request req, which began at start: it halves the
// limit after signs of overload, and raises it after a success while the limit is used. It then
// admits waiting requests. resp is nil if err is not nil.
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
		// A refused, interrupted or cancelled request means nothing about the load.
	case req.Method != http.MethodGet && l.slow(now.Sub(start).Seconds()):
		l.ease(start, now)
	case l.inFlight < int(l.limit)/2:
		// The limit was not reached, so it is unknown whether a greater limit would do.
	case l.steep:
		l.limit = min(l.limit+1, maxLimit)
	default:
		l.limit = min(l.limit+1/l.limit, maxLimit)
	}
	l.admit()
}

// ease halves the limit after a request that was sent at start and met overload. It does nothing if
// the limit was halved after start, so that the requests of one overload halve it once. The caller
// holds l.mu.
func (l *limiter) ease(start, now time.Time) {
	if start.Before(l.eased) {
		return
	}
	l.limit, l.steep, l.eased = max(l.limit/2, minLimit), false, now
}

// slow adds the latency of a write, and reports whether the cluster has become slow: the moving
// average is more than 0.5 s and more than ten times the best latency. The caller holds l.mu.
func (l *limiter) slow(seconds float64) bool {
	if l.latency == 0 {
		l.fastest, l.latency = seconds, seconds
		return false
	}
	l.latency += (seconds - l.latency) / 16
	// The best latency is raised slowly, since a cluster may become slower for good.
	l.fastest = min(seconds, l.fastest+(l.latency-l.fastest)/1024)
	return l.latency > 0.5 && l.latency > 10*l.fastest
}

// pause holds back all new requests of the cluster until the given time. It does nothing if a pause
// that lasts as long is in force. The caller holds l.mu.
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

// overloaded reports whether a request failed because the cluster has too many requests: its
// deadline passed, or the HTTP status is 429, 503 or 504. resp may be nil if err is not nil.
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

// retryAfter returns the pause that a response with status 429 or 503 asks for, at most
// maxRetryAfter. It is 0 for other statuses, and for a header Retry-After that is not a positive
// number of seconds.
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
