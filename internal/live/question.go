package live

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/search"
)

// question is a search of a list that is repeated while windows of one user show its rows. Windows
// with the same path, query, offset and limit share a question. The mutex of live guards askers,
// answers and took; the other fields do not change.
type question struct {
	audience      *audience
	key           string
	path          string
	query         url.Values
	offset, limit int

	cancel  context.CancelFunc
	askers  []*socket     // the sockets with such a window, once for each window
	answers *rows         // the latest answer; nil: none yet
	took    time.Duration // duration of the latest answer
}

// ask returns the question for at most limit rows from offset on, for a window of s. It starts the
// question unless another window of the user has started it. It does not wait for an answer: s is
// notified (poke) of each new one. The caller later calls drop once.
func (l *Live) ask(s *socket, path string, query url.Values, offset, limit int) *question {
	key := strings.Join([]string{s.audience.name, path, query.Encode(), strconv.Itoa(offset), strconv.Itoa(limit)}, "\x00")
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.asked[key]
	if q == nil {
		var ctx context.Context
		q = &question{audience: s.audience, key: key, path: path, query: query, offset: offset, limit: limit}
		ctx, q.cancel = context.WithCancel(s.audience.ctx)
		l.asked[key] = q
		go q.run(ctx)
	}
	q.askers = append(q.askers, s)
	return q
}

// drop reverses one call of ask for the socket. The question ends when no window shows it any more.
func (q *question) drop(s *socket) {
	l := q.audience.live
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(q.askers, s)
	if q.askers = slices.Delete(q.askers, i, i+1); len(q.askers) == 0 {
		q.cancel()
		delete(l.asked, q.key)
		q.audience.took -= q.took
	}
}

// latest returns the latest answer to the question; nil if it has none yet.
func (q *question) latest() *rows {
	q.audience.live.mu.Lock()
	defer q.audience.live.mu.Unlock()
	return q.answers
}

// run repeats the search until ctx ends: after changes of objects, rights or clusters, after
// errors, and at intervals. Each result goes to the sockets by tell. Its goroutine lives as long as
// the question.
func (q *question) run(ctx context.Context) {
	l := q.audience.live
	retry := l.pace.retry
	var due time.Time // rights changed: ask again then, when caches of the old rights have expired
	for {
		grants, moved := l.Grants(), l.moved() // before the search, so that no later change is missed
		began, w, changed, err := q.once(ctx)
		if ctx.Err() != nil {
			return
		}
		took := time.Since(began)
		asked.Observe(took.Seconds())
		q.tell(ctx, took, w, err)
		wait := l.pace.review
		if err != nil {
			wait, retry = retry, min(2*retry, 10*l.pace.retry)
		} else {
			retry = l.pace.retry
		}
		timer := time.NewTimer(l.pace.until(due, wait))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-changed:
		case <-moved:
		case <-grants:
		}
		pause := q.pause(took)
		if began.Before(due) {
			pause = min(pause, l.pace.reviewAgain)
		}
		timer.Reset(pause - time.Since(began))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-grants: // rights changed: rows may have to disappear sooner than after the pause
			timer.Reset(min(pause, l.pace.latest) - time.Since(began))
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
		}
		if timer.Stop(); ctx.Err() != nil {
			return
		}
		if isClosed(grants) {
			due = time.Now().Add(l.pace.reviewAgain)
		}
	}
}

// share is the part of the time for which the searches of one user may run. It is also the part of
// each core's time that the searches of all users get. One search in objects uses several cores at
// once.
const share = 0.2

// pause returns the least time from one start of the search to the next. took is the duration of
// the last one. Questions of a user are repeated equally often, and together run for at most the
// part share of the time. If all users want more than the cores offer, all pauses grow in
// proportion, up to pace.review.
func (q *question) pause(took time.Duration) time.Duration {
	l := q.audience.live
	l.mu.Lock()
	defer l.mu.Unlock()
	wanted := 0.0 // how many cores all users want
	for _, a := range l.users {
		wanted += min(share, float64(a.took)/float64(l.pace.soonest))
	}
	own := float64(q.audience.took) / share
	underLoad := min(own*wanted/share/float64(runtime.GOMAXPROCS(0)), float64(l.pace.review))
	return max(l.pace.soonest, min(10*took, l.pace.latest), time.Duration(max(own, underLoad)))
}

// until returns how long to wait: the time until due, but at most otherwise. If due has passed or
// is zero, it returns otherwise.
func (p pace) until(due time.Time, otherwise time.Duration) time.Duration {
	if d := time.Until(due); d > 0 {
		return min(d, otherwise)
	}
	return otherwise
}

// isClosed reports whether a channel on which no values are sent is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// once runs the search, when a slot of the user and a slot of all users are free. began is when the
// search started. changed is closed when the result may have changed; nil if that is unknown. If
// ctx ends before a slot is free, began is zero and err is the error of ctx. A panic of the search
// becomes an error.
func (q *question) once(ctx context.Context) (began time.Time, w search.Window, changed <-chan struct{}, err error) {
	for _, slots := range []chan struct{}{q.audience.slots, q.audience.live.slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return began, w, nil, ctx.Err()
		}
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			logr.FromContextOrDiscard(ctx).Error(nil, "window panicked", "path", q.path, "panic", panicked, "stack", string(debug.Stack()))
			err = apierrors.NewInternalError(errors.New("the request panicked; the server's log says why"))
		}
	}()
	began = time.Now()
	w, changed, err = q.audience.live.Window(ctx, q.path, q.query, q.offset, q.limit)
	return began, w, changed, err
}

// tell stores the result of a search, which is a window or an error, and its duration. It notifies
// the sockets if the result differs from the last one as browsers show it.
func (q *question) tell(ctx context.Context, took time.Duration, w search.Window, err error) {
	var now *rows
	if err == nil {
		now, err = rowsOf(w, q.offset)
	}
	if err != nil {
		now = &rows{offset: q.offset, refused: answer.Status(ctx, err, http.MethodGet, q.path)}
	}
	l := q.audience.live
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(q.askers) > 0 { // else drop has already subtracted q.took from the sum of the user
		q.audience.took += took - q.took
		q.took = took
	}
	if q.answers != nil && q.answers.equal(now) {
		return
	}
	q.answers = now
	for _, s := range q.askers {
		s.poke()
	}
}

// parse parses the query of a list that a browser requests. It returns a BadRequest error if path
// and query have more than mostQuery bytes together, or the query is invalid.
func parse(path, query string) (url.Values, error) {
	if len(path)+len(query) > mostQuery {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a path and its query have at most %d bytes: ask for less", mostQuery))
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, apierrors.NewBadRequest("query: " + err.Error())
	}
	return values, nil
}
