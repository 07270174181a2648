package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/search"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// world is a fleet of clusters with pods in a real store, as the mirror writes them.
type world struct {
	live   *Live
	search *search.Search
	store  *store.Store
	server *httptest.Server
	asked  atomic.Int64 // number of questions
	ready  atomic.Bool

	mu       sync.Mutex
	clusters []string
	rights   map[string][]string // by user, the namespaces in which they may list; "*": in all
	states   map[string]state
	grants   chan struct{}
}

var podKind = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}

// These methods implement the mirror.

func (w *world) Types() []mirror.Type {
	return mirror.GroupTypes(func(yield func(string, member.API) bool) {
		for _, cluster := range w.names() {
			if !yield(cluster, member.API{GroupVersionKind: podKind, Resource: "pods", Singular: "pod", Namespaced: true}) {
				return
			}
		}
	})
}

func (w *world) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.clusters)
}
func (w *world) Stored(string, schema.GroupResource) bool { return true }
func (w *world) Lost(string, schema.GroupResource) bool   { return false }
func (w *world) Stale(cluster string) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.states[cluster]
	return s.since, s.state == mirror.StateUnknown
}

func (w *world) Freshness(cluster string, _ schema.GroupResource) (time.Time, bool) {
	return w.Stale(cluster)
}
func (w *world) Silence(string, schema.GroupResource) (why string, listed bool) { return "", true }
func (w *world) Incomplete(string, schema.GroupResource) (partly, missing int)  { return 0, 0 }

func (w *world) Partial(string, schema.GroupResource) bool { return false }
func (w *world) WithoutData(string) bool                   { return false }
func (w *world) Allowed(namespace, cluster string) bool {
	return namespace != "team" || cluster != "pine"
}

func (w *world) authorize(ctx context.Context, what authorizationv1.ResourceAttributes) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	who, _ := request.UserFrom(ctx)
	for _, namespace := range w.rights[who.GetName()] {
		if namespace == "*" || namespace == what.Namespace && what.Namespace != "" {
			return nil
		}
	}
	return apierrors.NewForbidden(schema.GroupResource{Resource: what.Resource}, what.Name, errors.New("not you"))
}

// grant sets the namespaces that a user may see.
func (w *world) grant(who string, namespaces ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rights[who] = namespaces
	close(w.grants)
	w.grants = make(chan struct{})
}

// become changes the state of a cluster.
func (w *world) become(cluster string, s state) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states[cluster] = s
}

func newWorld(t testing.TB, clusters ...string) *world {
	t.Helper()
	s, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	w := &world{store: s, clusters: clusters, rights: map[string][]string{"alice": {"*"}}, states: map[string]state{}, grants: make(chan struct{})}
	w.ready.Store(true)
	grants := func() <-chan struct{} {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.grants
	}
	w.search = search.New(search.Options{
		Mirror: w, Store: s, Ready: w.ready.Load, Clusters: w.names, Authorize: w.authorize,
		Namespaces: func(ctx context.Context, _ authorizationv1.ResourceAttributes) ([]string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			who, _ := request.UserFrom(ctx)
			return slices.DeleteFunc(slices.Clone(w.rights[who.GetName()]), func(n string) bool { return n == "*" }), nil
		},
		Fence: func() (search.Fence, error) { return w, nil }, Made: func(string) (time.Time, bool) { return time.Time{}, true }, Grants: grants,
		Live: func(string) (search.Live, bool) { return serves{}, true }, Version: func() (*version.Info, error) { return &version.Info{}, nil },
	})
	w.live = New(Options{
		Window: func(ctx context.Context, path string, query url.Values, offset, limit int) (search.Window, <-chan struct{}, error) {
			w.asked.Add(1)
			return w.search.Window(ctx, path, query, offset, limit)
		},
		Visible: w.search.Visible, Grants: grants, Clusters: w.names,
		State: func(cluster string) (string, time.Time) {
			w.mu.Lock()
			defer w.mu.Unlock()
			s, known := w.states[cluster]
			if !known {
				return mirror.StateSynced, time.Time{}
			}
			return s.state, s.since
		},
	})
	w.live.pace = pace{
		soonest: time.Millisecond, latest: 20 * time.Millisecond, review: time.Hour, reviewAgain: 20 * time.Millisecond, retry: 5 * time.Millisecond,
		poll: 5 * time.Millisecond, patience: testenv.Patience, ping: time.Hour,
	}
	w.server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if who := r.URL.Query().Get("as"); who != "" {
			r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: who}))
		}
		if r.URL.Path == "/live" {
			w.live.ServeHTTP(out, r)
			return
		}
		query := r.URL.Query()
		query.Del("as")
		path := r.URL.Path
		r.URL.RawQuery = query.Encode()
		answer.Func(func(out http.ResponseWriter, r *http.Request) error {
			return w.search.Serve(out, r, path, search.Merged)
		}).ServeHTTP(out, r)
	}))
	t.Cleanup(w.server.Close)
	return w
}

