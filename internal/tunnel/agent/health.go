package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	// lately is the age up to which the hub's last answer counts for readiness. In that time the agent
	// sends several probes.
	lately = 10 * time.Second
	// stuck is how long one iteration of runner.loop may take. Several requests to the cluster may
	// time out in one iteration.
	stuck = 2 * time.Minute
)

// ready returns an error, for /readyz, if the hub cannot use the agent now. Either the agent has no
// certificate or no tunnel, or the hub has not answered for longer than lately. Several goroutines
// may call it.
func (r *runner) ready(now time.Time) error {
	switch a, s := r.current.Load(), r.state.Load(); {
	case a == nil && (s == nil || s.certificate == nil):
		return errors.New("the agent is not enrolled with the hub yet")
	case a == nil:
		return errors.New("the agent keeps no tunnel to the hub")
	case a.Answered().IsZero():
		return errors.New("the hub was not reached yet")
	case now.Sub(a.Answered()) > lately:
		return fmt.Errorf("the hub has not answered since %s", a.Answered().UTC().Format(time.RFC3339))
	}
	return nil
}

// live returns an error, for /healthz, if the agent should be restarted, because one iteration of
// runner.loop takes longer than stuck. Several goroutines may call it.
func (r *runner) live(now time.Time) error {
	if at := time.Unix(0, r.reconciled.Load()); now.Sub(at) > stuck {
		return fmt.Errorf("the agent has been stuck since %s", at.UTC().Format(time.RFC3339))
	}
	return nil
}

// serveHealth serves /healthz and /readyz at o.HealthAddress in the background until ctx ends. It
// returns an error if it cannot listen.
func (r *runner) serveHealth(ctx context.Context) error {
	r.reconciled.Store(time.Now().UnixNano())
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", r.options.HealthAddress)
	if err != nil {
		return fmt.Errorf("listen at --health-address: %w", err)
	}
	mux := http.NewServeMux()
	for path, check := range map[string]func(time.Time) error{"/healthz": r.live, "/readyz": r.ready} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if err := check(time.Now()); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write([]byte("ok\n")) // the client may be gone
		})
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxHeaderBytes: 4 << 10}
	r.parts.Go(func() { _ = server.Serve(listener) }) // it ends with ctx
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}
