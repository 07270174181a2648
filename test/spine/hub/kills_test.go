package hub

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

const (
	// groups is the number of groups of placements. Each group has an override of its own.
	groups = 10
	// eventsEach is less than the number of events of one placement: writes in members and
	// changes of its bindings. The hub is killed at a random event.
	eventsEach = 6
)

// fuse kills the hub at a certain event: a write in a member, or a change of a binding. The
// write waits until the hub is dead and is then performed, so that the hub never gets the
// answer.
type fuse struct {
	hub *testenv.Hub

	mu    sync.Mutex
	left  int
	burnt chan struct{}
}

// light makes the n-th event from now kill the hub, and burnt is closed then. With 0, no event
// does.
func (f *fuse) light(n int) (burnt <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.burnt = n, make(chan struct{})
	return f.burnt
}

func (f *fuse) event() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == 0 {
		return
	}
	if f.left--; f.left == 0 {
		f.hub.Kill()
		close(f.burnt)
	}
}

// TestKills kills the hub with SIGKILL at random points, while placements are created and
// edited and their overrides change. It checks every write in a member: no copy lacks its
// override, no older version follows a newer one, nothing is deleted, and one process of the
// hub writes nothing twice. In the end every member has all copies in the wanted version.
func TestKills(t *testing.T) {
	testenv.Rotate(t, 3, "TestKills", "TestDeletionsUnderKills", "TestWorkRunsOnce")
	kills, count := testenv.Count(t, "KILLS", 2, 4), testenv.Count(t, "PLACEMENTS", 80, 80)
	defer func() {
		if t.Failed() {
			t.Logf("it was run with KILLS=%d PLACEMENTS=%d", kills, count)
		}
	}()
	random := testenv.Rand(t)
	w := spine.Start(t, "kills")
	p := w.Placing(1, spine.Members.List...)
	for g := range groups {
		p.Override(g, 1)
	}
	cfg, err := w.Hub.Config()
	w.Must(err)
	admin, err := testenv.NewAPI(cfg) // usable across restarts of the hub
	w.Must(err)
	d, err := dynamic.NewForConfig(cfg)
	w.Must(err)
	f := &fuse{hub: w.Hub}
	h := &history{resource: d.Resource(bindingResource), bindings: map[types.UID]*past{}, onEvent: f.event}
	var following sync.WaitGroup
	following.Go(func() { h.follow(t.Context()) })
	t.Cleanup(following.Wait)
	for _, m := range spine.Members.List {
		m.OnWriteIn(w.Namespace, func(r testenv.Write) {
			if r.Namespace == w.Namespace {
				f.event()
			}
		})
	}

	// act is a request of a user, and its effect on the wanted state. The order of acts is
	// random.
	type act struct {
		manifests string
		done      func()
	}
	var pending []act
	place := func(i int, edit int) {
		name, g := fmt.Sprintf("conf-%d", i), i%groups
		if i%10 == 0 {
			name, g = fmt.Sprintf("app-%d", i), i/10%groups
		}
		p.Group[name] = g
		pending = append(pending, act{p.Manifests(name, g, edit), func() { p.Edit[name] = max(p.Edit[name], edit) }})
	}
	edits, value, made, killed := map[int]int{}, 1, 0, 0
	for round := range kills + 1 {
		for ; made < count*(round+1)/(kills+1); made++ {
			place(made, 0)
			if random.IntN(4) == 0 {
				i := random.IntN(made + 1)
				edits[i]++
				place(i, edits[i])
			}
			if random.IntN(8) == 0 {
				g := random.IntN(groups)
				value++
				now := value
				pending = append(pending, act{spine.Stamp(w.Namespace, g, now), func() { p.Over[g] = now }})
			}
		}
		var burnt <-chan struct{}
		if round < kills {
			burnt = f.light(1 + random.IntN(eventsEach*count/(kills+1)))
		}
		for dead := false; len(pending) > 0 && !dead; {
			testenv.Eventually(t, "the hub serves its users, or is dead", spine.Patience, func() error {
				select {
				case <-burnt: // users try again when the hub runs
					dead = true
					return nil
				default:
					return spine.Try(t.Context(), admin, pending[0].manifests)
				}
			})
			if !dead {
				pending[0].done()
				pending = pending[1:]
			}
		}
		if burnt == nil {
			break
		}
		// The rest of the round ends when the hub is killed, or no work is left.
		testenv.Eventually(t, "the hub is killed, or has done everything", 3*spine.Patience, func() error {
			select {
			case <-burnt:
				return nil
			default:
			}
			var errs []error
			for _, m := range spine.Members.List {
				_ = p.Judge(m) // writes that have not ended are not judged yet
				errs = append(errs, unwritten(p, m))
			}
			return errors.Join(errs...)
		})
		f.light(0)
		select {
		case <-burnt:
			killed++
		default:
			w.Hub.Kill() // all work was done before the event
		}
		p.Settled()
		p.Restarted()
		w.Restart()
	}
	if killed < kills/2 {
		t.Errorf("of %d kills only %d came while there was something to do", kills, killed)
	}
	p.Have(spine.Members.List...)
	p.AllApplied()
	w.CaughtUp(time.Second)
	p.Close()
	wanted := len(p.Wanted())
	total := 0
	for _, m := range spine.Members.List {
		writes, twice := p.Counted(m)
		total += writes
		for _, again := range twice {
			t.Error("one process of the hub wrote it twice: ", again)
		}
		if writes < wanted {
			t.Errorf("%s was written %d times for %d objects", m.Name, writes, wanted)
		}
	}
	t.Logf("%d kills (%d in the midst of something) during %d placements, %d overrides and %d edits: %d objects in each of %d members, %d writes there",
		kills, killed, count, value-1, len(edits), wanted, len(spine.Members.List), total)
}

// unwritten returns an error until all wanted versions were written in the member.
func unwritten(p *spine.Placements, m *testenv.Member) error {
	for object, want := range p.Wanted() {
		if is, ok := p.Last[m.Name+" "+object]; !ok || is != want {
			return fmt.Errorf("%s: %s is %+v, want %+v", m.Name, strings.TrimSpace(object), is, want)
		}
	}
	return nil
}
