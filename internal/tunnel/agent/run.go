// Package agent runs in a cluster that the hub cannot dial. It enrols with the token of a join,
// renews the hub's credentials, keeps the tunnel open, and removes itself when the cluster has left
// the fleet. All agents of a cluster keep spare connections; the agent with the Lease does
// everything else.
package agent

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"orrery.dev/orrery/internal/tunnel"
)

// Options of an agent.
type Options struct {
	// Source returns how to reach the cluster's API server.
	Source Source
	// Replica identifies the agent among the agents of the cluster. Version is its version.
	Replica, Version string
	// Stays makes Run wait for the end of ctx after the cluster has left the fleet. Kubernetes
	// would restart a pod that exits. If false, Run returns.
	Stays bool
	// Proxy returns the proxy for a request to the hub; nil: none.
	Proxy func(*http.Request) (*url.URL, error)
	// HealthAddress is where /healthz and /readyz are served; "": nowhere.
	HealthAddress string
	// Timing of the tunnel.
	Timing tunnel.Timing
	// Interval is how often the agent reads its Secrets. Lease is the duration of the Lease.
	Interval, Lease time.Duration
}

// DefaultOptions returns the options of agents in pods.
func DefaultOptions() Options {
	return Options{
		Source: InCluster, Proxy: http.ProxyFromEnvironment, Timing: tunnel.DefaultTiming(), Interval: 5 * time.Second, Lease: 15 * time.Second,
	}
}

// firstPause and lastPause bound the pause after a failure.
const firstPause, lastPause = 250 * time.Millisecond, 10 * time.Second

// view is what the agent read from the cluster at one time.
type view struct {
	join  *join
	state state
}

// outcome is the result of a step.
type outcome struct {
	step    step
	at      view
	told    [sha256.Size]byte
	renewal time.Time
	err     error
}

// connected is a tunnel in operation.
type connected struct {
	agent  *tunnel.Agent
	to     string // URL of the tunnel
	ca     string // authorities of the hub, PEM
	join   string // hash of the token that the certificate was issued for
	cancel context.CancelFunc
}

// ending is the end of a tunnel.
type ending struct {
	of  *connected
	err error
}

// runner is the state of a running agent. Only the goroutine of loop uses it, except for the atomic
// fields.
type runner struct {
	options  Options
	log      logr.Logger
	cluster  *cluster
	election election

	told     told
	pending  context.CancelFunc // cancels the running step; nil: none runs
	done     chan outcome
	failures int
	notUntil time.Time // earliest time of the next step
	said     string    // last logged problem, which is logged once

	tunnel *connected
	ended  chan ending
	gone   string    // hash of the join whose cluster has left the fleet, per the hub; "": none
	bare   time.Time // since when the manifest's objects are missing; zero: they exist
	parts  sync.WaitGroup

	state   atomic.Pointer[state]
	access  atomic.Pointer[Access]
	current atomic.Pointer[tunnel.Agent] // the agent of the tunnel
	turned  atomic.Int64                 // start of the last turn, Unix nanoseconds
}

// Run does the agent's work. It ends when ctx ends, when the cluster has left the fleet and
// everything is removed, or when there was no connection to the hub for too long
// (tunnel.ErrSilent). In the last case the caller restarts it.
func Run(ctx context.Context, o Options) error {
	running, cancel := context.WithCancel(ctx)
	r := &runner{
		options: o, log: logr.FromContextOrDiscard(ctx), done: make(chan outcome, 1), ended: make(chan ending),
		election: election{me: o.Replica, duration: o.Lease},
	}
	defer r.parts.Wait()
	defer cancel()
	if o.HealthAddress != "" {
		if err := r.serveHealth(running); err != nil {
			return err
		}
	}
	gone, err := r.loop(running)
	cancel()
	r.resign(ctx)
	if !gone {
		return err
	}
	r.log.Info("the cluster has left the fleet, and everything that its manifest made is being removed")
	if o.Stays {
		<-ctx.Done()
	}
	return nil
}

// loop iterates until ctx ends. gone is true if everything was removed because the cluster has
// left the fleet.
func (r *runner) loop(ctx context.Context) (gone bool, err error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-timer.C:
		case e := <-r.ended:
			if err := r.lost(e); err != nil {
				return false, err
			}
		case o := <-r.done:
			if r.finish(o) {
				return true, nil
			}
		}
		now := time.Now()
		r.turned.Store(now.UnixNano())
		wait, err := r.turn(ctx, now)
		if errors.Is(err, errNotApplied) {
			if r.gone != "" {
				return true, nil // another agent has removed everything
			}
			if r.bare.IsZero() {
				r.bare = now
			}
			if since := now.Sub(r.bare); since > r.options.Timing.Exit {
				return false, fmt.Errorf("nothing to do for %s: %w", since.Round(time.Second), errNotApplied)
			}
			r.say(errNotApplied.Error())
			timer.Reset(min(time.Second, r.options.Interval))
			continue
		}
		switch {
		case answered(err, http.StatusConflict): // the next turn reads again
			wait = 0
		case err != nil:
			failures++
			r.say(err.Error())
			wait = pause(failures)
		default:
			failures = 0
		}
		timer.Reset(wait)
	}
}

