// Package live sends browsers the changes of the rows that they show. One WebSocket carries windows
// of lists of the fleet API, their changes, and how current the data of each cluster is
// (docs/design/0020-console.md).
//
// A window is the answer to a question: a search of the fleet as the socket's user. So rights, rows
// and cells are those of a GET. A question is asked again when the store's journal reports a change
// of its type, when rights or the state of a cluster changed, and at intervals. Windows of one user
// with the same question share the answer. Each socket compares the latest answer with the one that
// it sent last, when its browser can take more. A slow browser gets the difference to the latest
// answer, and no answers in between.
package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/search"
)

// Protocol is the subprotocol that browsers must request.
const Protocol = "orrery-live.v1"

// Limits on what browsers may open.
const (
	mostSockets = 1000
	mostOfUser  = 50
	mostWindows = 16       // per socket
	mostMessage = 64 << 10 // bytes, from a browser
	mostQuery   = 16 << 10 // bytes of a path and its query
	turnsOfUser = 2        // concurrent questions of a user
)

var sockets = promauto.NewGauge(prometheus.GaugeOpts{
	Name: "orrery_console_live_sockets",
	Help: "Sockets of the console that are open.",
})

var asked = promauto.NewHistogram(prometheus.HistogramOpts{
	Name:    "orrery_console_window_duration_seconds",
	Help:    "How long it takes to find out what is in a window of the console.",
	Buckets: []float64{.001, .005, .025, .1, .5, 1, 5, 30},
})

// Options of a Live. All of them are required.
type Options struct {
	// Window returns what the user of ctx sees of a list, and a channel that is closed when that
	// may have changed. The channel is nil if changes cannot be observed.
	Window func(ctx context.Context, path string, query url.Values, offset, limit int) (search.Window, <-chan struct{}, error)
	// Visible returns the names of the clusters that the user of ctx may know.
	Visible func(ctx context.Context) ([]string, error)
	// Grants returns a channel that is closed when changed rights may change the results of Window
	// and Visible. Later calls return a new channel.
	Grants func() <-chan struct{}
	// Clusters returns the names of all clusters. State returns how current the data of a cluster
	// is. since is when it was last current, if it is not now; zero: never.
	Clusters func() []string
	State    func(cluster string) (state string, since time.Time)
}

// Live serves windows. It is an http.Handler for WebSockets. The context of a request must have a
// user.
type Live struct {
	Options

	pace    pace
	turns   chan struct{} // bounds all questions at once
	mu      sync.Mutex
	open    int
	users   map[string]*audience
	asked   map[string]*question
	states  map[string]state // nil: unknown
	changed chan struct{}    // closed when states change
	poller  context.CancelFunc
}

// pace has the intervals of the package.
type pace struct {
	// Least delay before a question is repeated, for fast and slow answers.
	soonest, latest time.Duration
	review          time.Duration // longest delay before it is repeated
	reviewAgain     time.Duration // after rights changed, when no earlier answer is cached any more
	retry           time.Duration // first delay after an error
	poll            time.Duration // interval between reads of the clusters' states
	patience        time.Duration // with a browser that reads nothing
	ping            time.Duration // interval of pings, beats and checks of the user
}

var usualPace = pace{
	soonest: 250 * time.Millisecond, latest: 2 * time.Second, review: 30 * time.Second, reviewAgain: 6 * time.Second, retry: time.Second, poll: time.Second,
	patience: 2 * time.Minute, ping: 10 * time.Second,
}

// New returns a Live. Its work starts with the first socket.
func New(o Options) *Live {
	return &Live{
		Options: o, pace: usualPace, turns: make(chan struct{}, max(4, runtime.GOMAXPROCS(0))),
		users: map[string]*audience{}, asked: map[string]*question{}, changed: make(chan struct{}),
	}
}

// ServeHTTP implements http.Handler. It returns when the socket is closed.
func (l *Live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, ok := request.UserFrom(r.Context())
	if !ok {
		answer.Error(w, r, apierrors.NewUnauthorized("the request has no user"))
		return
	}
	a, err := l.enter(r.Context(), who)
	if err != nil {
		answer.Error(w, r, err)
		return
	}
	defer l.leave(a)
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{Protocol}, CompressionMode: websocket.CompressionNoContextTakeover})
	if err != nil {
		return // Accept has answered
	}
	defer c.CloseNow() //nolint:errcheck // it may be closed already
	if c.Subprotocol() != Protocol {
		_ = c.Close(websocket.StatusPolicyViolation, "ask for the subprotocol "+Protocol)
		return
	}
	c.SetReadLimit(mostMessage)
	l.serve(r.Context(), &browser{c, []byte(r.URL.Query().Get("open"))}, who, a)
}

// browser is the WebSocket of a browser.
type browser struct {
	*websocket.Conn

	first []byte // message in the URL, which saves a round trip
}

// read implements connection.
func (b *browser) read(ctx context.Context) ([]byte, error) {
	if first := b.first; len(first) > 0 {
		b.first = nil
		if len(first) > mostMessage {
			return nil, errors.New("the message in the address is too long")
		}
		return first, nil
	}
	kind, message, err := b.Read(ctx)
	if err == nil && kind != websocket.MessageText {
		err = errors.New("messages are text")
	}
	return message, err
}

// write implements connection.
func (b *browser) write(ctx context.Context, message []byte) error {
	return b.Write(ctx, websocket.MessageText, message)
}

// ping implements connection.
func (b *browser) ping(ctx context.Context) error { return b.Ping(ctx) }

// close implements connection.
func (b *browser) close(violation bool, reason string) {
	code := websocket.StatusNormalClosure
	if violation {
		code = websocket.StatusPolicyViolation
	}
	_ = b.Close(code, reason[:min(len(reason), 120)]) // the other end may be gone
}

// identityOf returns a key that identifies a user with all groups and extras, and a copy of the
// user. who may change later.
func identityOf(who user.Info) (string, *user.DefaultInfo) {
	is := &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: slices.Clone(who.GetGroups()), Extra: maps.Clone(who.GetExtra())}
	name, _ := json.Marshal(is) //nolint:errchkjson // texts
	return string(name), is
}

// enter registers a socket of a user. The error is TooManyRequests beyond the limits.
func (l *Live) enter(ctx context.Context, who user.Info) (*audience, error) {
	name, is := identityOf(who)
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.users[name]
	switch {
	case a != nil && a.open >= mostOfUser:
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("user %q has %d consoles open: close one", who.GetName(), mostOfUser), 10)
	case l.open >= mostSockets:
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d consoles are open, and no more can be", mostSockets), 10)
	case a == nil:
		a = &audience{live: l, name: name, turns: make(chan struct{}, turnsOfUser), sockets: map[*socket]bool{}}
		// The work for a user may outlive the request that started it, for another socket.
		a.ctx, a.cancel = context.WithCancel(request.WithUser(context.WithoutCancel(ctx), is))
		l.users[a.name] = a
		go a.run()
	}
	a.open++
	if l.open++; l.open == 1 {
		var polling context.Context
		polling, l.poller = context.WithCancel(context.WithoutCancel(ctx))
		go l.poll(polling)
	}
	sockets.Inc()
	return a, nil
}

// leave reverses enter.
func (l *Live) leave(a *audience) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sockets.Dec()
	if l.open--; l.open == 0 {
		l.poller()
	}
	if a.open--; a.open == 0 {
		a.cancel()
		delete(l.users, a.name)
	}
}
