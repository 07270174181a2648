package gateway_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
)

// times is the number of connections with a fault.
const times = 20

// broken breaks connections in use, and all spares, in the network. It returns the functions that
// must end.
func broken(n int, fault func(*testenv.Network)) func(*site) []func() error {
	return func(s *site) []func() error {
		var reads []func() error
		for range n {
			c := s.dial("oak")
			if err := says(s.t, c, "hello"); err != nil {
				s.t.Fatal(err)
			}
			reads = append(reads, func() error { _, err := c.Read(make([]byte, 1)); return err })
		}
		fault(s.network)
		return reads
	}
}

// silent starts agents that are admitted and then send nothing.
func silent(s *site) []func() error {
	var reads []func() error
	for i := range times {
		ws, _ := s.meet(s.t, s.agent(fmt.Sprintf("c%d", i)))
		reads = append(reads, func() error { _, _, err := ws.ReadMessage(); return err })
	}
	return reads
}

// neverRead starts agents that confirm a dial, and then neither read nor write.
func neverRead(s *site) []func() error {
	var reads []func() error
	text := make([]byte, 16<<20) // more than all buffers on the way hold
	for i := range times {
		name := fmt.Sprintf("c%d", i)
		ws, _ := s.meet(s.t, s.agent(name))
		go func() { _ = errors.Join(ws.ReadJSON(&tunnel.Word{}), ws.WriteJSON(tunnel.Word{OK: true})) }()
		c, err := s.gateway.Dial(s.t.Context(), name, tunnel.APIServer)
		if err != nil {
			s.t.Fatal(err)
		}
		go func() { _, _ = c.Write(text) }()
		reads = append(reads, func() error { _, err := c.Read(make([]byte, 1)); return err })
	}
	return reads
}

// TestFaults: for every kind of end of a connection, agents and hubs have as many goroutines and
// sockets as before. All faults happen at once, each between its own hub and agent.
func TestFaults(t *testing.T) {
	faults := map[string]func(*site) []func() error{
		"Reset":       broken(2*times, (*testenv.Network).Reset),
		"Swallowed":   broken(times, (*testenv.Network).Swallow),
		"AgentsEnd":   broken(times, func(n *testenv.Network) { n.HalfOpen(true) }),
		"HubsEnd":     broken(times, func(n *testenv.Network) { n.HalfOpen(false) }),
		"SaysNothing": silent,
		"NeverReads":  neverRead,
		"Attacks": func(s *site) []func() error {
			for name, attack := range attacks {
				for i := range times {
					s.attacked(s.t, fmt.Sprintf("%s-%d", name, i), attack)
				}
			}
			return nil
		},
	}
	timing := quick()
	timing.Handshake = 10 * time.Second // a swallowed handshake must be retried within patience
	sites := map[string]*site{}
	for name := range faults {
		sites[name] = newSiteWith(t, timing)
		sites[name].run(sites[name].agent("oak"))
	}
	full := func(s *site) bool { return s.spares("oak") == tunnel.MaxSpares }
	for _, s := range sites {
		var tried time.Time
		s.await("there are as many spares as there can be", func() bool {
			if full(s) || time.Since(tried) < time.Second {
				return full(s)
			}
			tried = time.Now()
			var taken []net.Conn
			// The agent keeps as many spares only if all were used within one second. Else this
			// is repeated.
			for range tunnel.MaxSpares {
				taken = append(taken, s.dial("oak"))
			}
			for _, c := range taken {
				_ = c.Close()
			}
			return false
		})
	}
	goroutines, sockets := left(t)
	t.Run("AtOnce", func(t *testing.T) {
		var reading sync.WaitGroup
		for name, fault := range faults {
			s := sites[name]
			s.t = t
			for _, read := range fault(s) {
				reading.Go(func() {
					if read() == nil {
						t.Errorf("%s: bytes that nobody sent", name)
					}
				})
			}
		}
		reading.Wait()
		for name, s := range sites {
			if err := says(t, s.dial("oak"), "hello"); err != nil {
				t.Errorf("after %s: %v", name, err)
			}
		}
	})
	testenv.Eventually(t, "nothing is left", patience, func() error {
		for name, s := range sites {
			if n := s.spares("oak"); n != tunnel.MaxSpares {
				return fmt.Errorf("%d spares after %s", n, name)
			}
		}
		if g, n := left(t); g > goroutines || n > sockets {
			return fmt.Errorf("%d goroutines and %d sockets, before %d and %d", g, n, goroutines, sockets)
		}
		return nil
	})
}

// TestGivenUp: spares that an agent dropped are removed from the hub, although nothing reports it
// and the agent is connected.
func TestGivenUp(t *testing.T) {
	s := newSite(t)
	s.run(s.agent("oak"))
	s.await("two spares are there", func() bool { return s.spares("oak") == 2 })
	s.network.HalfOpen(true)
	s.await("the agent comes with others", func() bool { return s.spares("oak") > 2 })
	s.await("those that it gave up are gone", func() bool { return s.spares("oak") == 2 })
	if err := says(t, s.dial("oak"), "hello"); err != nil {
		t.Error(err)
	}
}

// TestMostSpares: if an agent has more than the maximum of spares, the oldest ones are closed: the
// agent must have dropped them.
func TestMostSpares(t *testing.T) {
	timing := quick()
	timing.Silence = patience // these spares answer no probes
	s := newSiteWith(t, timing)
	a := s.agent("oak")
	closed := make(chan int, tunnel.MaxSpares+1)
	for i := range tunnel.MaxSpares + 1 {
		ws, _ := s.meet(t, a)
		go func() {
			_, _, _ = ws.ReadMessage()
			closed <- i
		}()
		s.await("it is there", func() bool { return s.spares("oak") == min(i+1, tunnel.MaxSpares) })
	}
	if i := <-closed; i != 0 {
		t.Errorf("of all spares number %d is closed first", i)
	}
}

// left returns the number of goroutines and sockets of this process.
func left(t *testing.T) (goroutines, sockets int) {
	t.Helper()
	const descriptors = "/proc/self/fd"
	open, err := os.ReadDir(descriptors)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range open {
		// Other descriptors are pipes, which Go keeps for the next copy.
		if to, err := os.Readlink(filepath.Join(descriptors, d.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			sockets++
		}
	}
	return runtime.NumGoroutine(), sockets
}
