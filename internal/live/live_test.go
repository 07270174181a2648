package live

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/testenv"
)

// TestWindowsAreWhatGetAnswers makes random changes, and compares what browsers have built from
// windows and deltas with the answer of GET to the same user.
func TestWindowsAreWhatGetAnswers(t *testing.T) {
	w := newWorld(t, "oak", "pine", "elm")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	type asking struct {
		path, query   string
		offset, limit int
	}
	users := []string{"alice", "bob"}
	tabs, asked := map[string]*tab{}, map[string]map[int]asking{}
	dial := func(who string) {
		if tabs[who] != nil {
			_ = tabs[who].conn.CloseNow()
		}
		tabs[who] = w.dial(t, who)
		for id, a := range asked[who] {
			tabs[who].open(id, a.path, a.query, a.offset, a.limit)
		}
	}
	for _, who := range users {
		asked[who] = map[int]asking{}
		dial(who)
	}
	for round := range 60 {
		for range 1 + r.IntN(12) {
			who := one(users...)
			id := r.IntN(3)
			switch a, open := asked[who][id]; r.IntN(9) {
			case 0:
				dial(who)
			case 1:
				w.grant(who, [][]string{{"*"}, {"shop"}, {"team", "shop"}, {}, {"team"}}[r.IntN(5)]...)
			case 2, 3:
				if open && r.IntN(2) == 0 {
					a.offset, a.limit = r.IntN(40), 1+r.IntN(20)
					tabs[who].say(order{Type: "move", ID: id, Offset: a.offset, Limit: a.limit})
				} else {
					a = asking{
						one("/api/v1/pods", "/api/v1/pods", "/clusters/oak/api/v1/pods", "/api/v1/namespaces/shop/pods", "/api/v1/nothings"),
						one("", "q=phase:Running", "labelSelector=app%3Dw", "orderby=name+desc", "orderby=namespace", "orderby=created+desc&labelSelector=app!%3Dw", "clusters=pine", "q=-is:ready", "q=(("),
						r.IntN(30), 1 + r.IntN(20),
					}
					tabs[who].open(id, a.path, a.query, a.offset, a.limit)
				}
				asked[who][id] = a
			case 4:
				w.become(one("oak", "elm"), []state{{mirror.StateSynced, time.Time{}}, {mirror.StateBehind, time.Unix(1_700_000_000, 0)}}[r.IntN(2)])
			default:
				var pods []string
				for range 1 + r.IntN(5) {
					pods = append(pods, one("oak", "pine", "elm")+"/"+one("shop", "team", "blog")+"/"+one("web-", "db-", "w-")+fmt.Sprint(r.IntN(8)))
				}
				slices.Sort(pods)
				w.put(t, one("Running", "Running", "Pending", "Failed", ""), slices.Compact(pods)...)
			}
		}
		for _, who := range users {
			for id, a := range asked[who] {
				all := w.get(t, who, a.path, a.query, a.offset, a.limit)
				tabs[who].wait(id, fmt.Sprintf("round %d: %s sees %+v as GET answers", round, who, a), func(w *shown) error {
					got, want := w.text(), all
					// The total is a lower bound.
					if first, rows, ok := strings.Cut(want, "\n"); ok && w.status == nil && !w.exact {
						var total int64
						if _, err := fmt.Sscanf(first, "of %d", &total); err != nil || w.total > total {
							return fmt.Errorf("at least %d %s: %w", w.total, first, err)
						}
						_, got, _ = strings.Cut(got, "\n")
						want = rows
					}
					if got != want {
						return fmt.Errorf("got %s\nwant %s", got, want)
					}
					return nil
				})
			}
		}
	}
}

func shows(want ...string) func(w *shown) error {
	return func(w *shown) error {
		var got []string
		for _, key := range w.order {
			r := w.rows[key]
			got = append(got, r.Cluster+"/"+r.Namespace+"/"+r.Name)
		}
		if w.status != nil || !slices.Equal(got, want) {
			return fmt.Errorf("status %v, rows %v, want %v", w.status, got, want)
		}
		return nil
	}
}

