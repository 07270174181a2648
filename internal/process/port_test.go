package process

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const loopback = "127.0.0.1"

func reserve(t *testing.T, number int) *Port {
	t.Helper()
	p, err := ReservePort(loopback, number)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Release(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestReservedPort: a reserved port cannot be reserved or used by others, with or without its
// process listening.
func TestReservedPort(t *testing.T) {
	p := reserve(t, 0)
	where := net.JoinHostPort(loopback, strconv.Itoa(p.Number))
	taken := func(when string) {
		t.Helper()
		if _, err := ReservePort(loopback, p.Number); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: it is reserved twice: %v", when, err)
		}
		if err := inAnotherProcess(t, p.Number); !strings.Contains(err, "address already in use") {
			t.Errorf("%s: another process reserves it: %s", when, err)
		}
	}
	taken("before the process listens")
	for range 2 { // the process is killed and starts again
		l, err := net.Listen("tcp", where)
		if err != nil {
			t.Fatalf("the process cannot listen: %v", err)
		}
		taken("while the process listens")
		// A connection that the server closes first leaves the port in TIME_WAIT.
		client, err := net.Dial("tcp", where)
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(server.Close(), client.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
		taken("after the process was killed")
	}
}

// TestPortsAreReservedOnce: concurrent callers get different ports, and none that is in use.
func TestPortsAreReservedOnce(t *testing.T) {
	const each = 100
	var mu sync.Mutex
	drawn := map[int]int{}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range each {
				p, err := ReservePort(loopback, 0)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				drawn[p.Number]++
				mu.Unlock()
				t.Cleanup(func() { _ = p.Release() })
			}
		})
	}
	all.Wait()
	if len(drawn) != 4*each {
		t.Errorf("%d ports are different, of %d", len(drawn), 4*each)
	}
	for number := range drawn {
		if number >= 32768 {
			t.Errorf("outgoing connections use port %d", number)
		}
	}
}

// TestPortIsReleased: a stored port can be reserved again after the end of the process that
// listened there, or that reserved it. A port in use by another process cannot.
func TestPortIsReleased(t *testing.T) {
	p, err := ReservePort(loopback, 0)
	if err != nil {
		t.Fatal(err)
	}
	number := p.Number
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	if said := inAnotherProcess(t, number); said != "" {
		t.Fatal(said)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(number)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReservePort(loopback, number); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("somebody listens on it, and it is reserved: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	reserve(t, number)
}

// inAnotherProcess reserves a port in a process that then ends, and returns the output of the
// process.
func inAnotherProcess(t *testing.T, number int) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+roleReserve, argVariable+"="+strconv.Itoa(number))
	said, _ := cmd.CombinedOutput()
	return string(said)
}

// TestReservedPortIsNoConnections: the kernel gives a reserved port to no outgoing connection, even
// in the range of ports for these.
func TestReservedPortIsNoConnections(t *testing.T) {
	l, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	server := &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	// connect can choose from one port only. The socket is closed when the test ends.
	connect := func(from int) error {
		const ipLocalPortRange = 51 // IP_LOCAL_PORT_RANGE of linux/in.h
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(socket) })
		if err := unix.SetsockoptInt(socket, unix.SOL_IP, ipLocalPortRange, from<<16|from); errors.Is(err, unix.ENOPROTOOPT) {
			t.Skip("Linux before 6.3 cannot limit the ports of one connection")
		} else if err != nil {
			t.Fatal(err)
		}
		return unix.Connect(socket, server)
	}
	var p *Port
	for number := 40000; p == nil; number++ {
		if p, err = ReservePort(loopback, number); err != nil && !errors.Is(err, unix.EADDRINUSE) {
			t.Fatal(err)
		}
	}
	if err := connect(p.Number); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("an outgoing connection takes port %d: %v", p.Number, err)
	}
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	if err := connect(p.Number); err != nil {
		t.Errorf("connect from port %d, which is not reserved any more: %v", p.Number, err)
	}
}
