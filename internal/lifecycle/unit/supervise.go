package unit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/process"
)

const (
	// logLimit is where the supervisor's own log is rotated; those of units are by their process supervisor.
	logLimit         = 4 << 20
	logCheckInterval = time.Minute
)

// Supervise is the supervisor behind NewSupervisor: it keeps the units that are installed below root running until none is
// left, or ctx ends. It returns nil at once where another one runs. Its log is that of ctx.
func Supervise(ctx context.Context, root string) (err error) {
	d := &daemon{layout: newLayout(root), log: logr.FromContextOrDiscard(ctx), keepers: map[string]*keeper{}, empty: make(chan struct{})}
	unlock, err := lock(d.lock())
	if errors.Is(err, errLocked) {
		return nil
	} else if err != nil {
		return fmt.Errorf("supervise units: %w", err)
	}
	defer unlock()
	run, err := os.Open(d.run)
	if err != nil {
		return fmt.Errorf("supervise units: %w", err)
	}
	defer run.Close()                                                       //nolint:errcheck // only names a directory
	if err := remove(filepath.Join(d.run, "supervisor.sock")); err != nil { // of one that was killed
		return fmt.Errorf("supervise units: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket(run))
	if err != nil {
		return fmt.Errorf("supervise units: %w", err)
	}
	// Requests wait until the units are started. Nobody but root can connect before the mode is set either, for that
	// takes the permission to write.
	if err := errors.Join(os.Chmod(socket(run), 0o600), d.startAll(ctx)); err != nil {
		return errors.Join(fmt.Errorf("supervise units: %w", err), listener.Close(), d.stopAll())
	}
	if len(d.keepers) == 0 {
		close(d.empty)
	}
	server := &http.Server{Handler: d.handler(), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	tick := time.NewTicker(logCheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := process.RotateLog(d.layout.log(), logLimit); err != nil {
				d.log.Error(err, "Log not rotated")
			}
			continue
		case err = <-served:
			err = fmt.Errorf("supervise units: %w", err)
		case <-d.empty:
		case <-ctx.Done():
		}
		break
	}
	// Requests that are being served are answered. The listener removes the socket.
	err = errors.Join(err, server.Shutdown(context.WithoutCancel(ctx)), d.stopAll())
	if len(d.keepers) == 0 {
		err = errors.Join(err, remove(d.layout.log()), remove(d.layout.log()+".1"))
	}
	return err
}

// daemon is the supervisor.
type daemon struct {
	layout
	log logr.Logger

	change sync.Mutex    // one change at a time
	empty  chan struct{} // closed when the last unit was removed; then nothing changes any more

	mu      sync.Mutex // guards the following
	keepers map[string]*keeper
}

// handler of the requests of the managers.
func (d *daemon) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /units", func(w http.ResponseWriter, r *http.Request) {
		d.answer(w, d.status(r.URL.Query()["name"]))
	})
	changing := func(change func(r *http.Request, name string) (answer any, err error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			d.change.Lock()
			defer d.change.Unlock()
			select {
			case <-d.empty:
				http.Error(w, "the supervisor ends", http.StatusServiceUnavailable)
				return
			default:
			}
			answer, err := change(r, r.PathValue("name"))
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			d.answer(w, answer)
		}
	}
	mux.HandleFunc("POST /units/{name}/restart", changing(d.restart))
	mux.HandleFunc("POST /units/{name}/reload", changing(d.reload))
	mux.HandleFunc("DELETE /units/{name}", changing(d.remove))
	return mux
}

func (d *daemon) answer(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		d.log.Error(err, "Request not answered")
	}
}

func (d *daemon) keeper(name string) *keeper {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.keepers[name]
}

// set makes k the keeper of the unit; nil is none.
func (d *daemon) set(name string, k *keeper) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k == nil {
		delete(d.keepers, name)
	} else {
		d.keepers[name] = k
	}
}

func (d *daemon) status(names []string) map[string]Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[string]Status{}
	for _, name := range names {
		if k := d.keepers[name]; k != nil {
			all[name] = k.status()
		} else {
			all[name] = Status{Detail: "never started"}
		}
	}
	return all
}

func (d *daemon) restart(r *http.Request, name string) (any, error) {
	k := d.keeper(name)
	if k != nil && r.URL.Query().Get(startedParameter) == strconv.Itoa(os.Getpid()) {
		return nil, k.started(r.Context()) // it was started for this request, with all the others
	}
	u, err := d.read(name)
	if err != nil {
		return nil, err
	}
	if k != nil {
		if err := k.stop(); err != nil {
			return nil, err
		}
	}
	if k, err = keep(r.Context(), u, d.unit(name), d.log); err != nil {
		return nil, err
	}
	d.set(name, k)
	return nil, k.started(r.Context())
}

func (d *daemon) reload(_ *http.Request, name string) (any, error) {
	k := d.keeper(name)
	if k == nil {
		return nil, errors.New("it was never started")
	}
	return nil, k.signal(syscall.SIGHUP)
}

func (d *daemon) remove(_ *http.Request, name string) (any, error) {
	if k := d.keeper(name); k != nil {
		if err := k.stop(); err != nil {
			return nil, err
		}
	}
	if err := process.Clean(d.unit(name)); err != nil {
		return nil, err
	}
	d.set(name, nil)
	if len(d.keepers) > 0 {
		return removed{}, nil
	}
	close(d.empty)
	return removed{Last: true}, nil
}

// startAll starts all units that are installed, in their order. One whose definition is damaged is left alone: installing
// it again repairs it, and the others must run.
func (d *daemon) startAll(ctx context.Context) error {
	paths, err := filepath.Glob(d.definition("*"))
	if err != nil {
		return err
	}
	var units []plan.Unit
	for _, path := range paths {
		u, err := d.read(strings.TrimSuffix(filepath.Base(path), ".json"))
		if err != nil {
			d.log.Error(err, "Unit not started")
			continue
		}
		units = append(units, u)
	}
	for _, u := range inOrder(units) {
		k, err := keep(ctx, u, d.unit(u.Name), d.log)
		if err != nil {
			return err
		}
		d.set(u.Name, k)
	}
	return nil
}

// stopAll stops all units, those first that are started last.
func (d *daemon) stopAll() error {
	var units []plan.Unit
	for _, k := range d.keepers {
		units = append(units, k.unit)
	}
	var errs []error
	for _, u := range slices.Backward(inOrder(units)) {
		errs = append(errs, d.keepers[u.Name].stop())
	}
	return errors.Join(errs...)
}

// inOrder returns the units, each behind those that it comes after.
func inOrder(units []plan.Unit) []plan.Unit {
	byName := make(map[string]plan.Unit, len(units))
	for _, u := range units {
		byName[u.Name] = u
	}
	depths := map[string]int{}
	var depth func(name string) int
	depth = func(name string) int {
		if _, ok := depths[name]; !ok {
			depths[name] = 0 // ends a cycle
			for _, before := range byName[name].After {
				depths[name] = max(depths[name], depth(before)+1)
			}
		}
		return depths[name]
	}
	return slices.SortedFunc(slices.Values(units), func(a, b plan.Unit) int {
		return cmp.Or(cmp.Compare(depth(a.Name), depth(b.Name)), strings.Compare(a.Name, b.Name))
	})
}
