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

// question is a repeated search for one or more windows of one user that show the same rows. The
// mutex of live guards its variable fields.
type question struct {
	audience      *audience
	key           string
	path          string
	query         url.Values
	offset, limit int

	cancel  context.CancelFunc
	askers  []*socket // a socket may be there several times
	answers *rows     // the latest; nil: none yet
	took    time.Duration
}

// ask returns the question for some rows, and adds the socket to those that get poked about a new
// answer. The caller ends that with drop.
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

// drop removes a socket once. A question without sockets ends.
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

// latest returns the latest answer; nil: none yet.
func (q *question) latest() *rows {
	q.audience.live.mu.Lock()
	defer q.audience.live.mu.Unlock()
	return q.answers
}

// run repeats the question until ctx ends.
func (q *question) run(ctx context.Context) {
	l := q.audience.live
	retry := l.pace.retry
	var due time.Time // time of the review that follows a change of rights
	for {
		grants, moved := l.Grants(), l.moved() // read before the data that they are about
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
		case <-grants: // rows that became invisible are not shown for that long
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

// share is the part of the time in which a user's windows may be searched, and of each core's time
// for all users. A search in objects uses several cores at once.
const share = 0.2

// pause returns the least time from one start of a question to the next. took is the duration of
// its last answer. All windows of a user are repeated equally often, and together take at most
// share of the time. If all users want more than the cores offer, all wait proportionally longer.
// In that case nobody waits longer than pace.review.
func (q *question) pause(took time.Duration) time.Duration {
	l := q.audience.live
	l.mu.Lock()
	defer l.mu.Unlock()
	wanted := 0.0 // of a core
	for _, a := range l.users {
		wanted += min(share, float64(a.took)/float64(l.pace.soonest))
	}
	own := float64(q.audience.took) / share
	crowded := min(own*wanted/share/float64(runtime.GOMAXPROCS(0)), float64(l.pace.review))
	return max(l.pace.soonest, min(10*took, l.pace.latest), time.Duration(max(own, crowded)))
}

// until returns the time until due, if due is in the future and sooner than otherwise; else
// otherwise.
func (p pace) until(due time.Time, otherwise time.Duration) time.Duration {
	if d := time.Until(due); d > 0 {
		return min(d, otherwise)
	}
	return otherwise
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// once waits for free slots and asks. began is when it asked.
func (q *question) once(ctx context.Context) (began time.Time, w search.Window, changed <-chan struct{}, err error) {
	for _, turns := range []chan struct{}{q.audience.turns, q.audience.live.turns} {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
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

// tell stores an answer and its duration, and pokes the sockets if it differs from the last one.
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
	if len(q.askers) > 0 { // else what it took was taken off
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

// parse checks the size of the path and query, and parses the query.
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
