package live

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"orrery.dev/orrery/internal/search"
)

// TestWindowsShare: with any number of windows and users, each window is refreshed within a time
// that depends on the user's own windows, plus half a minute. A user with slow windows gets no more
// than the share.
func TestWindowsShare(t *testing.T) {
	const fast, slow, settled, during = 10 * time.Millisecond, 300 * time.Millisecond, 10 * time.Minute, 20 * time.Minute
	type windows struct{ users, fast, slow int }
	for name, tc := range map[string]struct {
		of                   []windows
		fastAfter, slowAfter time.Duration // at the latest
		mostOfTheFirst       float64       // of the time
	}{
		"ManyUsers":     {[]windows{{40, 0, 4}, {1, 1, 0}}, 10 * time.Second, 40 * time.Second, share},
		"OneSlow":       {[]windows{{1, 99, 1}}, 10 * time.Second, 10 * time.Second, share},
		"ManySlowOfOne": {[]windows{{1, 0, 100}, {1, 1, 0}}, time.Second, 5*100*slow + 20*time.Second, share},
		"ManySockets":   {[]windows{{1, 800, 0}, {1, 0, 1}}, 5*800*fast + 10*time.Second, 3 * time.Second, share},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				changed, began := make(chan struct{}), time.Now()
				close(changed) // there are changes all the time
				var mu sync.Mutex
				last, late, busy := map[string]time.Time{}, map[string]time.Duration{}, time.Duration(0)
				waited := func(path string) {
					now := time.Now()
					if since, ok := last[path]; ok && now.Sub(began) > settled {
						kind := path[:5]
						late[kind] = max(late[kind], now.Sub(since))
					}
					last[path] = now
				}
				l := New(Options{
					Window: func(_ context.Context, path string, _ url.Values, _, _ int) (search.Window, <-chan struct{}, error) {
						mu.Lock()
						waited(path)
						took := map[string]time.Duration{"/fast": fast, "/slow": slow}[path[:5]]
						if strings.HasPrefix(path[5:], "/0/0/") && time.Since(began) > settled {
							busy += took
						}
						mu.Unlock()
						time.Sleep(took) // duration of the question
						return search.Window{}, changed, nil
					},
					Visible: func(context.Context) ([]string, error) { return nil, nil },
					Grants:  func() <-chan struct{} { return nil }, Clusters: func() []string { return nil },
				})
				var done []func()
				for i, of := range tc.of {
					for n := range of.users {
						ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: fmt.Sprintf("%d/%d", i, n)})
						who, _ := request.UserFrom(ctx)
						a, err := l.enter(ctx, who)
						if err != nil {
							t.Fatal(err)
						}
						s := &socket{live: l, audience: a, news: make(chan struct{}, 1)}
						for k := range of.fast + of.slow {
							kind := "/fast"
							if k >= of.fast {
								kind = "/slow"
							}
							q := l.ask(s, fmt.Sprintf("%s/%d/%d/%d", kind, i, n, k), nil, 0, 10)
							done = append(done, func() { q.drop(s) })
						}
						done = append(done, func() { l.leave(a) })
					}
				}
				time.Sleep(settled + during)
				mu.Lock()
				for path := range last {
					waited(path)
				}
				if late["/fast"] > tc.fastAfter || late["/slow"] > tc.slowAfter {
					t.Errorf("fast windows were asked after at most %v, want %v; slow ones after %v, want %v", late["/fast"], tc.fastAfter, late["/slow"], tc.slowAfter)
				}
				if part := busy.Seconds() / during.Seconds(); part > tc.mostOfTheFirst*1.05 {
					t.Errorf("the first user's windows took %.2f of the time", part)
				}
				mu.Unlock()
				for _, f := range done {
					f()
				}
				time.Sleep(slow) // until running questions end
			})
		})
	}
}
