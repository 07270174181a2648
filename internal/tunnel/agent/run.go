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
	// Interval is how often the agent reads its Secrets. Lease is the duration of the Lease by which
	// the agents of a cluster elect a leader.
	Interval, Lease time.Duration
}

// DefaultOptions returns the options of an agent that runs in a pod of the cluster, without Replica
// and Version.
func DefaultOptions() Options {
	return Options{
		Source: InCluster, Proxy: http.ProxyFromEnvironment, Timing: tunnel.DefaultTiming(), Interval: 5 * time.Second, Lease: 15 * time.Second,
	}
}

// firstPause and lastPause are the shortest and the longest pause after a failure of the agent.
const firstPause, lastPause = 250 * time.Millisecond, 10 * time.Second

// view is what the agent read from its cluster at one time. join is the content of the join Secret,
// which a user applies; nil: it does not exist. state is the content of the Secret that the agents
// share.
type view struct {
	join  *join
	state state
}

// outcome is the result of a step of the leading agent. at is the view for which the step was
// chosen. reported is the hash of the API server's address (cluster.at) with which the step ran.
// renewal is when the agent must report again; only stepReport sets it. err is why the step failed.
type outcome struct {
	step     step
	at       view
	reported [sha256.Size]byte
	renewal  time.Time
	err      error
}

// connected is a tunnel in operation: a tunnel.Agent that keeps spare connections to the hub. The
// other fields are what the tunnel was started with.
type connected struct {
	agent  *tunnel.Agent
	to     string // URL of the tunnel
	ca     string // authorities of the hub, PEM
	join   string // hash of the token that the certificate was issued for
	cancel context.CancelFunc
}

// ending reports that the tunnel of has ended, with the error of tunnel.Agent.Run.
type ending struct {
	of  *connected
	err error
}

// runner is the state of a running agent. Only the goroutine that runs loop uses it, except for the
// atomic fields.
type runner struct {
	options  Options
	log      logr.Logger
	cluster  *cluster
	election election

	progress progress
	pending  context.CancelFunc // cancels the running step; nil: none runs
	done     chan outcome
	failures int
	notUntil time.Time // earliest time of the next step
	said     string    // last logged problem, so that say logs it once

	tunnel *connected
	ended  chan ending
	gone   string    // hash of the join for which the hub returned ErrGone; "": none
	bare   time.Time // when the agents' Secret was first found missing; zero: it exists
	parts  sync.WaitGroup

	state      atomic.Pointer[state]
	access     atomic.Pointer[Access]
	current    atomic.Pointer[tunnel.Agent] // the agent of the tunnel
	reconciled atomic.Int64                 // start of the last call of reconcile, Unix nanoseconds
}

// Run does the agent's work in its cluster. It returns nil when ctx ends. It also returns nil when
// the cluster has left the fleet and the objects of the manifest are removed; with o.Stays it first
// waits for the end of ctx.
//
// It returns an error in three cases. There was no connection to the hub for too long
// (tunnel.ErrSilent). The agents' Secret was missing for Timing.Exit. Or Run cannot listen at
// o.HealthAddress. Other failures are logged and retried. Before it returns, Run waits for its
// goroutines and releases the Lease.
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

// loop calls reconcile until ctx ends, which is no error: after each delay that reconcile returns,
// and when a tunnel or a step ends. gone is true if the cluster has left the fleet, and an agent
// has removed the objects of the manifest. The error is tunnel.ErrSilent, or says that the agents'
// Secret was missing for too long.
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
		r.reconciled.Store(now.UnixNano())
		wait, err := r.reconcile(ctx, now)
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
		case answered(err, http.StatusConflict): // the next call of reconcile reads again
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

// pause returns the delay after a number of failures in a row, which is at least 1. The delay
// doubles with each failure from firstPause up to lastPause. Part of it is random, so that agents
// do not all retry at once.
func pause(failures int) time.Duration {
	most := lastPause
	if failures < 8 {
		most = min(most, firstPause<<(failures-1))
	}
	return most/4 + rand.N(most-most/4+1) //nolint:gosec // no secret
}

// say logs a problem, unless the last call had the same text. "" logs nothing, and ends the
// problem, so that it is logged again if it returns.
func (r *runner) say(what string) {
	if what != r.said && what != "" {
		r.log.Info(what)
	}
	r.said = what
}