// TestDeltaHasNothingThatIsUnchanged: a delta has only the changed cells of a row, and the order if
// rows moved.
func TestDeltaHasNothingThatIsUnchanged(t *testing.T) {
	w := newWorld(t, "oak", "pine")
	for i := range 30 {
		w.put(t, "Running", fmt.Sprintf("oak/shop/web-%02d", i))
	}
	b := w.dial(t, "alice")
	b.open(7, "/api/v1/pods", "", 5, 20)
	b.wait(7, "the window is there", func(w *shown) error {
		if len(w.order) != 20 || w.total != 30 || !w.exact || w.offset != 5 {
			return fmt.Errorf("%d rows of %d (%t) from %d on", len(w.order), w.total, w.exact, w.offset)
		}
		return nil
	})
	b.mu.Lock()
	b.bytes = 0
	first := b.windows[7].order[0]
	b.mu.Unlock()
	w.put(t, "Pending", "oak/shop/web-05")
	b.wait(7, "one cell changed", func(w *shown) error {
		if !strings.Contains(w.text(), "Pending") || w.order[0] != first {
			return errors.New(w.text())
		}
		if b.bytes > 120 {
			return fmt.Errorf("it took %d bytes", b.bytes)
		}
		return nil
	})
	w.put(t, "Running", "oak/shop/web-00b")
	b.wait(7, "one row came, and the others are in another order", func(w *shown) error {
		if w.total != 31 || w.rows[w.order[0]].Name != "web-04" || w.order[1] != first || b.bytes > 700 {
			return fmt.Errorf("%d bytes, %s", b.bytes, w.text())
		}
		return nil
	})
	b.say(order{Type: "move", ID: 7, Offset: 6, Limit: 20})
	b.wait(7, "rows keep their keys when the window moves", func(w *shown) error {
		if w.offset != 6 || w.order[0] != first {
			return fmt.Errorf("from %d on, key %d, want %d", w.offset, w.order[0], first)
		}
		return nil
	})
	b.say(order{Type: "move", ID: 7, Offset: 100, Limit: 20})
	b.wait(7, "beyond the end there is nothing, and it is known where that is", func(w *shown) error {
		if w.offset != 100 || len(w.order) != 0 || w.total != 31 {
			return errors.New(w.text())
		}
		return nil
	})
}

// TestRightsAreThoseOfNow: rows and names of clusters disappear when the right to them ends.
func TestRightsAreThoseOfNow(t *testing.T) {
	w := newWorld(t, "oak", "pine")
	w.put(t, "Running", "oak/shop/a", "oak/team/b", "pine/shop/c", "pine/team/d")
	b := w.dial(t, "bob")
	b.open(1, "/api/v1/pods", "", 0, 50)
	code := func(want int) func(*shown) error {
		return func(w *shown) error {
			if got := fmt.Sprint(w.status["code"]); got != fmt.Sprint(want) {
				return fmt.Errorf("%s: %s", got, w.text())
			}
			return nil
		}
	}
	fleet := func(want ...string) {
		t.Helper()
		testenv.Eventually(t, "the clusters are known", testenv.Patience, func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			got := []string{}
			for _, c := range b.fleet {
				got = append(got, c.Name+" "+c.State)
			}
			if b.fleet == nil || !slices.Equal(got, want) {
				return fmt.Errorf("%v, want %v", got, want)
			}
			return nil
		})
	}
	b.wait(1, "who may see nothing is refused", code(http.StatusForbidden))
	fleet()
	w.grant("bob", "team")
	b.wait(1, "one namespace, in the clusters that it may use", shows("oak/team/b"))
	fleet("oak Synced")
	w.grant("bob", "team", "shop")
	b.wait(1, "two", shows("oak/shop/a", "oak/team/b", "pine/shop/c"))
	w.become("pine", state{mirror.StateUnknown, time.Now().Add(-time.Hour)})
	fleet("oak Synced", "pine Unknown")
	b.wait(1, "what is the last known is said to be", func(w *shown) error {
		if !strings.Contains(fmt.Sprint(w.stale), "pine is unreachable") {
			return fmt.Errorf("warnings %q", w.stale)
		}
		return nil
	})
	w.grant("bob", "*")
	b.wait(1, "all", shows("oak/shop/a", "oak/team/b", "pine/shop/c", "pine/team/d"))
	w.live.mu.Lock()
	for _, a := range w.live.users {
		a.took += 10_000 * time.Hour // so that changes alone start no question
	}
	w.live.mu.Unlock()
	w.put(t, "Pending", "oak/shop/a")
	w.grant("bob")
	b.wait(1, "nothing", code(http.StatusForbidden))
	fleet()
}

