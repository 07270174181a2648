package mirror

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
)

// endless is an API server whose list of ConfigMaps always has a next page while hostile is
// set.
type endless struct {
	repeats bool // every page has the same objects
	invents bool // every page has a new object; if both are false, pages are empty

	mu      sync.Mutex
	hostile bool
	end     chan struct{} // closed to end the watches
	firsts  int           // requests for a first page
	pages   int           // requests for later pages
}

func (e *endless) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	hostile, end := e.hostile, e.end
	lists := r.URL.Path == "/api/v1/configmaps" && r.URL.Query().Get("watch") != "true" && r.URL.Query().Get("limit") != "1"
	if lists && r.URL.Query().Get("continue") == "" {
		e.firsts++
	} else if lists {
		e.pages++
	}
	page := e.firsts*1000 + e.pages
	e.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	items, next := liarsObject("a", "ua", "9", "1"), ""
	switch {
	case r.URL.Path != "/api/v1/configmaps":
		w.WriteHeader(http.StatusNotFound)
		return
	case r.URL.Query().Get("watch") == "true" && hostile:
		_, _ = fmt.Fprintln(w, event("ERROR", `{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired"}`))
		return
	case r.URL.Query().Get("watch") == "true":
		_ = http.NewResponseController(w).Flush()
		select {
		case <-end:
		case <-r.Context().Done():
		}
		return
	case hostile && lists:
		next = fmt.Sprint("page-", page)
		switch {
		case e.invents:
			items = liarsObject(fmt.Sprint("o-", page), fmt.Sprint("u-", page), "9", "1")
		case !e.repeats:
			items = ""
		}
	}
	_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"ConfigMapList","metadata":{"resourceVersion":"10","continue":%q},"items":[%s]}`, next, items)
}

// set makes the cluster hostile or not, and ends the watches.
func (e *endless) set(hostile bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hostile = hostile
	if e.end != nil {
		close(e.end)
	}
	e.end = make(chan struct{})
}

// TestEndlessList: a cluster whose list never ends is not mirrored, whether it is new or was
// mirrored before. Its message names the type, the number of requests is bounded, and no object
// counts as deleted. When a list ends again, the cluster is mirrored.
func TestEndlessList(t *testing.T) {
	const most = 300 // objects of a list
	idle := fmt.Sprint(idlePages+1, " pages")
	for name, tc := range map[string]struct {
		repeats, invents, before bool
		pages                    int
		says                     string
	}{
		"EmptyPages":          {before: true, pages: idlePages + 1, says: idle},
		"TheSamePage":         {repeats: true, before: true, pages: idlePages + 1, says: idle},
		"NewClusterEmpty":     {pages: idlePages + 1, says: idle},
		"NewClusterRepeating": {repeats: true, pages: idlePages + 1, says: idle},
		"NewClusterInventing": {invents: true, pages: most + 1, says: fmt.Sprintf("more than %d objects", most)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the test mostly waits
			e := &endless{repeats: tc.repeats, invents: tc.invents}
			e.set(!tc.before)
			server := httptest.NewServer(e)
			defer func() { e.set(false); server.CloseClientConnections(); server.Close() }()
			east := sourceOf("east", &rest.Config{Host: server.URL, QPS: -1}, "configmaps")
			east.apis = []member.API{{
				GroupVersionKind: configmaps.GroupVersion().WithKind("ConfigMap"), Resource: "configmaps", Namespaced: true, Verbs: metav1.Verbs{"list", "watch"}, Preferred: true,
			}}
			s := openStore(t)
			fleet := newFleet(east)
			m := newMirror(s, fleet, testLogger(t))
			m.mostListed = most
			m.follow(s)
			defer run(t, m)()
			stored := func() int { return len(rows(t, s, store.Query{Resource: "configmaps"})) }
			if tc.before {
				eventually(t, "the cluster is mirrored", func() bool { return m.Observation("east").Synced && stored() == 1 })
				e.set(true)
			}
			var said member.Observation
			eventually(t, "the cluster is not mirrored", func() bool {
				said = m.Observation("east")
				return !said.Synced && strings.Contains(said.Message, errEndlessList.Error())
			})
			for _, want := range []string{"1 of 1 types", "configmaps", errEndlessList.Error(), tc.says} {
				if !strings.Contains(said.Message, want) {
					t.Errorf("it says %q, want %q in it", said.Message, want)
				}
			}
			e.mu.Lock()
			if e.pages > e.firsts*tc.pages {
				t.Errorf("%d pages are asked for in %d lists", e.pages, e.firsts)
			}
			e.mu.Unlock()
			eventually(t, "the status of the cluster is written", func() bool {
				fleet.mu.Lock()
				defer fleet.mu.Unlock()
				return fleet.refreshed["east"] > 0
			})
			if tc.before {
				if n := stored(); n != 1 {
					t.Errorf("%d objects are stored, want the one from before", n)
				}
				c := m.cluster("east")
				c.mu.Lock()
				lag, _ := c.tables[configmaps.GroupResource()].lag(time.Now().Add(reconnectGrace))
				c.mu.Unlock()
				if lag == 0 {
					t.Error("the type counts as current")
				}
			}
			e.set(false)
			eventually(t, "the cluster is mirrored again", func() bool { return m.Observation("east").Synced && stored() == 1 })
		})
	}
}

// TestLongList: a type that was listed before is not current while a new list takes longer than
// longList. A list that ends or fails before that changes nothing.
func TestLongList(t *testing.T) {
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	for name, tc := range map[string]struct {
		synced bool
		takes  time.Duration
		err    error
		during bool // the type is overdue before the list ends
		after  bool // and after it ended
	}{
		"InTime":        {true, longList - 1, nil, false, false},
		"Long":          {true, longList, nil, true, false},
		"LongAndFailed": {true, longList, fmt.Errorf("cut off"), true, true},
		"Failed":        {true, time.Second, fmt.Errorf("cut off"), false, false},
		"Endless":       {true, time.Second, errEndlessList, false, true},
		"FirstList":     {false, longList, nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fleet := newFleet()
				c := newCluster(newMirror(nil, fleet, logr.Discard()), "oak", &testSource{reachable: true})
				c.planned = true
				one := &table{cluster: c, api: member.API{GroupVersionKind: widgets.WithVersion("v1").GroupVersion().WithKind("Widget"), Resource: "widgets"}}
				one.synced, one.wanted, one.handed = tc.synced, true, c.mirror.generation.Load()
				c.tables[widgets] = one
				overdue := func() bool {
					c.mu.Lock()
					defer c.mu.Unlock()
					o := c.progress()
					named := strings.Contains(o.Message, "listed again") && strings.Contains(o.Message, widgets.String())
					if tc.synced && named == o.Synced {
						t.Errorf("%+v", o)
					}
					return named
				}
				ended := one.superviseList()
				time.Sleep(tc.takes)
				synctest.Wait()
				if got := overdue(); got != tc.during {
					t.Errorf("after %s it is overdue: %v", tc.takes, got)
				}
				refreshed := fleet.refreshed["oak"]
				ended(tc.err)
				if got := overdue(); got != tc.after {
					t.Errorf("after its end it is overdue: %v", got)
				}
				if again := fleet.refreshed["oak"] > refreshed; again != (tc.during != tc.after) {
					t.Errorf("the status is written again: %v", again)
				}
			})
		})
	}
}