type serves struct{ search.Live }

func (serves) Serves(schema.GroupVersionResource) presence.Presence { return presence.Absent }

// put writes pods, given as CLUSTER/NAMESPACE/NAME, in a phase; "": it deletes them.
func (w *world) put(t testing.TB, phase string, pods ...string) {
	t.Helper()
	var changes []store.Change
	for _, pod := range pods {
		parts := strings.Split(pod, "/")
		row := store.Row{
			Cluster: parts[0], Namespace: parts[1], Name: parts[2], Version: "v1", Kind: "Pod", Resource: "pods",
			UID: types.UID(pod + "-uid"), Created: time.Unix(1_700_000_000+int64(len(pod)), 0), Labels: map[string]string{"app": parts[2][:1]}, ResourceVersion: fmt.Sprint(time.Now().UnixNano()),
		}
		row.Body = fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q,"uid":%q,"labels":{"app":%q},"creationTimestamp":%q},`+
			`"spec":{"containers":[{"name":"c","image":"nginx"}]},"status":{"phase":%q,"podIP":"10.0.0.1"}}`,
			row.Name, row.Namespace, row.UID, row.Labels["app"], row.Created.UTC().Format(time.RFC3339), phase)
		changes = append(changes, store.Change{Row: row, Delete: phase == ""})
	}
	if err := w.store.Write(context.Background(), changes); err != nil {
		t.Fatal(err)
	}
}

// shown is the content of a window in a browser.
type shown struct {
	offset  int
	total   int64
	exact   bool
	columns []column
	order   []int64
	rows    map[int64]rowMessage
	status  map[string]any // why it is not shown
	stale   []string       // warnings
	deltas  int
}

// tab is a browser that applies messages.
type tab struct {
	t    testing.TB
	conn *websocket.Conn

	mu      sync.Mutex
	windows map[int]*shown
	fleet   []clusterMessage
	ended   string
	beats   int
	failed  error // why nothing more is read
	bytes   int
}

// dial opens a tab of a user.
func (w *world) dial(t testing.TB, who string) *tab {
	t.Helper()
	return w.dialWith(t, who, "")
}

// dialWith calls dial with a message in the address.
func (w *world) dialWith(t testing.TB, who, first string) *tab {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), w.server.URL+"/live?"+url.Values{"as": {who}, "open": {first}}.Encode(), &websocket.DialOptions{Subprotocols: []string{Protocol}})
	if err != nil {
		t.Fatal(err)
	}
	b := &tab{t: t, conn: c, windows: map[int]*shown{}}
	c.SetReadLimit(16 << 20)
	t.Cleanup(func() { _ = c.CloseNow() })
	go func() {
		for {
			_, raw, err := c.Read(context.Background())
			b.mu.Lock()
			if err == nil {
				err = b.hear(raw)
			}
			b.failed = err
			b.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return b
}

func (b *tab) say(o any) {
	b.t.Helper()
	raw, err := json.Marshal(o)
	if err == nil {
		err = b.conn.Write(b.t.Context(), websocket.MessageText, raw)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) open(id int, path, query string, offset, limit int) {
	b.t.Helper()
	b.mu.Lock()
	b.windows[id] = nil // until its content arrives
	b.mu.Unlock()
	b.say(order{Type: "open", ID: id, Path: path, Query: query, Offset: offset, Limit: limit})
}

// hear applies a message. A message that does not fit the tab's content is an error.
func (b *tab) hear(raw []byte) error {
	b.bytes += len(raw)
	var m struct {
		Type     string                            `json:"type"`
		ID       int                               `json:"id"`
		Offset   int                               `json:"offset"`
		Total    int64                             `json:"total"`
		Exact    bool                              `json:"exact"`
		Columns  []column                          `json:"columns"`
		Rows     []rowMessage                      `json:"rows"`
		Warnings []string                          `json:"warnings"`
		Order    *[]int64                          `json:"order"`
		Cells    map[int64]map[int]json.RawMessage `json:"cells"`
		Status   map[string]any                    `json:"status"`
		Clusters []clusterMessage                  `json:"clusters"`
		Reason   string                            `json:"reason"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return err
	}
	w := b.windows[m.ID]
	switch m.Type {
	case "fleet":
		b.fleet = m.Clusters
	case "beat":
		b.beats++
	case "end":
		b.ended = m.Reason
	case "error":
		b.windows[m.ID] = &shown{status: m.Status}
	case "window":
		w = &shown{offset: m.Offset, total: m.Total, exact: m.Exact, columns: m.Columns, rows: map[int64]rowMessage{}, stale: m.Warnings}
		for _, r := range m.Rows {
			w.rows[r.Key] = r
			w.order = append(w.order, r.Key)
		}
		if len(w.rows) != len(m.Rows) {
			return fmt.Errorf("keys are not unique: %s", raw)
		}
		b.windows[m.ID] = w
	case "delta":
		if _, opened := b.windows[m.ID]; opened && w == nil {
			return nil // from an earlier window with this ID
		}
		if w == nil || w.status != nil {
			return fmt.Errorf("a delta of nothing: %s", raw)
		}
		w.total, w.exact = m.Total, m.Exact
		w.deltas++
		for _, r := range m.Rows {
			w.rows[r.Key] = r
		}
		for key, cells := range m.Cells {
			for column, cell := range cells {
				if _, ok := w.rows[key]; !ok || string(w.rows[key].Cells[column]) == string(cell) {
					return fmt.Errorf("a cell of no row, or that is as it was: %s", raw)
				}
				w.rows[key].Cells[column] = cell
			}
		}
		if m.Order != nil {
			left := map[int64]rowMessage{}
			for _, key := range *m.Order {
				if _, ok := w.rows[key]; !ok {
					return fmt.Errorf("an order of a row that was not told: %s", raw)
				}
				left[key] = w.rows[key]
			}
			w.order, w.rows = *m.Order, left
		}
	default:
		return fmt.Errorf("unknown message %s", raw)
	}
	return nil
}