// TestUnknownIsNotEmpty: a question that cannot be answered gives an error, not a window without
// rows.
func TestUnknownIsNotEmpty(t *testing.T) {
	w := newWorld(t)
	w.ready.Store(false)
	b := w.dial(t, "alice")
	b.open(1, "/api/v1/pods", "", 0, 50)
	code := func(want int) func(*shown) error {
		return func(w *shown) error {
			if got := fmt.Sprint(w.status["code"]); got != fmt.Sprint(want) {
				return fmt.Errorf("%s: %s", got, w.text())
			}
			return nil
		}
	}
	b.wait(1, "the hub has just begun", code(http.StatusServiceUnavailable))
	w.ready.Store(true)
	b.wait(1, "no cluster has it", code(http.StatusNotFound))
	w.mu.Lock()
	w.clusters = []string{"oak"}
	w.mu.Unlock()
	b.wait(1, "there is nothing", shows())
	w.put(t, "Running", "oak/shop/a")
	b.wait(1, "there is something", shows("oak/shop/a"))
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	w.grant("alice", "*")
	b.wait(1, "the store does not answer", code(http.StatusServiceUnavailable))
	for path, query := range map[string]string{
		"/search": "q=web", "/api/v1/pods/a": "", "/api/v1": "", "": "", "/apis/metrics.k8s.io/v1beta1/pods": "", "/api/v1/pods": "watch=true",
		"/api/v1/configmaps": "limit=5", "/api/v1/secrets": "at=-1h", "/%zz": "", "/clusters//api/v1/pods": "", "/api/v1/nodes": "%zz",
	} {
		b.open(2, path, query, 0, 10)
		b.wait(2, path+"?"+query+" is no window", code(http.StatusBadRequest))
	}
	b.open(2, "/api/v1/pods", "", 0, 1000)
	b.wait(2, "too many rows", code(http.StatusBadRequest))
	b.open(2, "/api/v1/pods", "q="+strings.Repeat("a", mostQuery), 0, 10)
	b.wait(2, "too long a query", code(http.StatusBadRequest))
}

// TestWindowOfTheAddress: a message in the address of a socket works like any other message.
func TestWindowOfTheAddress(t *testing.T) {
	w := newWorld(t, "oak")
	w.put(t, "Running", "oak/shop/a", "oak/shop/b")
	w.grant("bob", "team")
	first := `{"type":"open","id":7,"path":"/api/v1/pods","query":"orderby=name","offset":0,"limit":1}`
	w.dialWith(t, "bob", first).wait(7, "it shows what its user may see", shows())
	b := w.dialWith(t, "alice", first)
	b.wait(7, "it is open, although nothing was said", shows("oak/shop/a"))
	b.open(8, "/api/v1/pods", "", 0, 10)
	b.wait(8, "another one beside it", shows("oak/shop/a", "oak/shop/b"))
	b.say(order{Type: "move", ID: 7, Offset: 1, Limit: 1})
	b.wait(7, "it moves", shows("oak/shop/b"))
}