// reconcile reads both Secrets of the agent from the cluster, starts or ends the tunnel, and renews
// the Lease. If this agent leads and no step runs, it starts the next step in the background. wait
// is the delay until the next call. The error is errNotApplied if the agents' Secret is missing,
// and an *apiError with status 409 if another agent wrote that Secret.
func (r *runner) reconcile(ctx context.Context, now time.Time) (wait time.Duration, err error) {
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
		// The agent to which the hub reports that the cluster has left records it in the agents' Secret.
		// The agent that leads then removes the objects.
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
		r.progress = progress{} // the next leader sends reports that this agent does not see
		if r.pending != nil {
			r.pending()
		}
	case r.pending != nil:
	case now.Before(r.notUntil):
		wait = min(wait, r.notUntil.Sub(now))
	default:
		r.begin(ctx, v, next(now, v.join, v.state, r.progress, r.cluster.at()))
	}
	return wait, nil
}

// reach sets r.cluster, the client for the cluster's API server. It makes a new client when the
// credentials or the address changed. It sends no request.
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

// errNotApplied means that the Secret with the agents' key and certificate is missing: the manifest
// was not applied, or its objects were removed.
var errNotApplied = fmt.Errorf("secret %s/%s is missing: apply the manifest that orrery cluster join --pull, or rejoin, prints", tunnel.Namespace, Name)

// look reads two Secrets from the cluster: the agents' Secret, with the key and certificate that
// they share, and the join Secret, which a user applies. The error is errNotApplied if the agents'
// Secret does not exist. If the join Secret does not exist, v.join is nil without an error. An
// invalid join Secret is an error.
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

// begin runs s, the next step of the leading agent, in the background, so that loop can renew the
// Lease meanwhile. v is the view for which the step was chosen. The result is sent on r.done. For
// stepNone, stepApply and stepExpired nothing runs; for the last two, begin logs what the user must
// do.
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
		o := outcome{step: s, at: v, reported: c.at()}
		o.renewal, o.err = r.do(ctx, c, v, s)
		r.done <- o
	})
}

// do runs one step with the client c, for the view v. renewal is when the agent must report again;
// only stepReport sets it. do changes no field of r, since it runs in another goroutine than loop.
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

// finish records the result of a step of the leading agent, and logs its error. After an error the
// next step waits for a pause. last is true if the cluster has left the fleet and the step has
// removed the objects of the manifest.
func (r *runner) finish(o outcome) (last bool) {
	r.pending()
	r.pending = nil
	switch {
	case o.err == nil:
		r.failures = 0
	case errors.Is(o.err, tunnel.ErrGone):
		r.gone = o.at.state.join
	// These are no failures of this agent: it does not lead any more, or another agent wrote the
	// Secret.
	case !errors.Is(o.err, context.Canceled) && !answered(o.err, http.StatusConflict):
		r.failures++
		r.notUntil = time.Now().Add(pause(r.failures))
		r.say(o.err.Error())
	}
	if _, ok := errors.AsType[refused](o.err); ok && o.step == stepRedeem {
		r.progress.refused = o.at.join.hash()
	}
	if o.err != nil {
		return false
	}
	switch o.step {
	case stepRedeem:
		r.progress.at = [sha256.Size]byte{} // the hub ends the token after a report
		r.log.Info("enrolled with the hub", "cluster", o.at.join.cluster, "hub", o.at.join.url.Host)
	case stepReport:
		r.progress.at, r.progress.renewal = o.reported, o.renewal
	case stepPrune:
		r.progress.rights = o.at.join.rights()
	case stepRemove:
		return true
	case stepKey, stepNone, stepApply, stepExpired:
	}
	return false
}

// dialer returns a new tunnel.Agent for the hub in j, which is not running and has no destinations.
// identity returns the certificate and key of the agent.
func (r *runner) dialer(j *join, identity func() (tls.Certificate, error)) *tunnel.Agent {
	return &tunnel.Agent{
		URL: j.at("wss", tunnel.Path), TLS: j.trust(), Proxy: r.options.Proxy, Identity: identity,
		Replica: r.options.Replica, Version: r.options.Version, Timing: r.options.Timing,
	}
}

// keepTunnel starts, keeps or ends the tunnel to the hub. The tunnel runs while there is a join
// Secret and a certificate, and the cluster has not left the fleet. Another URL, authority or join
// restarts the tunnel. A renewed certificate does not.
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

// lost handles the end of a tunnel. The returned error ends the agent. It is nil if the agent
// itself ended the tunnel, or if the cluster has left the fleet, which lost records.
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

// resign gives up the Lease, so that another agent leads at once, and closes the client. Run calls
// it at its end. It works after the end of ctx, too, and takes at most 2 s. A failure is only
// logged.
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
