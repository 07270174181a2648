package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"orrery.dev/orrery/internal/tunnel"
)

// mostAttempts is how many spare connections one dial tries at the same time. If the agent has sent
// something on another spare since the dial began, the dial tries that one beyond the limit.
const mostAttempts = 6

// ErrNoAgent means that no agent of the cluster was connected, and none connected within the time
// limit of a dial. Errors of Dial wrap it.
var ErrNoAgent = errors.New("no agent of the cluster is connected")

// attempt is the result of dialling through one spare connection of an agent.
type attempt struct {
	conn net.Conn
	err  error
}

// Dial connects to a destination in a cluster through an agent, within Timing.Patience. destination
// is a name such as tunnel.APIServer. Dial uses a spare connection (one that an agent keeps open),
// and waits for one if there is none. While there is no answer, it tries another spare after each
// Timing.Hedge. The first connection is returned, and the others are closed.
//
// If an agent refuses, Dial returns that error at once. The error wraps ErrNoAgent if no agent was
// connected, also for an unknown cluster. ctx limits only the dial, not the connection.
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

// dial does the work of Dial, which counts and times the calls.
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

// wait returns the entry of a cluster for a dial, and creates it if the cluster has no agents yet.
// The entry is not removed until the caller calls waited. It takes g.mu.
func (g *Gateway) wait(name string) *cluster {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.find(name)
	c.waiting++
	return c
}

// waited ends what wait has begun: the entry of the cluster may be removed if nothing else needs
// it. It takes g.mu.
func (g *Gateway) waited(c *cluster) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.waiting--
	g.tidy(c)
}

// next takes a spare connection of the cluster for a dial: the one on which an agent has sent
// something last, if that was after since. If there is none, it returns nil and a channel that is
// closed when a spare arrives. It takes g.mu.
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

// refusedError is the error of a dial that an agent refused. why is the agent's reason.
type refusedError struct{ why string }

// Error implements error.
func (e *refusedError) Error() string { return "the agent says: " + e.why }

// attempt asks the agent to connect the spare s to the destination, and waits for the answer until
// ctx ends. s must come from next. After an error the spare is closed. The error is a *refusedError
// if the agent refuses. After a success, ctx no longer affects the connection.
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
