// Package live tells browsers what changes in the rows that they show: over one WebSocket, windows of lists of the fleet API and what differs in
// them from then on, and how current what is known of each cluster is (docs/design/0020-console.md).
//
// A window is the answer to a question, which is asked of the search of the fleet as the socket's user, so that rights, rows and cells are those of a GET; it is
// asked again when the store's journal says that something of its type changed, when somebody's rights or the state of a cluster did, and now and then. Who asks
// the same as the same user shares the question. Each socket compares the latest answer with what it has sent when its browser can take
// more: one that is slow is sent the difference of what it has and what there is, and nothing of what was between.
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

// Protocol is the subprotocol that browsers must ask for.
const Protocol = "orrery-live.v1"

// Bounds of what browsers may have open.
const (
	mostSockets = 1000
	mostOfUser  = 50
	mostWindows = 16       // of a socket
	mostMessage = 64 << 10 // bytes, from a browser
	mostQuery   = 16 << 10 // bytes of a path and its query
	turnsOfUser = 2        // questions of a user that are asked at once
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
	// Window is what the user of ctx sees of a list, and a channel that is closed when that may be another; nil: it is not known when.
	Window func(ctx context.Context, path string, query url.Values, offset, limit int) (search.Window, <-chan struct{}, error)
	// Visible are the names of the clusters of which the user of ctx may know.
	Visible func(ctx context.Context) ([]string, error)
	// Grants is closed when Window and Visible may answer otherwise than before, for other rights: then there is another.
	Grants func() <-chan struct{}
	// Clusters are the names of all clusters, and State is how current what is known of one is, and if it is not, since when; zero: nothing ever was.
	Clusters func() []string
	State    func(cluster string) (state string, since time.Time)
}

// Live serves windows. It is an http.Handler of WebSockets, of requests whose context has a user.
type Live struct {
	Options

	pace    pace
	turns   chan struct{} // of all questions
	mu      sync.Mutex
	open    int
	users   map[string]*audience
	asked   map[string]*question
	states  map[string]state // nil: not known yet
	changed chan struct{}    // closed when states are others
	poller  context.CancelFunc
}

// pace is how often things are done.
type pace struct {
	soonest, latest time.Duration // a question is asked again at the earliest, however fast or slow it is answered
	review          time.Duration // it is asked anyway
	reviewAgain     time.Duration // after rights changed, when no answer of before is remembered any more
	retry           time.Duration // after an error, at first
	poll            time.Duration // of the states of clusters
	patience        time.Duration // with a browser that takes nothing
	ping            time.Duration // a beat, too, and a look at who the user is
}

var usualPace = pace{
	soonest: 250 * time.Millisecond, latest: 2 * time.Second, review: 30 * time.Second, reviewAgain: 6 * time.Second, retry: time.Second, poll: time.Second,
	patience: 2 * time.Minute, ping: 10 * time.Second,
}

// New returns a Live.
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
		return // the client was told
	}
	defer c.CloseNow() //nolint:errcheck // it may be closed already
	if c.Subprotocol() != Protocol {
		_ = c.Close(websocket.StatusPolicyViolation, "ask for the subprotocol "+Protocol)
		return
	}
	c.SetReadLimit(mostMessage)
	l.serve(r.Context(), &browser{c, []byte(r.URL.Query().Get("open"))}, who, a)
}

// browser is a connection to one.
type browser struct {
	*websocket.Conn

	first []byte // message that its address has: it need not wait for the connection
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

// identityOf is what tells users apart, who may be others later, and a copy of the user.
func identityOf(who user.Info) (string, *user.DefaultInfo) {
	is := &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: slices.Clone(who.GetGroups()), Extra: maps.Clone(who.GetExtra())}
	name, _ := json.Marshal(is) //nolint:errchkjson // texts
	return string(name), is
}

// enter counts a socket of a user, and refuses one too many.
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
		// What is asked for a user may go on after the request that began it, for another socket.
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

// leave is the reverse of enter.
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