// look calls f with the content of a window, which may be nil.
func (b *tab) look(id int, f func(w *shown) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed != nil {
		return b.failed
	}
	return f(b.windows[id])
}

// wait waits until f returns nil for the content of a window.
func (b *tab) wait(id int, what string, f func(w *shown) error) {
	b.t.Helper()
	testenv.Eventually(b.t, what, testenv.Patience, func() error {
		return b.look(id, func(w *shown) error {
			if w == nil {
				return errors.New("nothing was told yet")
			}
			return f(w)
		})
	})
}

// text returns the content of the window without ages: a line for each row, or the code of the
// refusal.
func (w *shown) text() string {
	if w.status != nil {
		return fmt.Sprint(w.status["code"])
	}
	var out strings.Builder
	fmt.Fprintf(&out, "of %d\n", w.total)
	for _, key := range w.order {
		r := w.rows[key]
		for i, c := range r.Cells {
			if w.columns[i].Name != ageing {
				out.WriteString(string(c) + " ")
			}
		}
		fmt.Fprintf(&out, "%s %s/%s/%s %s\n", r.UID, r.Cluster, r.Namespace, r.Name, r.Created)
	}
	return out.String()
}

// get returns the same content from GET.
func (w *world) get(t testing.TB, who, path, query string, offset, limit int) string {
	t.Helper()
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	values.Set("as", who)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.server.URL+path+"?"+values.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Sprint(resp.StatusCode)
	}
	var table struct {
		Columns []column `json:"columnDefinitions"`
		Rows    []struct {
			Cells  []json.RawMessage `json:"cells"`
			Object struct {
				Metadata struct {
					Name, Namespace, CreationTimestamp string
					UID                                types.UID
					Annotations                        map[string]string
				} `json:"metadata"`
			} `json:"object"`
		} `json:"rows"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&table); err != nil {
		t.Fatal(err)
	}
	out := shown{total: int64(len(table.Rows)), columns: table.Columns, rows: map[int64]rowMessage{}}
	for i, r := range table.Rows {
		if i < offset || i >= offset+limit {
			continue
		}
		m := r.Object.Metadata
		out.order = append(out.order, int64(i))
		out.rows[int64(i)] = rowMessage{
			Cells: r.Cells, Cluster: m.Annotations["fleet.orrery.dev/cluster"], Namespace: m.Namespace, Name: m.Name, UID: m.UID, Created: m.CreationTimestamp,
		}
	}
	return out.text()
}
