package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"orrery.dev/orrery/internal/tunnel"
)

// mostAttempts bounds the spares that one dial waits for. Spares that were heard since the dial
// began are tried beyond that.
const mostAttempts = 6

// ErrNoAgent means that no agent of the cluster is connected, and none connected in time.
var ErrNoAgent = errors.New("no agent of the cluster is connected")

// attempt is the result of dialling on one spare.
type attempt struct {
	conn net.Conn
	err  error
}

// Dial connects to a destination in a cluster. It tries a spare and, while there is no answer,
// another one after each Timing.Hedge. The first connection is used, and the others are closed. If
// there is no spare, Dial waits for one for at most Timing.Patience.
func (g *Gateway) Dial(ctx context.Context, cluster, destination string) (net.Conn, error) {
	start := time.Now()
	conn, err := g.dial(ctx, cluster, destination)
	if err != nil {
		dials.WithLabelValues("error").Inc()
		return nil, fmt.Errorf("dial %s of cluster %s by its agent: %w", destination, cluster, err)
	}
	dials.WithLabelValues("ok").Inc()
	dialTime.Observe(time.Since(start).Seconds())
	return conn, nil
}

func (g *Gateway) dial(ctx context.Context, name, destination string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan attempt, mostAttempts)
	running := 0
	defer func() {
		cancel()
		go func(n int) { // close late connections
			for range n {
				if r := <-results; r.conn != nil {
					_ = r.conn.Close()
				}
			}
		}(running)
	}()
	hedge := time.NewTimer(0)
	defer hedge.Stop()
	patience := time.NewTimer(g.options.Timing.Patience)
	defer patience.Stop()
	c := g.wait(name)
	defer g.waited(c)
	last := ErrNoAgent
	var arrived <-chan struct{}
	begun := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-patience.C:
			if running > 0 {
				return nil, fmt.Errorf("it has said nothing for %s", g.options.Timing.Patience)
			}
			return nil, last
		case <-arrived:
			arrived = nil
			hedge.Reset(0)
		case <-hedge.C:
			since := time.Time{}
			if running >= mostAttempts {
				since = begun
			}
			s, next := g.next(c, since)
			if s == nil {
				arrived = next
				continue
			}
			running++
			go func() {
				conn, err := g.attempt(ctx, s, destination)
				results <- attempt{conn, err}
			}()
			hedge.Reset(g.options.Timing.Hedge)
		case r := <-results:
			running--
			if r.err == nil {
				return r.conn, nil
			}
			last = r.err
			if refused := (*refusedError)(nil); errors.As(r.err, &refused) {
				return nil, r.err
			}
			hedge.Reset(0)
		}
	}
}

// wait registers a dial for a cluster, which may have no agents yet. The caller calls waited
// afterwards.
func (g *Gateway) wait(name string) *cluster {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.find(name)
	c.waiting++
	return c
}

func (g *Gateway) waited(c *cluster) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.waiting--
	g.tidy(c)
}

// next takes the spare that was heard last, if that was after since. If there is none, the channel
// is closed when a spare arrives.
func (g *Gateway) next(c *cluster, since time.Time) (*spare, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(c.spares) == 0 || !c.spares[len(c.spares)-1].heard.After(since) {
		return nil, c.arrived
	}
	s := c.spares[len(c.spares)-1]
	g.leave(s)
	s.dialling.Store(true)
	return s, nil
}

// refusedError is the reason why an agent did not connect to the destination.
type refusedError struct{ why string }

func (e *refusedError) Error() string { return "the agent says: " + e.why }

// attempt dials the destination through one spare. It ends with ctx.
func (g *Gateway) attempt(ctx context.Context, s *spare, destination string) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = s.ws.Close() })
	if err := s.write(tunnel.Word{Dial: destination}, g.options.Timing.Silence); err != nil {
		_ = s.ws.Close() // listen then finds it closed
		return nil, fmt.Errorf("tell the agent: %w", err)
	}
	w, ok := <-s.answer // listen sends or closes it
	switch {
	case !ok && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case !ok:
		return nil, errors.New("the connection to the agent was lost")
	case w.Refused != "":
		_ = s.ws.Close()
		g.release(s.of, &s.held)
		return nil, &refusedError{why: w.Refused}
	}
	conn := tunnel.NewStream(s.ws, g.options.Timing, func() { g.release(s.of, &s.held) })
	if !stop() {
		_ = conn.Close()
		return nil, context.Cause(ctx)
	}
	return conn, nil
}