// TestEqualQuestionsAreAskedOnce: equal questions of one user are asked once; those of another user
// are asked separately.
func TestEqualQuestionsAreAskedOnce(t *testing.T) {
	w := newWorld(t, "oak")
	w.grant("bob", "shop")
	w.put(t, "Running", "oak/shop/a", "oak/team/b")
	first := w.dial(t, "alice")
	first.open(1, "/api/v1/pods", "labelSelector=app&orderby=name", 0, 50)
	first.wait(1, "shown", shows("oak/shop/a", "oak/team/b"))
	asked := w.asked.Load()
	second := w.dial(t, "alice")
	second.open(9, "/api/v1/pods", "orderby=name&labelSelector=app", 0, 50)
	second.wait(9, "shown", shows("oak/shop/a", "oak/team/b"))
	if again := w.asked.Load(); again != asked {
		t.Errorf("asked %d times for the second tab", again-asked)
	}
	other := w.dial(t, "bob")
	other.open(1, "/api/v1/pods", "labelSelector=app&orderby=name", 0, 50)
	other.wait(1, "shown", shows("oak/shop/a"))
	_ = first.conn.CloseNow()
	w.put(t, "Running", "oak/shop/aa")
	second.wait(9, "shown without the first", shows("oak/shop/a", "oak/shop/aa", "oak/team/b"))
	second.say(order{Type: "close", ID: 9})
	_ = other.conn.CloseNow()
	testenv.Eventually(t, "nobody asks any more", testenv.Patience, func() error {
		w.live.mu.Lock()
		defer w.live.mu.Unlock()
		if len(w.live.asked) > 0 {
			return fmt.Errorf("%d questions", len(w.live.asked))
		}
		return nil
	})
}

// pipe is a connection whose browser accepts a message when the test does.
type pipe struct {
	in, out chan []byte
	closed  chan struct{}
	why     string
}

