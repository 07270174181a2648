// Package live sends the pages of the console in a browser the changes of the rows that they show.
// A page opens one WebSocket, here called socket (docs/design/0020-console.md).
//
// A window is a part of a list of the fleet API: the rows from an offset on that the page shows.
// The rows are the answer to a question, which is a search with the rights of the user. So rows and
// cells are those of a GET. A question is asked again when an object of its type changed, when
// rights or the state of a cluster changed, and at intervals. Windows of one user with the same
// question share the answer. When its browser can take more, each socket compares the latest answer
// with the answer that it sent last, and sends the difference. A slow browser gets no answers in
// between. The socket also carries how current the data of each cluster is.
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

// Protocol is the WebSocket subprotocol that browsers must request. It has the version of the
// messages.
const Protocol = "orrery-live.v1"

// Limits on what browsers may open.
const (
	mostSockets = 1000     // open at the same time, of all users
	mostOfUser  = 50       // open at the same time, of one user
	mostWindows = 16       // per socket
	mostMessage = 64 << 10 // bytes, from a browser
	mostQuery   = 16 << 10 // bytes of a path and its query
	slotsOfUser = 2        // concurrent searches for a user
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

// Options are what a Live needs of the fleet API. All fields are required.
type Options struct {
	// Window returns at most limit rows of a list from offset on, as the user of ctx sees them. path
	// and query are those of a GET of the list. The channel is closed when the rows may have
	// changed. It is nil if changes cannot be observed.
	Window func(ctx context.Context, path string, query url.Values, offset, limit int) (search.Window, <-chan struct{}, error)
	// Visible returns the names of the clusters that the user of ctx may know.
	Visible func(ctx context.Context) ([]string, error)
	// Grants returns a channel that is closed when rights change, and with them perhaps the results
	// of Window and Visible. After that, Grants returns another channel.
	Grants func() <-chan struct{}
	// Clusters returns the names of all clusters. State returns how current the data of a cluster
	// is, as a word. If the data is not current, since is when it was last current; zero: never.
	Clusters func() []string
	State    func(cluster string) (state string, since time.Time)
}

// Live is the http.Handler that serves the WebSockets of the console. The context of a request must
// have a user. Live runs each search once for all windows that show the same rows to the same user.
type Live struct {
	Options

	pace    pace
	slots   chan struct{} // limits the concurrent searches of all users
	mu      sync.Mutex
	open    int                  // sockets of all users
	users   map[string]*audience // users with an open socket, by identityOf
	asked   map[string]*question // questions of open windows, by question.key
	states  map[string]state     // nil: unknown
	changed chan struct{}        // closed and replaced when states changes
	poller  context.CancelFunc   // ends poll
}

// pace has the durations with which the package works. Tests use shorter ones than usualPace.
type pace struct {
	// A question is repeated after soonest at the earliest, and after latest if answers are slow.
	soonest, latest time.Duration
	review          time.Duration // longest time until a question is repeated without a change
	reviewAgain     time.Duration // from changed rights until caches of the old rights expired
	retry           time.Duration // first delay after an error
	poll            time.Duration // interval between reads of the clusters' states
	patience        time.Duration // with a browser that reads nothing
	ping            time.Duration // interval of pings, beats and checks of the user
}

var usualPace = pace{
	soonest: 250 * time.Millisecond, latest: 2 * time.Second, review: 30 * time.Second, reviewAgain: 6 * time.Second, retry: time.Second, poll: time.Second,
	patience: 2 * time.Minute, ping: 10 * time.Second,
}

// New returns a Live. Its goroutines start with the first socket and end with the last.
func New(o Options) *Live {
	return &Live{
		Options: o, pace: usualPace, slots: make(chan struct{}, max(4, runtime.GOMAXPROCS(0))),
		users: map[string]*audience{}, asked: map[string]*question{}, changed: make(chan struct{}),
	}
}

// ServeHTTP implements http.Handler. It upgrades the request to a WebSocket and returns when that
// is closed. A request without a user gets 401, and 429 beyond the limits of sockets. A browser
// that does not request Protocol is disconnected.
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

// browser is the connection to a browser: it implements connection with a WebSocket.
type browser struct {
	*websocket.Conn

	// first is the first message, from the parameter open of the URL, which saves a round trip; nil:
	// none.
	first []byte
}

// read implements connection. It returns the message from the URL of the request first, if there is
// one. A message that is too long or no text is an error.
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

// write implements connection. It sends a text message.
func (b *browser) write(ctx context.Context, message []byte) error {
	return b.Write(ctx, websocket.MessageText, message)
}

// ping implements connection. It waits for the answer of the browser.
func (b *browser) ping(ctx context.Context) error { return b.Ping(ctx) }

// close implements connection. The browser gets at most 120 bytes of the reason.
func (b *browser) close(violation bool, reason string) {
	code := websocket.StatusNormalClosure
	if violation {
		code = websocket.StatusPolicyViolation
	}
	_ = b.Close(code, reason[:min(len(reason), 120)]) // an error is ignored: the browser may be gone
}

// identityOf returns a text that identifies a user with UID, groups and extras, and a copy of the
// user. Sockets with the same text share an audience. The caller may change who afterwards.
func identityOf(who user.Info) (string, *user.DefaultInfo) {
	is := &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: slices.Clone(who.GetGroups()), Extra: maps.Clone(who.GetExtra())}
	name, _ := json.Marshal(is) //nolint:errchkjson // texts
	return string(name), is
}

// enter counts a new socket of a user and returns the audience of the user. The caller must call
// leave later. The first socket of a user starts the audience, and the first socket of all starts
// poll. Beyond mostOfUser or mostSockets it returns a TooManyRequests error, and nothing is
// counted.
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
		a = &audience{live: l, name: name, slots: make(chan struct{}, slotsOfUser), sockets: map[*socket]bool{}}
		// The audience may outlive this request, because other sockets of the user may join it.
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

// leave reverses one call of enter. It ends the audience after its last socket, and poll after the
// last socket of all users.
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