// pause returns the delay after a number of failures. It doubles with each failure and has a random
// part, so that agents do not all retry at once.
func pause(failures int) time.Duration {
	most := lastPause
	if failures < 8 {
		most = min(most, firstPause<<(failures-1))
	}
	return most/4 + rand.N(most-most/4+1) //nolint:gosec // no secret
}

// say logs a problem once, until another one or "" follows.
func (r *runner) say(what string) {
	if what != r.said && what != "" {
		r.log.Info(what)
	}
	r.said = what
}

// turn reads everything, starts the next step if there is one, and returns when to take the next
// turn.
func (r *runner) turn(ctx context.Context, now time.Time) (wait time.Duration, err error) {
	if err := r.reach(); err != nil {
		return 0, err
	}
	v, err := r.look(ctx)
	if err != nil {
		return 0, err
	}
	r.bare = time.Time{}
	if v.state.gone {
		r.gone = v.state.join
	}
	r.state.Store(&v.state)
	r.keepTunnel(ctx, v)
	if r.gone != "" && r.gone == v.state.join && !v.state.gone {
		// The agent that learns that the cluster has left records it. The agent that leads removes
		// the objects.
		if err := r.cluster.keep(ctx, v.state, map[string]any{goneKey: []byte("true")}); err != nil {
			return 0, fmt.Errorf("note that the cluster has left the fleet: %w", err)
		}
		return 0, nil
	}
	// A missing Lease means that another agent is removing everything.
	if err := r.election.hold(ctx, r.cluster); err != nil && (!v.state.gone || !answered(err, http.StatusNotFound)) {
		return 0, fmt.Errorf("hold the Lease: %w", err)
	}
	wait = r.options.Interval*3/4 + rand.N(r.options.Interval/2) //nolint:gosec // no secret
	switch {
	case !r.election.leads(now):
		r.told = told{} // the next leader sends reports that this agent does not know
		if r.pending != nil {
			r.pending()
		}
	case r.pending != nil:
	case now.Before(r.notUntil):
		wait = min(wait, r.notUntil.Sub(now))
	default:
		r.begin(ctx, v, next(now, v.join, v.state, r.told, r.cluster.at()))
	}
	return wait, nil
}

// reach creates a new client when the access to the cluster changed.
func (r *runner) reach() error {
	access, err := r.options.Source()
	if err != nil {
		return err
	}
	if r.cluster != nil && r.cluster.access.fingerprint() == access.fingerprint() {
		return nil
	}
	c, err := newCluster(access)
	if err != nil {
		return err
	}
	if r.cluster != nil {
		r.cluster.close()
	}
	r.cluster = c
	r.access.Store(access)
	return nil
}

// errNotApplied means that the manifest's objects are missing.
var errNotApplied = fmt.Errorf("secret %s/%s is missing: apply the manifest that orrery cluster join --pull, or rejoin, prints", tunnel.Namespace, Name)

// look reads the agents' Secret and the join Secret. It returns errNotApplied without the first;
// join is nil without the second.
func (r *runner) look(ctx context.Context) (v view, err error) {
	kept, err := r.cluster.secret(ctx, Name)
	if err != nil {
		return v, err
	}
	if kept == nil {
		return v, errNotApplied
	}
	v.state = readState(kept)
	given, err := r.cluster.secret(ctx, tunnel.JoinSecret)
	if err == nil && given != nil {
		v.join, err = readJoin(given)
	}
	return v, err
}

// begin runs a step in the background, so that the loop can renew the Lease meanwhile. For steps
// that only a user can do, it logs what to do.
func (r *runner) begin(ctx context.Context, v view, s step) {
	switch s {
	case stepNone:
		r.failures = 0
		r.say("")
		return
	case stepApply:
		r.say(fmt.Sprintf("secret %s/%s is missing: apply the manifest that orrery cluster rejoin prints", tunnel.Namespace, tunnel.JoinSecret))
		return
	case stepExpired:
		r.say(fmt.Sprintf("the certificate ended at %s: apply the manifest that orrery cluster rejoin %s prints",
			v.state.certificate.NotAfter.UTC().Format(time.RFC3339), v.join.cluster))
		return
	case stepKey, stepRedeem, stepPrune, stepReport, stepRemove:
	}
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	r.pending = cancel
	c := r.cluster
	r.parts.Go(func() {
		o := outcome{step: s, at: v, told: c.at()}
		o.renewal, o.err = r.do(ctx, c, v, s)
		r.done <- o
	})
}

