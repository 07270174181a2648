package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// ports that were chosen because the options left it to us.
type ports struct {
	Secure int `json:"secure,omitempty"`
	Fleet  int `json:"fleet,omitempty"`
	Public int `json:"public,omitempty"`
}

// choosePorts replaces ports that are zero by those chosen earlier, or by free ones.
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
		if o.SecurePort, err = choosePort(o.SecurePort, &kept.Secure, o.BindAddress); err != nil {
			return kept, err
		}
	}
	if o.FleetPort, err = choosePort(o.FleetPort, &kept.Fleet, o.fleetAddress()); err != nil {
		return kept, err
	}
	o.PublicPort, err = choosePort(o.PublicPort, &kept.Public, o.PublicAddress)
	return kept, err
}

// keep stores what was chosen.
func (p ports) keep(d dataDir) error {
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode ports: %w", err)
	}
	return writeFile(d.ports(), text)
}

func choosePort(given int, kept *int, address string) (int, error) {
	if given != 0 {
		return given, nil
	}
	if *kept == 0 {
		port, err := freePort(address)
		if err != nil {
			return 0, err
		}
		*kept = port
	}
	return *kept, nil
}

// freePort looks below the range that the kernel takes ports of outgoing connections
// from: there it would not stay free until the next start.
func freePort(address string) (int, error) {
	const first, last, attempts = 20000, 32000, 100
	var err error
	for range attempts {
		port := first + rand.IntN(last-first) //nolint:gosec // not a secret
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port))); err == nil { //nolint:noctx // returns at once
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port on %s: %w", address, err)
}

// checkPort makes sure that the port can be listened on. It waits a moment for a server
// that was killed just now.
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

// fleetAddress is where the fleet API listens: only an API server elsewhere needs it to
// be reachable from elsewhere.
func (o *Options) fleetAddress() string {
	if o.external() {
		return o.BindAddress
	}
	return loopbackAddress
}
