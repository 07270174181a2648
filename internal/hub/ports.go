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

// ports are the ports that the hub chose itself because the options do not set them; 0: not chosen.
// They are stored in the data directory. reserved are those that no other process can get until
// release.
type ports struct {
	Secure int `json:"secure,omitempty"`
	Fleet  int `json:"fleet,omitempty"`
	Public int `json:"public,omitempty"`

	reserved []*process.Port
}

// choosePorts sets the ports in o that are zero. It uses the ports that an earlier start has
// stored, which it does not reserve, or else free ports, which are reserved until release. It
// writes nothing; keep stores the result. After an error no port is reserved.
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

// keep stores the ports that the hub has chosen in the data directory, so that the next start uses
// them again.
func (p *ports) keep(d dataDir) error {
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode ports: %w", err)
	}
	return writeFile(d.ports(), text)
}

// choose returns the port given by an option, if that is not 0. Otherwise it returns the port in
// kept from an earlier start. If that is 0, too, it reserves a free port at the address, and sets
// kept.
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

// reserveKept reserves the ports of an earlier start that o still uses. It ignores a port that
// another process uses, because checkPort reports that.
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

// release ends the reservations of all ports. A second call does nothing.
func (p *ports) release() error {
	var errs []error
	for _, port := range p.reserved {
		errs = append(errs, port.Release())
	}
	p.reserved = nil
	return errors.Join(errs...)
}

// checkPort returns an error if this process cannot listen on the port. While the port is in use,
// it waits up to three seconds, because a server that was just killed may still use it. A
// reservation of the port (ports.reserved) does not matter. flag is the name of the flag that sets
// the port, for the error.
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
		return fmt.Errorf("listen on %s (see --bind-address and %s): %w", where, flag, err)
	}
}

// fleetAddress returns the IP address on which the fleet API listens. It is the loopback address if
// the API server runs on this machine, else BindAddress.
func (o *Options) fleetAddress() string {
	if o.external() {
		return o.BindAddress
	}
	return loopbackAddress
}
