package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// The range from which ReservePort chooses free ports, and the number of its attempts. The range is
// below that which the kernel uses for outgoing connections by default. So a port that is stored in
// a file is still free at the next start.
const (
	firstPort    = 20000
	lastPort     = 32000
	portAttempts = 100
)

// Port is a TCP port that is reserved for a process that does not listen yet, or is restarted.
// socket is bound to the port, so that the kernel does not use the port for an outgoing connection.
// name is a Unix socket with the number in its name, which excludes other callers of ReservePort in
// the network namespace. The process itself can listen on the port if its socket has SO_REUSEADDR,
// which Go sets.
type Port struct {
	Number int
	socket int
	name   *net.UnixConn
}

// ReservePort reserves a TCP port of an IP address until Release, or until this process ends. It
// reserves the port with this number. For 0 it reserves a free port from 20000 to 31999. Two
// reservations never have the same number, also for different addresses. The error wraps EADDRINUSE
// if the port is reserved or in use.
func ReservePort(address string, number int) (*Port, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	if number != 0 {
		return reservePort(ip, number)
	}
	for range portAttempts {
		var p *Port
		if p, err = reservePort(ip, firstPort+rand.IntN(lastPort-firstPort)); err == nil { //nolint:gosec // not a secret
			return p, nil
		}
	}
	return nil, fmt.Errorf("find a free port: %w", err)
}

// reservePort reserves the port with this number, which is not 0.
func reservePort(ip netip.Addr, number int) (*Port, error) {
	fail := func(err error) (*Port, error) {
		return nil, fmt.Errorf("reserve port %d of %s: %w", number, ip, err)
	}
	// An abstract socket is not a file, and ends with the process.
	name, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: "@orrery-port-" + strconv.Itoa(number)})
	if err != nil {
		return fail(err)
	}
	socket, err := bindPort(ip, number)
	if err != nil {
		return fail(errors.Join(err, name.Close()))
	}
	return &Port{Number: number, socket: socket, name: name}, nil
}

// bindPort returns the file descriptor of a new socket that is bound to the port and does not
// listen. The caller closes it.
func bindPort(ip netip.Addr, number int) (int, error) {
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: number, Addr: ip.As16()})
	if ip.Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: number, Addr: ip.As4()}
	}
	socket, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make socket: %w", err)
	}
	err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(socket, address)
	}
	if err != nil {
		return 0, errors.Join(err, unix.Close(socket))
	}
	return socket, nil
}

// Release ends the reservation of the port. It must be called only once: a second call could close
// a file descriptor that has another user by then.
func (p *Port) Release() error {
	return errors.Join(unix.Close(p.socket), p.name.Close())
}