// do runs one step. renewal is when to report again, set by stepReport.
func (r *runner) do(ctx context.Context, c *cluster, v view, s step) (renewal time.Time, err error) {
	switch s {
	case stepKey:
		var key []byte
		if key, err = newKey(); err == nil {
			err = c.keep(ctx, v.state, map[string]any{keyKey: key, joinKey: []byte(v.join.hash()), certificateKey: nil, goneKey: nil})
		}
	case stepRedeem:
		err = r.redeem(ctx, c, v)
	case stepPrune:
		err = c.prune(ctx, v.join.profile, v.join.namespaces)
	case stepReport:
		renewal, err = r.report(ctx, c, v)
	case stepRemove:
		err = c.dissolve(ctx)
	case stepNone, stepApply, stepExpired: // nothing can be done
	}
	return renewal, err
}

// finish records the result of a step. last is true if everything is removed.
func (r *runner) finish(o outcome) (last bool) {
	r.pending()
	r.pending = nil
	switch {
	case o.err == nil:
		r.failures = 0
	case errors.Is(o.err, tunnel.ErrGone):
		r.gone = o.at.state.join
	// No failures: another agent acts.
	case !errors.Is(o.err, context.Canceled) && !answered(o.err, http.StatusConflict):
		r.failures++
		r.notUntil = time.Now().Add(pause(r.failures))
		r.say(o.err.Error())
	}
	if _, ok := errors.AsType[refused](o.err); ok && o.step == stepRedeem {
		r.told.refused = o.at.join.hash()
	}
	if o.err != nil {
		return false
	}
	switch o.step {
	case stepRedeem:
		r.told.at = [sha256.Size]byte{} // the hub ends the token after a report
		r.log.Info("enrolled with the hub", "cluster", o.at.join.cluster, "hub", o.at.join.url.Host)
	case stepReport:
		r.told.at, r.told.renewal = o.told, o.renewal
	case stepPrune:
		r.told.rights = o.at.join.rights()
	case stepRemove:
		return true
	case stepKey, stepNone, stepApply, stepExpired:
	}
	return false
}

// dialer returns an agent of the tunnel for a join.
func (r *runner) dialer(j *join, identity func() (tls.Certificate, error)) *tunnel.Agent {
	return &tunnel.Agent{
		URL: j.at("wss", tunnel.Path), TLS: j.trust(), Proxy: r.options.Proxy, Identity: identity,
		Replica: r.options.Replica, Version: r.options.Version, Timing: r.options.Timing,
	}
}

// keepTunnel starts, keeps or ends the tunnel as the join requires. A tunnel survives a renewed
// certificate, but not another join.
func (r *runner) keepTunnel(ctx context.Context, v view) {
	wanted := v.join != nil && v.state.certificate != nil && !v.state.gone && r.gone != v.state.join
	if t := r.tunnel; t != nil && (!wanted || t.to != v.join.at("wss", tunnel.Path) || t.ca != string(v.join.ca) || t.join != v.state.join) {
		t.cancel()
		r.tunnel = nil
		r.current.Store(nil)
	}
	if !wanted || r.tunnel != nil {
		return
	}
	t := &connected{to: v.join.at("wss", tunnel.Path), ca: string(v.join.ca), join: v.state.join}
	t.agent = r.dialer(v.join, func() (tls.Certificate, error) {
		s := r.state.Load()
		if s.join != t.join {
			return tls.Certificate{}, errors.New("the agent has another certificate now")
		}
		return s.identity()
	})
	t.agent.Destinations = map[string]func(context.Context) (net.Conn, error){tunnel.APIServer: func(ctx context.Context) (net.Conn, error) {
		return r.access.Load().dial(ctx)
	}}
	var running context.Context
	running, t.cancel = context.WithCancel(ctx)
	r.tunnel = t
	r.current.Store(t.agent)
	r.parts.Go(func() {
		e := ending{t, t.agent.Run(logr.NewContext(running, r.log))}
		select {
		case r.ended <- e:
		case <-ctx.Done():
		}
	})
}

// lost handles the end of a tunnel. An error ends the agent.
func (r *runner) lost(e ending) error {
	e.of.cancel()
	if e.of != r.tunnel {
		return nil // the tunnel was canceled
	}
	r.tunnel = nil
	r.current.Store(nil)
	if errors.Is(e.err, tunnel.ErrGone) {
		r.gone = e.of.join
		return nil
	}
	return e.err
}

// resign gives the Lease up, so that the next agent leads at once.
func (r *runner) resign(ctx context.Context) {
	if r.cluster == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := r.election.release(ctx, r.cluster); err != nil {
		r.log.V(1).Info("the Lease is not given back; the next agent takes it when it has ended", "cause", err.Error())
	}
	r.cluster.close()
}