func (p *pipe) read(ctx context.Context) ([]byte, error) {
	select {
	case m := <-p.in:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipe) write(ctx context.Context, message []byte) error {
	select {
	case p.out <- message:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pipe) ping(context.Context) error { return nil }

func (p *pipe) close(_ bool, reason string) {
	p.why = reason
	close(p.closed)
}

// TestSlowBrowserGetsTheDifference: all changes while a browser reads nothing arrive as one
// message.
func TestSlowBrowserGetsTheDifference(t *testing.T) {
	w := newWorld(t, "oak")
	w.put(t, "Running", "oak/shop/a", "oak/shop/b")
	session, over := context.WithCancel(request.WithUser(t.Context(), &user.DefaultInfo{Name: "alice"}))
	p := &pipe{in: make(chan []byte), out: make(chan []byte), closed: make(chan struct{})}
	who, _ := request.UserFrom(session)
	a, err := w.live.enter(session, who)
	if err != nil {
		t.Fatal(err)
	}
	defer w.live.leave(a)
	go w.live.serve(session, p, who, a)
	b := &tab{t: t, windows: map[int]*shown{}}
	hear := func() {
		t.Helper()
		if err := b.hear(<-p.out); err != nil {
			t.Fatal(err)
		}
	}
	hear() // the clusters
	p.in <- []byte(`{"type":"open","id":1,"path":"/api/v1/pods","limit":10}`)
	hear()
	w.put(t, "Pending", "oak/shop/a") // the write of a delta begins
	settle := func() {
		t.Helper()
		testenv.Eventually(t, "the answer is that of now", testenv.Patience, func() error {
			s := &shown{status: nil}
			w.live.mu.Lock()
			defer w.live.mu.Unlock()
			for _, q := range w.live.asked {
				if q.answers == nil {
					return errors.New("there is none")
				}
				s.total = q.answers.total
				if n := len(q.answers.rows); int64(n) != s.total {
					return fmt.Errorf("%d rows", n)
				}
			}
			return nil
		})
	}
	settle()
	for i := range 50 {
		w.put(t, "Running", fmt.Sprintf("oak/shop/c-%02d", i))
		if i%2 == 0 {
			w.put(t, "", fmt.Sprintf("oak/shop/c-%02d", i))
		}
	}
	w.put(t, "", "oak/shop/b")
	want := w.get(t, "alice", "/api/v1/pods", "", 0, 10)
	messages := 0
	for b.windows[1].text() != want {
		hear()
		// At most: the message that was being written, the state at the end of that write, and
		// later changes.
		if messages++; messages > 3 {
			t.Fatalf("%d messages, and still %s", messages, b.windows[1].text())
		}
		testenv.Eventually(t, "the answer is that of now", testenv.Patience, func() error {
			w.live.mu.Lock()
			defer w.live.mu.Unlock()
			for _, q := range w.live.asked {
				if q.answers.total != 26 {
					return fmt.Errorf("%d", q.answers.total)
				}
			}
			return nil
		})
	}
	over()
	hear()
	if b.ended == "" {
		t.Error("the end of the session is not told")
	}
	<-p.closed
}

// TestBeats: a page without windows also gets messages, and so sees that the connection is
// alive.
func TestBeats(t *testing.T) {
	w := newWorld(t, "oak")
	w.live.pace.ping = time.Millisecond
	b := w.dial(t, "root")
	testenv.Eventually(t, "it goes on", testenv.Patience, func() error {
		return b.look(0, func(*shown) error {
			if b.beats < 3 {
				return fmt.Errorf("%d beats", b.beats)
			}
			return nil
		})
	})
}

// changing is a user whose groups change.
type changing struct {
	user.DefaultInfo

	groups atomic.Value
}

func (c *changing) GetGroups() []string { return c.groups.Load().([]string) }

// TestOtherGroupsConnectAgain: a socket ends when the hub sees its user with other groups.
func TestOtherGroupsConnectAgain(t *testing.T) {
	w := newWorld(t, "oak")
	w.live.pace.ping = time.Millisecond
	who := &changing{DefaultInfo: user.DefaultInfo{Name: "alice"}}
	who.groups.Store([]string{"shop-devs"})
	ctx := request.WithUser(t.Context(), who)
	a, err := w.live.enter(ctx, who)
	if err != nil {
		t.Fatal(err)
	}
	defer w.live.leave(a)
	if is, _ := request.UserFrom(a.ctx); !slices.Equal(is.GetGroups(), []string{"shop-devs"}) {
		t.Errorf("asked as %v", is)
	}
	p := &pipe{in: make(chan []byte), out: make(chan []byte, 10), closed: make(chan struct{})}
	go w.live.serve(ctx, p, who, a)
	first := <-p.out
	who.groups.Store([]string{"nobodies"})
	<-p.closed
	close(p.out)
	for m := range p.out {
		if strings.Contains(string(m), `"end"`) {
			t.Errorf("the session is not over: %s after %s", m, first)
		}
	}
	if p.why != errOther.Error() {
		t.Errorf("closed because %q", p.why)
	}
}

// TestHostileBrowsers: a hostile browser costs no more than the limits allow.
func TestHostileBrowsers(t *testing.T) {
	w := newWorld(t, "oak")
	w.put(t, "Running", "oak/shop/a")
	broken := func(b *tab) {
		t.Helper()
		testenv.Eventually(t, "the socket is closed", testenv.Patience, func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.failed == nil {
				return errors.New("it is open")
			}
			return nil
		})
	}
	for _, garbage := range []string{"", "null", "[]", "garbage", `{"type":"open","id":"x"}`, `{"type":"open","id":-1}`, `{"type":"drop","id":1}`, `{"type":"open","id":1e99}`, strings.Repeat("x", mostMessage+1)} {
		b := w.dial(t, "alice")
		_ = b.conn.Write(t.Context(), websocket.MessageText, []byte(garbage))
		broken(b)
	}
	broken(w.dialWith(t, "alice", "garbage"))
	broken(w.dialWith(t, "alice", `{"type":"close","id":1}`+strings.Repeat(" ", mostMessage)))
	flood := w.dial(t, "alice")
	for range 10 * messagesAtOnce {
		if flood.conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"move","id":1,"limit":1}`)) != nil {
			break
		}
	}
	broken(flood)
	b := w.dial(t, "alice")
	for id := range 500 {
		b.open(id, "/api/v1/pods", fmt.Sprintf("names=x%d", id), 0, 10)
	}
	b.wait(499, "a window too many is refused", func(w *shown) error {
		if fmt.Sprint(w.status["code"]) != "429" {
			return errors.New(w.text())
		}
		return nil
	})
	w.live.mu.Lock()
	if n := len(w.live.asked); n > mostWindows {
		t.Errorf("%d questions are asked for a socket of %d windows", n, mostWindows)
	}
	w.live.mu.Unlock()
	b.say(order{Type: "close", ID: 3})
	b.open(500, "/api/v1/pods", "", 0, 10)
	b.wait(500, "in the place of another there is room", shows("oak/shop/a"))
	_, resp, err := websocket.Dial(t.Context(), w.server.URL+"/live", nil)
	if err == nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a user: %v", err)
	}
	_, resp, err = websocket.Dial(t.Context(), w.server.URL+"/live?as=alice", &websocket.DialOptions{HTTPHeader: http.Header{"Origin": {"https://evil.example.com"}}})
	if err == nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("from another origin: %v", err)
	}
	var open []*tab
	for range mostOfUser {
		open = append(open, w.dial(t, "carol"))
	}
	if _, resp, err = websocket.Dial(t.Context(), w.server.URL+"/live?as=carol", nil); err == nil || resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one socket too many: %v", err)
	}
	for _, one := range open {
		_ = one.conn.CloseNow()
	}
	testenv.Eventually(t, "nothing is left of a user who has gone", testenv.Patience, func() error {
		w.live.mu.Lock()
		defer w.live.mu.Unlock()
		if n := len(w.live.users); n != 1 {
			return fmt.Errorf("%d users", n)
		}
		return nil
	})
}

// TestWindowsOfAUserOnSeveralSockets: a hundred windows of one user on several sockets are kept up
// to date, and become empty when the right ends.
func TestWindowsOfAUserOnSeveralSockets(t *testing.T) {
	const windows, each = 100, 15
	w := newWorld(t, "oak", "pine")
	w.grant("bob", "shop", "team")
	w.put(t, "Running", "oak/shop/a", "pine/shop/b")
	query := func(i int) string { return fmt.Sprintf("names=a,b,c-%d", i) }
	var tabs []*tab
	every := func(what string, want func(i int) func(*shown) error) {
		t.Helper()
		for i := range windows {
			tabs[i/each].wait(i%each, what, want(i))
		}
	}
	for i := range windows {
		if i%each == 0 {
			tabs = append(tabs, w.dial(t, "bob"))
		}
		tabs[i/each].open(i%each, "/api/v1/pods", query(i), 0, 10)
	}
	every("shown", func(int) func(*shown) error { return shows("oak/shop/a", "pine/shop/b") })
	for i := range windows {
		w.put(t, "Running", fmt.Sprintf("oak/team/c-%d", i))
	}
	every("what came is shown", func(i int) func(*shown) error {
		return shows("oak/shop/a", fmt.Sprintf("oak/team/c-%d", i), "pine/shop/b")
	})
	w.grant("bob", "team")
	every("one namespace is left", func(i int) func(*shown) error { return shows(fmt.Sprintf("oak/team/c-%d", i)) })
	w.grant("bob")
	every("nothing is", func(int) func(*shown) error {
		return func(w *shown) error {
			if fmt.Sprint(w.status["code"]) != "403" || len(w.rows) > 0 {
				return errors.New(w.text())
			}
			return nil
		}
	})
}

// TestClusterLeaves: open windows first get the state of a leaving cluster, with its last known
// rows. Then its rows are gone, and a window of the cluster alone is refused.
func TestClusterLeaves(t *testing.T) {
	w := newWorld(t, "oak", "pine")
	w.put(t, "Running", "oak/shop/a", "pine/shop/b")
	b := w.dial(t, "alice")
	b.open(1, "/api/v1/pods", "", 0, 10)
	b.open(2, "/clusters/pine/api/v1/pods", "", 0, 10)
	b.wait(1, "shown", shows("oak/shop/a", "pine/shop/b"))
	b.wait(2, "shown", shows("pine/shop/b"))
	fleet := func(want string) {
		t.Helper()
		testenv.Eventually(t, "the clusters are told", testenv.Patience, func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			got := ""
			for _, c := range b.fleet {
				got += c.Name + " " + c.State + "; "
			}
			if got != want {
				return fmt.Errorf("%s, want %s", got, want)
			}
			return nil
		})
	}
	w.become("pine", state{mirror.StateUnknown, time.Now().Add(-time.Minute)})
	fleet("oak Synced; pine Unknown; ")
	for id := range 2 {
		b.wait(id+1, "rows are said to be the last known", func(w *shown) error {
			if !strings.Contains(fmt.Sprint(w.stale), "pine is unreachable") {
				return fmt.Errorf("warnings %q", w.stale)
			}
			return nil
		})
	}
	w.mu.Lock()
	w.clusters = []string{"oak"}
	w.mu.Unlock()
	if err := w.store.DropCluster(t.Context(), "pine"); err != nil {
		t.Fatal(err)
	}
	fleet("oak Synced; ")
	b.wait(1, "its rows are gone", shows("oak/shop/a"))
	b.wait(2, "it is no cluster", func(w *shown) error {
		if fmt.Sprint(w.status["code"]) != "404" {
			return errors.New(w.text())
		}
		return nil
	})
	w.put(t, "Running", "oak/shop/c")
	b.wait(1, "what comes later is shown", shows("oak/shop/a", "oak/shop/c"))
}

// holding is a connection that reports when the write of a message begins.
type holding struct {
	*pipe

	begun chan struct{}
}

func (h holding) write(ctx context.Context, message []byte) error {
	h.begun <- struct{}{}
	return h.pipe.write(ctx, message)
}

// TestNothingIsSentAfterTheEnd: changes after the end of a session are not sent, even if they were
// due.
func TestNothingIsSentAfterTheEnd(t *testing.T) {
	w := newWorld(t, "oak")
	w.put(t, "Running", "oak/shop/a")
	for i := range 20 { // the order of messages is random
		session, over := context.WithCancelCause(request.WithUser(t.Context(), &user.DefaultInfo{Name: "alice"}))
		who, _ := request.UserFrom(session)
		a, err := w.live.enter(session, who)
		if err != nil {
			t.Fatal(err)
		}
		p := holding{&pipe{in: make(chan []byte), out: make(chan []byte), closed: make(chan struct{})}, make(chan struct{})}
		served := make(chan struct{})
		go func() {
			defer close(served)
			w.live.serve(session, p, who, a)
		}()
		next := func() string {
			<-p.begun
			return string(<-p.out)
		}
		next() // the clusters
		p.in <- []byte(`{"type":"open","id":1,"path":"/api/v1/pods","limit":100}`)
		next()
		w.put(t, "Running", fmt.Sprintf("oak/shop/b-%02d", i))
		<-p.begun
		w.put(t, "Running", fmt.Sprintf("oak/shop/secret-%02d", i))
		testenv.Eventually(t, "there is another answer", testenv.Patience, func() error {
			w.live.mu.Lock()
			defer w.live.mu.Unlock()
			for s := range a.sockets {
				for _, q := range w.live.asked {
					if q.audience == a && q.answers.total == int64(3+2*i) && len(s.news) > 0 {
						return nil
					}
				}
			}
			return errors.New("not yet")
		})
		over(errors.New("logged out"))
		if last := string(<-p.out); strings.Contains(last, fmt.Sprintf("secret-%02d", i)) {
			t.Fatalf("what was being told is of later: %s", last)
		}
		if end := next(); !strings.Contains(end, `"type":"end"`) || !strings.Contains(end, "logged out") {
			t.Fatalf("told after the end: %s", end)
		}
		<-p.closed
		<-served
		w.live.leave(a)
	}
}
