package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"orrery.dev/orrery/internal/process"
)

// ports are the ports that the hub chose because the options do not set them.
type ports struct {
	Secure int `json:"secure,omitempty"`
	Fleet  int `json:"fleet,omitempty"`
	Public int `json:"public,omitempty"`

	reserved []*process.Port
}

// choosePorts replaces ports that are zero by those of an earlier start, or by free ones, which
// are reserved until release.
func choosePorts(o *Options, d dataDir) (ports, error) {
	var kept ports
	text, err := os.ReadFile(d.ports())
	if err == nil {
		err = json.Unmarshal(text, &kept)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return kept, fmt.Errorf("read the ports chosen earlier, %s: %w", d.ports(), err)
	}
	if !o.external() {
		if o.SecurePort, err = kept.choose(o.SecurePort, &kept.Secure, o.BindAddress); err != nil {
			return kept, errors.Join(err, kept.release())
		}
	}
	if o.FleetPort, err = kept.choose(o.FleetPort, &kept.Fleet, o.fleetAddress()); err != nil {
		return kept, errors.Join(err, kept.release())
	}
	if o.PublicPort, err = kept.choose(o.PublicPort, &kept.Public, o.PublicAddress); err != nil {
		return kept, errors.Join(err, kept.release())
	}
	return kept, nil
}

// keep stores the chosen ports.
func (p *ports) keep(d dataDir) error {
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode ports: %w", err)
	}
	return writeFile(d.ports(), text)
}

func (p *ports) choose(given int, kept *int, address string) (int, error) {
	if given != 0 {
		return given, nil
	}
	if *kept == 0 {
		port, err := process.ReservePort(address, 0)
		if err != nil {
			return 0, fmt.Errorf("choose a port: %w", err)
		}
		*kept = port.Number
		p.reserved = append(p.reserved, port)
	}
	return *kept, nil
}

// reserveKept reserves the ports of an earlier start. It ignores a port that another process
// uses: checkPort reports whether the hub can listen there.
func (p *ports) reserveKept(o *Options) {
	for _, one := range []struct {
		used, kept int
		address    string
	}{
		{o.SecurePort, p.Secure, o.BindAddress}, {o.FleetPort, p.Fleet, o.fleetAddress()}, {o.PublicPort, p.Public, o.PublicAddress},
	} {
		if one.kept == 0 || one.used != one.kept || slices.ContainsFunc(p.reserved, func(r *process.Port) bool { return r.Number == one.kept }) {
			continue
		}
		if port, err := process.ReservePort(one.address, one.kept); err == nil {
			p.reserved = append(p.reserved, port)
		}
	}
}

func (p *ports) release() error {
	var errs []error
	for _, port := range p.reserved {
		errs = append(errs, port.Release())
	}
	p.reserved = nil
	return errors.Join(errs...)
}

// checkPort returns an error if the port cannot be listened on. It waits a few seconds for a
// server that was just killed.
func checkPort(ctx context.Context, address string, port int, flag string) error {
	const patience = 3 * time.Second
	where := net.JoinHostPort(address, strconv.Itoa(port))
	var listenErr error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var l net.Listener
		if l, listenErr = (&net.ListenConfig{}).Listen(ctx, "tcp", where); listenErr == nil {
			return true, l.Close()
		}
		if errors.Is(listenErr, syscall.EADDRINUSE) {
			return false, nil
		}
		return false, listenErr
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(listenErr, syscall.EADDRINUSE):
		return fmt.Errorf("port %d on %s is in use: stop what uses it, or choose another with %s", port, address, flag)
	default:
		return fmt.Errorf("listen on %s (--bind-address, %s): %w", where, flag, err)
	}
}

// fleetAddress returns the address of the fleet API. Only an API server on another machine
// requires that it is reachable from there.
func (o *Options) fleetAddress() string {
	if o.external() {
		return o.BindAddress
	}
	return loopbackAddress
}
